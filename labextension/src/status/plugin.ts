import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { NotebookActions } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import type { IDisposable } from '@lumino/disposable';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { type Cells, StatusItem } from './status-item';

/** The running clusters, runs and sweeps in JupyterLab's status bar; a click shows the panel. */
export const status: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:status',
  description: 'Shows the numbers of clusters and runs in the status bar.',
  autoStart: true,
  requires: [INbdist],
  optional: [IStatusBar, INbdistSettings],
  activate: (app: JupyterFrontEnd, nbdist: INbdist, statusBar: IStatusBar | null, settings: Settings | null): void => {
    const open = (): void => void app.commands.execute('nbdist:show-panel');
    let shown: IDisposable | null = null;
    const follow = (): void => {
      const wanted = statusBar !== null && (settings?.values.showStatus ?? true);
      if (!wanted) {
        shown?.dispose();
        shown = null;
      } else {
        shown ??= add(statusBar, new StatusItem(nbdist, open, CELLS));
      }
    };
    settings?.changed.connect(follow);
    follow();
  }
};

/** All notebooks of the page report the start and the end of their cells to it. */
const CELLS: Cells = { started: NotebookActions.executionScheduled, ended: NotebookActions.executed };

/** Add the item to the status bar until the returned object is disposed, which also disposes the item. */
function add(statusBar: IStatusBar, item: StatusItem): IDisposable {
  return statusBar.registerStatusItem('nbdist:status', {
    item,
    align: 'left',
    rank: 4,
    isActive: () => item.active,
    activeStateChanged: item.changed
  });
}
