/**
 * After the kernel of a live view has ended, JupyterLab shows "Loading widget..." permanently, because the widget's state
 * is in the kernel. The view's saved text takes its place: the name of the run, and how to reconnect.
 */

import type { NotebookPanel } from '@jupyterlab/notebook';

const WIDGET = 'application/vnd.jupyter.widget-view+json';
const OURS = /^(Live view of |Grid of the sweep )/;
const WAITING = 'Loading widget...';
const BROKEN = 'Error displaying widget';

/** Checks a notebook after each change of its page, and when its kernel ends. */
export function watchDisconnectedViews(panel: NotebookPanel): void {
  let due = 0;
  const look = (): void => {
    due ||= requestAnimationFrame(() => {
      due = 0;
      if (!panel.isDisposed) {
        showSavedTexts(panel);
      }
    });
  };
  const drawn = new MutationObserver(look);
  drawn.observe(panel.content.node, { childList: true, subtree: true });
  void panel.sessionContext.ready.then(look);
  panel.sessionContext.kernelChanged.connect(look);
  panel.disposed.connect(() => {
    cancelAnimationFrame(due);
    drawn.disconnect();
  });
}

interface Outputs {
  readonly model: { readonly length: number; get(index: number): { readonly data: Readonly<Record<string, unknown>> } };
  readonly widgets: readonly { readonly node: HTMLElement }[];
}

function showSavedTexts(panel: NotebookPanel): void {
  const { sessionContext } = panel;
  const connected = Boolean(sessionContext.session?.kernel) || !sessionContext.isReady;
  for (const cell of panel.content.widgets) {
    const outputs = (cell as unknown as { outputArea?: Outputs }).outputArea;
    if (outputs) {
      showSavedText(outputs, connected);
    }
  }
}

/** Shows the text of views that cannot be drawn; `connected` is whether a kernel may still send them. */
export function showSavedText({ model, widgets }: Outputs, connected: boolean): void {
  for (let index = 0; index < Math.min(model.length, widgets.length); index++) {
    const { data } = model.get(index);
    const words = data['text/plain'];
    const text = Array.isArray(words) ? words.join('') : words;
    if (!(WIDGET in data) || typeof text !== 'string' || !OURS.test(text)) {
      continue;
    }
    for (const node of widgets[index]!.node.querySelectorAll<HTMLElement>(`[data-mime-type="${WIDGET}"]`)) {
      const shown = node.textContent ?? '';
      if ((shown === WAITING && !connected) || shown.startsWith(BROKEN)) {
        node.textContent = text;
        node.classList.add('nbd-left');
      }
    }
  }
}
