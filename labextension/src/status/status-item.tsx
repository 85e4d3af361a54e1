import type { ReactElement } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { ReactWidget } from '@jupyterlab/ui-components';
import { type ISignal, Signal } from '@lumino/signaling';
import type { State } from '../api/items';
import { isActive } from '../sidebar/actions';
import { percentOf } from '../sidebar/format';
import type { INbdist } from '../token';

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
 * It shows the panel's state. While no part of the page has the stream open, it polls: every 5 s while something runs,
 * else once a minute, and immediately when a cell of this page has started or ended.
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

  /** Whether the item has a text. */
  get active(): boolean {
    return this.text !== '';
  }

  /** Emitted when `active` changes. */
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
    const refreshed = document.hidden || feed.hasViews ? Promise.resolve() : feed.refresh();
    void refreshed.then(() => this.askLater(isMoving(feed.state) ? RUNNING : IDLE));
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

/** The text in the status bar, such as "nbdist: 2 clusters · 1 run 43%"; empty if nothing runs. */
export function statusText({ clusters, runs, sweeps }: State, trans: TranslationBundle): string {
  const parts: string[] = [];
  const up = clusters.filter(cluster => cluster.state !== 'stale' && cluster.state !== 'failed').length;
  if (up) {
    parts.push(trans._n('%1 cluster', '%1 clusters', up));
  }
  const going = runs.filter(isActive);
  if (going.length) {
    const share = shareOf(going.map(run => [run.step, run.total]));
    const text = trans._n('%1 run', '%1 runs', going.length);
    parts.push(share === null ? text : `${text} ${share}%`);
  }
  const searching = sweeps.filter(sweep => sweep.state === 'running' || sweep.state === 'paused').length;
  if (searching) {
    parts.push(trans._n('%1 sweep', '%1 sweeps', searching));
  }
  return parts.length ? trans.__('nbdist: %1', parts.join(' · ')) : '';
}

/** Whether something changes by itself, so that the next request should follow soon. */
export function isMoving({ clusters, runs, sweeps }: State): boolean {
  return (
    clusters.some(({ state }) => state === 'starting' || state === 'stopping') ||
    runs.some(isActive) ||
    sweeps.some(({ state }) => state === 'running' || state === 'paused')
  );
}

/** The overall progress in percent; null unless every item has a known total. */
function shareOf(runs: readonly [step: number | null, total: number | null][]): number | null {
  const shares = runs.map(([step, total]) => (total && step !== null ? percentOf(step, total) : null));
  return shares.includes(null)
    ? null
    : Math.floor(shares.reduce<number>((sum, share) => sum + share!, 0) / shares.length);
}
