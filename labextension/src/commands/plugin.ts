import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { INotebookTracker } from '@jupyterlab/notebook';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { addAttachCommands } from './attach';

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
    _palette: ICommandPalette | null,
    notebooks: INotebookTracker | null,
    files: IDefaultFileBrowser | null
  ): void => {
    addAttachCommands({ app, nbdist, settings, notebooks, files });
  }
};
