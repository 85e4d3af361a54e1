import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDefaultFileBrowser } from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { argsSchema, stringArg } from '../commands/context';
import { withNotifications } from '../commands/notify';
import { nbdistIcon } from '../icons';
import { openNew } from '../notebook/new-notebook';
import { INbdist } from '../token';
import ready from './ready.ipynb.json';

const NEW = 'nbdist:new-notebook';

/** Cards of notebooks show an image address instead of the command's icon; its colour suits all themes. */
const PICTURE = `data:image/svg+xml,${encodeURIComponent(nbdistIcon.svgstr.replaceAll('#616161', '#0288d1'))}`;

/** A card in the launcher, and a command, for a notebook that trains on a cluster without changes. */
export const launcher: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:launcher',
  description: 'Opens a notebook that is ready to train on a cluster.',
  autoStart: true,
  requires: [INbdist],
  optional: [ILauncher, ICommandPalette, IDefaultFileBrowser, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    { trans }: INbdist,
    cards: ILauncher | null,
    palette: ICommandPalette | null,
    files: IDefaultFileBrowser | null,
    translator: ITranslator | null
  ): void => {
    app.commands.addCommand(NEW, {
      label: args => (args['isCard'] ? trans.__('Distributed notebook') : trans.__('New Distributed Notebook')),
      caption: trans.__('Open a notebook that is ready to train on a cluster'),
      icon: nbdistIcon,
      describedBy: argsSchema({ cwd: ['string', "The folder; without it the file browser's."] }),
      execute: args =>
        withNotifications(args, () => openNew(app, stringArg(args['cwd']) ?? files?.model.path ?? '', ready, trans))
    });
    palette?.addItem({ command: NEW, category: 'nbdist' });
    // The group's name is JupyterLab's own, in the user's language.
    const category = (translator ?? nullTranslator).load('jupyterlab').__('Notebook');
    cards?.add({ command: NEW, category, args: { isCard: true }, rank: 100, kernelIconUrl: PICTURE });
  }
};
