import { useCallback, useSyncExternalStore } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Connection } from '../api/feed';
import type { State } from '../api/items';
import type { Activity, SidebarModel } from './model';

/** The state that a section renders. While the section is hidden it does not change, and nothing is rendered. */
export class SectionStore {
  constructor(readonly model: SidebarModel) {
    this._state = model.nbdist.feed.state;
    model.changed.connect(this.update, this);
    model.nbdist.feed.changed.connect(this.update, this);
  }

  get trans(): TranslationBundle {
    return this.model.nbdist.trans;
  }

  get state(): State {
    return this._state;
  }

  get connection(): Connection {
    return this._connection;
  }

  get error(): string | null {
    return this._error;
  }

  get reachable(): boolean {
    return this._reachable;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Set whether the section is visible. */
  setVisible(seen: boolean): void {
    this._visible = seen;
    this.update();
  }

  dispose(): void {
    Signal.clearData(this);
  }

  private update(): void {
    if (this._visible) {
      const { feed } = this.model.nbdist;
      this._state = feed.state;
      this._connection = feed.connection;
      this._error = feed.error;
      this._reachable = feed.reachable;
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private _state: State;
  private _connection: Connection = 'connecting';
  private _error: string | null = null;
  private _reachable = true;
  private _visible = false;
}

/** Select a part of the state; the component is rendered again only when that part changes. */
export function useSelector<Part>(store: SectionStore, select: (store: SectionStore) => Part): Part {
  const subscribe = useCallback(
    (tell: () => void) => {
      store.changed.connect(tell);
      return () => void store.changed.disconnect(tell);
    },
    [store]
  );
  return useSyncExternalStore(subscribe, () => select(store));
}

/** The pending action and the last error of a row. */
export function useActivity(store: SectionStore, key: string): Activity {
  return useSelector(store, () => store.model.activity(key));
}
