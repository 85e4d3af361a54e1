import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { INbdistSettings, PLUGIN, Settings } from './settings';
import { INbdist } from './token';

/** Provides the user's settings; with no registry they are the defaults. */
export const settings: JupyterFrontEndPlugin<Settings> = {
  id: PLUGIN,
  description: "The user's settings of nbdist.",
  autoStart: true,
  provides: INbdistSettings,
  requires: [INbdist],
  optional: [ISettingRegistry],
  activate: (_: JupyterFrontEnd, { trans }: INbdist, registry: ISettingRegistry | null): Settings => {
    const found = new Settings();
    found.changed.connect(() => {
      if (found.problem !== null) {
        const text = trans.__('The settings of nbdist cannot be used, the defaults are in force: %1', found.problem);
        Notification.warning(text, { autoClose: false });
      }
    });
    if (registry) {
      void found.follow(registry);
    }
    return found;
  }
};
