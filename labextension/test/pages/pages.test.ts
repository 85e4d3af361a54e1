import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';
import { ApiError } from '../../src/api/client';
import { EMPTY_STATE, type Run, type RunDetails, type State, type Sweep } from '../../src/api/items';
import { Throttler } from '../../src/pages/page';
import { RunPage, mergeProgress } from '../../src/pages/run-page';
import { SweepPage } from '../../src/pages/sweep-page';
import { readRun } from '../../src/render/run-bundle';
import type { INbdist } from '../../src/token';
import sweepData from '../render/sweep.json';

const HOSTILE = '<img src=x onerror=alert(1)>';
const DATA = {
  version: 1,
  run: 'r1',
  title: 'digits',
  state: 'running',
  tasks: ['/job:worker/task:0'],
  step: 3,
  metrics: { loss: 0.5 },
  charts: [{ title: 'loss', train: 'loss', validation: null }],
  series: [{ name: 'loss', replica: 'mean', kind: 'trend', steps: '0 3', values: '1 0.5' }]
};
const RUN = {
  id: 'r1', name: 'digits', status: 'running', created: 1000, ended: null, paused: 0, cluster: 'c', strategy: 'ps', replicas: 1,
  step: 4, total: 10, seconds_left: 6, steps_per_second: 2, learning_rate: 0.01, metric: 'loss', value: 0.5, curve: { x: [], y: [] },
  error: null, error_line: null, tags: [], remark: null, training: true, bytes: null, note: null, session: 'a.ipynb', folder: '/home/runs/r1', browse: null, resumed_from: null, tensorboard: false,
  attach: "import nbdist as nb\nnb.attach('r1')", can: { stop: true }, why: {}, code: `print("${HOSTILE}")`, seed: 1,
  versions: { numpy: '2' }, options: { sync: true }, tasks: ['/job:worker/task:0'],
  first_line: '%%distribute --sync', output: [{ task: '/job:worker/task:0', text: `hello ${HOSTILE}` }],
  displays: [],
  files: [{ path: 'events/a b.log', bytes: 2048, modified: 1000 }]
} as RunDetails; // prettier-ignore

/** The Jupyter server's side, as the test has it. */
class Server {
  state: State = EMPTY_STATE;
  connection = 'live';
  details: RunDetails = RUN;
  data: unknown = DATA;
  error: Error | null = null;
  asked = 0;
  charts: string[][] = [];
  unknown: string[] = [];
  shown = 0;
  readonly changed = new Signal<this, void>(this);

  addView(): { isDisposed: boolean; dispose(): void } {
    this.shown += 1;
    return { isDisposed: false, dispose: () => void (this.shown -= 1) };
  }

  tell(run: Partial<Run> | null): void {
    this.state = { ...EMPTY_STATE, runs: run ? [{ ...RUN, ...run }] : [] };
    this.changed.emit();
  }

  refuse(charts: string[]): void {
    const [missing] = charts.filter(title => this.unknown.includes(title));
    if (missing) {
      throw new ApiError(400, `no series is called '${missing}'`);
    }
  }

  get nbdist(): INbdist {
    const answer = async <One>(one: () => One): Promise<One> => {
      if (this.error) {
        throw this.error;
      }
      return one();
    };
    const client = {
      about: () => answer(() => ({ tensorboard: null })),
      run: () => answer(() => ((this.asked += 1), this.details)),
      runData: (_: string, charts: string[]) => answer(() => (this.charts.push(charts), this.refuse(charts), this.data)),
      sweep: () => answer(() => ({ id: 's', name: 'mnist', state: 'running', can: {}, why: {}, attach: '' })),
      sweepData: () => answer(() => this.data),
      fileUrl: (id: string, path: string) => `/files/${id}/${encodeURI(path)}`
    };
    return { client, feed: this, trans: nullTranslator.load('nbdist') } as unknown as INbdist;
  }
}

let server: Server;
let done: unknown[] = [];
const commands = new CommandRegistry();
for (const name of ['nbdist:stop-run', 'nbdist:insert-attach', 'nbdist:control-run', 'nbdist:set-learning-rate']) {
  commands.addCommand(name, { execute: args => void done.push([name, args]) });
}
const open: Widget[] = [];

