/** The nbdist extension: a sidebar, a status, commands, a launcher card, pages and renderers, one plugin each. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Client } from './api/client';
import { Feed } from './api/feed';
import { commands } from './commands/plugin';
import { launcher } from './launcher/plugin';
import { notebook } from './notebook/plugin';
import { notifications } from './notifications/plugin';
import { pages } from './pages/plugin';
import { liveViews, renderers } from './render/plugin';
import { INbdistSettings, PLUGIN, Settings } from './settings';
import { sidebar } from './sidebar/plugin';
import { status } from './status/plugin';
import { INbdist } from './token';

const feed: JupyterFrontEndPlugin<INbdist> = {
  id: 'nbdist:feed',
  description: 'Follows the state of clusters, runs and sweeps on the Jupyter server.',
  autoStart: true,
  provides: INbdist,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null): INbdist => {
    const client = new Client(app.serviceManager.serverSettings);
    return { client, feed: new Feed(client), trans: (translator ?? nullTranslator).load('nbdist') };
  }
};

/** Provides the user's settings; with no registry they are the defaults. */
const settings: JupyterFrontEndPlugin<Settings> = {
  id: PLUGIN,
  description: "The user's settings of nbdist.",
  autoStart: true,
  provides: INbdistSettings,
  requires: [INbdist],
  optional: [ISettingRegistry],
  activate: (_: JupyterFrontEnd, { trans }: INbdist, registry: ISettingRegistry | null): Settings => {
    const found = new Settings();
    found.changed.connect(() => {
      if (found.error !== null) {
        const text = trans.__('The settings of nbdist are not valid, so the defaults apply: %1', found.error);
        Notification.warning(text, { autoClose: false });
      }
    });
    if (registry) {
      void found.follow(registry);
    }
    return found;
  }
};

const plugins: JupyterFrontEndPlugin<unknown>[] = [feed, settings, renderers, liveViews, pages, sidebar, status, notifications, commands, notebook, launcher];
export default plugins;
