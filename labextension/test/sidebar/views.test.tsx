import { act, type ComponentType } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { DEFAULTS } from '../../src/settings';
import { Runs } from '../../src/sidebar/runs';
import { Notices } from '../../src/sidebar/notices';
import { initialValues, StartFields, startRequest } from '../../src/sidebar/start-fields';
import type { SectionStore } from '../../src/sidebar/store';
import { Sweeps } from '../../src/sidebar/sweeps';
import { Tasks } from '../../src/sidebar/tasks';
import { ABOUT, CLUSTER, GPU, fakePanel, RUN, SWEEP, TASK, trans } from './items';

vi.mock('@jupyterlab/ui-components', async () => (await import('./icons')).fakeComponents());

let place: HTMLElement;
let root: Root;

beforeEach(() => {
  (globalThis as Record<string, unknown>)['IS_REACT_ACT_ENVIRONMENT'] = true;
  place = document.body.appendChild(document.createElement('div'));
  root = createRoot(place);
});

afterEach(() => {
  act(() => root.unmount());
  place.remove();
});

const show = (View: ComponentType<{ store: SectionStore }>, store: SectionStore): void => act(() => root.render(<View store={store} />));
const all = (selector: string): HTMLElement[] => [...place.querySelectorAll<HTMLElement>(selector)];

describe('the tasks', () => {
  const seen = { clusters: [CLUSTER], cluster: 'a' };

  it('are a table with the columns that any of them needs', () => {
    const { store } = fakePanel({ ...seen, tasks: [TASK, { ...TASK, rank: 1, index: 1, straggler: 1.4 }] });
    show(Tasks, store);
    expect(all('[role="columnheader"]').map(node => node.textContent)).toEqual(
      ['Task', 'State', '/s', 'CPU', 'Mem', 'Step', 'Host', 'PID', 'Device', 'Restart']
    );
    expect(all('[data-row="1"]')[0]!.textContent).toContain('1.4× slower');
    expect(all('[data-row="1"]')[0]!.textContent).toContain('running');
  });

  it('are grouped by host below its figures, in place of a column of hosts', () => {
    const machine = { cpu: 37, memory: 2 ** 30, total: 2 ** 33 };
    const hosts = [
      { name: 'a', address: '10.0.0.1', cores: 8, gpus: 2, state: 'up' as const, tasks: 2, machine },
      { name: 'b', address: null, cores: null, gpus: null, state: 'lost' as const, tasks: 1, machine: null }
    ];
    const tasks = ['a', 'b', 'a'].map((host, rank) => ({ ...TASK, host, rank, index: rank }));
    const { store, feed } = fakePanel({ ...seen, clusters: [{ ...CLUSTER, hosts }], tasks });
    show(Tasks, store);
    expect(all('[role="row"]').slice(1).map(row => row.dataset['row'] ?? row.textContent)).toEqual(
      ['a8 cores · 2 GPUsCPU 37%Memory 1 GB / 8 GB', '0', '2', 'blost', '1']
    );
    expect(all('.nbd-Task-host')).toEqual([]);
    const one = tasks.map(task => ({ ...task, host: 'a' }));
    act(() => feed.tell({ tasks: one }));
    expect(all('.nbd-Tasks-host').length).toBe(1);
    act(() => feed.tell({ tasks: one, clusters: [CLUSTER] }));
    expect(all('.nbd-Tasks-host')).toEqual([]);
    expect(all('.nbd-Task-host').length).toBe(4);
  });

  it('have the figures of their GPU on a line of its own', () => {
    const slice = { ...GPU, use: null, power: null, temperature: null, history: [] };
    const { store } = fakePanel({ ...seen, tasks: [{ ...TASK, gpu: GPU }, { ...TASK, rank: 1, gpu: slice }, { ...TASK, rank: 2 }] });
    show(Tasks, store);
    const [whole, mig, ...none] = all('.nbd-Task-gpu');
    expect([...whole!.children].slice(2).map(node => node.textContent)).toEqual(['40%', '1 GB / 8 GB', '610 W', '67 °C']);
    expect(whole!.querySelector('svg')?.getAttribute('aria-label')).toBe('GPU use in percent 40, rising');
    expect(mig!.textContent).toBe('GPU1 GB / 8 GB');
    expect(none).toEqual([]);
  });

  it('say how a dead one died, and restart it', async () => {
    const { store, commands } = fakePanel({
      ...seen, tasks: [{ ...TASK, state: 'dead', note: 'ended by signal 9', cpu: null }]
    });
    const restart = vi.fn();
    commands.addCommand('nbdist:restart-task', { execute: args => restart(args) });
    show(Tasks, store);
    expect(all('.nbd-Task')[0]!.title).toContain('ended by signal 9');
    expect(all('.nbd-Task-more')[0]!.textContent).toContain('ended by signal 9');
    await act(async () => all('[data-action="restart"]')[0]!.click());
    expect(restart).toHaveBeenCalledWith({ id: 'a', task: 'worker:0', quiet: true });
  });

  it('draw only the row that has changed', () => {
    let drawn = 0;
    const counted = Object.defineProperty({ ...TASK }, 'name', { get: () => ((drawn += 1), TASK.name) });
    const other = { ...TASK, rank: 1, index: 1 };
    const { store, feed } = fakePanel({ ...seen, tasks: [counted, other] });
    show(Tasks, store);
    expect(drawn).toBe(1);
    act(() => feed.tell({ tasks: [counted, { ...other, step: 41 }] }));
    expect(all('[data-row="1"] .nbd-Task-step')[0]!.textContent).toBe('41');
    expect(drawn).toBe(1);
  });

  it('are not drawn while their section is not seen', () => {
    const { store, feed } = fakePanel({ ...seen, tasks: [TASK] });
    show(Tasks, store);
    act(() => store.setVisible(false));
    act(() => feed.tell({ tasks: [{ ...TASK, step: 77 }] }));
    expect(all('.nbd-Task .nbd-Task-step')[0]!.textContent).toBe('40');
    act(() => store.setVisible(true));
    expect(all('.nbd-Task .nbd-Task-step')[0]!.textContent).toBe('77');
  });
});

