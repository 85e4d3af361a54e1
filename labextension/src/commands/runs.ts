import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { folderIcon, stopIcon } from '@jupyterlab/ui-components';
import { Menu, Widget } from '@lumino/widgets';
import type { Labels, Run } from '../api/items';
import { formatBytes } from '../sidebar/format';
import { tensorboardIcon } from '../icons';
import { argsSchema, type CommandContext, stringArg } from './context';
import { askNumber, pickItem, confirm } from './dialogs';
import { RefusedError, withNotifications } from './notify';

export const RUN_CONTROLS = ['pause', 'resume'] as const;
type RunControl = (typeof RUN_CONTROLS)[number];

const ID = ['string', 'The id of a run; a dialog asks for it if it is missing.'] as const;

/** Commands for runs: stop, pause or resume one, change its learning rate, look into its folder. */
export function addRunCommands(context: CommandContext): void {
  const { commands } = context.app;
  const { client, trans } = context.nbdist;
  commands.addCommand('nbdist:stop-run', {
    label: trans.__('Stop a Run…'),
    caption: trans.__('Stop training and keep the trained model'),
    icon: stopIcon,
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, async () => {
        const none = trans.__('There is no run that can be stopped.');
        const id = stringArg(args['id']) ?? (await pickRun(run => run.can['stop'] === true, none, context))?.id;
        // A stopped run cannot continue, so a dialog asks for confirmation.
        const reasons = [trans.__('It ends after its current step and cannot continue. The trained model is kept.')];
        if (id !== undefined && (await confirm(trans.__('Stop run %1?', id), reasons, trans.__('Stop'), trans))) {
          await client.stopRun(id);
          return trans.__('Run %1 is being stopped.', id);
        }
      })
  });
  commands.addCommand('nbdist:control-run', {
    label: ({ command }) => (command === 'resume' ? trans.__('Resume a Run…') : trans.__('Pause a Run…')),
    caption: trans.__('Pause training between two steps, resume it, or continue a run that has ended from its newest state'),
    describedBy: argsSchema({ id: ID, command: ['string', 'pause or resume.'] }),
    isEnabled: ({ command }) => isRunControl(command),
    execute: args =>
      withNotifications(args, async () => {
        const command = args['command'];
        if (!isRunControl(command)) {
          throw new RefusedError(trans.__('No run command “%1”; choose from %2.', String(command), RUN_CONTROLS.join(', ')));
        }
        const none =
          command === 'pause' ? trans.__('There is no run that can be paused.') : trans.__('There is no run that can be resumed.');
        const id = stringArg(args['id']) ?? (await pickRun(run => run.can[command] === true, none, context))?.id;
        if (id !== undefined) {
          await client.controlRun(id, command);
          return command === 'pause'
            ? trans.__('Run %1 pauses after its current step.', id)
            : trans.__('Run %1 is being resumed.', id);
        }
      })
  });
  commands.addCommand('nbdist:set-learning-rate', {
    label: trans.__('Change the Learning Rate of a Run…'),
    caption: trans.__('Change the learning rate from the next step on'),
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, async () => {
        const none = trans.__('There is no run whose learning rate can be changed.');
        const id = stringArg(args['id']);
        const run = id === null ? await pickRun(({ can }) => can['set'] === true, none, context) : await client.run(id);
        if (run !== null) {
          const limits = { min: '0', step: 'any', value: run.learning_rate === null ? '' : String(run.learning_rate) };
          const title = trans.__('Learning rate of run %1', run.id);
          const rate = await askNumber(title, trans.__('Learning rate'), limits, trans);
          if (rate !== null) {
            await client.setLearningRate(run.id, rate);
            return trans.__('Run %1 trains at learning rate %2 from its next step on.', run.id, rate);
          }
        }
      })
  });
  commands.addCommand('nbdist:open-folder', {
    label: trans.__('Open the Folder of a Run…'),
    caption: trans.__('Show the files of a run'),
    icon: folderIcon,
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, async () => {
        const id = stringArg(args['id']);
        const run = id === null ? await pickRun(() => true, trans.__('There are no runs.'), context) : await client.run(id);
        if (run !== null) {
          await openFolder(run, context);
        }
      })
  });
}

function isRunControl(command: unknown): command is RunControl {
  return RUN_CONTROLS.some(one => one === command);
}

/** Let the user choose one of the latest runs. */
export async function pickRun(fits: (run: Run) => boolean, none: string, context: CommandContext): Promise<Run | null> {
  const { client, trans } = context.nbdist;
  const { runs } = await client.state(null);
  const texts = { title: trans.__('Choose a run'), label: trans.__('Run'), none };
  return pickItem(runs.filter(fits), run => `${run.id} (${run.status})`, texts, trans);
}

/** Ask the user to choose one of the latest runs, unless its id is known. */
export async function runByIdOrPick(id: string | null, fits: (run: Run) => boolean, context: CommandContext): Promise<Run | null> {
  const { client, trans } = context.nbdist;
  return id === null ? pickRun(fits, trans.__('There are no runs.'), context) : client.run(id);
}

