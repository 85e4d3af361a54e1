import { Notification } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import { EMPTY_STATE, type State } from '../api/items';
import { isMoving } from '../status/status-item';
import type { Settings } from '../settings';
import type { INbdist } from '../token';
import { type News, newsOf } from './news';

/** Milliseconds between two requests while something runs, and while nothing does; a hidden page sends none then. */
export const WATCHING = 15_000;
export const IDLE = 60_000;
/** Milliseconds from the start of a cell of this page until its run is in the list. */
export const STARTED = 2_000;
const SHOWN = 10_000; // milliseconds for which a notification stays on a visible page

/**
 * Tells when a long run or sweep has ended, or a run has lost a worker: in JupyterLab, and on a hidden page by a
 * notification of the browser, if the user has allowed that.
 *
 * It reads the state that other parts of the page request. When these request none (the page is hidden, or shows
 * neither panel nor status bar) it requests the state itself, as long as something runs.
 */
export class Notifier implements IDisposable {
  constructor(
    private readonly nbdist: INbdist,
    private readonly settings: Settings,
    private readonly commands: CommandRegistry
  ) {
    nbdist.feed.changed.connect(this.follow, this);
    settings.changed.connect(this.wake, this);
    document.addEventListener('visibilitychange', this.onVisibility);
    this.wake();
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    this.disposed = true;
    window.clearTimeout(this.timer);
    this.nbdist.feed.changed.disconnect(this.follow, this);
    this.settings.changed.disconnect(this.wake, this);
    document.removeEventListener('visibilitychange', this.onVisibility);
  }

  /** Look soon: a cell of this page has started. */
  readonly onStart = (): void => {
    this.askIn(STARTED);
  };

  /** What runs when the page is hidden is watched: look once more. */
  private readonly onVisibility = (): void => {
    this.askIn(document.hidden && this.settings.values.notify ? 0 : this.pause());
  };

  private readonly wake = (): void => {
    this.askIn(this.pause());
  };

  /** Milliseconds until the state is old; infinite if no notification is expected. */
  private pause(): number {
    if (this.settings.values.notify && this.known !== null && isMoving(this.known)) {
      return WATCHING;
    }
    return this.settings.values.notify && !document.hidden ? IDLE : Infinity;
  }

  private askIn(pause: number): void {
    window.clearTimeout(this.timer);
    if (!this.disposed && pause < Infinity) {
      this.timer = window.setTimeout(() => void this.ask(), pause);
    }
  }

  private async ask(): Promise<void> {
    try {
      this.take(await this.nbdist.client.state(null));
    } catch {
      this.wake(); // a server that restarts, say: the panel shows its error
    }
  }

  private follow(): void {
    const { state } = this.nbdist.feed;
    if (state !== EMPTY_STATE && state !== this.known) {
      this.take(state);
    }
  }

  private take(state: State): void {
    const before = this.known;
    this.known = state;
    if (before !== null && this.settings.values.notify) {
      const longer = this.settings.values.notifyAfter;
      newsOf(before, state, longer, Date.now() / 1000, this.nbdist.trans).forEach(one => this.tell(one));
    }
    this.wake();
  }

  private tell(news: News): void {
    const { trans } = this.nbdist;
    const open = (): void => void this.commands.execute(news.command, { id: news.id });
    const actions: Notification.IAction[] = [{ label: trans.__('Show'), callback: open }];
    if (document.hidden && this.settings.values.notifyBrowser && permission() === 'default') {
      actions.push({
        label: trans.__('Tell me in the browser, too'),
        caption: trans.__('The browser asks for your permission'),
        callback: () => void window.Notification.requestPermission()
      });
    }
    // What comes on a hidden page stays until it is seen.
    const autoClose = document.hidden || news.type === 'error' ? false : SHOWN;
    Notification.emit(news.text, news.type, { autoClose, actions });
    if (document.hidden && this.settings.values.notifyBrowser && permission() === 'granted') {
      this.tellInBrowser(news, open);
    }
  }

  private tellInBrowser(news: News, open: () => void): void {
    try {
      // Of several windows, the browser shows one notification of a tag.
      const shown = new window.Notification('nbdist', { body: news.text, tag: `nbdist ${news.key}` });
      shown.onclick = () => {
        window.focus();
        open();
        shown.close();
      };
    } catch {
      // Chromium on Android has the class, and refuses to construct it.
    }
  }

  private known: State | null = null;
  private timer = 0;
  private disposed = false;
}

/** Whether the user lets this page show notifications of the browser; "denied" where there are none. */
export function permission(): NotificationPermission {
  return 'Notification' in window ? window.Notification.permission : 'denied';
}
