/** Renderers of saved runs and sweeps. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { INbdist } from '../token';
import { watchViews } from './live-views';
import { COMPARISON, RUN, SWEEP } from './kinds';
import { type RenderContext, BundleRenderer, type BundleKind } from './renderer';
import { followAutosave } from './save-views';

const RANK = 10; // before text/html, which has 50, and the picture

export const renderers: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:renderers',
  description: 'Draws the saved curves of runs, comparisons of runs and the saved trials of sweeps; no kernel is needed.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [ITranslator, INbdist, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    registry: IRenderMimeRegistry,
    translator: ITranslator | null,
    nbdist: INbdist | null,
    notebooks: INotebookTracker | null
  ): void => {
    const trans = (translator ?? nullTranslator).load('nbdist');
    const around: RenderContext = {
      trans,
      commands: app.commands,
      client: nbdist?.client ?? null,
      sessionOf: node => notebooks?.find(panel => panel.content.node.contains(node))?.sessionContext ?? null
    };
    add(registry, RUN, around);
    add(registry, SWEEP, around);
    add(registry, COMPARISON, around);
  }
};

export const liveViews: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:left-views',
  description: 'Saves a notebook when a live view opens, and takes the place of a view whose kernel has ended.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ISettingRegistry],
  activate: (_: JupyterFrontEnd, notebooks: INotebookTracker, settings: ISettingRegistry | null): void => {
    const autosaves = followAutosave(settings);
    notebooks.forEach(panel => watchViews(panel, autosaves));
    notebooks.widgetAdded.connect((_, panel) => watchViews(panel, autosaves));
  }
};

function add<Bundle>(registry: IRenderMimeRegistry, kind: BundleKind<Bundle>, around: RenderContext): void {
  registry.addFactory(
    { safe: true, mimeTypes: [kind.mimeType], createRenderer: () => new BundleRenderer(kind, around) },
    RANK
  );
}