describe('the runs', () => {
  it('show how far they are, and their curve in words', () => {
    const { store } = fakePanel({ runs: [RUN] });
    show(Runs, store);
    const bar = all('[role="progressbar"]')[0]!;
    expect(bar.getAttribute('aria-valuenow')).toBe('40');
    expect(bar.getAttribute('aria-valuetext')).toContain('12 s left');
    expect(all('[role="img"]')[0]!.getAttribute('aria-label')).toBe('loss 0.125, falling');
  });

  it('leave out plain cells that have ended, until they are asked for', () => {
    const print = { ...RUN, id: 'p', name: 'print', training: false, status: 'finished' as const };
    const going = { ...RUN, id: 'g', name: 'going', training: false };
    const { store } = fakePanel({ runs: [RUN, print, going] });
    show(Runs, store);
    const names = (): (string | null)[] => all('.nbd-Row-name').map(node => node.textContent);
    expect(names()).toEqual(['digits', 'going']);
    expect(all('.nbd-Plain')[0]!.textContent).toBe('Show 1 plain cell');
    act(() => all('.nbd-Plain input')[0]!.click());
    expect(names()).toEqual(['digits', 'going', 'print']);
  });

  it('are drawn 50 at a time, and filtered by what is typed', () => {
    const runs = Array.from({ length: 120 }, (_, number) => ({
      ...RUN, id: `r${number}`, name: `run ${number}`, status: 'finished' as const
    }));
    const { store } = fakePanel({ runs });
    show(Runs, store);
    expect(all('.nbd-Row').length).toBe(50);
    act(() => all('.nbd-More')[0]!.click());
    expect(all('.nbd-Row').length).toBe(100);
    type(all('input')[0] as HTMLInputElement, 'run 11');
    expect(all('.nbd-Row').length).toBe(11);
    type(all('input')[0] as HTMLInputElement, 'nothing like it');
    expect(place.textContent).toContain('nothing like it');
  });

  it('say why TensorBoard cannot be opened', async () => {
    const { store, model } = fakePanel({ runs: [RUN] });
    const about = { ...ABOUT, tensorboard: 'TensorBoard is not installed' };
    (model.nbdist.client as unknown as { about: () => Promise<unknown> }).about = () => Promise.resolve(about);
    show(Runs, store);
    await act(() => model.loadAbout());
    expect(all('[data-action="tensorboard"]')[0]!.title).toContain('TensorBoard is not installed');
  });
});

describe('the sweeps', () => {
  it('show their trials, the best so far and what it was tried with', () => {
    const { store } = fakePanel({ sweeps: [SWEEP] });
    show(Sweeps, store);
    expect(place.textContent).toContain('12 of 20 trials');
    expect(place.textContent).toContain('best accuracy 0.98 (trial 7)');
    expect(place.textContent).toContain('rate 0.01, kind adam');
    expect(all('[role="progressbar"]')[0]!.getAttribute('aria-valuenow')).toBe('60');
  });
});

