/**
 * A live view belongs to the kernel that shows it. After this kernel has ended, or has replaced the view where a page
 * did not listen, the output holds a widget that no kernel has, and every front end shows an error in its place.
 *
 * So the widget is taken out of such an output. What is left is a text and the id of the run or sweep, by which our
 * renderer draws it from the Jupyter server.
 */

import type { NotebookPanel } from '@jupyterlab/notebook';
import { saveNewViews, type Saver, VIEW } from './save-views';
import { liveId } from './json';
import { RUN, SWEEP } from './kinds';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
const OURS = /^(Live view of |Grid of the sweep )/;
const WAITING = 'Loading widget...';
const BROKEN = 'Error displaying widget';
const MAY_BE_OURS = new RegExp(`^$|^${WAITING}|^${BROKEN}`); // it is empty after the widget was closed
const ENDED = ['finished', 'stopped', 'failed'];
/** Milliseconds for which a view that has ended waits for its kernel to replace it. */
export const PATIENCE = 5000;

/** Checks a notebook after each change of its page, and when its kernel ends. */
export function watchViews(panel: NotebookPanel, autosaves: () => boolean): void {
  const saver: Saver = { seen: new WeakSet(), autosaves };
  const ends: Ends = new WeakMap();
  const focus = new FocusKeeper();
  let due = 0;
  const look = (): void => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      if (!panel.isDisposed) {
        saveNewViews(panel, saver);
        replaceAll(panel, ends, look);
        focus.look();
      }
    });
  };
  const drawn = new MutationObserver(look);
  drawn.observe(panel.content.node, { childList: true, subtree: true });
  panel.content.node.addEventListener('focusout', look);
  panel.content.node.addEventListener('focusin', () => focus.look());
  void panel.sessionContext.ready.then(look);
  panel.sessionContext.kernelChanged.connect(look);
  panel.disposed.connect(() => {
    cancelAnimationFrame(due);
    drawn.disconnect();
  });
}

/** Gives the focus of a view that was replaced to the output in its place, instead of to the page. */
export class FocusKeeper {
  look(): void {
    const active = document.activeElement;
    if (active && active !== document.body) {
      this.held = active.closest(VIEW) ? { active, cell: active.closest('.jp-Cell') } : null;
      return;
    }
    const { held } = this;
    this.held = null;
    const output = held && !held.active.isConnected && held.cell?.querySelector<HTMLElement>('.jp-OutputArea-output');
    if (output) {
      output.tabIndex = -1;
      output.focus({ preventScroll: true });
    }
  }

  private held: { active: Element; cell: Element | null } | null = null;
}

/** When a view that was seen at work has ended: its time, or NaN while it works. */
type Ends = WeakMap<Element, number>;

interface Output {
  readonly data: Readonly<Record<string, unknown>>;
  setData(options: { data: Record<string, unknown> }): void;
}

/** The outputs of a code cell, as JupyterLab has them. */
export interface Outputs {
  readonly model: { readonly length: number; get(index: number): Output };
  readonly widgets: readonly { readonly node: HTMLElement }[];
}

/** Whether an output is the live view of a run or sweep. */
export function isLiveOutput(data: Readonly<Record<string, unknown>>): boolean {
  return [RUN, SWEEP].some(({ mimeType }) => liveId(data[mimeType]) !== null);
}

function replaceAll(panel: NotebookPanel, ends: Ends, look: () => void): void {
  const { sessionContext, content } = panel;
  const connected = Boolean(sessionContext.session?.kernel) || !sessionContext.isReady;
  for (const cell of content.widgets) {
    const outputs = (cell as unknown as { outputArea?: Outputs }).outputArea;
    if (outputs) {
      replaceDeadViews(outputs, connected, content.rendermime.mimeTypes, ends, look);
    }
  }
}

/**
 * Takes the widget out of the outputs whose view is dead.
 *
 * `connected` is whether a kernel may still send a view, `renders` what the notebook can draw; `later` is called when
 * a view that has ended may be replaced.
 */
export function replaceDeadViews(
  { model, widgets }: Outputs,
  connected: boolean,
  renders: readonly string[],
  ends: Ends = new WeakMap(),
  later: () => void = () => undefined
): void {
  for (let index = 0; index < Math.min(model.length, widgets.length); index++) {
    const node = widgets[index]!.node.querySelector<HTMLElement>('.jp-OutputArea-output:not(.nbd-Bundle)');
    if (!node || !MAY_BE_OURS.test(node.textContent ?? '') && !node.querySelector(VIEW)) {
      continue; // to read an output's data takes longer
    }
    const output = model.get(index);
    const { [WIDGET]: widget, ...rest } = output.data;
    if (widget === undefined || !isDead(node, connected, ends, later)) {
      continue;
    }
    const words = rest['text/plain'];
    const text = Array.isArray(words) ? words.join('') : words;
    if (typeof text !== 'string' || !OURS.test(text)) {
      continue;
    }
    if ([RUN, SWEEP].some(({ mimeType }) => liveId(rest[mimeType]) !== null && renders.includes(mimeType))) {
      output.setData({ data: rest });
    } else if (!node.querySelector('section')) {
      node.textContent = text; // it was saved without its id
      node.classList.add('nbd-left');
    }
  }
}

function isDead(node: HTMLElement, connected: boolean, ends: Ends, later: () => void): boolean {
  const shown = node.textContent ?? '';
  if ((shown === WAITING && !connected) || shown.startsWith(BROKEN) || node.classList.contains('lm-mod-hidden')) {
    return true;
  }
  const view = node.querySelector(VIEW);
  const state = view?.querySelector<HTMLElement>('.nbd-chip')?.dataset['state'];
  if (!view || state === undefined || node.contains(document.activeElement)) {
    return false; // never take away what is in use
  }
  if (state === 'disconnected' || view.matches('.nbdist-sweep')) {
    return state === 'disconnected'; // the grid of a sweep that has ended still takes commands
  }
  const ended = ends.get(view);
  if (!ENDED.includes(state)) {
    ends.set(view, NaN);
  } else if (ended !== undefined && Number.isNaN(ended)) {
    ends.set(view, Date.now());
    setTimeout(later, PATIENCE + 1);
  }
  return ended !== undefined && Date.now() - ended > PATIENCE; // a view that opened after the end stays
}
