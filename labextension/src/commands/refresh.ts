import { refreshIcon } from '@jupyterlab/ui-components';
import { described } from './describe';
import type { Parts } from './parts';
import { told } from './telling';

/** The command that asks the server anew for clusters, runs and sweeps. */
export function addRefreshCommand({ app, nbdist: { feed, trans } }: Parts): void {
  app.commands.addCommand('nbdist:refresh', {
    label: trans.__('Refresh Clusters and Runs'),
    caption: trans.__('Ask the server again what there is'),
    icon: refreshIcon,
    describedBy: described(),
    execute: args =>
      told(args, async () => {
        await feed.refresh();
        if (feed.trouble !== null) {
          throw new Error(feed.trouble);
        }
      })
  });
}
