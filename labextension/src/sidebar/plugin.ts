import { ILabShell, ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator } from '@jupyterlab/translation';
import { addIcon } from '@jupyterlab/ui-components';
import type { CommandRegistry } from '@lumino/commands';
import { nbdistIcon } from '../icons';
import { DEFAULTS, INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { persistSelection, SidebarModel } from './model';
import { PANEL_ID, Sidebar } from './sidebar';
import { startCluster } from './start-dialog';
import type { InitialCounts } from './start-fields';

/** The panel in the sidebar, and the commands that open it and start a cluster. */
export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:sidebar',
  description: 'Shows clusters, tasks, runs and sweeps beside the notebook.',
  autoStart: true,
  requires: [INbdist],
  optional: [ILabShell, ILayoutRestorer, ICommandPalette, ITranslator, INbdistSettings, IStateDB],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null,
    translator: ITranslator | null,
    settings: Settings | null,
    kept: IStateDB | null
  ): void => {
    const model = new SidebarModel(nbdist, app.commands);
    if (kept !== null) {
      void persistSelection(model, kept);
    }
    const panel = new Sidebar(model, translator ?? undefined);
    app.shell.add(panel, 'left', { rank: 520, type: 'nbdist' });
    restorer?.add(panel, PANEL_ID);
    const show = (): void => (labShell ?? app.shell).activateById(PANEL_ID);
    addPanelCommands(app.commands, model, show, () => settings?.values ?? DEFAULTS);
    for (const command of ['nbdist:show-panel', 'nbdist:start-cluster']) {
      palette?.addItem({ command, category: 'nbdist' });
    }
  }
};

/** The panel's own commands: show it, start a cluster, dismiss one that failed. */
export function addPanelCommands(commands: CommandRegistry, model: SidebarModel, show: () => void, first: () => InitialCounts): void {
  const { client, trans } = model.nbdist;
  commands.addCommand('nbdist:show-panel', {
    label: trans.__('Show Clusters and Runs'),
    caption: trans.__('Open the nbdist panel'),
    icon: nbdistIcon,
    execute: show
  });
  commands.addCommand('nbdist:start-cluster', {
    label: trans.__('Start a Cluster…'),
    caption: trans.__('Start a cluster that runs until it is stopped'),
    icon: addIcon,
    execute: async () => {
      const id = await startCluster(model.nbdist, first());
      if (id !== null) {
        model.select(id);
        show();
      }
      return id;
    }
  });
  commands.addCommand('nbdist:dismiss-cluster', {
    label: trans.__('Dismiss a Failed Cluster'),
    execute: args => client.stopCluster(String(args['id']))
  });
}
