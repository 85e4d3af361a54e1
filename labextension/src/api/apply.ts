import type { Change, Changes, State } from './items';

/** What the state is after changes; items that are as before stay the same objects, and so do their lists. */
export function apply(state: State, changes: Changes): State {
  const cluster = changes.cluster !== undefined ? changes.cluster : state.cluster;
  const tasks = cluster === state.cluster ? state.tasks : [];
  return {
    version: state.version,
    clusters: merge(state.clusters, changes.clusters, newestFirst),
    runs: merge(state.runs, changes.runs, newestFirst),
    sweeps: merge(state.sweeps, changes.sweeps, newestFirst),
    tasks: merge(tasks, changes.tasks, byRank),
    cluster,
    problems: changes.problems ?? state.problems
  };
}

type Named = { id: string } | { rank: number };

function merge<Item extends Named, Key extends string | number>(
  items: Item[],
  change: Change<Item, Key> | undefined,
  order: (one: Item, other: Item) => number
): Item[] {
  if (!change) {
    return items;
  }
  const gone = new Set<string | number>(change.gone);
  const news = new Map(change.set.map(item => [key(item), item]));
  const kept = items.filter(item => !gone.has(key(item))).map(item => news.get(key(item)) ?? item);
  const known = new Set(kept.map(key));
  const added = change.set.filter(item => !known.has(key(item)));
  return added.length ? [...kept, ...added].sort(order) : kept;
}

function key(item: Named): string | number {
  return 'id' in item ? item.id : item.rank;
}

function newestFirst(
  one: { created: number | null; id: string },
  other: { created: number | null; id: string }
): number {
  return (other.created ?? 0) - (one.created ?? 0) || (one.id < other.id ? 1 : -1);
}

function byRank(one: { rank: number }, other: { rank: number }): number {
  return one.rank - other.rank;
}
