import { folderIcon, stopIcon } from '@jupyterlab/ui-components';
import { PageConfig, URLExt } from '@jupyterlab/coreutils';
import type { Run } from '../api/items';
import { choose } from './asking';
import { described } from './describe';
import { type Parts, textOf } from './parts';
import { Refused, told } from './telling';

const ID = ['string', 'The id of a run; without one it is asked for.'] as const;

/** Commands for runs: stop one, look into its folder. */
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
        if (id !== undefined) {
          await client.stopRun(id);
          return trans.__('Run %1 is being stopped.', id);
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

/** Have one of the latest runs chosen. */
export async function chosenRun(fits: (run: Run) => boolean, none: string, parts: Parts): Promise<Run | null> {
  const { client, trans } = parts.nbdist;
  const { runs } = await client.state(null);
  const texts = { title: trans.__('Choose a run'), label: trans.__('Run'), none };
  return choose(runs.filter(fits), run => `${run.id} (${run.status})`, texts, trans);
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
