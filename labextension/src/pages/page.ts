/** A page of the main area that follows one run or sweep through the Jupyter server, without a kernel. */

import type { CommandRegistry } from '@lumino/commands';
import type { IDisposable } from '@lumino/disposable';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import { make, setText } from '@widget/dom/elements.js';
import { ApiError } from '../api/client';
import type { State } from '../api/items';
import { type Drawing, onResizeOrTheme } from '../render/drawing';
import { UnreadableError, VERSION } from '../render/json';
import type { Action } from '../sidebar/actions';
import type { INbdist } from '../token';

const EVERY = 2000; // minimum of milliseconds between two requests

/** The server's answer: the state of the item, and the data of its figures. */
export interface Answer<Details, Bundle> {
  details: Details;
  bundle: Bundle;
}

export abstract class Page<Details, Bundle> extends Widget {
  constructor(
    readonly itemId: string,
    protected readonly nbdist: INbdist,
    commands: CommandRegistry
  ) {
    super();
    this.addClass('nbd-Page');
    this.node.tabIndex = -1;
    this.node.setAttribute('role', 'region');
    this.buttons = new PageButtons(commands, nbdist.trans.__('Actions'));
    this.notice.hidden = true;
    this.node.append(this.notice, this.buttons.element, this.before, this.place, this.after);
    nbdist.feed.changed.connect(this.onChange, this);
    this.title.closable = true;
    this.place.append(make('p', { class: 'nbd-Page-note' }, nbdist.trans.__('Loading…')));
    this.throttler.invoke();
  }

  /** Request the data; raises `ApiError` or `Unreadable`. */
  protected abstract fetchItem(): Promise<Answer<Details, Bundle>>;
  /** The page's item in a state of the server. */
  protected abstract findItem(state: State): object | undefined;
  protected abstract draw(bundle: Bundle): Promise<Drawing<Bundle>>;
  /** Write the parts above the figures into `before`, and those below into `after`. */
  protected abstract renderDetails(answer: Answer<Details, Bundle>): void;
  protected abstract actions(details: Details): Action[];
  /** Its name, for the tab. */
  protected abstract nameOf(details: Details): string;
  /** The message if the item does not exist, or was deleted. */
  protected abstract notFoundText(): string;

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.throttler.dispose();
    this.nbdist.feed.changed.disconnect(this.onChange, this);
    this.onHidden();
    this.endLook();
    this.drawing?.close();
    super.dispose();
  }

  protected override onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.onVisible();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    this.onVisible();
  }

  protected override onBeforeHide(message: Message): void {
    this.onHidden();
    super.onBeforeHide(message);
  }

  protected override onBeforeDetach(message: Message): void {
    this.onHidden();
    super.onBeforeDetach(message);
  }

  protected override onActivateRequest(message: Message): void {
    super.onActivateRequest(message);
    this.node.focus();
  }

  private onVisible(): void {
    if (this.isVisible && !this.shown) {
      this.shown = this.nbdist.feed.addView(this);
      this.onChange();
      this.drawing?.redraw();
    }
  }

  private onHidden(): void {
    this.shown?.dispose();
    this.shown = null;
  }

  private onChange(): void {
    const item = this.findItem(this.nbdist.feed.state);
    const again = this.failed && this.nbdist.feed.connection !== 'offline';
    if (this.isVisible && (item !== this.item || again)) {
      this.item = item;
      this.throttler.invoke();
    }
  }

  /** Fetch the data again, without the usual wait. */
  protected refreshNow(): void {
    this.throttler.invokeNow();
  }

  private async refresh(): Promise<void> {
    if (!this.isVisible && this.drawing) {
      this.item = undefined; // so that it is fetched when the page is shown again
      return;
    }
    try {
      const answer = await this.fetchItem();
      if (!this.isDisposed) {
        this.failed = false;
        this.showError(null);
        await this.present(answer);
      }
    } catch (error) {
      if (!this.isDisposed) {
        const missing = error instanceof ApiError && error.status === 404;
        this.failed = error instanceof ApiError && !missing;
        this.showError(missing ? this.notFoundText() : this.errorText(error));
        this.buttons.offer([]);
        if (!this.drawing) {
          this.place.replaceChildren();
        }
      }
    }
  }

  private async present(answer: Answer<Details, Bundle>): Promise<void> {
    this.title.label = this.nameOf(answer.details);
    this.node.setAttribute('aria-label', this.title.label);
    this.buttons.offer(this.actions(answer.details));
    this.renderDetails(answer);
    if (this.drawing) {
      this.drawing.take(answer.bundle);
      return;
    }
    const drawing = await this.draw(answer.bundle);
    if (this.isDisposed) {
      drawing.close();
      return;
    }
    this.drawing = drawing;
    this.place.replaceChildren(drawing.element);
    drawing.element.firstElementChild?.after(this.before); // the header comes first
    this.endLook = onResizeOrTheme(drawing.element, () => drawing.redraw());
    drawing.redraw();
  }

  private errorText(error: unknown): string {
    const { trans } = this.nbdist;
    if (error instanceof UnreadableError) {
      return error.newer === null
        ? trans.__('The server sends data that cannot be drawn.')
        : trans.__('The server sends data of version %1, this page knows %2: reload it.', error.newer, VERSION);
    }
    return error instanceof Error ? error.message : String(error);
  }

  private showError(trouble: string | null): void {
    this.notice.hidden = trouble === null;
    setText(this.notice, trouble ?? '');
  }

  protected readonly before = make('div', { class: 'nbd-Page-part' });
  protected readonly after = make('div', { class: 'nbd-Page-part' });
  private readonly place = make('div', { class: 'nbd-Page-figures' });
  private readonly notice = make('p', { class: 'nbd-Bundle-trouble', role: 'status' });
  private readonly buttons: PageButtons;
  private readonly throttler = new Throttler(() => this.refresh(), EVERY);
  private drawing: Drawing<Bundle> | null = null;
  private endLook: () => void = () => undefined;
  private shown: IDisposable | null = null;
  private item: object | undefined;
  private failed = false;
}

