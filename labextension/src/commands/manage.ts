import { Dialog, InputDialog, Notification, showDialog } from '@jupyterlab/apputils';
import { Menu, Widget } from '@lumino/widgets';
import type { Labels, Run } from '../api/items';
import { formatBytes } from '../panel/format';
import { confirmed } from './asking';
import { described } from './describe';
import { type Parts, textOf } from './parts';
import { runOf } from './runs';
import { told } from './telling';

const ID = ['string', 'The id of a run; without one it is asked for.'] as const;
const OF_A_RUN = ['nbdist:rename-run', 'nbdist:tag-run', 'nbdist:note-run', 'nbdist:delete-run'];

/** Commands that manage runs: name, tags, note, deletion, and the menu of a row with all of them. */
export function addManageCommands(parts: Parts): void {
  const { commands } = parts.app;
  const { client, trans } = parts.nbdist;
  /** Ask for a text, make labels from it, and set them on the run. */
  const label = async (id: string | null, ask: (run: Run) => Promise<Labels | null>): Promise<void> => {
    const run = await runOf(id, () => true, parts);
    const labels = run && (await ask(run));
    if (run && labels) {
      await client.labelRun(run.id, labels);
    }
  };
  commands.addCommand('nbdist:rename-run', {
    label: trans.__('Rename a Run…'),
    caption: trans.__('Give a run another name; its id stays'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const name = await typed(trans.__('Rename run %1', run.id), run.name, trans.__('Name'));
          return name === null ? null : { name };
        })
      )
  });
  commands.addCommand('nbdist:tag-run', {
    label: trans.__('Tag a Run…'),
    caption: trans.__('Give a run tags to find it by'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const text = await typed(trans.__('Tags of run %1', run.id), run.tags.join(', '), trans.__('Tags, with commas between them'));
          return text === null ? null : { tags: tagsOf(text) };
        })
      )
  });
  commands.addCommand('nbdist:note-run', {
    label: trans.__('Write a Note about a Run…'),
    caption: trans.__('Write a note about a run'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, () =>
        label(textOf(args['id']), async run => {
          const { button, value } = await showDialog({
            title: trans.__('Note about run %1', run.id),
            body: new TextField(run.remark ?? '', trans.__('Note')),
            buttons: [Dialog.cancelButton({ label: trans.__('Cancel') }), Dialog.okButton({ label: trans.__('OK') })],
            focusNodeSelector: 'textarea'
          });
          return button.accept ? { note: value ?? '' } : null;
        })
      )
  });
  commands.addCommand('nbdist:delete-run', {
    label: trans.__('Delete a Run…'),
    caption: trans.__('Delete a run with its logs, checkpoints and results'),
    describedBy: described({ id: ID }),
    execute: args =>
      told(args, async () => {
        const run = await runOf(textOf(args['id']), one => one.can['delete'] === true, parts);
        if (run === null) {
          return;
        }
        const size = run.bytes === null ? '' : ` (${formatBytes(run.bytes)})`;
        const reasons = [trans.__('Its logs, checkpoints and results%1 are deleted. This cannot be undone.', size)];
        if (await confirmed(trans.__('Delete run %1?', run.name), reasons, trans.__('Delete'), trans)) {
          await client.deleteRun(run.id);
          return trans.__('Run %1 is deleted.', run.id);
        }
      })
  });
  commands.addCommand('nbdist:clean-runs', {
    label: trans.__('Delete Old Runs…'),
    caption: trans.__('List the runs that are older than an age, and delete them'),
    describedBy: described(),
    execute: args => told(args, () => clean(parts))
  });
  commands.addCommand('nbdist:run-menu', {
    label: trans.__('Manage a Run'),
    describedBy: described({ id: ID }),
    execute: args => {
      const menu = new Menu({ commands });
      for (const command of OF_A_RUN) {
        menu.addItem({ command, args: { id: textOf(args['id']) } });
      }
      menu.addItem({ type: 'separator' });
      menu.addItem({ command: 'nbdist:clean-runs' });
      menu.aboutToClose.connect(() => requestAnimationFrame(() => menu.dispose()));
      const { left, bottom } = (document.activeElement ?? document.body).getBoundingClientRect();
      menu.open(left, bottom);
    }
  });
}

/** The tags in a text, each once. */
export function tagsOf(text: string): string[] {
  return [...new Set(text.split(',').map(tag => tag.trim()).filter(Boolean))];
}

/** Ask for a line of text; null if the user cancels. */
async function typed(title: string, text: string, label: string): Promise<string | null> {
  const { button, value } = await InputDialog.getText({ title, text, label });
  return button.accept ? (value ?? '').trim() : null;
}

/** Ask for an age, show which runs are older, and delete them. */
async function clean({ nbdist: { client, trans } }: Parts): Promise<string | void> {
  const age = await typed(trans.__('Delete old runs'), '30d', trans.__('Older than, such as 12h, 30d or 2w'));
  if (!age) {
    return;
  }
  const asked = { older_than: age, keep: null };
  const { runs, bytes } = await client.clean({ ...asked, dry_run: true });
  if (!runs.length) {
    return trans.__('No run is older than %1.', age);
  }
  const size = formatBytes(bytes);
  const title = trans._n('Delete %1 run?', 'Delete %1 runs?', runs.length);
  const named = runs.slice(0, MOST_NAMED).join(', ') + (runs.length > MOST_NAMED ? ', …' : '');
  const reasons = [trans.__('They take %1 on disk: %2', size, named), trans.__('This cannot be undone.')];
  if (await confirmed(title, reasons, trans.__('Delete'), trans)) {
    const done = await client.clean({ ...asked, dry_run: false });
    Notification.success(
      trans._n('%1 run is deleted, %2.', '%1 runs are deleted, %2.', done.runs.length, formatBytes(done.bytes)),
      { autoClose: 5000 }
    );
  }
}

const MOST_NAMED = 6;

/** A field of several lines. */
class TextField extends Widget implements Dialog.IBodyWidget<string> {
  constructor(text: string, label: string) {
    super();
    this.area.value = text;
    this.area.rows = 6;
    this.area.cols = 48;
    this.area.className = 'jp-mod-styled';
    this.area.setAttribute('aria-label', label);
    this.node.append(this.area);
  }

  getValue(): string {
    return this.area.value;
  }

  private readonly area = document.createElement('textarea');
}
