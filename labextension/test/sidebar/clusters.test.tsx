import { act } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError } from '../../src/api/client';
import { Clusters } from '../../src/sidebar/clusters';
import { CLUSTER, fakePanel } from './items';

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

const other = { ...CLUSTER, id: 'b', title: 'other', created: 50 };
const names = (): string[] => [...place.querySelectorAll('.nbd-Row-name')].map(node => node.textContent ?? '');
const button = (action: string, row = 'a'): HTMLElement =>
  place.querySelector<HTMLElement>(`[data-row="${row}"] [data-action="${action}"]`)!;

describe('the clusters', () => {
  it('are listed with their state in words, and the chosen one is looked at', () => {
    const { store, feed } = fakePanel({ clusters: [CLUSTER, other] });
    act(() => root.render(<Clusters store={store} />));
    expect(names()).toEqual(['train.ipynb', 'other']);
    expect(place.textContent).toContain('running');
    expect(place.querySelector('[aria-current="true"]')?.textContent).toBe('train.ipynb');
    act(() => place.querySelectorAll<HTMLElement>('.nbd-Row-name')[1]!.click());
    expect(feed.requested.at(-1)).toBe('b');
    expect(place.querySelector('[aria-current="true"]')?.textContent).toBe('other');
  });

  it('are walked through with the arrow keys, and one of them is in the reach of Tab', () => {
    const { store, model } = fakePanel({ clusters: [CLUSTER, other] });
    act(() => root.render(<Clusters store={store} />));
    const first = place.querySelector<HTMLElement>('.nbd-Row-name')!;
    act(() => first.focus());
    press('ArrowRight');
    expect(document.activeElement).toBe(button('attach'));
    press('ArrowDown');
    expect(document.activeElement).toBe(button('attach', 'b'));
    expect(model.selected).toBe('b');
    expect(button('attach').tabIndex).toBe(-1);
    expect(button('attach', 'b').tabIndex).toBe(0);
    press('Home');
    expect(document.activeElement).toBe(first);
  });

  it('name their hosts, and those that are lost or not there', () => {
    const host = { name: 'a', address: '10.0.0.1', cores: 8, gpus: 0, state: 'up' as const, tasks: 2 };
    const gone = { address: null, cores: null, gpus: null, tasks: 0 };
    const many = Array.from({ length: 10 }, (_, number) => ({ ...gone, name: `n${number}`, state: 'absent' as const }));
    const hosts = [host, { ...host, name: 'b' }, { ...gone, name: 'c', state: 'lost' as const }, ...many];
    const limited = { ...CLUSTER, launcher: 'ssh', hosts, ends: 1_790_000_000, unused_ends: 1_790_000_060 };
    const { store } = fakePanel({ clusters: [limited, other] });
    act(() => root.render(<Clusters store={store} />));
    const notes = [...place.querySelectorAll('.nbd-Row-note')].map(node => node.textContent);
    expect(notes).toEqual(['on a, b', 'lost: c', 'not there: n0, n1, n2, n3, n4, n5, n6, n7 and 2 more']);
    const facts = place.querySelector('.nbd-Row-facts')!.textContent;
    expect(facts).toContain('ssh13 hostsjob ends ');
    expect(facts).toContain('unused, it ends ');
  });

  it('say why an action cannot be, and do not begin it', () => {
    const { store, commands } = fakePanel({
      clusters: [{ ...CLUSTER, can: { stop: true, grow: false, restart: true }, why: { grow: 'MPI has no more room' } }]
    });
    const grow = vi.fn();
    commands.addCommand('nbdist:grow-cluster', { execute: grow });
    act(() => root.render(<Clusters store={store} />));
    expect(button('grow').title).toContain('MPI has no more room');
    expect(button('grow').getAttribute('aria-disabled')).toBe('true');
    act(() => button('grow').click());
    expect(grow).not.toHaveBeenCalled();
  });

  it('show that an action is under way, and what it failed with until that is dismissed', async () => {
    const { store, commands } = fakePanel({ clusters: [CLUSTER] });
    let refuse: (error: Error) => void = () => undefined;
    commands.addCommand('nbdist:stop-cluster', {
      execute: () => new Promise((_, reject) => (refuse = reject))
    });
    act(() => root.render(<Clusters store={store} />));
    act(() => button('stop').click());
    expect(button('stop').getAttribute('aria-busy')).toBe('true');
    await act(async () => {
      refuse(new Error('the cluster process does not answer'));
      await Promise.resolve();
    });
    expect(button('stop').getAttribute('aria-busy')).toBe('false');
    expect(place.querySelector('[role="alert"]')?.textContent).toBe('the cluster process does not answer');
    act(() => button('dismiss-error').click());
    expect(place.querySelector('[role="alert"]')).toBeNull();
  });

  it('forget what the server did not receive once it is back, and keep what it refused', async () => {
    const { model, feed, commands } = fakePanel({ clusters: [CLUSTER, other] });
    commands.addCommand('nbdist:stop-cluster', {
      execute: ({ id }) => Promise.reject(id === 'a' ? new ApiError(0, 'cannot be reached') : new ApiError(409, 'not now'))
    });
    feed.connection = 'offline';
    await model.execute('a', 'stop', 'nbdist:stop-cluster', { id: 'a' });
    await model.execute('b', 'stop', 'nbdist:stop-cluster', { id: 'b' });
    feed.tell({});
    expect(model.activity('a').error).toBe('cannot be reached');
    feed.connection = 'live';
    feed.tell({});
    expect(model.activity('a').error).toBeNull();
    expect(model.activity('b').error).toBe('not now');
  });

  it('draw only the row that has changed', () => {
    let drawn = 0;
    const seen = Object.defineProperty({ ...CLUSTER, state: 'starting' as const }, 'lines', {
      get: () => ((drawn += 1), ['one'])
    });
    const { store, feed } = fakePanel({ clusters: [seen, other] });
    act(() => root.render(<Clusters store={store} />));
    expect(drawn).toBe(1); // so that the count below does count
    act(() => feed.tell({ clusters: [seen, { ...other, title: 'renamed' }] }));
    expect(names()).toEqual(['train.ipynb', 'renamed']);
    expect(drawn).toBe(1);
  });

  it('keep the focus in the list when a row goes', () => {
    const { store, feed } = fakePanel({ clusters: [CLUSTER, other] });
    act(() => root.render(<Clusters store={store} />));
    act(() => button('attach', 'b').focus());
    act(() => feed.tell({ clusters: [CLUSTER] }));
    expect(place.contains(document.activeElement)).toBe(true);
  });

  it('teach how to start one where there are none', () => {
    const { store } = fakePanel();
    act(() => root.render(<Clusters store={store} />));
    expect(place.textContent).toContain('%cluster start --workers 2');
  });

  it('show what a bring-up says, and why it failed', () => {
    const starting = { ...CLUSTER, state: 'starting' as const, lines: ['the cluster process is up'] };
    const { store, feed } = fakePanel({ clusters: [starting] });
    act(() => root.render(<Clusters store={store} />));
    expect(place.querySelector('[role="log"]')?.textContent).toBe('the cluster process is up');
    act(() => feed.tell({ clusters: [{ ...CLUSTER, state: 'failed', error: 'no mpiexec here' }] }));
    expect(place.querySelector('[role="alert"]')?.textContent).toBe('no mpiexec here');
    expect(button('dismiss')).not.toBeNull();
  });
});

function press(key: string): void {
  act(() => {
    document.activeElement!.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  });
}