/** Show a run's folder in the file browser; where that cannot show it, the run's own page has its files. */
async function openFolder(run: Run, { app, nbdist: { trans } }: CommandContext): Promise<void> {
  const { commands } = app;
  if (run.browse === null) {
    if (!commands.hasCommand('nbdist:open-run')) {
      throw new RefusedError(trans.__('Jupyter cannot show this folder, it lies outside of its own: %1', run.folder));
    }
    await commands.execute('nbdist:open-run', { id: run.id });
  } else if (commands.hasCommand('filebrowser:go-to-path')) {
    await commands.execute('filebrowser:go-to-path', { path: run.browse });
  } else {
    const path = URLExt.encodeParts(run.browse);
    window.open(URLExt.join(PageConfig.getBaseUrl(), 'tree', path), '_blank', 'noopener'); // Jupyter Notebook
  }
}

const OF_A_RUN = ['nbdist:rename-run', 'nbdist:tag-run', 'nbdist:note-run', 'nbdist:delete-run'];

/** Commands that manage runs: name, tags, note, deletion, and the menu of a row with all of them. */
export function addManageCommands(context: CommandContext): void {
  const { commands } = context.app;
  const { client, trans } = context.nbdist;
  /** Ask for a text, make labels from it, and set them on the run. */
  const label = async (id: string | null, ask: (run: Run) => Promise<Labels | null>): Promise<void> => {
    const run = await runByIdOrPick(id, () => true, context);
    const labels = run && (await ask(run));
    if (run && labels) {
      await client.labelRun(run.id, labels);
    }
  };
  commands.addCommand('nbdist:rename-run', {
    label: trans.__('Rename a Run…'),
    caption: trans.__('Change the name of a run; its id stays the same'),
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, () =>
        label(stringArg(args['id']), async run => {
          const name = await askText(trans.__('Rename run %1', run.id), run.name, trans.__('Name'));
          return name === null ? null : { name };
        })
      )
  });
  commands.addCommand('nbdist:tag-run', {
    label: trans.__('Tag a Run…'),
    caption: trans.__('Give a run tags to find it by'),
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, () =>
        label(stringArg(args['id']), async run => {
          const text = await askText(trans.__('Tags of run %1', run.id), run.tags.join(', '), trans.__('Tags, with commas between them'));
          return text === null ? null : { tags: parseTags(text) };
        })
      )
  });
  commands.addCommand('nbdist:note-run', {
    label: trans.__('Write a Note about a Run…'),
    caption: trans.__('Write a note about a run'),
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, () =>
        label(stringArg(args['id']), async run => {
          const { button, value } = await showDialog({
            title: trans.__('Note about run %1', run.id),
            body: new TextAreaBody(run.remark ?? '', trans.__('Note')),
            buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('OK') })],
            focusNodeSelector: 'textarea'
          });
          return button.accept ? { note: value ?? '' } : null;
        })
      )
  });
  commands.addCommand('nbdist:delete-run', {
    label: trans.__('Delete a Run…'),
    caption: trans.__('Delete a run with its logs, checkpoints and results'),
    describedBy: argsSchema({ id: ID }),
    execute: args =>
      withNotifications(args, async () => {
        const run = await runByIdOrPick(stringArg(args['id']), one => one.can['delete'] === true, context);
        if (run === null) {
          return;
        }
        const size = run.bytes === null ? '' : ` (${formatBytes(run.bytes)})`;
        const reasons = [trans.__('Its logs, checkpoints and results%1 are deleted. This cannot be undone.', size)];
        if (await confirm(trans.__('Delete run %1?', run.name), reasons, trans.__('Delete'), trans)) {
          await client.deleteRun(run.id);
          return trans.__('Run %1 is deleted.', run.id);
        }
      })
  });
  commands.addCommand('nbdist:clean-runs', {
    label: trans.__('Delete Old Runs…'),
    caption: trans.__('List the runs that are older than an age, and delete them'),
    describedBy: argsSchema(),
    execute: args => withNotifications(args, () => clean(context))
  });
  commands.addCommand('nbdist:run-menu', {
    label: trans.__('Manage a Run'),
    describedBy: argsSchema({ id: ID }),
    execute: args => {
      const menu = new Menu({ commands });
      for (const command of OF_A_RUN) {
        menu.addItem({ command, args: { id: stringArg(args['id']) } });
      }
      menu.addItem({ type: 'separator' });
      menu.addItem({ command: 'nbdist:clean-runs' });
      menu.aboutToClose.connect(() => requestAnimationFrame(() => menu.dispose()));
      const { left, bottom } = (document.activeElement ?? document.body).getBoundingClientRect();
      menu.open(left, bottom);
    }
  });
}