export class PageButtons {
  readonly element: HTMLElement;

  constructor(
    private readonly commands: CommandRegistry,
    label: string
  ) {
    this.element = make('div', { class: 'nbd-Page-buttons', role: 'group', 'aria-label': label });
  }

  /** Show buttons for these actions if the application has their commands. */
  offer(actions: Action[]): void {
    const offered = actions.filter(({ command }) => this.commands.hasCommand(command));
    const known = new Map(this.made.map(one => [one.id, one]));
    this.made = offered.map(action => known.get(action.id) ?? this.make(action.id));
    this.made.forEach((one, i) => one.show(offered[i]!));
    if (this.made.some((one, i) => this.element.children[i] !== one.button) || this.element.children.length !== this.made.length) {
      this.element.replaceChildren(...this.made.map(({ button }) => button));
    }
    this.element.hidden = offered.length === 0;
  }

  private make(id: string): Made {
    const button = make('button', { class: 'nbd-Page-button', type: 'button' });
    let shown: Action | null = null;
    let busy = false;
    const write = (): void => {
      if (busy || shown?.why) {
        button.setAttribute('aria-disabled', 'true');
      } else {
        button.removeAttribute('aria-disabled');
      }
    };
    button.addEventListener('click', () => {
      if (busy || !shown || shown.why) {
        return;
      }
      busy = true;
      write();
      void Promise.resolve(this.commands.execute(shown.command, shown.args))
        .catch(() => undefined) // the command has shown the error
        .finally(() => {
          busy = false;
          write();
        });
    });
    const show = (action: Action): void => {
      shown = action;
      setText(button, action.label);
      button.title = action.why ?? '';
      write();
    };
    return { id, button, show };
  }

  private made: Made[] = [];
}

interface Made {
  readonly id: string;
  readonly button: HTMLButtonElement;
  show(action: Action): void;
}

/** Limits calls of a function: never two concurrent calls, and at least `every` milliseconds between two. */
export class Throttler {
  constructor(
    private readonly act: () => Promise<void>,
    private readonly every: number
  ) {}

  /** Call the function now, or as soon as the limit permits. */
  invoke(): void {
    this.wanted = true;
    if (!this.busy && !this.timer && !this.over) {
      this.timer = setTimeout(() => void this.go(), Math.max(0, this.due - Date.now()));
    }
  }

  /** Call the function now, or when the current call has ended. */
  invokeNow(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.due = 0;
    this.invoke();
  }

  dispose(): void {
    this.over = true;
    clearTimeout(this.timer);
  }

  private async go(): Promise<void> {
    this.timer = undefined;
    this.wanted = false;
    this.busy = true;
    this.due = Date.now() + this.every;
    try {
      await this.act();
    } finally {
      this.busy = false;
      if (this.wanted) {
        this.invoke();
      }
    }
  }

  private timer: ReturnType<typeof setTimeout> | undefined;
  private due = 0;
  private wanted = false;
  private busy = false;
  private over = false;
}
