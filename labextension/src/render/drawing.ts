/** What is drawn into a page: made when it is first seen, redrawn when the page's width or theme changes. */

export interface Drawing<Bundle> {
  readonly element: HTMLElement;
  /** Show this instead, with zoom and settings as they are. */
  take(bundle: Bundle): void;
  redraw(): void;
  close(): void;
}

/** Calls back when the page's theme or an element's width is another; returns what ends it. */
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

const AROUND = '400px'; // what is so near is drawn before it is seen

/** Calls back once, when the element is about to be seen or printed; returns what ends the wait. */
export function onceVisible(element: HTMLElement, seen: () => void): () => void {
  const go = (): void => {
    end();
    seen();
  };
  // A notebook scrolls within the page, where only `scrollMargin` counts.
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

/** A name for a drawing's parts that no other has. */
export function uniqueName(): string {
  made += 1;
  return `nbdist-drawing-${made}`;
}
