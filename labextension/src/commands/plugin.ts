import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { addAttachCommands } from './attach';
import { addClusterCommands } from './clusters';
import { addRefreshCommand } from './refresh';
import { addManageCommands } from './manage';
import { addRunCommands, CONTROLS } from './runs';
import { WISHES, addSweepCommands } from './sweeps';
import { addTensorBoardCommands } from './tensorboard';

/** What can be done about clusters, runs and sweeps, by name: for the palette, the panel and others. */
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
    const parts = { app, nbdist, settings, notebooks, files };
    addAttachCommands(parts);
    addClusterCommands(parts);
    addRunCommands(parts);
    addManageCommands(parts);
    addTensorBoardCommands(parts);
    addSweepCommands(parts);
    addRefreshCommand(parts);
    for (const command of FOR_PALETTE) {
      palette?.addItem({ command, category: 'nbdist' });
    }
    for (const command of CONTROLS) {
      palette?.addItem({ command: 'nbdist:control-run', category: 'nbdist', args: { command } });
    }
    for (const wish of WISHES) {
      palette?.addItem({ command: 'nbdist:sweep-wish', category: 'nbdist', args: { wish } });
    }
  }
};

/** Those that ask for what they need. */
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
