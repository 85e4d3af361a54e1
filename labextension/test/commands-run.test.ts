import type { NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { beforeEach, describe, expect, it, vi } from 'vitest';
import { runDistributed } from '../src/notebook/rundistributed';
import { user } from './commandsdialogs';

const events: unknown[] = []; // what the kernel and the notebook are asked, in order

vi.mock('@jupyterlab/apputils', async () => (await import('./commandsdialogs')).fakeApputils());
vi.mock('@jupyterlab/notebook', () => ({
  NotebookActions: { runCells: (_: unknown, [cell]: [{ source: string }]) => void events.push(['run', cell.source]) }
}));

class Kernel {
  status = 'idle';
  name = 'python3';
  reply: object = { status: 'ok' };
  requestExecute(request: object): object {
    events.push(request);
    return { done: Promise.resolve({ content: this.reply }) };
  }
}

class Cell {
  constructor(public source: string) {}
  selections = [{ uuid: 'a', start: { line: 0, column: 0 }, end: { line: 1, column: 3 } }];
  readonly model = {
    type: 'code',
    getMetadata: () => undefined,
    sharedModel: {
      getSource: () => this.source,
      updateSource: (start: number, end: number, text: string) =>
        (this.source = this.source.slice(0, start) + text + this.source.slice(end))
    }
  };
  readonly editor = {
    getSelections: () => this.selections,
    setSelections: (selections: typeof this.selections) => (this.selections = selections)
  };
}

const trans = nullTranslator.load('nbdist');

function panelOf(cell: Cell | null, kernel: Kernel | null, start: () => Kernel | null = () => null): NotebookPanel {
  const sessionContext = {
    ready: Promise.resolve(),
    session: { kernel },
    specsManager: { specs: { kernelspecs: { python3: { language: 'python' }, ir: { language: 'R' } } } },
    get hasNoKernel() {
      return sessionContext.session.kernel === null;
    },
    startKernel: () => {
      sessionContext.session.kernel = start();
      return Promise.resolve(false);
    }
  };
  return { content: { activeCell: cell, model: { defaultKernelLanguage: '' } }, sessionContext } as unknown as NotebookPanel;
}

const run = (panel: NotebookPanel, flags = ''): Promise<void> => runDistributed(panel, flags, trans, null);

beforeEach(() => {
  events.length = 0;
  user.told = [];
});

describe('a cell that is run distributed', () => {
  it('gets a first line, keeps its cursor, and runs after the extension is loaded', async () => {
    const cell = new Cell('a = 1\nb = 2');
    await run(panelOf(cell, new Kernel()), '--seed 7');
    expect(events).toEqual([
      expect.objectContaining({ code: expect.stringContaining("'nbdist'"), silent: true, store_history: false }),
      ['run', '%%distribute --seed 7\na = 1\nb = 2']
    ]);
    expect(cell.selections).toEqual([{ uuid: 'a', start: { line: 1, column: 0 }, end: { line: 2, column: 3 } }]);
  });

  it('runs as it is where it has that line', async () => {
    const cell = new Cell('%%distribute --sync\na = 1');
    await run(panelOf(cell, new Kernel()));
    expect(events.at(-1)).toEqual(['run', '%%distribute --sync\na = 1']);
    expect(cell.selections[0]!.start.line).toBe(0);
  });

  it('has a kernel started, and stays as it is if the user wants none', async () => {
    const cell = new Cell('a = 1');
    await run(panelOf(cell, null));
    expect([events, cell.source]).toEqual([[], 'a = 1']);
    await run(panelOf(cell, null, () => new Kernel()));
    expect(events.at(-1)).toEqual(['run', '%%distribute\na = 1']);
  });

  it('is refused where the user starts a kernel of another language', async () => {
    const cell = new Cell('a = 1');
    const panel = panelOf(cell, null, () => Object.assign(new Kernel(), { name: 'ir' }));
    await expect(run(panel)).rejects.toThrow('is R');
    expect([events, cell.source]).toEqual([[], 'a = 1']);
  });

  it.each([
    ['a = 1', { status: 'dead' }, 'is dead'],
    ['a = 1', { name: 'ir' }, 'is R'],
    ['%%bash\nls', {}, '%%bash']
  ])('is refused: %j %j', async (source, other, why) => {
    const cell = new Cell(source);
    await expect(run(panelOf(cell, Object.assign(new Kernel(), other)))).rejects.toThrow(why);
    expect([events, cell.source]).toEqual([[], source]);
  });

  it.each([
    ['ModuleNotFoundError', "No module named 'nbdist'", '%pip install nbdist'],
    ['ImportError', 'broken', 'ImportError: broken']
  ])('comes with a word of why nbdist is not there: %s', async (ename, evalue, said) => {
    const kernel = Object.assign(new Kernel(), { reply: { status: 'error', ename, evalue } });
    await run(panelOf(new Cell('a = 1'), kernel));
    await vi.waitFor(() => expect(user.told).toEqual([expect.stringContaining(said)]));
  });

  it('needs a cell', async () => {
    await expect(run(panelOf(null, new Kernel()))).rejects.toThrow('no cell');
  });
});
