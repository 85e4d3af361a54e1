import type { ServerConnection } from '@jupyterlab/services';
import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import { ApiError, type Client } from './client';
import { type Change, type Changes, type Message, EMPTY_STATE, type State, VERSION } from './items';

export type Connection = 'connecting' | 'live' | 'polling' | 'offline';

const POLL = 2000; // milliseconds between two requests without a stream
const RETRY = [500, 1000, 2000, 5000, 15000]; // milliseconds before the stream is opened again

/**
 * The state of clusters, runs and sweeps on the server.
 *
 * A WebSocket sends the changes. Without one the state is polled every 2 s. A hidden page sends no requests.
 */
export class Feed implements IDisposable {
  constructor(readonly client: Client) {
    document.addEventListener('visibilitychange', this.onVisibility);
  }

  get state(): State {
    return this._state;
  }

  /** The current error; null if there is none. */
  get error(): string | null {
    return this._error;
  }

  /** Whether the server answered the last request, also with an error. */
  get reachable(): boolean {
    return this._reachable;
  }

  get connection(): Connection {
    return this._connection;
  }

  /** Emitted when the state or the connection has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Request the tasks of a cluster, too; null for none. */
  requestTasks(cluster: string | null): void {
    if (cluster !== this._cluster) {
      this._cluster = cluster;
      this.sendInterest();
    }
  }

  /**
   * Register a view of the state until the returned object is disposed. Without a view no requests are sent.
   */
  addView(part: object): IDisposable {
    this._views.add(part);
    this.openStream();
    this.sendInterest();
    return {
      isDisposed: false,
      dispose: () => {
        this._views.delete(part);
        this.sendInterest();
      }
    };
  }

  /** Whether a view shows the state, so that it is kept up to date. */
  get hasViews(): boolean {
    return this._views.size > 0;
  }

  /** Request the state again; returns when it has arrived, or when it was requested through an open stream. */
  async refresh(): Promise<void> {
    try {
      this.sendInterest(); // the server then reads the state again
      const state = await this.client.state(this._cluster);
      this._error = null;
      this._reachable = true;
      if (this.isOpen) {
        this.setConnection('live'); // changes in the stream are in order; a separate answer may be older or newer
      } else {
        this.setConnection(this._attempts ? 'polling' : 'connecting');
        this.setState(state);
      }
    } catch (error) {
      this._error = error instanceof Error ? error.message : String(error);
      this._reachable = !(error instanceof ApiError) || error.status !== 0;
      this.setConnection('offline');
    }
  }

  dispose(): void {
    this._disposed = true;
    document.removeEventListener('visibilitychange', this.onVisibility);
    window.clearTimeout(this._timer);
    this._socket?.close();
    this._socket = null;
    Signal.clearData(this);
  }

  private get isOpen(): boolean {
    return this._socket?.readyState === WebSocket.OPEN;
  }

  private get visible(): boolean {
    return this._views.size > 0 && !document.hidden;
  }

  /** Open the stream, unless it is open. */
  private openStream(): void {
    if (this._disposed || this._socket || !this.visible) {
      return;
    }
    window.clearTimeout(this._timer);
    const settings: ServerConnection.ISettings = this.client.settings;
    const socket = new settings.WebSocket(this.client.streamUrl());
    this._socket = socket;
    socket.onopen = () => this.sendInterest();
    socket.onmessage = event => this.onMessage(event);
    socket.onclose = () => this.onClose(socket);
    socket.onerror = () => undefined; // a close event follows
  }

  private onMessage(event: MessageEvent): void {
    const message = JSON.parse(String(event.data)) as Message;
    this._attempts = 0;
    this._error = null;
    if (message.kind === 'state') {
      const { kind: _, ...state } = message;
      this._connection = 'live';
      this.setState(state);
    } else if (message.kind === 'changes') {
      this._connection = 'live';
      this.setState(applyChanges(this._state, message));
    }
  }

  private onClose(socket: WebSocket): void {
    if (socket !== this._socket || this._disposed) {
      return;
    }
    this._socket = null;
    const pause = RETRY[Math.min(this._attempts, RETRY.length - 1)]!;
    this._retryAt = Date.now() + pause;
    this._attempts += 1;
    void this.poll();
  }

  /** Poll until the stream may be opened again. */
  private async poll(): Promise<void> {
    window.clearTimeout(this._timer);
    if (this._disposed || this._socket || !this.visible) {
      return;
    }
    await this.refresh();
    if (this._disposed || this._socket) {
      return;
    }
    if (Date.now() >= this._retryAt) {
      this.openStream();
    } else {
      this._timer = window.setTimeout(() => void this.poll(), Math.min(POLL, this._retryAt - Date.now() + 1));
    }
  }

  private sendInterest(): void {
    if (this._socket && this.isOpen) {
      this._socket.send(JSON.stringify({ kind: 'look', cluster: this._cluster, visible: this.visible }));
    }
  }

  private readonly onVisibility = (): void => {
    this.sendInterest();
    if (this._attempts > 0) {
      void this.poll();
    } else {
      this.openStream();
    }
  };

  private setState(state: State): void {
    if (state.version !== VERSION) {
      this._reachable = true;
      this._error = `The server speaks version ${state.version} of nbdist's interface, this page ${VERSION}: reload it.`;
      this.setConnection('offline');
      return;
    }
    this._state = state;
    this._changed.emit();
  }

  private setConnection(connection: Connection): void {
    this._connection = connection;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _views = new Set<object>();
  private _state: State = EMPTY_STATE;
  private _error: string | null = null;
  private _reachable = true;
  private _connection: Connection = 'connecting';
  private _cluster: string | null = null;
  private _socket: WebSocket | null = null;
  private _attempts = 0;
  private _retryAt = 0;
  private _timer = 0;
  private _disposed = false;
}

/** Apply changes to a state; unchanged items and lists stay the same objects. */
export function applyChanges(state: State, changes: Changes): State {
  const cluster = changes.cluster !== undefined ? changes.cluster : state.cluster;
  const tasks = cluster === state.cluster ? state.tasks : [];
  return {
    version: state.version,
    clusters: merge(state.clusters, changes.clusters, newestFirst),
    runs: merge(state.runs, changes.runs, newestFirst),
    sweeps: merge(state.sweeps, changes.sweeps, newestFirst),
    tasks: merge(tasks, changes.tasks, byRank),
    cluster,
    problems: changes.problems ?? state.problems
  };
}

type Named = { id: string } | { rank: number };

function merge<Item extends Named, Key extends string | number>(
  items: Item[],
  change: Change<Item, Key> | undefined,
  order: (one: Item, other: Item) => number
): Item[] {
  if (!change) {
    return items;
  }
  const removed = new Set<string | number>(change.removed);
  const news = new Map(change.set.map(item => [key(item), item]));
  const kept = items.filter(item => !removed.has(key(item))).map(item => news.get(key(item)) ?? item);
  const known = new Set(kept.map(key));
  const added = change.set.filter(item => !known.has(key(item)));
  return added.length ? [...kept, ...added].sort(order) : kept;
}

function key(item: Named): string | number {
  return 'id' in item ? item.id : item.rank;
}

function newestFirst(
  one: { created: number | null; id: string },
  other: { created: number | null; id: string }
): number {
  return (other.created ?? 0) - (one.created ?? 0) || (one.id < other.id ? 1 : -1);
}

function byRank(one: { rank: number }, other: { rank: number }): number {
  return one.rank - other.rank;
}
