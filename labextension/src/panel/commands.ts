import type { CommandRegistry } from '@lumino/commands';
import { addIcon } from '@jupyterlab/ui-components';
import { nbdistIcon } from './icon';
import type { PanelModel } from './model';
import { startCluster } from './startdialog';
import type { Numbers } from './startvalues';

/** The panel's own commands: show it, start a cluster, dismiss one that failed. */
export function addPanelCommands(commands: CommandRegistry, model: PanelModel, show: () => void, first: () => Numbers): void {
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
        model.choose(id);
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