async function opened<One extends Widget>(page: One): Promise<One> {
  open.push(page);
  Widget.attach(page, document.body);
  await vi.advanceTimersByTimeAsync(10);
  await vi.dynamicImportSettled();
  await vi.advanceTimersByTimeAsync(20);
  return page;
}

const runPage = (): Promise<RunPage> => opened(new RunPage('r1', server.nbdist, commands));
const button = (page: Widget, text: string): HTMLElement | undefined =>
  [...page.node.querySelectorAll('button')].find(one => one.textContent === text);

beforeEach(() => {
  sessionStorage.clear();
  vi.useFakeTimers();
  vi.stubGlobal('IntersectionObserver', class { observe() {} disconnect() {} }); // prettier-ignore
  server = new Server();
  done = [];
});

afterEach(() => {
  open.splice(0).forEach(one => one.dispose());
  vi.useRealTimers();
});

describe('the page of a run', () => {
  it('shows what the server says of it, as text', async () => {
    const { node, title } = await runPage();
    expect(title.label).toBe('digits');
    expect(node.querySelector('.nbd-chip')?.textContent).toContain('running');
    expect(node.querySelector('.nbd-facts')?.textContent).toContain('4 / 10');
    expect(node.querySelectorAll('figure.nbd-chart')).toHaveLength(1);
    expect(node.querySelectorAll('img')).toHaveLength(0);
    expect(node.textContent).toContain(HOSTILE);
    const link = node.querySelector('a');
    expect([link?.getAttribute('href'), link?.download]).toEqual(['/files/r1/events/a%20b.log', 'a b.log']);
    const shown = [...node.querySelectorAll('.nbd-Page-section[open] pre')].map(pre => pre.textContent);
    expect(shown).toEqual([`hello ${HOSTILE}`, `%%distribute --sync\n${RUN.code}`]);
  });

  it('asks again when its item is another, at most every two seconds', async () => {
    const page = await runPage();
    expect(server.asked).toBe(1);
    for (let step = 5; step < 9; step++) {
      server.tell({ step });
      await vi.advanceTimersByTimeAsync(100);
    }
    expect(server.asked).toBe(1);
    await vi.advanceTimersByTimeAsync(2000);
    expect(server.asked).toBe(2);
    await vi.advanceTimersByTimeAsync(10000);
    expect(server.asked).toBe(2); // nothing has changed
    server.details = { ...RUN, step: 10, status: 'finished', ended: 1010 };
    server.tell({ step: 10, status: 'finished' });
    await vi.advanceTimersByTimeAsync(2000);
    expect(page.node.querySelector('.nbd-chip')?.textContent).toContain('finished');
  });

  it('keeps what is unfolded and how it is drawn', async () => {
    const page = await runPage();
    const log = button(page, 'Log scale')!;
    log.click();
    page.node.querySelector<HTMLDetailsElement>('.nbd-data')!.open = true;
    const chart = page.node.querySelector('figure');
    server.data = { ...DATA, step: 9 };
    server.tell({ step: 9 });
    await vi.advanceTimersByTimeAsync(3000);
    expect(server.asked).toBe(2);
    expect(log.getAttribute('aria-pressed')).toBe('true');
    expect(page.node.querySelector('figure')).toBe(chart);
    expect(page.node.querySelector<HTMLDetailsElement>('.nbd-data')!.open).toBe(true);
  });

  it('asks for nothing while it is hidden, and for what it missed when it is back', async () => {
    const page = await runPage();
    expect(server.shown).toBe(1);
    page.hide();
    expect(server.shown).toBe(0);
    server.tell({ step: 7 });
    await vi.advanceTimersByTimeAsync(5000);
    expect(server.asked).toBe(1);
    page.show();
    await vi.advanceTimersByTimeAsync(10);
    expect([server.asked, server.shown]).toEqual([2, 1]);
  });

  it('says so if the run has vanished, and keeps what was drawn', async () => {
    const page = await runPage();
    server.error = new ApiError(404, 'no such run');
    server.tell(null);
    server.tell({ step: 5 });
    await vi.advanceTimersByTimeAsync(3000);
    const said = page.node.querySelector<HTMLElement>('[role=status].nbd-Bundle-trouble')!;
    expect(said.hidden).toBe(false);
    expect(said.textContent).toContain('There is no run r1');
    expect(page.node.querySelectorAll('figure')).toHaveLength(1);
    expect(button(page, 'Stop the run')).toBeUndefined();
  });

  it('asks again once the server can be reached again', async () => {
    server.error = new ApiError(0, 'The Jupyter server cannot be reached');
    const page = await runPage();
    const said = page.node.querySelector<HTMLElement>('[role=status].nbd-Bundle-trouble')!;
    expect(said.textContent).toContain('cannot be reached');
    server.error = null;
    server.changed.emit();
    await vi.advanceTimersByTimeAsync(3000);
    await vi.dynamicImportSettled();
    await vi.advanceTimersByTimeAsync(20);
    expect(said.hidden).toBe(true);
    expect(page.node.querySelectorAll('figure')).toHaveLength(1);
  });

  it('says if the data are newer than itself, and does not ask again for them', async () => {
    server.data = { ...DATA, version: 3 };
    const page = await runPage();
    expect(page.node.querySelector('[role=status].nbd-Bundle-trouble')?.textContent).toContain('version 3');
    server.changed.emit();
    await vi.advanceTimersByTimeAsync(5000);
    expect(server.asked).toBe(1);
  });

  it('offers what can be done, by the commands that there are', async () => {
    const page = await runPage();
    button(page, 'Stop the run')!.click();
    expect(done).toEqual([['nbdist:stop-run', { id: 'r1' }]]);
    expect(button(page, 'Open TensorBoard')).toBeUndefined(); // no such command here
    server.details = { ...RUN, can: { stop: false }, why: { stop: 'it is stopping' } };
    server.tell({ step: 6 });
    await vi.advanceTimersByTimeAsync(3000);
    const stop = button(page, 'Stop the run')!;
    expect([stop.getAttribute('aria-disabled'), stop.title]).toEqual(['true', 'it is stopping']);
    stop.click();
    expect(done).toHaveLength(1);
  });

  it('pauses and resumes it, and changes its learning rate', async () => {
    server.details = { ...RUN, can: { stop: true, pause: true, set: true } };
    const page = await runPage();
    button(page, 'Pause the run')!.click();
    button(page, 'Learning rate…')!.click();
    server.details = { ...RUN, status: 'paused', can: { stop: true, resume: true, set: false }, why: { set: 'it is being paused' } };
    server.tell({ status: 'paused' });
    await vi.advanceTimersByTimeAsync(3000);
    expect(button(page, 'Pause the run')).toBeUndefined();
    button(page, 'Resume the run')!.click();
    expect(button(page, 'Learning rate…')!.title).toBe('it is being paused');
    expect(done).toEqual([
      ['nbdist:control-run', { id: 'r1', command: 'pause' }],
      ['nbdist:set-learning-rate', { id: 'r1' }],
      ['nbdist:control-run', { id: 'r1', command: 'resume' }]
    ]);
    server.details = { ...RUN, training: false };
    server.tell({ step: 9 });
    await vi.advanceTimersByTimeAsync(3000);
    expect(button(page, 'Learning rate…')).toBeUndefined(); // a plain cell has none
  });

  it('has the chosen charts at once, and keeps the drawn ones if the run has none of a typed title', async () => {
    const plan = (title: string): object => ({ title, train: title, validation: null });
    server.data = { ...DATA, available: { titles: ['loss', 'mae'], count: 3, most: 6 } };
    const page = await runPage();
    button(page, 'Charts')!.click();
    const titles = (): unknown[] => [...page.node.querySelectorAll('.nbd-charts .nbd-chart-title')].map(one => one.textContent);
    expect([...page.node.querySelectorAll('.nbd-choices label')].map(one => one.textContent)).toEqual(['loss', 'mae']);
    server.data = { ...DATA, charts: [plan('loss'), plan('mae')], available: { titles: ['loss', 'mae'], count: 3, most: 6 } };
    page.node.querySelector<HTMLElement>('.nbd-choices li:last-child input')!.click();
    await vi.advanceTimersByTimeAsync(100);
    expect(server.charts.at(-1)).toEqual(['loss', 'mae']);
    expect(titles()).toEqual(['loss', 'mae']);

    server.error = new ApiError(400, "no series is called 'x'");
    const filter = page.node.querySelector<HTMLInputElement>('.nbd-picker input[type=search]')!;
    filter.value = 'x';
    filter.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }));
    await vi.advanceTimersByTimeAsync(100);
    expect(page.node.querySelector('[role=status]')?.textContent).toBe("no series is called 'x'");
    expect(titles()).toEqual(['loss', 'mae']);
    server.error = null;
    server.tell({ step: 5 });
    await vi.advanceTimersByTimeAsync(3000);
    expect(server.charts.at(-1)).toEqual(['loss', 'mae']);
  });

  it('has the chosen charts after a reload, unless the run lacks them', async () => {
    sessionStorage.setItem('nbdist:charts:r1', '["loss","mae"]');
    (await runPage()).dispose();
    expect(server.charts).toEqual([['loss', 'mae']]);
    server.unknown = ['mae'];
    const page = await runPage();
    expect(page.node.querySelector('.nbd-charts')).not.toBeNull();
    expect(sessionStorage.getItem('nbdist:charts:r1')).toBe('[]');
    server.unknown = [];
    for (const rubbish of ['', '{"loss": 1}', '[1]']) {
      sessionStorage.setItem('nbdist:charts:r1', rubbish);
      (await runPage()).dispose();
      expect(server.charts.at(-1)).toEqual([]);
    }
  });

  it('ends with its tab', async () => {
    const page = await runPage();
    page.dispose();
    server.tell({ step: 5 });
    await vi.advanceTimersByTimeAsync(5000);
    expect([server.asked, server.shown]).toEqual([1, 0]);
  });
});

