import { Clipboard, Dialog, showDialog } from '@jupyterlab/apputils';
import { NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { addIcon, copyIcon } from '@jupyterlab/ui-components';
import { codeCells, openNew } from '../notebook/new-notebook';
import { argsSchema, type CommandContext } from './context';
import { withNotifications } from './notify';

const CODE = argsSchema({ code: ['string', 'Python that attaches a notebook to a cluster, run or sweep.'] });

/** Commands for the code that attaches a notebook to a cluster, run or sweep. */
export function addAttachCommands(context: CommandContext): void {
  const { commands } = context.app;
  const { trans } = context.nbdist;
  commands.addCommand('nbdist:insert-attach', {
    label: trans.__('Insert Attach Code'),
    caption: trans.__('Add a cell to the notebook that attaches it'),
    icon: addIcon,
    describedBy: CODE,
    isEnabled: args => codeOf(args) !== '',
    execute: args => withNotifications(args, () => insertAttach(codeOf(args), context))
  });
  commands.addCommand('nbdist:copy-attach', {
    label: trans.__('Copy Attach Code'),
    caption: trans.__('Copy the code that attaches a notebook'),
    icon: copyIcon,
    describedBy: CODE,
    isEnabled: args => codeOf(args) !== '',
    execute: args =>
      withNotifications(args, async () => {
        Clipboard.copyToSystem(codeOf(args));
        return trans.__('The attach code is copied.');
      })
  });
}

function codeOf({ code }: { readonly code?: unknown }): string {
  return typeof code === 'string' ? code : '';
}

/** Put code into the notebook that was used last; where there is none, offer a new one. */
async function insertAttach(code: string, context: CommandContext): Promise<void> {
  const { app, notebooks, settings } = context;
  const panel = notebooks?.currentWidget;
  if (panel) {
    app.shell.activateById(panel.id); // another tab may cover it
    await insertBelow(panel, code, settings.values.attachRuns);
  } else if (await wantsNew(context)) {
    await openWith(code, context);
  }
}

async function wantsNew({ nbdist: { trans } }: CommandContext): Promise<boolean> {
  const { button } = await showDialog({
    title: trans.__('No notebook is open'),
    body: trans.__('The code goes into a notebook. Open a new one with it?'),
    buttons: [
      Dialog.cancelButton({ label: trans.__('Cancel') }),
      Dialog.okButton({ label: trans.__('New notebook') })
    ]
  });
  return button.accept;
}

async function openWith(code: string, { app, files, nbdist, settings }: CommandContext): Promise<void> {
  const content = codeCells([code, '']);
  const opened = (await openNew(app, files?.model.path ?? '', content, nbdist.trans)) as NotebookPanel | undefined;
  if (opened && settings.values.attachRuns) {
    await opened.context.ready;
    await opened.sessionContext.ready;
    opened.content.activeCellIndex = 0;
    await NotebookActions.run(opened.content, opened.sessionContext);
  }
}

/**
 * Add a code cell below a notebook's active one and make it the active one; undo removes it. With `run` it is
 * also run.
 *
 * No kernel is needed: it may be busy, dead or missing.
 */
export async function insertBelow(panel: NotebookPanel, source: string, run: boolean): Promise<void> {
  const { content, sessionContext } = panel;
  const at = content.activeCell ? content.activeCellIndex + 1 : 0;
  content.model?.sharedModel.insertCell(at, { cell_type: 'code', source, metadata: { trusted: true } });
  content.activeCellIndex = at;
  content.deselectAll();
  await content.scrollToItem(at);
  const cell = content.activeCell;
  if (run && cell) {
    await NotebookActions.runCells(content, [cell], sessionContext);
  }
}
