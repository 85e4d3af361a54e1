/** A run or a sweep in an output: first the bundle's picture, then the interactive drawing when it is visible. */

import type { ISessionContext } from '@jupyterlab/apputils';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { TranslationBundle } from '@jupyterlab/translation';
import type { CommandRegistry } from '@lumino/commands';
import { Widget } from '@lumino/widgets';
import { make } from '@widget/dom/elements.js';
import { type Drawing, onceVisible, onResizeOrTheme } from './drawing';
import { type Client, ApiError } from '../api/client';
import type { SavedOutput } from '../api/items';
import { connectSweep } from './sweep-commands';
import { liveId, UnreadableError, VERSION } from './json';

export type Send = (kind: string, more?: Record<string, unknown>) => void;

/** The drawing of one kind of data. */
export interface BundleKind<Bundle> {
  readonly mimeType: string;
  /** Raises `Unreadable`. */
  read(data: unknown): Bundle;
  /** Ask the Jupyter server for the output of a run or sweep, of a kind that may be under way; raises `ApiError`. */
  fetch?(client: Client, id: string): Promise<SavedOutput>;
  /** `send` receives what the drawing asks for; without it, it asks for nothing. */
  draw(bundle: Bundle, send?: Send): Promise<Drawing<Bundle>>;
  id(bundle: Bundle): string;
  /** The code that shows it again in a kernel, and the text on what that does. */
  again(bundle: Bundle, trans: TranslationBundle): { code: string; text: string };
  /** The elements below the drawing; `texts` come from the bundle's HTML. */
  below(texts: HTMLElement[], bundle: Bundle, trans: TranslationBundle): HTMLElement[];
}

export interface RenderContext {
  readonly trans: TranslationBundle;
  readonly commands: CommandRegistry | null;
  /** Null where no Jupyter server can be asked. */
  readonly client: Client | null;
  /** The session of the notebook that an element is in. */
  readonly sessionOf?: (node: HTMLElement) => ISessionContext | null;
}

/** Milliseconds between two requests for a run or sweep that is under way. */
export const FOLLOW_EVERY = 2000;

/** What a page asks without continuing a finished sweep. */
const STAYS = ['cell', 'output', 'edit'];

type Data = IRenderMime.IMimeModel['data'];

export class BundleRenderer<Bundle> extends Widget implements IRenderMime.IRenderer {
  constructor(
    private readonly kind: BundleKind<Bundle>,
    private readonly around: RenderContext
  ) {
    super();
    this.addClass('nbd-Bundle');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.endFollow();
    this.model = model;
    const id = this.kind.fetch ? liveId(model.data[this.kind.mimeType]) : null;
    if (id !== null) {
      await this.follow(id, model);
    } else {
      this.present(model.data);
    }
  }

  /**
   * Shows a run or sweep whose kernel has not left its data: from the Jupyter server, until it has ended. Its data are
   * then the output's own, which is saved with the notebook.
   */
  private async follow(id: string, model: IRenderMime.IMimeModel): Promise<void> {
    let waits = true;
    this.endFollow = () => (waits = false);
    try {
      const { kind } = this;
      const { client, trans } = this.around;
      if (!client || !kind.fetch) {
        throw new Error(trans.__('No Jupyter server can be asked for it.'));
      }
      const { data, over } = (await kind.fetch(client, id)) as { data: Data; over: boolean };
      if (!waits || this.isDisposed) {
        return;
      }
      if (over) {
        model.setData({ data });
        if (waits) {
          this.present(data); // the model of an output has rendered it by itself
        }
        return;
      }
      this.present(data, true);
    } catch (error) {
      if (!waits || this.isDisposed) {
        return;
      }
      if (!this.drawing) {
        const why = error instanceof Error ? error.message : String(error);
        this.node.replaceChildren(make('p', { class: 'nbd-attach', title: why }, textOf(model.data['text/plain'])));
      }
      if (!(error instanceof ApiError) || (error.status !== 0 && error.status < 500)) {
        return; // it is not on this server
      }
    }
    const timer = window.setTimeout(() => {
      const endWait = onceVisible(this.node, () => void this.follow(id, model));
      this.endFollow = () => ((waits = false), endWait());
    }, FOLLOW_EVERY);
    this.endFollow = () => ((waits = false), window.clearTimeout(timer));
  }

