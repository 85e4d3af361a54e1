import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { INbdist } from '../token';
import { StatusItem } from './item';

/** What goes on, in JupyterLab's status bar; a click shows the panel. */
export const status: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:status',
  description: 'Says in the status bar how many clusters and runs there are.',
  autoStart: true,
  requires: [INbdist],
  optional: [IStatusBar],
  activate: (app: JupyterFrontEnd, nbdist: INbdist, statusBar: IStatusBar | null): void => {
    if (statusBar) {
      const item = new StatusItem(nbdist, () => void app.commands.execute('nbdist:show-panel'));
      statusBar.registerStatusItem('nbdist:status', {
        item,
        align: 'left',
        rank: 4,
        isActive: () => item.active,
        activeStateChanged: item.changed
      });
    }
  }
};
