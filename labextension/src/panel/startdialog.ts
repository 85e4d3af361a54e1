import { Dialog } from '@jupyterlab/apputils';
import type { About } from '../api/items';
import type { INbdist } from '../token';
import { StartForm } from './startform';
import type { Numbers } from './startvalues';

/** Ask what to start, and start it; the form begins with `first`. Returns the new cluster's id, null if the user goes back. */
export async function startCluster(nbdist: INbdist, first: Numbers): Promise<string | null> {
  let about: About | null = null;
  let trouble: string | null = null;
  try {
    about = await nbdist.client.about();
    trouble = about.problem;
  } catch (error) {
    trouble = textOf(error);
  }
  const dialog = new StartDialog(nbdist, new StartForm(about, nbdist.trans, trouble, first));
  await dialog.launch();
  return dialog.started;
}

/** A dialog that stays open, with what was typed, until the server takes it. */
class StartDialog extends Dialog<unknown> {
  constructor(
    private readonly nbdist: INbdist,
    private readonly form: StartForm
  ) {
    const { trans } = nbdist;
    super({
      title: trans.__('Start a cluster'),
      body: form,
      buttons: [
        Dialog.cancelButton({ label: trans.__('Cancel') }),
        Dialog.okButton({ label: trans.__('Start') })
      ],
      defaultButton: 1,
      focusNodeSelector: '#nbd-start-workers'
    });
  }

  /** The new cluster's id. */
  started: string | null = null;

  override resolve(index: number = START): void {
    if (index === START) {
      void this.submit();
    } else {
      super.resolve(index);
    }
  }

  private async submit(): Promise<void> {
    const start = this.form.getValue();
    if (start === null) {
      this.node.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
      return;
    }
    if (this.asking) {
      return;
    }
    this.asking = true;
    this.form.tell({ busy: true, trouble: null });
    try {
      this.started = (await this.nbdist.client.startCluster(start)).id;
      super.resolve(START);
    } catch (error) {
      this.form.tell({ busy: false, trouble: textOf(error) });
    } finally {
      this.asking = false;
    }
  }

  private asking = false;
}

const START = 1; // the place of the button

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