describe('what stands above', () => {
  it('says that the server cannot be reached, and what it could not read', () => {
    const { store, feed } = fakePanel();
    show(Notices, store);
    expect(place.textContent).toBe('');
    feed.connection = 'offline';
    feed.error = '404 Not Found';
    feed.reachable = false;
    act(() => feed.tell({ problems: ['12 more runs are not listed'] }));
    expect(place.textContent).toContain('The server cannot be reached, trying again.');
    expect(place.textContent).toContain('12 more runs are not listed');
    feed.reachable = true;
    act(() => feed.tell({}));
    expect(place.textContent).toContain('answers with an error, trying again: 404 Not Found');
  });
});

describe('the form', () => {
  it('keeps what was typed beside what the server refuses', () => {
    const values = { ...initialValues(ABOUT, DEFAULTS), workers: '90' };
    act(() =>
      root.render(
        <StartFields first={values} about={ABOUT} busy={false} trouble="no room" trans={trans} onChange={() => undefined} />
      )
    );
    expect(all('[role="alert"]')[0]!.textContent).toBe('no room');
    expect((all('#nbd-start-workers')[0] as HTMLInputElement).value).toBe('90');
    expect(all('#nbd-start-gpus').length).toBe(0);
    expect(place.textContent).toContain('There is no GPU');
  });

  it('shows the settings of the chosen launcher, and no GPUs of this machine for other hosts', () => {
    const onChange = vi.fn();
    act(() =>
      root.render(
        <StartFields first={initialValues(ABOUT, DEFAULTS)} about={ABOUT} busy={false} trouble={null} trans={trans} onChange={onChange} />
      )
    );
    expect(all('.nbd-StartForm-settings')).toEqual([]);
    const launcher = all('#nbd-start-launcher')[0] as HTMLSelectElement;
    act(() => {
      launcher.value = 'ssh';
      launcher.dispatchEvent(new Event('change', { bubbles: true }));
    });
    expect(all('.nbd-StartForm-settings label').map(node => node.textContent)).toEqual(['Hosts', 'Python path', 'Sync env']);
    const hosts = all('#nbd-start-setting-hosts')[0] as HTMLInputElement;
    expect(hosts.placeholder).toBe('A:2,B:2|FILE');
    expect(all('#nbd-start-setting-hosts-help')[0]!.textContent).toBe('the hosts');
    type(hosts, 'a:2,b:2');
    expect(onChange.mock.lastCall![0]).toMatchObject({ launcher: 'ssh', workers: '', settings: { hosts: 'a:2,b:2' } });
    const sync = all('#nbd-start-setting-sync_env')[0] as HTMLInputElement;
    expect([sync.type, sync.checked]).toEqual(['checkbox', false]);
    act(() => sync.click());
    expect(sync.checked).toBe(true);
    expect(startRequest(onChange.mock.lastCall![0], ABOUT).settings).toEqual({ hosts: 'a:2,b:2', sync_env: true });
    act(() => sync.click());
    expect(startRequest(onChange.mock.lastCall![0], ABOUT).settings).toEqual({ hosts: 'a:2,b:2' });
    expect(all('#nbd-start-gpus option').map(node => node.textContent)).toEqual(['as nbdist decides', 'none']);
    expect(place.textContent).not.toContain('There is no GPU');
  });

  it('has each letter in its field at once, however fast they come', () => {
    const [onChange, values] = [vi.fn(), { ...initialValues(ABOUT, DEFAULTS), memory: '2' }];
    act(() =>
      root.render(<StartFields first={values} about={ABOUT} busy={false} trouble={null} trans={trans} onChange={onChange} />)
    );
    const memory = all('#nbd-start-memory')[0] as HTMLInputElement;
    act(() => {
      type(memory, '1');
      expect(memory.value).toBe('1'); // or the next letter would be added to what stood there before
      type(memory, `${memory.value}G`);
    });
    expect(memory.value).toBe('1G');
    expect(onChange.mock.lastCall![0]).toEqual({ ...values, memory: '1G' });
  });
});

function type(input: HTMLInputElement, text: string): void {
  act(() => {
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value')!.set!.call(input, text);
    input.dispatchEvent(new Event('input', { bubbles: true }));
  });
}
