import type { ReactElement } from 'react';
import { ReactWidget } from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { INbdist } from '../token';
import { statusText } from './text';

/** Milliseconds between two questions of the status bar's own: few enough to cost the server nothing. */
export const PAUSE = 60_000;

/**
 * What goes on, in the status bar.
 *
 * It shows what the panel is told, and asks once a minute while the page is seen: it has no stream kept open.
 */
export class StatusItem extends ReactWidget {
  constructor(
    private readonly nbdist: INbdist,
    private readonly open: () => void
  ) {
    super();
    this.addClass('nbd-Status');
    nbdist.feed.changed.connect(this.follow, this);
    this.timer = window.setInterval(() => this.ask(), PAUSE);
    this.ask();
    this.follow();
  }

  /** Whether there is something to say. */
  get active(): boolean {
    return this.text !== '';
  }

  /** There is something to say, or no more. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  override dispose(): void {
    window.clearInterval(this.timer);
    this.nbdist.feed.changed.disconnect(this.follow, this);
    super.dispose();
  }

  protected override render(): ReactElement {
    const { trans } = this.nbdist;
    return (
      <button
        type="button"
        className="nbd-Status-button"
        title={trans.__('Show clusters, tasks, runs and sweeps')}
        onClick={this.open}
      >
        {this.text}
      </button>
    );
  }

  private ask(): void {
    const { feed } = this.nbdist;
    if (!document.hidden && !feed.shown) {
      void feed.refresh();
    }
  }

  private follow(): void {
    const text = statusText(this.nbdist.feed.state, this.nbdist.trans);
    if (text !== this.text) {
      this.text = text;
      this.update();
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly timer: number;
  private text = '';
}