  private present(data: Data, underWay = false): void {
    if (!(this.kind.mimeType in data)) {
      this.node.replaceChildren(...htmlTexts(`<p></p>${textOf(data['text/html'])}`)); // of a cell that does not train
      return;
    }
    try {
      this.put(this.kind.read(data[this.kind.mimeType]), data, underWay);
    } catch (error) {
      this.clear();
      this.node.replaceChildren(...this.fallback(error, data));
    }
  }

  override dispose(): void {
    this.endFollow();
    this.clear();
    super.dispose();
  }

  private put(bundle: Bundle, data: Data, underWay: boolean): void {
    const { kind, around: context } = this;
    const texts = htmlTexts(textOf(data['text/html']));
    const below = kind.below(texts, bundle, context.trans);
    const { code, text } = kind.again(bundle, context.trans);
    this.footer = codeFooter(code, text, context.trans, context.commands);
    this.footer.hidden = this.hasCommands; // it says how to get the commands
    if (underWay) {
      const words = context.trans.__('It continues without a kernel of this notebook; the Jupyter server shows it.');
      below.push(make('p', { class: 'nbd-attach', role: 'note' }, words));
    }
    this.endWait();
    if (this.drawing) {
      const { element } = this.drawing;
      this.drawing.take(bundle);
      while (element.nextSibling) { // the drawing stays where it is, because it may have the focus
        element.nextSibling.remove();
      }
      this.node.append(...below, this.footer);
      return;
    }
    const place = make('div', { class: 'nbd-Bundle-place' }, ...pictureOf(data));
    this.node.replaceChildren(place, ...below, this.footer);
    this.endWait = onceVisible(place, () => void this.draw(bundle, data, place));
  }

  private async draw(bundle: Bundle, data: Data, place: HTMLElement): Promise<void> {
    try {
      const drawing = await this.kind.draw(bundle);
      if (this.isDisposed || !place.isConnected) {
        drawing.close();
        return;
      }
      this.drawing = drawing;
      place.replaceWith(drawing.element);
      const endLook = onResizeOrTheme(drawing.element, () => drawing.redraw());
      const endCommands = this.takeCommands(drawing, bundle);
      this.endLook = () => (endLook(), endCommands());
      drawing.redraw();
    } catch (error) {
      console.error('nbdist cannot draw this', error);
      this.clear();
      this.node.replaceChildren(...this.fallback(error, data));
    }
  }

  /**
   * Has the notebook's kernel take the drawing's commands, as long as it can.
   *
   * A command may continue the sweep. The kernel then replaces the output in the page that ran the cell; any other
   * page follows the sweep by the Jupyter server.
   */
  private takeCommands({ commanded }: Drawing<Bundle>, bundle: Bundle): () => void {
    const session = commanded ? (this.around.sessionOf?.(this.node) ?? null) : null;
    if (!commanded || !session) {
      return () => undefined;
    }
    const id = this.kind.id(bundle);
    const continuing = new Set<unknown>(); // requests
    const connect = (send: Send | null): void => {
      this.hasCommands = Boolean(send);
      this.footer?.toggleAttribute('hidden', this.hasCommands);
      const sendNoting: Send = (kind, more = {}) => {
        if (!STAYS.includes(kind)) {
          continuing.add(more['request']);
        }
        send?.(kind, more);
      };
      commanded.connect(send && sendNoting);
    };
    const receive = (answer: Record<string, unknown>): void => {
      commanded.receive(answer);
      if (continuing.delete(answer['request']) && answer['ok'] === true && this.model) {
        this.endFollow();
        void this.follow(id, this.model);
      }
    };
    return connectSweep(id, { connect, receive }, session);
  }

  /** Shows data that cannot be drawn: the reason, and the other parts of the bundle. */
  private fallback(error: unknown, data: Data): HTMLElement[] {
    const { trans } = this.around;
    const why =
      error instanceof UnreadableError && error.newer !== null
        ? trans.__(
            'These curves were saved by a newer nbdist (version %1 of their format; %2 is known here): update nbdist to draw them. This is their picture.',
            error.newer,
            VERSION
          )
        : trans.__('The saved data of these curves are damaged and cannot be drawn. This is what else was saved.');
    const html = htmlTexts(`<p></p>${textOf(data['text/html'])}`);
    const plain = html.length ? [] : [make('pre', { tabindex: '0' }, textOf(data['text/plain']))];
    return [make('p', { class: 'nbd-Bundle-trouble', role: 'note' }, why), ...pictureOf(data), ...html, ...plain];
  }

