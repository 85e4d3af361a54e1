/** What has ended, failed or lost a worker between two states of the server. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Run, State, Sweep } from '../api/items';
import { isActive } from '../sidebar/actions';
import { formatNumber, formatSeconds } from '../sidebar/format';

export interface News {
  /** One notification of an item replaces the one before with the same key. */
  key: string;
  type: 'success' | 'info' | 'warning' | 'error';
  text: string;
  /** The command that opens the item, and its id. */
  command: 'nbdist:open-run' | 'nbdist:open-grid';
  id: string;
}

/**
 * The news of a state, the oldest item first.
 *
 * The end of what was shorter than `longer` seconds is none; the loss of a worker always is. `now` is in seconds since 1970.
 */
export function newsOf(before: State, state: State, longer: number, now: number, trans: TranslationBundle): News[] {
  const runs = new Map(before.runs.map(run => [run.id, run]));
  const sweeps = new Map(before.sweeps.map(sweep => [sweep.id, sweep]));
  return [
    ...state.runs.map(run => newsOfRun(runs.get(run.id), run, longer, now, trans)),
    ...state.sweeps.map(sweep => newsOfSweep(sweeps.get(sweep.id), sweep, longer, now, trans))
  ]
    .filter(found => found !== null)
    .reverse();
}

function newsOfRun(before: Run | undefined, run: Run, longer: number, now: number, trans: TranslationBundle): News | null {
  if (before === undefined || !isActive(before)) {
    return null;
  }
  const item = { command: 'nbdist:open-run', id: run.id } as const;
  if (isActive(run)) {
    const lost = (run.lost ?? []).slice(before.lost?.length ?? 0);
    return lost.length
      ? { ...item, key: `${run.id} lost`, type: 'warning', text: trans.__('Run %1 has lost %2, and continues.', run.name, lost.join(', ')) }
      : null;
  }
  const seconds = (run.ended ?? now) - run.created - run.paused;
  if (seconds < longer) {
    return null;
  }
  const took = formatSeconds(seconds);
  const reached = run.metric !== null && run.value !== null ? `: ${run.metric} ${formatNumber(run.value)}` : '';
  const why = run.error_line ?? run.note ?? '';
  switch (run.status) {
    case 'finished':
      return { ...item, key: run.id, type: 'success', text: trans.__('Run %1 has finished after %2%3', run.name, took, reached) };
    case 'stopped':
      return { ...item, key: run.id, type: 'info', text: trans.__('Run %1 was stopped after %2%3', run.name, took, reached) };
    case 'lost':
      return { ...item, key: run.id, type: 'error', text: trans.__('Run %1 is lost after %2: %3', run.name, took, why) };
    default:
      return { ...item, key: run.id, type: 'error', text: trans.__('Run %1 has failed after %2: %3', run.name, took, why) };
  }
}

function newsOfSweep(before: Sweep | undefined, sweep: Sweep, longer: number, now: number, trans: TranslationBundle): News | null {
  const seconds = now - sweep.created;
  if (before === undefined || !goesOn(before) || goesOn(sweep) || seconds < longer) {
    return null;
  }
  const item = { command: 'nbdist:open-grid', id: sweep.id, key: sweep.id } as const;
  const took = formatSeconds(seconds);
  const best = sweep.best?.value;
  const reached = best !== null && best !== undefined ? `: ${sweep.metric} ${formatNumber(best)}` : '';
  switch (sweep.state) {
    case 'finished':
      return { ...item, type: 'success', text: trans.__('Sweep %1 has finished after %2%3', sweep.name, took, reached) };
    case 'stopped':
      return { ...item, type: 'info', text: trans.__('Sweep %1 was stopped after %2%3', sweep.name, took, reached) };
    default:
      return { ...item, type: 'error', text: trans.__('Sweep %1 has failed after %2: %3', sweep.name, took, sweep.error ?? sweep.note ?? '') };
  }
}

function goesOn(sweep: Sweep): boolean {
  return sweep.state === 'running' || sweep.state === 'paused';
}
