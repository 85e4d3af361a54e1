import type { TranslationBundle } from '@jupyterlab/translation';
import type { Cluster, Sweep, Task } from '../api/items';
import { lastPart } from '../panel/format';

/** What is to be said to a user who is about to stop a cluster; nothing if nobody would miss it. */
export function againstStopping(cluster: Cluster, sweeps: readonly Sweep[], trans: TranslationBundle): string[] {
  const reasons = cluster.runs.map(run => trans.__('Run %1 is on it, and ends.', run));
  for (const sweep of sweeps) {
    if (sweep.cluster === cluster.id && sweep.state === 'running') {
      reasons.push(trans.__('Sweep %1 uses it.', sweep.name || sweep.id));
    }
  }
  const owner = cluster.owner;
  if (owner?.alive) {
    reasons.push(
      owner.session
        ? trans.__('%1 is open and uses it.', lastPart(owner.session))
        : trans.__('What started it is still there: process %1.', owner.pid)
    );
  }
  if (cluster.kind === 'ipyparallel') {
    reasons.push(trans.__('It was not started by nbdist but by ipyparallel: others may use it.'));
  }
  return reasons;
}

/** What is to be said to a user who is about to give a task another process; nothing if it has died. */
export function againstRestarting(task: Task, trans: TranslationBundle): string[] {
  if (task.state === 'dead') {
    return [];
  }
  const reasons = [trans.__('The task is alive: what it has in its memory is lost.')];
  if (task.run !== null) {
    reasons.push(trans.__('Run %1 is on it, and loses a task.', task.run));
  }
  return reasons;
}

/** "worker:1", as the magics call the task "/job:worker/task:1". */
export function shortName(task: string): string {
  const parts = /^\/job:(\w+)\/task:(\d+)$/.exec(task);
  return parts ? `${parts[1]}:${parts[2]}` : task;
}
