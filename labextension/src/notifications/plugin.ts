import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { NotebookActions } from '@jupyterlab/notebook';
import { argsSchema } from '../commands/context';
import { RefusedError, withNotifications } from '../commands/notify';
import { INbdistSettings, type Settings } from '../settings';
import { INbdist } from '../token';
import { Notifier, permission } from './notifier';

const ALLOW = 'nbdist:allow-browser-notifications';

/** Notifications when a long run or sweep ends, fails or loses a worker. */
export const notifications: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:notifications',
  description: 'Tells when a long run or sweep ends, fails or loses a worker.',
  autoStart: true,
  requires: [INbdist, INbdistSettings],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, nbdist: INbdist, settings: Settings, palette: ICommandPalette | null): void => {
    const { trans } = nbdist;
    const notifier = new Notifier(nbdist, settings, app.commands);
    NotebookActions.executionScheduled.connect(notifier.onStart);
    app.commands.addCommand(ALLOW, {
      label: trans.__('Allow Notifications of the Browser'),
      caption: trans.__('Tell in the browser, too, when a long run or sweep ends while this page is hidden'),
      describedBy: argsSchema(),
      execute: args =>
        withNotifications(args, async () => {
          if (permission() === 'default') {
            await window.Notification.requestPermission();
          }
          if (permission() !== 'granted') {
            throw new RefusedError(
              trans.__('The browser does not let this page show notifications: allow them in its settings of this site.')
            );
          }
          return trans.__('The browser tells when a long run or sweep ends while this page is hidden.');
        })
    });
    palette?.addItem({ command: ALLOW, category: 'nbdist' });
  }
};
