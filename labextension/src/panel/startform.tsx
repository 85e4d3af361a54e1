import type { ReactElement } from 'react';
import { ReactWidget } from '@jupyterlab/ui-components';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { About, Start } from '../api/items';
import { StartFields } from './startfields';
import { faultsOf, firstValues, type Numbers, startOf, type StartValues } from './startvalues';

/** The form that starts a cluster; what was typed stays when the server refuses it. */
export class StartForm extends ReactWidget {
  constructor(
    private readonly about: About | null,
    private readonly trans: TranslationBundle,
    private trouble: string | null,
    first: Numbers
  ) {
    super();
    this.addClass('nbd-StartForm');
    this.values = firstValues(about, first);
  }

  /** What is asked of the server; null while a field has a fault. */
  getValue(): Start | null {
    return Object.keys(faultsOf(this.values, this.trans)).length ? null : startOf(this.values);
  }

  /** Say that the server is being asked, or what it refuses. */
  tell(state: { busy: boolean; trouble: string | null }): void {
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