/** The unique tags in a text. */
export function parseTags(text: string): string[] {
  return [...new Set(text.split(',').map(tag => tag.trim()).filter(Boolean))];
}

/** Ask for a line of text; null if the user cancels. */
async function askText(title: string, text: string, label: string): Promise<string | null> {
  const { button, value } = await InputDialog.getText({ title, text, label });
  return button.accept ? (value ?? '').trim() : null;
}

/** Ask for an age, show which runs are older, and delete them. */
async function clean({ nbdist: { client, trans } }: CommandContext): Promise<string | void> {
  const age = await askText(trans.__('Delete old runs'), '30d', trans.__('Older than, such as 12h, 30d or 2w'));
  if (!age) {
    return;
  }
  const request = { older_than: age, keep: null };
  const { runs, bytes } = await client.clean({ ...request, dry_run: true });
  if (!runs.length) {
    return trans.__('No run is older than %1.', age);
  }
  const size = formatBytes(bytes);
  const title = trans._n('Delete %1 run?', 'Delete %1 runs?', runs.length);
  const named = runs.slice(0, MAX_NAMES).join(', ') + (runs.length > MAX_NAMES ? ', …' : '');
  const reasons = [trans.__('They take %1 on disk: %2', size, named), trans.__('This cannot be undone.')];
  if (await confirm(title, reasons, trans.__('Delete'), trans)) {
    const done = await client.clean({ ...request, dry_run: false });
    Notification.success(
      trans._n('%1 run is deleted, %2.', '%1 runs are deleted, %2.', done.runs.length, formatBytes(done.bytes)),
      { autoClose: 5000 }
    );
  }
}

const MAX_NAMES = 6;

/** A field of several lines. */
class TextAreaBody extends Widget implements Dialog.IBodyWidget<string> {
  constructor(text: string, label: string) {
    super();
    this.area.value = text;
    this.area.rows = 6;
    this.area.cols = 48;
    this.area.className = 'jp-mod-styled';
    this.area.setAttribute('aria-label', label);
    this.node.append(this.area);
  }

  getValue(): string {
    return this.area.value;
  }

  private readonly area = document.createElement('textarea');
}

const ALL = 'all'; // the server's value for one page with the newest runs

/** The commands that show runs in TensorBoard, in a browser tab: TensorBoard needs a page of its own. */
export function addTensorBoardCommands(context: CommandContext): void {
  const { trans } = context.nbdist;
  context.app.commands.addCommand('nbdist:open-tensorboard', {
    label: trans.__('Open a Run in TensorBoard…'),
    caption: trans.__('Show the curves of a run in TensorBoard'),
    icon: tensorboardIcon,
    describedBy: argsSchema({ id: ['string', 'The id of a run; a dialog asks for it if it is missing.'] }),
    execute: args =>
      withNotifications(args, async () => {
        const id = stringArg(args['id']);
        if (id !== null) {
          await open(id, trans.__('TensorBoard shows run %1.', id), context);
          return;
        }
        const run = await pickRun(() => true, trans.__('There are no runs.'), context);
        if (run !== null) {
          await open(run.id, trans.__('TensorBoard shows run %1.', run.id), context);
        }
      })
  });
  context.app.commands.addCommand('nbdist:compare-runs', {
    label: trans.__('Compare Runs in TensorBoard'),
    caption: trans.__('Show the curves of the newest runs on one page of TensorBoard'),
    icon: tensorboardIcon,
    describedBy: argsSchema(),
    execute: args => withNotifications(args, () => open(ALL, trans.__('TensorBoard shows the newest runs.'), context))
  });
}

async function open(id: string, shown: string, { nbdist: { client, trans } }: CommandContext): Promise<void> {
  const tab = window.open('', '_blank'); // now: later the browser would block it as not opened by a click
  if (tab) {
    tab.opener = null;
    tab.document.title = 'TensorBoard';
    showWaiting(tab.document, trans.__('TensorBoard is starting. This takes a few seconds.'));
  }
  const waiting = Notification.emit(trans.__('TensorBoard is starting…'), 'in-progress', { autoClose: false });
  try {
    const url = await client.openTensorBoard(id);
    if (tab) {
      tab.location.replace(url); // does nothing if the user has closed the tab
    } else {
      const show = (): void => void window.open(url, '_blank', 'noopener');
      const actions = [{ label: trans.__('Open'), callback: show }];
      Notification.info(shown, { actions, autoClose: false });
    }
  } catch (error) {
    tab?.close();
    throw error;
  } finally {
    Notification.dismiss(waiting);
  }
}

/** Show a sentence and a progress bar in a tab until TensorBoard replaces them. */
function showWaiting(page: Document, sentence: string): void {
  const text = page.createElement('p');
  text.textContent = sentence;
  page.body.style.cssText = 'font: 16px system-ui, sans-serif; margin: 15vh auto; max-width: 30em; text-align: center';
  page.body.replaceChildren(text, page.createElement('progress'));
}
