import { type JupyterFrontEnd, type JupyterFrontEndPlugin, ILabShell, ILayoutRestorer } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IStateDB } from '@jupyterlab/statedb';
import { ITranslator } from '@jupyterlab/translation';
import { DEFAULTS, INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { keepChosen } from './chosen';
import { addPanelCommands } from './commands';
import { PanelModel } from './model';
import { PANEL_ID, Sidebar } from './sidebar';

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
    const model = new PanelModel(nbdist, app.commands);
    if (kept !== null) {
      void keepChosen(model, kept);
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
