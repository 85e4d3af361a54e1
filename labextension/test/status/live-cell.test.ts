import { expect, it, vi } from 'vitest';
import type { INotebookTracker } from '@jupyterlab/notebook';
import { liveCell } from '../../src/status/plugin';

vi.mock('@jupyterlab/ui-components', async () => ({ ReactWidget: (await import('@lumino/widgets')).Widget }));
vi.mock('@jupyterlab/notebook', () => ({ INotebookTracker: {}, NotebookActions: {} }));

const LIVE = { 'application/vnd.nbdist.run+json': { version: 1, live: 'r1' } };
const SAVED = { 'application/vnd.nbdist.run+json': { version: 1, run: 'r1' } };

const notebook = (...cells: Record<string, unknown>[][]) => ({
  content: {
    widgets: [...cells.map(all => ({ outputArea: { model: { length: all.length, get: (i: number) => ({ data: all[i] }) } } })), {}]
  }
});

function tracker(current: unknown, ...all: unknown[]): INotebookTracker {
  return { currentWidget: current, forEach: (each: (one: unknown) => void) => all.forEach(each) } as unknown as INotebookTracker;
}

it('is the newest one of the current notebook, or of another', () => {
  const [here, there] = [notebook([LIVE], [{}, LIVE], [SAVED]), notebook([LIVE])];
  expect(liveCell(tracker(here, there, here))).toEqual({ panel: here, cell: 1 });
  const idle = notebook([SAVED], []);
  expect(liveCell(tracker(idle, idle, there))).toEqual({ panel: there, cell: 0 });
  expect(liveCell(tracker(null, idle))).toBeNull();
});
