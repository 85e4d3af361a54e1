import { type FocusEvent, type KeyboardEvent, type RefObject, useEffect, useRef, useState } from 'react';

/** The target of an arrow key: a row and a place in it; null if the key has no effect here. */
export function nextPosition(
  key: string,
  row: number,
  stop: number,
  stops: readonly number[] // number of places in each row
): [number, number] | null {
  const to = (other: number): [number, number] | null =>
    other < 0 || other >= stops.length ? null : [other, Math.min(stop, stops[other]! - 1)];
  switch (key) {
    case 'ArrowDown':
      return to(row + 1);
    case 'ArrowUp':
      return to(row - 1);
    case 'Home':
      return [0, 0];
    case 'End':
      return [stops.length - 1, 0];
    case 'ArrowRight':
      return stop + 1 < stops[row]! ? [row, stop + 1] : null;
    case 'ArrowLeft':
      return stop > 0 ? [row, stop - 1] : null;
    default:
      return null;
  }
}

interface Rows<Node extends HTMLElement> {
  ref: RefObject<Node>;
  /** The only row with places that the Tab key reaches, so that Tab passes a long list quickly. */
  current: string | null;
  onFocus: (event: FocusEvent) => void;
  onBlur: (event: FocusEvent) => void;
  onKeyDown: (event: KeyboardEvent) => void;
}

/**
 * Let the arrow keys move through a list. Its rows have `data-row` (their key), the places in them `data-stop`.
 *
 * `onMove` is called with the row that receives the focus by an arrow key.
 */
export function useRovingFocus<Node extends HTMLElement>(
  keys: readonly string[],
  onMove?: (key: string) => void
): Rows<Node> {
  const ref = useRef<Node>(null);
  const focused = useRef(false);
  const [preferred, setPreferred] = useState<string | null>(null);
  const current = preferred !== null && keys.includes(preferred) ? preferred : (keys[0] ?? null);
  useEffect(() => {
    // The focused element was removed: keep the focus in the list.
    if (focused.current && document.activeElement === document.body && current !== null) {
      stopsOf(rowsOf(ref.current).find(row => row.dataset['row'] === current))[0]?.focus();
    }
  });
  return {
    ref,
    current,
    onFocus: event => {
      focused.current = true;
      setPreferred(rowAt(event.target)?.dataset['row'] ?? null);
    },
    onBlur: event => {
      focused.current = !event.target.isConnected;
    },
    onKeyDown: event => {
      const rows = rowsOf(ref.current);
      const row = rowAt(event.target);
      if (!row || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) {
        return;
      }
      const stop = Math.max(0, stopsOf(row).indexOf(event.target as HTMLElement));
      const found = nextPosition(event.key, rows.indexOf(row), stop, rows.map(one => stopsOf(one).length));
      const target = found && rows[found[0]];
      if (target) {
        event.preventDefault();
        event.stopPropagation();
        stopsOf(target)[found[1]]?.focus();
        target.scrollIntoView?.({ block: 'nearest' });
        if (target !== row) {
          onMove?.(target.dataset['row']!);
        }
      }
    }
  };
}

function rowAt(target: EventTarget): HTMLElement | null {
  return (target as HTMLElement).closest<HTMLElement>('[data-row]');
}

function rowsOf(list: HTMLElement | null): HTMLElement[] {
  return [...(list?.querySelectorAll<HTMLElement>('[data-row]') ?? [])];
}

/** The places of a row in their order, with the row itself if it is marked as one. */
function stopsOf(row: HTMLElement | undefined): HTMLElement[] {
  if (!row) {
    return [];
  }
  const inner = [...row.querySelectorAll<HTMLElement>('[data-stop]')];
  return row.hasAttribute('data-stop') ? [row, ...inner] : inner;
}
