/** The nbdist extension: a sidebar, a status, commands, a launcher card, pages and renderers, one plugin each. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Client } from './api/client';
import { Feed } from './api/feed';
import { commands } from './commands/plugin';
import { launcher } from './launcher/plugin';
import { notebook } from './notebook/plugin';
import { sidebar } from './panel/plugin';
import { pages } from './render/page/plugin';
import { leftViews, renderers } from './render/plugins';
import { settings } from './settingsplugin';
import { status } from './status/plugin';
import { INbdist } from './token';

const feed: JupyterFrontEndPlugin<INbdist> = {
  id: 'nbdist:feed',
  description: 'Follows what the Jupyter server says of clusters, runs and sweeps.',
  autoStart: true,
  provides: INbdist,
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, translator: ITranslator | null): INbdist => {
    const client = new Client(app.serviceManager.serverSettings);
    return { client, feed: new Feed(client), trans: (translator ?? nullTranslator).load('nbdist') };
  }
};

const plugins: JupyterFrontEndPlugin<unknown>[] = [feed, settings, renderers, leftViews, pages, sidebar, status, commands, notebook, launcher];
export default plugins;
