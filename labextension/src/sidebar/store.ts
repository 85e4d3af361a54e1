import { useCallback, useSyncExternalStore } from 'react';
import type { TranslationBundle } from '@jupyterlab/translation';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Connection } from '../api/feed';
import type { State } from '../api/items';
import type { Activity, PanelModel } from './model';

/** What a section draws. While the section is not seen it stands still, and nothing is drawn. */
export class Watch {
  constructor(readonly model: PanelModel) {
    this._state = model.nbdist.feed.state;
    model.changed.connect(this.tell, this);
    model.nbdist.feed.changed.connect(this.tell, this);
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

  get trouble(): string | null {
    return this._trouble;
  }

  get reached(): boolean {
    return this._reached;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Say whether the section is seen. */
  show(seen: boolean): void {
    this._seen = seen;
    this.tell();
  }

  dispose(): void {
    Signal.clearData(this);
  }

  private tell(): void {
    if (this._seen) {
      const { feed } = this.model.nbdist;
      this._state = feed.state;
      this._connection = feed.connection;
      this._trouble = feed.trouble;
      this._reached = feed.reached;
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private _state: State;
  private _connection: Connection = 'connecting';
  private _trouble: string | null = null;
  private _reached = true;
  private _seen = false;
}

/** A part of what a section draws; it is drawn again only when that part is another. */
export function useWatch<Part>(watch: Watch, select: (watch: Watch) => Part): Part {
  const subscribe = useCallback(
    (tell: () => void) => {
      watch.changed.connect(tell);
      return () => void watch.changed.disconnect(tell);
    },
    [watch]
  );
  return useSyncExternalStore(subscribe, () => select(watch));
}

/** What goes on in a row. */
export function useActivity(watch: Watch, key: string): Activity {
  return useWatch(watch, () => watch.model.activity(key));
}
