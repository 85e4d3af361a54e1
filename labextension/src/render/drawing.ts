/** A drawing in a page: made when it is first visible, redrawn when the page's width or theme changes. */

import type { Commanded } from './sweep-commands';

export interface Drawing<Bundle> {
  readonly element: HTMLElement;
  /** Show other data; zoom and settings stay. */
  take(bundle: Bundle): void;
  redraw(): void;
  close(): void;
  /** Of one whose commands a kernel may take. */
  readonly commanded?: Commanded;
}

/** Calls back when the page's theme or an element's width changes; returns a function that ends this. */
export function onResizeOrTheme(element: HTMLElement, changed: () => void): () => void {
  let width = element.clientWidth;
  const resized = new ResizeObserver(() => {
    if (element.clientWidth !== width) {
      width = element.clientWidth;
      changed();
    }
  });
  resized.observe(element);
  const themed = new MutationObserver(changed);
  themed.observe(document.body, { attributes: true, attributeFilter: ['data-jp-theme-name', 'data-jp-theme-light'] });
  return () => {
    resized.disconnect();
    themed.disconnect();
  };
}

const AROUND = '400px'; // elements this near to the visible area are drawn

/** Calls back once, when the element is nearly visible or is printed; returns a function that ends the wait. */
export function onceVisible(element: HTMLElement, seen: () => void): () => void {
  const go = (): void => {
    end();
    seen();
  };
  // A notebook scrolls within the page, where only `scrollMargin` has an effect.
  const options: IntersectionObserverInit & { scrollMargin: string } = { rootMargin: AROUND, scrollMargin: AROUND };
  const watch = new IntersectionObserver(entries => entries.some(entry => entry.isIntersecting) && go(), options);
  const end = (): void => {
    watch.disconnect();
    window.removeEventListener('beforeprint', go);
  };
  watch.observe(element);
  window.addEventListener('beforeprint', go);
  return end;
}

let made = 0;

/** A unique name for a drawing's parts. */
export function uniqueName(): string {
  made += 1;
  return `nbdist-drawing-${made}`;
}
