/** Renderers of saved runs and sweeps. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { watchLeftViews } from './disconnected-views';
import { RUN, SWEEP } from './kinds';
import { type Around, BundleRenderer, type Kind } from './renderer';

const RANK = 10; // before text/html, which has 50, and the picture

export const renderers: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:renderers',
  description: 'Draws the saved curves of runs and the saved trials of sweeps, with no kernel.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator],
  activate: (app: JupyterFrontEnd, registry: IRenderMimeRegistry, translator: ITranslator | null): void => {
    const around = { trans: (translator ?? nullTranslator).load('nbdist'), commands: app.commands };
    add(registry, RUN, around);
    add(registry, SWEEP, around);
  }
};

export const leftViews: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:left-views',
  description: 'Shows the name of a live view after its kernel has ended.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker): void => {
    notebooks.forEach(watchLeftViews);
    notebooks.widgetAdded.connect((_, panel) => watchLeftViews(panel));
  }
};

function add<Bundle>(registry: IRenderMimeRegistry, kind: Kind<Bundle>, around: Around): void {
  registry.addFactory(
    { safe: true, mimeTypes: [kind.mimeType], createRenderer: () => new BundleRenderer(kind, around) },
    RANK
  );
}
