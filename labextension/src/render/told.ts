/** What a bundle tells besides its curves: the words of its HTML, as elements of ours with text in them. */

const KEPT = new Set(['P', 'STRONG', 'SMALL', 'CODE', 'PRE', 'TABLE', 'THEAD', 'TBODY', 'TR', 'TH', 'TD', 'DETAILS', 'SUMMARY']);
const MOST = 20_000; // elements

/**
 * The paragraphs, tables and folded texts of a bundle's HTML after its first paragraph, which is the headline.
 *
 * The HTML is parsed where nothing is loaded and nothing runs; what is taken from it is text and the names of
 * harmless elements, no attribute but whether something is unfolded.
 */
export function toldBy(html: string): HTMLElement[] {
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
    made.tabIndex = 0; // it may have to be scrolled by keys
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

/** A table may be wider than a narrow notebook. */
function scrolled(table: HTMLTableElement): HTMLElement {
  const around = document.createElement('div');
  around.className = 'nbd-told-table';
  around.append(table);
  return around;
}
