/** How a run stands, for the live view's header: its data tell the curves, its item the rest. Pure. */

import type { Progress } from '@widget/run/view.js';
import type { Run, RunStatus } from '../../api/items';
import type { RunBundle } from '../runbundle';

const STATES: Partial<Record<RunStatus, string>> = { preparing: 'starting' };
const OVER: RunStatus[] = ['finished', 'failed', 'stopped', 'damaged', 'lost'];

/** The data of a run, with what its item knows better. */
export function standing(bundle: RunBundle, run: Run, now: number): RunBundle {
  const over = OVER.includes(run.status);
  const until = over ? run.ended : now;
  const elapsed = until === null ? null : Math.max(0, until - run.created - run.paused);
  const progress: Progress = {
    ...bundle.progress,
    state: STATES[run.status] ?? run.status,
    step: run.step ?? bundle.progress.step,
    total: run.total,
    steps_per_second: (over ? bundle.progress.steps_per_second : null) ?? run.steps_per_second,
    seconds_left: run.seconds_left,
    elapsed: bundle.progress.elapsed !== null && over ? bundle.progress.elapsed : elapsed,
    note: [bundle.progress.note, run.note].filter(Boolean).join(' · ')
  };
  return { ...bundle, progress, head: { ...bundle.head, title: run.name || bundle.head.title, run: run.id } };
}
