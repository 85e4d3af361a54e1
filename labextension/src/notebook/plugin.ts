import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, ISessionContextDialogs } from '@jupyterlab/apputils';
import { INotebookTracker } from '@jupyterlab/notebook';
import { argsSchema } from '../commands/context';
import { withNotifications } from '../commands/notify';
import { runDistributedIcon } from '../icons';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { runDistributed } from './run-distributed';

const RUN = 'nbdist:run-cell-distributed';

/** "Run Cell Distributed"; schema/notebook.json puts it into the toolbar, the Run menu and under a shortcut. */
export const notebook: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:notebook',
  description: 'Runs a cell of a notebook on the workers of a cluster.',
  autoStart: true,
  requires: [INbdist, INbdistSettings, INotebookTracker],
  optional: [ICommandPalette, ISessionContextDialogs],
  activate: (
    { commands, shell }: JupyterFrontEnd,
    { trans }: INbdist,
    settings: Settings,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null,
    dialogs: ISessionContextDialogs | null
  ): void => {
    commands.addCommand(RUN, {
      label: trans.__('Run Cell Distributed'),
      caption: trans.__('Run this cell on the workers: add %1 as its first line, and run it', '%%distribute'),
      icon: runDistributedIcon,
      describedBy: argsSchema(),
      isEnabled: () => notebooks.activeCell !== null && notebooks.currentWidget === shell.currentWidget,
      execute: args =>
        withNotifications(args, async () => {
          const panel = notebooks.currentWidget;
          if (panel) {
            await runDistributed(panel, settings.values.flags, trans, dialogs);
          }
        })
    });
    const look = (): void => commands.notifyCommandChanged(RUN);
    notebooks.activeCellChanged.connect(look);
    notebooks.currentChanged.connect(look);
    shell.currentChanged?.connect(look);
    palette?.addItem({ command: RUN, category: 'nbdist' });
  }
};
