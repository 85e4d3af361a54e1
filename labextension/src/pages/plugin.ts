/** Pages of runs and sweeps in the main area: the commands that open them, and their restoration after a reload. */

import { ILayoutRestorer, type JupyterFrontEnd, type JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, MainAreaWidget, WidgetTracker } from '@jupyterlab/apputils';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { LabIcon } from '@jupyterlab/ui-components';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { State } from '../api/items';
import { argsSchema } from '../commands/context';
import { pickItem } from '../commands/dialogs';
import { withNotifications } from '../commands/notify';
import { nbdistIcon } from '../icons';
import { INbdist } from '../token';
import type { Page } from './page';
import { RunPage } from './run-page';
import { SweepPage } from './sweep-page';

const BELOW = 420; // pixels of a page below a notebook

type AnyPage = Page<unknown, unknown>;

interface PageKind {
  name: string;
  command: string;
  label: string;
  caption: string;
  icon: LabIcon;
  argument: string;
  /** The items to choose from, newest first. */
  choices(state: State): { id: string; state: string }[];
  /** The title and the label of the dialog that picks one. */
  question: string;
  noun: string;
  /** The message if there is nothing to choose. */
  none: string;
  make(id: string): AnyPage;
}

export const pages: JupyterFrontEndPlugin<void> = {
  id: 'nbdist:pages',
  description: 'Pages of runs and sweeps, which need no kernel.',
  autoStart: true,
  requires: [INbdist, IRenderMimeRegistry],
  optional: [ILayoutRestorer, ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    nbdist: INbdist,
    registry: IRenderMimeRegistry,
    restorer: ILayoutRestorer | null,
    palette: ICommandPalette | null
  ): void => {
    const { trans } = nbdist;
    const kinds: PageKind[] = [
      {
        name: 'nbdist-run',
        command: 'nbdist:open-run',
        label: trans.__('Open Run…'),
        caption: trans.__('Show the curves of a run, its code and its files'),
        icon: nbdistIcon,
        argument: 'The id of the run; a dialog asks for it if it is missing.',
        choices: ({ runs }) => runs.map(({ id, status }) => ({ id, state: status })),
        question: trans.__('Choose a run'),
        noun: trans.__('Run'),
        none: trans.__('There are no runs yet.'),
        make: id => new RunPage(id, nbdist, app.commands, registry)
      },
      {
        name: 'nbdist-sweep',
        command: 'nbdist:open-grid',
        label: trans.__('Open Grid of a Sweep…'),
        caption: trans.__('Show the trials of a sweep'),
        icon: nbdistIcon,
        argument: 'The id of the sweep; a dialog asks for it if it is missing.',
        choices: ({ sweeps }) => sweeps,
        question: trans.__('Choose a sweep'),
        noun: trans.__('Sweep'),
        none: trans.__('There are no sweeps yet.'),
        make: id => new SweepPage(id, nbdist, app.commands)
      }
    ];
    for (const kind of kinds) {
      add(kind, app, nbdist, restorer);
      palette?.addItem({ command: kind.command, category: 'nbdist' });
    }
  }
};

function add(kind: PageKind, app: JupyterFrontEnd, nbdist: INbdist, restorer: ILayoutRestorer | null): void {
  const tracker = new WidgetTracker<MainAreaWidget<AnyPage>>({ namespace: kind.name });
  app.commands.addCommand(kind.command, {
    label: kind.label,
    caption: kind.caption,
    icon: kind.icon,
    describedBy: argsSchema({ id: ['string', kind.argument] }),
    execute: args =>
      withNotifications(args, async () => {
        const id = idOf(args) ?? (await pickItemId(kind, nbdist));
        if (id !== null) {
          open(kind, id, app, tracker);
        }
      })
  });
  void restorer?.restore(tracker, {
    command: kind.command,
    args: ({ content }) => ({ id: content.itemId }),
    name: ({ content }) => content.itemId
  });
}

function idOf(args: ReadonlyPartialJSONObject): string | null {
  return typeof args['id'] === 'string' && args['id'] ? args['id'] : null;
}

/** The page of an item, which may already be open. */
function open(kind: PageKind, id: string, app: JupyterFrontEnd, tracker: WidgetTracker<MainAreaWidget<AnyPage>>): void {
  let widget = tracker.find(({ content }) => content.itemId === id);
  if (!widget) {
    const content = kind.make(id);
    content.title.label = id;
    content.title.icon = kind.icon;
    widget = new MainAreaWidget({ content });
    widget.id = `${kind.name}-${id}`;
    widget.toolbar.hide();
    app.shell.add(widget, 'main');
    if (!widget.isAttached) {
      // Jupyter Notebook shows one document in its main area; a widget below it would have no height.
      content.node.style.minHeight = `${Math.min(BELOW, window.innerHeight / 2)}px`;
      app.shell.add(widget, 'down');
    }
    void tracker.add(widget);
  }
  app.shell.activateById(widget.id);
}

/** Let the user choose an item; null if none is chosen. */
async function pickItemId(kind: PageKind, { client, trans }: INbdist): Promise<string | null> {
  const choices = kind.choices(await client.state(null));
  const nameOf = ({ id, state }: { id: string; state: string }): string => `${id} (${state})`;
  return (await pickItem(choices, nameOf, { title: kind.question, label: kind.noun, none: kind.none }, trans))?.id ?? null;
}
