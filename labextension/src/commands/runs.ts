import { folderIcon, stopIcon } from '@jupyterlab/ui-components';
import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import type { Run } from '../api/items';
import { askNumber, choose, confirmed } from './asking';
import { described } from './describe';
import { type Parts, textOf } from './parts';
import { Refused, told } from './telling';

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