  private clear(): void {
    this.endWait();
    this.endLook();
    this.drawing?.close();
    this.drawing = null;
  }

  private model: IRenderMime.IMimeModel | null = null;
  private drawing: Drawing<Bundle> | null = null;
  private footer: HTMLElement | null = null;
  private hasCommands = false;
  private endWait: () => void = () => undefined;
  private endFollow: () => void = () => undefined;
  private endLook: () => void = () => undefined;
}

const PICTURE = /^[A-Za-z0-9+/=\s]+$/; // base64

function pictureOf(data: Data): HTMLElement[] {
  const picture = textOf(data['image/png']);
  const headline = textOf(data['text/plain']).split('\n', 1)[0] ?? '';
  return PICTURE.test(picture)
    ? [make('img', { class: 'nbd-Bundle-picture', alt: headline, src: `data:image/png;base64,${picture}` })]
    : [];
}

/** A text of a bundle; a notebook file may contain it as a list of lines. */
function textOf(value: unknown): string {
  return Array.isArray(value) ? value.join('') : typeof value === 'string' ? value : '';
}

const INSERT = 'nbdist:insert-attach';

/** The code that shows it in a kernel, with a button that inserts the code into the notebook where possible. */
export function codeFooter(call: string, what: string, trans: TranslationBundle, commands: CommandRegistry | null): HTMLElement {
  const line = make('p', { class: 'nbd-attach' }, make('code', {}, call), ` ${what}`);
  if (commands?.hasCommand(INSERT)) {
    const title = trans.__('Insert the code into the notebook');
    const button = make('button', { class: 'nbd-Page-button', type: 'button', title }, trans.__('Insert'));
    button.addEventListener('click', () => void commands.execute(INSERT, { code: `import nbdist as nb\n${call}` }));
    line.append(' ', button);
  }
  return line;
}

/** A text as a Python literal. */
export function python(value: string): string {
  return /^[\w.:-]*$/.test(value) ? `'${value}'` : JSON.stringify(value);
}

/** The texts of a bundle's HTML, as new elements without attributes. */

const KEPT = new Set(['P', 'STRONG', 'SMALL', 'CODE', 'PRE', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD', 'DETAILS', 'SUMMARY']);
const MOST = 20_000; // elements

/**
 * The paragraphs, tables and folded texts of a bundle's HTML after its first paragraph, which is the headline.
 *
 * The HTML is parsed in an inert document that loads and runs nothing. Only text, the names of harmless elements and
 * the attributes `open` and `scope` are taken from it.
 */
export function htmlTexts(html: string): HTMLElement[] {
  const parsed = new DOMParser().parseFromString(html, 'text/html');
  const room = { left: MOST };
  const [, ...parts] = [...parsed.body.children];
  return parts.flatMap(part => copy(part, room)).filter(part => part.textContent?.trim());
}

function copy(element: Element, room: { left: number }): HTMLElement[] {
  if (!KEPT.has(element.tagName) || room.left-- <= 0) {
    return [];
  }
  const made = document.createElement(element.tagName.toLowerCase());
  if (made instanceof HTMLDetailsElement) {
    made.open = element.hasAttribute('open');
  } else if (made instanceof HTMLTableCellElement && element.tagName === 'TH') {
    made.scope = element.getAttribute('scope') === 'row' ? 'row' : 'col';
  } else if (made instanceof HTMLPreElement) {
    made.tabIndex = 0; // so that keys can scroll it
  }
  for (const node of element.childNodes) {
    if (node instanceof Text || node.nodeType === Node.TEXT_NODE) {
      made.append(node.textContent ?? '');
    } else if (node instanceof Element || node.nodeType === Node.ELEMENT_NODE) {
      made.append(...copy(node as Element, room));
    }
  }
  return [made instanceof HTMLTableElement ? scrolled(made) : made];
}

/** A table may be wider than a narrow notebook: keys can scroll it, too. */
function scrolled(table: HTMLTableElement): HTMLElement {
  const around = document.createElement('div');
  around.className = 'nbd-details-table';
  around.tabIndex = 0;
  around.append(table);
  return around;
}
