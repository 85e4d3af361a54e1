/** Renderers of saved runs and sweeps. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { watchDisconnectedViews } from './disconnected-views';
import { RUN, SWEEP } from './kinds';
import { type RenderContext, BundleRenderer, type BundleKind } from './renderer';

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

export const disconnectedViews: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:left-views',
  description: 'Shows the name of a live view after its kernel has ended.',
  autoStart: true,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker): void => {
    notebooks.forEach(watchDisconnectedViews);
    notebooks.widgetAdded.connect((_, panel) => watchDisconnectedViews(panel));
  }
};

function add<Bundle>(registry: IRenderMimeRegistry, kind: BundleKind<Bundle>, around: RenderContext): void {
  registry.addFactory(
    { safe: true, mimeTypes: [kind.mimeType], createRenderer: () => new BundleRenderer(kind, around) },
    RANK
  );
}
