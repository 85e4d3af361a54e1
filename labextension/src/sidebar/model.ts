import type { IStateDB } from '@jupyterlab/statedb';
import type { CommandRegistry } from '@lumino/commands';
import { JSONExt, type ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import { ApiError } from '../api/client';
import type { About, Cluster } from '../api/items';
import type { INbdist } from '../token';

/** The pending action of a row, and the error of the last one. */
export interface Activity {
  readonly pending: string | null;
  readonly error: string | null;
}

const QUIET: Activity = { pending: null, error: null };

/** The panel's own state: the selected cluster, and the actions of rows. */
export class SidebarModel implements IDisposable {
  constructor(
    readonly nbdist: INbdist,
    readonly commands: CommandRegistry
  ) {
    nbdist.feed.changed.connect(this.follow, this);
    this.follow();
  }

  /** Emitted when another cluster is selected, or an action begins or ends. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** The cluster with the shown tasks; the user's choice while it exists. */
  get selected(): string | null {
    return this._selected;
  }

  /** The capabilities of the server; null until they are loaded. */
  get about(): About | null {
    return this._about;
  }

  /** Load the capabilities of the server: TensorBoard may have been installed since the last time. */
  async loadAbout(): Promise<void> {
    try {
      const about = await this.nbdist.client.about();
      if (!JSONExt.deepEqual({ ...about }, { ...this._about })) {
        this._about = about;
        this._changed.emit();
      }
    } catch {
      // The feed reports that the server cannot be reached; the panel loads this again when it is shown.
    }
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** The cluster that the user chose last; it may no longer exist. */
  get preferred(): string | null {
    return this._preferred;
  }

  select(cluster: string): void {
    this._preferred = cluster;
    this.follow();
    this._changed.emit(); // also if it was the default before
  }

  /** The activity of a row; the same object as long as nothing changes. */
  activity(key: string): Activity {
    return this._activities.get(key) ?? QUIET;
  }

  /** Execute a command for a row, which shows that it is pending, and its error. */
  async execute(key: string, action: string, command: string, args: ReadonlyPartialJSONObject): Promise<void> {
    if (this.activity(key).pending !== null) {
      return; // a second click
    }
    this.setActivity(key, { pending: action, error: null });
    try {
      await this.commands.execute(command, { ...args, quiet: true }); // the row shows the error
      this.setActivity(key, QUIET);
    } catch (error) {
      if (error instanceof ApiError && error.status === 0) {
        this._unreached.add(key);
      }
      this.setActivity(key, { pending: null, error: error instanceof Error ? error.message : String(error) });
    }
  }

  /** Remove the error of an action. */
  dismiss(key: string): void {
    this.setActivity(key, { ...this.activity(key), error: null });
  }

  dispose(): void {
    this._disposed = true;
    Signal.clearData(this);
  }

  private follow(): void {
    const { feed } = this.nbdist;
    if (feed.connection === 'live' && this._unreached.size > 0) {
      this._unreached.forEach(key => this.dismiss(key)); // the server is back
      this._unreached.clear();
    }
    const selected = selectFrom(feed.state.clusters, this._preferred);
    feed.requestTasks(selected);
    if (selected !== this._selected) {
      this._selected = selected;
      this._changed.emit();
    }
  }

  private setActivity(key: string, activity: Activity): void {
    if (this._disposed) {
      return;
    }
    if (activity.pending === null && activity.error === null) {
      this._activities.delete(key);
    } else {
      this._activities.set(key, activity);
    }
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _activities = new Map<string, Activity>();
  private readonly _unreached = new Set<string>(); // rows with an action that did not reach the server
  private _about: About | null = null;
  private _selected: string | null = null;
  private _preferred: string | null = null;
  private _disposed = false;
}

/** The cluster to show: the user's choice, else the newest that trains, else the newest that runs, else the newest. */
export function selectFrom(clusters: readonly Cluster[], preferred: string | null): string | null {
  const found =
    clusters.find(cluster => cluster.id === preferred) ??
    clusters.find(cluster => cluster.state === 'running' && cluster.runs.length > 0) ??
    clusters.find(cluster => cluster.state === 'running' && cluster.kind === 'nbdist') ??
    clusters.find(cluster => cluster.state === 'running') ??
    clusters[0];
  return found?.id ?? null;
}

const KEY = 'nbdist:chosen-cluster';

/** Keep the user's choice of a cluster with the workspace, and restore it after a reload. */
export async function persistSelection(model: SidebarModel, workspace: IStateDB): Promise<void> {
  let kept = await workspace.fetch(KEY);
  if (model.preferred === null && typeof kept === 'string') {
    model.select(kept);
  }
  const keep = (): void => {
    if (model.preferred !== null && model.preferred !== kept) {
      kept = model.preferred;
      void workspace.save(KEY, kept);
    }
  };
  keep();
  model.changed.connect(keep);
}