it('the page of a sweep shows its grid, in which a trial stays chosen', async () => {
  server.data = sweepData;
  const page = await opened(new SweepPage('s', server.nbdist, commands));
  expect(page.title.label).toBe('mnist');
  page.node.querySelector<HTMLElement>('tbody tr button')!.click();
  const { number, state } = sweepData.trials;
  const trials = { number: [12, ...number.slice(1), number[0]], state: [1, ...state.slice(1), state[0]] };
  server.data = { ...sweepData, trials, status: { ...sweepData.status, state: 'running' } };
  server.state = { ...EMPTY_STATE, sweeps: [{ id: 's' } as Sweep] };
  server.changed.emit();
  await vi.advanceTimersByTimeAsync(3000);
  expect(page.node.querySelector('.nbd-chip')?.textContent).toContain('running');
  expect(page.node.querySelector('.nbs-panel')?.textContent).toContain(`Trial ${number[0]}`);
});

describe('standing', () => {
  const bundle = readRun(DATA);

  it.each([
    ['preparing', 'starting'],
    ['running', 'running'],
    ['finished', 'finished'],
    ['lost', 'lost']
  ] as const)('calls %s %s', (status, state) => {
    expect(mergeProgress(bundle, { ...RUN, status }, 1005).progress.state).toBe(state);
  });

  it('counts the time until now, or until the end', () => {
    expect(mergeProgress(bundle, RUN, 1005).progress.elapsed).toBe(5);
    expect(mergeProgress(bundle, { ...RUN, status: 'failed', ended: 1002 }, 1005).progress.elapsed).toBe(2);
    expect(mergeProgress(bundle, { ...RUN, status: 'lost', ended: null }, 1005).progress.elapsed).toBeNull();
  });

  it('does not count pauses', () => {
    expect(mergeProgress(bundle, { ...RUN, status: 'paused', paused: 3 }, 1005).progress.elapsed).toBe(2);
    expect(mergeProgress(bundle, { ...RUN, status: 'failed', ended: 1004, paused: 3 }, 1005).progress.elapsed).toBe(1);
  });
});

describe('Pace', () => {
  it('never does it twice at once', async () => {
    let [running, most, times] = [0, 0, 0];
    const pace = new Throttler(async () => {
      running += 1;
      times += 1;
      most = Math.max(most, running);
      await new Promise(resolve => setTimeout(resolve, 5000));
      running -= 1;
    }, 2000);
    for (let i = 0; i < 20; i++) {
      pace.invoke();
      await vi.advanceTimersByTimeAsync(1000);
    }
    expect(most).toBe(1);
    expect(times).toBe(4);
    pace.dispose();
  });
});
