import { type ISessionContextDialogs, Notification } from '@jupyterlab/apputils';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { RefusedError } from '../commands/notify';

type Cell = NonNullable<NotebookPanel['content']['activeCell']>;

/** Run a notebook's active cell on the workers: with %%distribute as its first line, which undo removes. */
export async function runDistributed(
  panel: NotebookPanel,
  flags: string,
  trans: TranslationBundle,
  dialogs: ISessionContextDialogs | null
): Promise<void> {
  const { content, sessionContext } = panel;
  const cell = content.activeCell;
  if (!cell) {
    throw new RefusedError(trans.__('The notebook has no cell to run.'));
  }
  const decide = (): Exclude<Step, { do: 'refuse' }> => {
    const step = wrap(factsOf(cell, panel), flags, trans);
    if (step.do === 'refuse') {
      throw new RefusedError(step.why);
    }
    return step;
  };
  decide(); // raises before a kernel is started
  await sessionContext.ready;
  if (sessionContext.hasNoKernel && (await sessionContext.startKernel())) {
    await dialogs?.selectKernel(sessionContext);
  }
  const kernel = sessionContext.session?.kernel;
  if (!kernel) {
    return; // the user has chosen no kernel
  }
  if (kernel.status === 'dead') {
    throw new RefusedError(trans.__('The kernel of this notebook is dead: restart it, then run the cell.'));
  }
  const step = decide(); // the user may have chosen a kernel of another language
  if (step.do === 'wrap') {
    putAbove(cell, step.line);
  }
  loadExtension(kernel, trans); // the kernel executes requests in order, so it is loaded before the cell runs
  await NotebookActions.runCells(content, [cell], sessionContext, dialogs ?? undefined);
}

function factsOf(cell: Cell, panel: NotebookPanel): Parameters<typeof wrap>[0] {
  const { type, sharedModel } = cell.model;
  const editable = cell.model.getMetadata('editable') !== false;
  return { type, source: sharedModel.getSource(), editable, language: languageOf(panel) };
}

/** The language of the running kernel, else of the kernel in the notebook's metadata. */
function languageOf({ sessionContext, content }: NotebookPanel): string {
  const name = sessionContext.session?.kernel?.name;
  const spec = name ? sessionContext.specsManager.specs?.kernelspecs[name] : undefined;
  return spec?.language ?? content.model?.defaultKernelLanguage ?? '';
}

/** Insert a line before a cell's first line; the cursor keeps its place in the text. */
function putAbove(cell: Cell, line: string): void {
  const editor = cell.editor;
  const selections = editor?.getSelections() ?? [];
  cell.model.sharedModel.updateSource(0, 0, line);
  const down = ({ line, column }: { line: number; column: number }) => ({ line: line + 1, column });
  editor?.setSelections(selections.map(range => ({ ...range, start: down(range.start), end: down(range.end) })));
}

/** Does what %load_ext nbdist does, without its message if the extension is already loaded. */
const LOAD = "get_ipython().extension_manager.load_extension('nbdist')";

function loadExtension(kernel: Kernel.IKernelConnection, trans: TranslationBundle): void {
  const future = kernel.requestExecute({
    code: LOAD,
    silent: true,
    store_history: false,
    allow_stdin: false,
    stop_on_error: false // the cell then reports that the magic is missing
  });
  const failed = (why: string): unknown => Notification.error(why, { autoClose: false });
  future.done.then(
    ({ content }) => {
      if (content.status === 'error') {
        const missing = content.ename === 'ModuleNotFoundError' && content.evalue.includes("'nbdist'");
        failed(
          missing
            ? trans.__('nbdist is not installed where this kernel runs: run %1 in the notebook.', '%pip install nbdist')
            : trans.__('nbdist cannot be loaded in this kernel. %1: %2', content.ename, content.evalue)
        );
      }
    },
    () => undefined // the kernel was restarted or has ended, which the cell reports
  );
}

/** The facts that determine how a cell is run distributed. */
export interface CellFacts {
  /** "code", "markdown" or "raw". */
  readonly type: string;
  readonly source: string;
  readonly editable: boolean;
  /** Of the notebook's kernel; empty if unknown. */
  readonly language: string;
}

/** The decision: run the cell unchanged, insert a line above it first, or refuse with a reason. */
export type Step = { do: 'run' } | { do: 'wrap'; line: string } | { do: 'refuse'; why: string };

const CELL_MAGIC = /^%%([\w.]+)/;
/** Magics that act in the notebook's process and have no meaning on a worker. */
const NOTEBOOKS_OWN = /^%(cluster|graph|(re)?load_ext\s+nbdist)\b/;

/**
 * Decide how a cell is run on the workers.
 *
 *     wrap({type: 'code', source: 'model.fit(data)', editable: true, language: 'python'}, '--sync', trans)
 *     // {do: 'wrap', line: '%%distribute --sync\n'}
 */
export function wrap(cell: CellFacts, flags: string, trans: TranslationBundle): Step {
  if (cell.type !== 'code') {
    return refuse(trans.__('Only code cells can run on the workers.'));
  }
  if (cell.language && !/^i?python/i.test(cell.language)) {
    return refuse(trans.__('The workers run Python, and the language of this notebook is %1.', cell.language));
  }
  const lines = cell.source.split('\n');
  const first = lines.findIndex(line => line.trim() !== '');
  if (first < 0) {
    return refuse(trans.__('The cell is empty: there is nothing to run.'));
  }
  const magic = CELL_MAGIC.exec(lines[first]!.trim())?.[1];
  if (magic === 'distribute') {
    return { do: 'run' };
  }
  if (magic !== undefined) {
    return refuse(
      trans.__('The cell begins with %1, and a cell can have only one such line: remove it, or run the cell as it is.', `%%${magic}`)
    );
  }
  const late = lines.findIndex(line => CELL_MAGIC.exec(line)?.[1] === 'distribute');
  if (late >= 0) {
    return refuse(trans.__('%1 is in line %2: it works only as the first line of the cell.', '%%distribute', late + 1));
  }
  const own = lines.find(line => NOTEBOOKS_OWN.test(line));
  if (own !== undefined) {
    return refuse(trans.__('“%1” is for the notebook, not for its workers: move it into a cell of its own.', own.trim()));
  }
  if (!cell.editable) {
    return refuse(trans.__('The cell is read-only, so that %1 cannot be added to it.', '%%distribute'));
  }
  return { do: 'wrap', line: `${['%%distribute', flags.trim()].filter(Boolean).join(' ')}\n` };
}

function refuse(why: string): Step {
  return { do: 'refuse', why };
}
