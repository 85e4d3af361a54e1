import { describe, expect, it, vi } from 'vitest';
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { nullTranslator } from '@jupyterlab/translation';
import ready from '../../src/launcher/ready.ipynb.json';
import { codeCells, type Content, openNew, pythonOf } from '../../src/notebook/new-notebook';

vi.mock('@jupyterlab/apputils', async () => (await import('../commands/dialogs')).fakeApputils());

const spec = (name: string, language: string): never => ({ name, language, display_name: name.toUpperCase() }) as never;
const specs = (...all: { name: string }[]): never =>
  ({ default: all[0]?.name, kernelspecs: Object.fromEntries(all.map(one => [one.name, one])) }) as never;
const trans = nullTranslator.load('nbdist');

class App {
  saved: [string, { content: Content }][] = [];
  opened: unknown[] = [];
  constructor(kernels: never) {
    this.serviceManager.kernelspecs.specs = kernels;
  }
  readonly serviceManager = {
    kernelspecs: { ready: Promise.resolve(), specs: null as never },
    contents: {
      newUntitled: ({ path }: { path: string }) => Promise.resolve({ path: `${path}/Untitled.ipynb` }),
      save: (path: string, model: { content: Content }) => Promise.resolve(this.saved.push([path, model]))
    }
  };
  readonly commands = {
    execute: (...args: unknown[]) => Promise.resolve(void this.opened.push(args))
  };
}

describe('a new notebook', () => {
  it('is written into the folder, and opened with a Python kernel', async () => {
    const app = new App(specs(spec('ir', 'R'), spec('py', 'python')));
    await openNew(app as unknown as JupyterFrontEnd, 'lab', codeCells(['a = 1', '']), trans);
    const [path, { content }] = app.saved[0]!;
    expect(path).toBe('lab/Untitled.ipynb');
    expect(content.metadata).toMatchObject({ kernelspec: { name: 'py', display_name: 'PY' } });
    expect(content.cells).toMatchObject([{ id: 'cell-1', source: 'a = 1', outputs: [] }, { id: 'cell-2' }]);
    expect(app.opened).toEqual([['docmanager:open', { path, factory: 'Notebook', kernel: { name: 'py' } }]]);
  });

  it('needs a Python kernel', async () => {
    const app = new App(specs(spec('ir', 'R')));
    await expect(openNew(app as unknown as JupyterFrontEnd, '', ready, trans)).rejects.toThrow('no Python kernel');
    expect(app.saved).toEqual([]);
  });
});

describe('pythonOf', () => {
  it('takes the default kernel if it is for Python, else the first that is', () => {
    expect(pythonOf(specs(spec('b', 'Python'), spec('a', 'python')))?.name).toBe('b');
    expect(pythonOf(specs(spec('r', 'R'), spec('a', 'python')))?.name).toBe('a');
    expect(pythonOf(null)).toBeUndefined();
  });
});
