import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { refreshIcon } from '@jupyterlab/ui-components';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { addAttachCommands } from './attach';
import { addClusterCommands } from './clusters';
import { argsSchema, type CommandContext } from './context';
import { withNotifications } from './notify';
import { addManageCommands, addRunCommands, addTensorBoardCommands, RUN_CONTROLS } from './runs';
import { addSweepCommands, SWEEP_CONTROLS } from './sweeps';

/** The commands for clusters, runs and sweeps, for the palette, the panel and others. */
export const commands: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:commands',
  description: 'Commands for clusters, runs and sweeps.',
  autoStart: true,
  requires: [INbdist, INbdistSettings],
  optional: [ICommandPalette, INotebookTracker, IDefaultFileBrowser],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    settings: Settings,
    palette: ICommandPalette | null,
    notebooks: INotebookTracker | null,
    files: IDefaultFileBrowser | null
  ): void => {
    const context = { app, nbdist, settings, notebooks, files };
    addAttachCommands(context);
    addClusterCommands(context);
    addRunCommands(context);
    addManageCommands(context);
    addTensorBoardCommands(context);
    addSweepCommands(context);
    addRefreshCommand(context);
    for (const command of FOR_PALETTE) {
      palette?.addItem({ command, category: 'nbdist' });
    }
    for (const command of RUN_CONTROLS) {
      palette?.addItem({ command: 'nbdist:control-run', category: 'nbdist', args: { command } });
    }
    for (const command of SWEEP_CONTROLS) {
      palette?.addItem({ command: 'nbdist:sweep-command', category: 'nbdist', args: { command } });
    }
  }
};

/** The commands that ask for missing arguments. */
const FOR_PALETTE = [
  'nbdist:stop-cluster',
  'nbdist:grow-cluster',
  'nbdist:shrink-cluster',
  'nbdist:restart-task',
  'nbdist:stop-run',
  'nbdist:set-learning-rate',
  'nbdist:open-folder',
  'nbdist:rename-run',
  'nbdist:tag-run',
  'nbdist:note-run',
  'nbdist:delete-run',
  'nbdist:clean-runs',
  'nbdist:open-tensorboard',
  'nbdist:compare-runs',
  'nbdist:refresh'
];

/** The command that requests clusters, runs and sweeps from the server again. */
export function addRefreshCommand({ app, nbdist: { feed, trans } }: CommandContext): void {
  app.commands.addCommand('nbdist:refresh', {
    label: trans.__('Refresh Clusters and Runs'),
    caption: trans.__('Read clusters, runs and sweeps from the server again'),
    icon: refreshIcon,
    describedBy: argsSchema(),
    execute: args =>
      withNotifications(args, async () => {
        await feed.refresh();
        if (feed.error !== null) {
          throw new Error(feed.error);
        }
      })
  });
}
