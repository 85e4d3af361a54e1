import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import { folderIcon, launchIcon, stopIcon } from '@jupyterlab/ui-components';
import { Menu, Widget } from '@lumino/widgets';
import type { Labels, Run } from '../api/items';
import { formatBytes } from '../sidebar/format';
import { described, type Parts, textOf } from './context';
import { askNumber, choose, confirmed } from './dialogs';
import { Refused, told } from './notify';

export const CONTROLS = ['pause', 'resume'] as const;
type Control = (typeof CONTROLS)[number];

const ID = ['string', 'The id of a run; without one it is asked for.'] as const;

/** Commands for runs: stop, pause or resume one, change its learning rate, look into its folder. */
export function addRunCommands(parts: Parts): void {
  const { commands } = parts.app;
  const { client, trans } = parts.nbdist;
  commands.addCommand('nbdist:stop-run', {
    label: trans.__('Stop a Run…'),
    caption: trans.__('Stop training; what was trained so far is kept'),
    icon: stopIcon,
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, async () => {
        const none = trans.__('There is no run that can be stopped.');
        const id = textOf(args['id']) ?? (await chosenRun(run => run.can['stop'] === true, none, parts))?.id;
        // A stopped run cannot continue, so a dialog asks for confirmation.
        const reasons = [trans.__('It ends after its current step and cannot continue. The trained model is kept.')];
        if (id !== undefined && (await confirmed(trans.__('Stop run %1?', id), reasons, trans.__('Stop'), trans))) {
          await client.stopRun(id);
          return trans.__('Run %1 is being stopped.', id);
        }
      })
  });
  commands.addCommand('nbdist:control-run', {
    label: ({ command }) => (command === 'resume' ? trans.__('Resume a Run…') : trans.__('Pause a Run…')),
    caption: trans.__('Pause training between two steps, or resume it'),
    describedBy: described({ id: ID, command: ['string', 'pause or resume.'] }),
    isEnabled: ({ command }) => isControl(command),
    execute: args =>
      told(args, async () => {
        const command = args['command'];
        if (!isControl(command)) {
          throw new Refused(trans.__('No run command “%1”; choose from %2.', String(command), CONTROLS.join(', ')));
        }
        const none =
          command === 'pause' ? trans.__('There is no run that can be paused.') : trans.__('There is no paused run.');
        const id = textOf(args['id']) ?? (await chosenRun(run => run.can[command] === true, none, parts))?.id;
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
    caption: trans.__('Train at another learning rate from the next step on'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, async () => {
        const none = trans.__('There is no run whose learning rate can be changed.');
        const id = textOf(args['id']);
        const run = id === null ? await chosenRun(({ can }) => can['set'] === true, none, parts) : await client.run(id);
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
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, async () => {
        const id = textOf(args['id']);
        const run = id === null ? await chosenRun(() => true, trans.__('There are no runs.'), parts) : await client.run(id);
        if (run !== null) {
          await openFolder(run, parts);
        }
      })
  });
}

function isControl(command: unknown): command is Control {
  return CONTROLS.some(one => one === command);
}

/** Have one of the latest runs chosen. */
export async function chosenRun(fits: (run: Run) => boolean, none: string, parts: Parts): Promise<Run | null> {
  const { client, trans } = parts.nbdist;
  const { runs } = await client.state(null);
  const texts = { title: trans.__('Choose a run'), label: trans.__('Run'), none };
  return choose(runs.filter(fits), run => `${run.id} (${run.status})`, texts, trans);
}

/** Ask the user to choose one of the latest runs, unless its id is known. */
export async function runOf(id: string | null, fits: (run: Run) => boolean, parts: Parts): Promise<Run | null> {
  const { client, trans } = parts.nbdist;
  return id === null ? chosenRun(fits, trans.__('There are no runs.'), parts) : client.run(id);
}

/** Show a run's folder in the file browser; where that cannot show it, the run's own page has its files. */
async function openFolder(run: Run, { app, nbdist: { trans } }: Parts): Promise<void> {
  const { commands } = app;
  if (run.browse === null) {
    if (!commands.hasCommand('nbdist:open-run')) {
      throw new Refused(trans.__('Jupyter cannot show this folder, it lies outside of its own: %1', run.folder));
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
export function addManageCommands(parts: Parts): void {
  const { commands } = parts.app;
  const { client, trans } = parts.nbdist;
  /** Ask for a text, make labels from it, and set them on the run. */
  const label = async (id: string | null, ask: (run: Run) => Promise<Labels | null>): Promise<void> => {
    const run = await runOf(id, () => true, parts);
    const labels = run && (await ask(run));
    if (run && labels) {
      await client.labelRun(run.id, labels);
    }
  };
  commands.addCommand('nbdist:rename-run', {
    label: trans.__('Rename a Run…'),
    caption: trans.__('Give a run another name; its id stays'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const name = await typed(trans.__('Rename run %1', run.id), run.name, trans.__('Name'));
          return name === null ? null : { name };
        })
      )
  });
  commands.addCommand('nbdist:tag-run', {
    label: trans.__('Tag a Run…'),
    caption: trans.__('Give a run tags to find it by'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const text = await typed(trans.__('Tags of run %1', run.id), run.tags.join(', '), trans.__('Tags, with commas between them'));
          return text === null ? null : { tags: tagsOf(text) };
        })
      )
  });
  commands.addCommand('nbdist:note-run', {
    label: trans.__('Write a Note about a Run…'),
    caption: trans.__('Write a note about a run'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const { button, value } = await showDialog({
            title: trans.__('Note about run %1', run.id),
            body: new TextField(run.remark ?? '', trans.__('Note')),
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
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, async () => {
        const run = await runOf(textOf(args['id']), one => one.can['delete'] === true, parts);
        if (run === null) {
          return;
        }
        const size = run.bytes === null ? '' : ` (${formatBytes(run.bytes)})`;
        const reasons = [trans.__('Its logs, checkpoints and results%1 are deleted. This cannot be undone.', size)];
        if (await confirmed(trans.__('Delete run %1?', run.name), reasons, trans.__('Delete'), trans)) {
          await client.deleteRun(run.id);
          return trans.__('Run %1 is deleted.', run.id);
        }
      })
  });
  commands.addCommand('nbdist:clean-runs', {
    label: trans.__('Delete Old Runs…'),
    caption: trans.__('List the runs that are older than an age, and delete them'),
    describedBy: described(),
    execute: args => told(args, () => clean(parts))
  });
  commands.addCommand('nbdist:run-menu', {
    label: trans.__('Manage a Run'),
    describedBy: described({ id: ID }),
    execute: args => {
      const menu = new Menu({ commands });
      for (const command of OF_A_RUN) {
        menu.addItem({ command, args: { id: textOf(args['id']) } });
      }
      menu.addItem({ type: 'separator' });
      menu.addItem({ command: 'nbdist:clean-runs' });
      menu.aboutToClose.connect(() => requestAnimationFrame(() => menu.dispose()));
      const { left, bottom } = (document.activeElement ?? document.body).getBoundingClientRect();
      menu.open(left, bottom);
    }
  });
}

/** The tags in a text, each once. */
export function tagsOf(text: string): string[] {
  return [...new Set(text.split(',').map(tag => tag.trim()).filter(Boolean))];
}

/** Ask for a line of text; null if the user cancels. */
async function typed(title: string, text: string, label: string): Promise<string | null> {
  const { button, value } = await InputDialog.getText({ title, text, label });
  return button.accept ? (value ?? '').trim() : null;
}

/** Ask for an age, show which runs are older, and delete them. */
async function clean({ nbdist: { client, trans } }: Parts): Promise<string | void> {
  const age = await typed(trans.__('Delete old runs'), '30d', trans.__('Older than, such as 12h, 30d or 2w'));
  if (!age) {
    return;
  }
  const asked = { older_than: age, keep: null };
  const { runs, bytes } = await client.clean({ ...asked, dry_run: true });
  if (!runs.length) {
    return trans.__('No run is older than %1.', age);
  }
  const size = formatBytes(bytes);
  const title = trans._n('Delete %1 run?', 'Delete %1 runs?', runs.length);
  const named = runs.slice(0, MOST_NAMED).join(', ') + (runs.length > MOST_NAMED ? ', …' : '');
  const reasons = [trans.__('They take %1 on disk: %2', size, named), trans.__('This cannot be undone.')];
  if (await confirmed(title, reasons, trans.__('Delete'), trans)) {
    const done = await client.clean({ ...asked, dry_run: false });
    Notification.success(
      trans._n('%1 run is deleted, %2.', '%1 runs are deleted, %2.', done.runs.length, formatBytes(done.bytes)),
      { autoClose: 5000 }
    );
  }
}

const MOST_NAMED = 6;

/** A field of several lines. */
class TextField extends Widget implements Dialog.IBodyWidget<string> {
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

const ALL = 'all'; // the newest runs on one page, as the server has it

/** The commands that show runs in TensorBoard, in a tab of the browser: it fills a page of its own. */
export function addTensorBoardCommands(parts: Parts): void {
  const { trans } = parts.nbdist;
  parts.app.commands.addCommand('nbdist:open-tensorboard', {
    label: trans.__('Open a Run in TensorBoard…'),
    caption: trans.__('Show the curves of a run in TensorBoard'),
    icon: launchIcon,
    describedBy: described({ id: ['string', 'The id of a run; without one it is asked for.'] }),
    execute: args =>
      told(args, async () => {
        const id = textOf(args['id']);
        if (id !== null) {
          await open(id, trans.__('TensorBoard shows run %1.', id), parts);
          return;
        }
        const run = await chosenRun(() => true, trans.__('There are no runs.'), parts);
        if (run !== null) {
          await open(run.id, trans.__('TensorBoard shows run %1.', run.id), parts);
        }
      })
  });
  parts.app.commands.addCommand('nbdist:compare-runs', {
    label: trans.__('Compare Runs in TensorBoard'),
    caption: trans.__('Show the curves of the newest runs on one page of TensorBoard'),
    icon: launchIcon,
    describedBy: described(),
    execute: args => told(args, () => open(ALL, trans.__('TensorBoard shows the newest runs.'), parts))
  });
}

async function open(id: string, shown: string, { nbdist: { client, trans } }: Parts): Promise<void> {
  const tab = window.open('', '_blank'); // now: later the browser would not see the click that asks for it
  if (tab) {
    tab.opener = null;
    tab.document.title = 'TensorBoard';
    showWaiting(tab.document, trans.__('TensorBoard is starting. This takes a few seconds.'));
  }
  const waiting = Notification.emit(trans.__('TensorBoard is starting…'), 'in-progress', { autoClose: false });
  try {
    const url = await client.openTensorBoard(id);
    if (tab) {
      tab.location.replace(url); // nothing happens if the user has closed it meanwhile
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

/** Fill a tab with a sentence and a bar that moves, until TensorBoard takes its place. */
function showWaiting(page: Document, sentence: string): void {
  const text = page.createElement('p');
  text.textContent = sentence;
  page.body.style.cssText = 'font: 16px system-ui, sans-serif; margin: 15vh auto; max-width: 30em; text-align: center';
  page.body.replaceChildren(text, page.createElement('progress'));
}
