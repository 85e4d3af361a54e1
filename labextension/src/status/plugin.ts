import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import type { IDisposable } from '@lumino/disposable';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { isLiveOutput, type Outputs } from '../render/live-views';
import { type Cells, StatusItem } from './status-item';

/** The running clusters, runs and sweeps in JupyterLab's status bar; a click shows the panel and the cell at work. */
export const status: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:status',
  description: 'Shows the numbers of clusters and runs in the status bar.',
  autoStart: true,
  requires: [INbdist],
  optional: [IStatusBar, INbdistSettings, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    statusBar: IStatusBar | null,
    settings: Settings | null,
    notebooks: INotebookTracker | null
  ): void => {
    const open = (): void => {
      void app.commands.execute('nbdist:show-panel');
      const found = notebooks && liveCell(notebooks);
      if (found) {
        app.shell.activateById(found.panel.id);
        void found.panel.content.scrollToItem(found.cell, 'start');
      }
    };
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

/** The newest cell with a live view, of the current notebook or else of another one; after *Run All* it is out of sight. */
export function liveCell(notebooks: INotebookTracker): { panel: NotebookPanel; cell: number } | null {
  const panels: NotebookPanel[] = notebooks.currentWidget ? [notebooks.currentWidget] : [];
  notebooks.forEach(panel => void panels.push(panel));
  for (const panel of panels) {
    const { widgets } = panel.content;
    for (let cell = widgets.length - 1; cell >= 0; cell--) {
      const outputs = (widgets[cell] as unknown as { outputArea?: Outputs }).outputArea?.model;
      for (let i = 0; i < (outputs?.length ?? 0); i++) {
        if (isLiveOutput(outputs!.get(i).data)) {
          return { panel, cell };
        }
      }
    }
  }
  return null;
}

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
