import type { ReactElement } from 'react';
import { Dialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { About, StartRequest } from '../api/items';
import type { INbdist } from '../token';
import { validate, initialValues, type InitialCounts, StartFields, startRequest, type StartValues } from './start-fields';

/** Show the form with the values `first` and start the cluster. Returns its id, or null if the user cancels. */
export async function startCluster(nbdist: INbdist, first: InitialCounts): Promise<string | null> {
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
  return dialog.clusterId;
}

/** A dialog that stays open, with the typed values, until the server accepts the request. */
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
  clusterId: string | null = null;

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
    if (this.pending) {
      return;
    }
    this.pending = true;
    this.form.setStatus({ busy: true, trouble: null });
    try {
      this.clusterId = (await this.nbdist.client.startCluster(start)).id;
      super.resolve(START);
    } catch (error) {
      this.form.setStatus({ busy: false, trouble: textOf(error) });
    } finally {
      this.pending = false;
    }
  }

  private pending = false;
}

const START = 1; // index of the button

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The form that starts a cluster; the typed values stay when the server refuses it. */
export class StartForm extends ReactWidget {
  constructor(
    private readonly about: About | null,
    private readonly trans: TranslationBundle,
    private trouble: string | null,
    first: InitialCounts
  ) {
    super();
    this.addClass('nbd-StartForm');
    this.values = initialValues(about, first);
  }

  /** The request for the server; null while a field is invalid. */
  getValue(): StartRequest | null {
    const faults = validate(this.values, this.trans, this.about);
    return Object.keys(faults).length ? null : startRequest(this.values, this.about);
  }

  /** Show that the request is pending, or why the server refused it. */
  setStatus(state: { busy: boolean; trouble: string | null }): void {
    this.busy = state.busy;
    this.trouble = state.trouble;
    this.update();
  }

  protected override render(): ReactElement {
    return (
      <StartFields
        first={this.values}
        about={this.about}
        busy={this.busy}
        trouble={this.trouble}
        trans={this.trans}
        onChange={values => (this.values = values)}
      />
    );
  }

  private values: StartValues;
  private busy = false;
}
