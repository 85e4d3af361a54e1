/** Collapsible parts of a page: texts and tables, written only if they have changed. */

import { coloured } from '@widget/text/ansi.js';
import { make } from '@widget/dom/elements.js';

export class CollapsibleSection {
  readonly element: HTMLDetailsElement;

  constructor(title: string, open = false) {
    this.element = make('details', { class: 'nbd-Page-section' }, make('summary', {}, title), this.body);
    this.element.open = open;
    this.element.hidden = true;
  }

  /** Show the parts that `parts` makes of `matter`; without parts the section is hidden. */
  show<Matter>(matter: Matter, empty: boolean, parts: (matter: Matter) => Node[]): void {
    const key = JSON.stringify(matter) ?? '';
    if (key === this.key) {
      return;
    }
    this.key = key;
    this.element.hidden = empty;
    this.body.replaceChildren(...(empty ? [] : parts(matter)));
  }

  private readonly body = make('div', { class: 'nbd-details' });
  private key = '\0'; // never equal to a JSON text
}

/** Preformatted text that keys can scroll, with its terminal colours. */
export function preformatted(text: string, label: string): HTMLElement {
  return make('pre', { tabindex: '0', role: 'group', 'aria-label': label }, ...coloured(text));
}

/** A list of names and their texts. */
export function pairs(of: Record<string, unknown>): HTMLElement {
  const rows = Object.entries(of).map(([name, value]) =>
    make('tr', {}, make('th', { scope: 'row' }, name), make('td', {}, typeof value === 'string' ? value : JSON.stringify(value) ?? ''))
  );
  return make('table', { class: 'nbd-pairs' }, make('tbody', {}, ...rows));
}

/** A table with a heading for each column. */
export function table(headings: string[], rows: (Node | string)[][]): HTMLElement {
  const head = make('tr', {}, ...headings.map(text => make('th', { scope: 'col' }, text)));
  const body = rows.map(([first, ...rest]) =>
    make('tr', {}, make('th', { scope: 'row' }, first ?? ''), ...rest.map(cell => make('td', {}, cell)))
  );
  return make('table', {}, make('thead', {}, head), make('tbody', {}, ...body));
}
