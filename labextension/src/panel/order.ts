import type { Run } from '../api/items';
import { isGoingOn } from './actions';

/** How many runs are drawn at first, and how many more at each wish. */
export const PAGE = 50;

/** From how many rows on there is a field that filters them. */
export const MANY = 12;

/** Runs that go on first, the newest first among each. */
export function inOrder(runs: readonly Run[]): Run[] {
  return [...runs.filter(isGoingOn), ...runs.filter(run => !isGoingOn(run))];
}

/** Runs without the plain cells that have ended: those neither train nor log metrics. */
export function withoutPlain(runs: readonly Run[]): Run[] {
  return runs.filter(run => run.training || isGoingOn(run));
}

/** The runs with all typed words in their name, tags, state, notebook or id. */
export function matching<Item extends { id: string; name: string; session: string; tags: string[] }>(
  items: readonly Item[],
  typed: string,
  word: (item: Item) => string
): readonly Item[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) {
    return items;
  }
  return items.filter(item => {
    const text = [item.name, item.id, item.session, word(item), ...item.tags].join(' ').toLowerCase();
    return words.every(one => text.includes(one));
  });
}
