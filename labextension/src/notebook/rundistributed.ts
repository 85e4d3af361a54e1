import { Notification, type ISessionContextDialogs } from '@jupyterlab/apputils';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';
import { Refused } from '../commands/telling';
import { type Step, wrap } from './wrap';

type Cell = NonNullable<NotebookPanel['content']['activeCell']>;

/** Run a notebook's active cell on the workers: with %%distribute as its first line, which undo takes away. */
export async function runDistributed(
  panel: NotebookPanel,
  flags: string,
  trans: TranslationBundle,
  dialogs: ISessionContextDialogs | null
): Promise<void> {
  const { content, sessionContext } = panel;
  const cell = content.activeCell;
  if (!cell) {
    throw new Refused(trans.__('The notebook has no cell to run.'));
  }
  const decide = (): Exclude<Step, { do: 'refuse' }> => {
    const step = wrap(factsOf(cell, panel), flags, trans);
    if (step.do === 'refuse') {
      throw new Refused(step.why);
    }
    return step;
  };
  decide(); // no kernel is started for nothing
  await sessionContext.ready;
  if (sessionContext.hasNoKernel && (await sessionContext.startKernel())) {
    await dialogs?.selectKernel(sessionContext);
  }
  const kernel = sessionContext.session?.kernel;
  if (!kernel) {
    return; // the user wants none
  }
  if (kernel.status === 'dead') {
    throw new Refused(trans.__('The kernel of this notebook is dead: restart it, then run the cell.'));
  }
  const step = decide(); // the user may have chosen a kernel of another language
  if (step.do === 'wrap') {
    putAbove(cell, step.line);
  }
  loadExtension(kernel, trans); // the kernel does one thing after another: it is there when the cell's turn comes
  await NotebookActions.runCells(content, [cell], sessionContext, dialogs ?? undefined);
}

function factsOf(cell: Cell, panel: NotebookPanel): Parameters<typeof wrap>[0] {
  const { type, sharedModel } = cell.model;
  const editable = cell.model.getMetadata('editable') !== false;
  return { type, source: sharedModel.getSource(), editable, language: languageOf(panel) };
}

/** The language of the kernel that is there, else of the one that the notebook asks for. */
function languageOf({ sessionContext, content }: NotebookPanel): string {
  const name = sessionContext.session?.kernel?.name;
  const spec = name ? sessionContext.specsManager.specs?.kernelspecs[name] : undefined;
  return spec?.language ?? content.model?.defaultKernelLanguage ?? '';
}

/** Insert a line before a cell's first, and leave the cursor where it is in the text. */
function putAbove(cell: Cell, line: string): void {
  const editor = cell.editor;
  const selections = editor?.getSelections() ?? [];
  cell.model.sharedModel.updateSource(0, 0, line);
  const down = ({ line, column }: { line: number; column: number }) => ({ line: line + 1, column });
  editor?.setSelections(selections.map(range => ({ ...range, start: down(range.start), end: down(range.end) })));
}

/** What %load_ext nbdist does, without its remark where it was done before. */
const LOAD = "get_ipython().extension_manager.load_extension('nbdist')";

function loadExtension(kernel: Kernel.IKernelConnection, trans: TranslationBundle): void {
  const future = kernel.requestExecute({
    code: LOAD,
    silent: true,
    store_history: false,
    allow_stdin: false,
    stop_on_error: false // the cell itself then says that there is no such magic
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
    () => undefined // the kernel was restarted or ended meanwhile, and the cell says so
  );
}
