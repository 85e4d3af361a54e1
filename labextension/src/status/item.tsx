import type { ReactElement } from 'react';
import { ReactWidget } from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { INbdist } from '../token';
import { isMoving, statusText } from './text';

/** Milliseconds between two requests of the status bar itself: while something runs, and otherwise. */
export const RUNNING = 5_000;
export const IDLE = 60_000;
/** Milliseconds from the start of a cell of this page until its run is in the list. */
export const STARTED = 1_000;

/** The cells of all notebooks of this page: when one starts, and when one has ended. */
export interface Cells {
  readonly started: ISignal<unknown, unknown>;
  readonly ended: ISignal<unknown, unknown>;
}

/**
 * The status bar's item on running work.
 *
 * It shows the panel's state. While no part of the page has the stream open it polls by itself: every 5 s while
 * something runs, else once a minute, and at once when a cell of this page has started or has ended.
 */
export class StatusItem extends ReactWidget {
  constructor(
    private readonly nbdist: INbdist,
    private readonly open: () => void,
    cells: Cells
  ) {
    super();
    this.addClass('nbd-Status');
    nbdist.feed.changed.connect(this.follow, this);
    this.cells = cells;
    cells.started.connect(this.onStart, this);
    cells.ended.connect(this.ask, this);
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
    window.clearTimeout(this.timer);
    this.cells.started.disconnect(this.onStart, this);
    this.cells.ended.disconnect(this.ask, this);
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
    const asked = document.hidden || feed.shown ? Promise.resolve() : feed.refresh();
    void asked.then(() => this.askLater(isMoving(feed.state) ? RUNNING : IDLE));
  }

  private askLater(pause: number): void {
    window.clearTimeout(this.timer);
    if (!this.isDisposed) {
      this.timer = window.setTimeout(() => this.ask(), pause);
    }
  }

  private onStart(): void {
    this.askLater(STARTED);
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
  private readonly cells: Cells;
  private timer = 0;
  private text = '';
}
