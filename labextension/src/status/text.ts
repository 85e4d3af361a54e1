import type { TranslationBundle } from '@jupyterlab/translation';
import type { State } from '../api/items';
import { isGoingOn } from '../panel/actions';
import { percentOf } from '../panel/format';

/** What stands in the status bar, such as "nbdist: 2 clusters · 1 run 43%"; empty where nothing goes on. */
export function statusText({ clusters, runs, sweeps }: State, trans: TranslationBundle): string {
  const parts: string[] = [];
  const up = clusters.filter(cluster => cluster.state !== 'stale' && cluster.state !== 'failed').length;
  if (up) {
    parts.push(trans._n('%1 cluster', '%1 clusters', up));
  }
  const going = runs.filter(isGoingOn);
  if (going.length) {
    const share = shareOf(going.map(run => [run.step, run.total]));
    const text = trans._n('%1 run', '%1 runs', going.length);
    parts.push(share === null ? text : `${text} ${share}%`);
  }
  const searching = sweeps.filter(sweep => sweep.state === 'running' || sweep.state === 'paused').length;
  if (searching) {
    parts.push(trans._n('%1 sweep', '%1 sweeps', searching));
  }
  return parts.length ? trans.__('nbdist: %1', parts.join(' · ')) : '';
}

/** Whether something changes by itself, so that the next request should follow soon. */
export function isMoving({ clusters, runs, sweeps }: State): boolean {
  return (
    clusters.some(({ state }) => state === 'starting' || state === 'stopping') ||
    runs.some(isGoingOn) ||
    sweeps.some(({ state }) => state === 'running' || state === 'paused')
  );
}

/** How far all are together, in percent; null unless each knows how much it has to do. */
function shareOf(runs: readonly [step: number | null, total: number | null][]): number | null {
  const shares = runs.map(([step, total]) => (total && step !== null ? percentOf(step, total) : null));
  return shares.includes(null)
    ? null
    : Math.floor(shares.reduce<number>((sum, share) => sum + share!, 0) / shares.length);
}
