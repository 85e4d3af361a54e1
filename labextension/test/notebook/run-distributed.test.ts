import { beforeEach, describe, expect, it, vi } from 'vitest';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { nullTranslator } from '@jupyterlab/translation';
import { type CellFacts, runDistributed, type Step, wrap } from '../../src/notebook/run-distributed';
import { user } from '../commands/dialogs';

const events: unknown[] = []; // what the kernel and the notebook are asked, in order

vi.mock('@jupyterlab/apputils', async () => (await import('../commands/dialogs')).fakeApputils());
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
  user.notices = [];
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
    await vi.waitFor(() => expect(user.notices).toEqual([expect.stringContaining(said)]));
  });

  it('needs a cell', async () => {
    await expect(run(panelOf(null, new Kernel()))).rejects.toThrow('no cell');
  });
});

const decide = (source: string, other: Partial<CellFacts> = {}, flags = ''): Step =>
  wrap({ type: 'code', source, editable: true, language: 'python', ...other }, flags, trans);
const why = (step: Step): string => (step.do === 'refuse' ? step.why : `not refused: ${JSON.stringify(step)}`);

describe('wrap', () => {
  it('puts %%distribute above code', () => {
    expect(decide('model.fit(data)')).toEqual({ do: 'wrap', line: '%%distribute\n' });
  });

  it('takes the flags from the settings', () => {
    expect(decide('x = 1', {}, '  --sync --seed 7 ')).toEqual({ do: 'wrap', line: '%%distribute --sync --seed 7\n' });
  });

  it.each(['# a comment\nx = 1', '\n\nx = 1', '"""text"""', '%time f()', '!ls', '%matplotlib inline\nx = 1', 'a %% b'])(
    'wraps %j',
    source => expect(decide(source).do).toBe('wrap')
  );

  it.each(['%%distribute', '%%distribute --sync\nx = 1', '\n \n%%distribute\nx = 1', '%%distribute?'])(
    'runs %j as it is',
    source => expect(decide(source)).toEqual({ do: 'run' })
  );

  it('runs a read-only cell that needs no other line', () => {
    expect(decide('%%distribute\nx', { editable: false })).toEqual({ do: 'run' });
    expect(why(decide('x', { editable: false }))).toContain('read-only');
  });

  it.each(['%%sweep lr=[1,2]\nx', '%%bash\nls', '\n%%time\nx', '%%distributed\nx'])('refuses %j', source => {
    expect(why(decide(source))).toContain(`begins with ${source.trim().split(/\s/)[0]},`);
  });

  it('refuses a %%distribute that is not at the beginning', () => {
    expect(why(decide('# mine\n%%distribute\nx'))).toContain('in line 2');
  });

  it.each(['%load_ext nbdist', '%reload_ext nbdist', '%cluster start --workers 2', '%cluster', '%graph'])(
    'refuses a cell with %s',
    line => expect(why(decide(`x = 1\n${line}\ny`))).toContain(`“${line}”`)
  );

  it('does not mind names that begin alike', () => {
    expect(decide('%load_ext nbdistinct\n%clusters').do).toBe('wrap');
  });

  it.each(['', '  \n\t\n'])('refuses the empty cell %j', source => {
    expect(why(decide(source))).toContain('empty');
  });

  it.each(['markdown', 'raw'])('refuses a %s cell', type => {
    expect(why(decide('x', { type }))).toContain('code cell');
  });

  it.each(['R', 'julia'])('refuses a notebook in %s', language => {
    expect(why(decide('x', { language }))).toContain(language);
  });

  it.each(['', 'python', 'Python', 'ipython', 'python3'])('takes the language %j for Python, or unknown', language => {
    expect(decide('x', { language }).do).toBe('wrap');
  });
});
