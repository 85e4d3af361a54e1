import type { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, refreshIcon, stopIcon } from '@jupyterlab/ui-components';
import type { Cluster, Sweep, Task } from '../api/items';
import { removeIcon } from '../icons';
import { lastPart } from '../sidebar/format';
import { described, type Parts, textOf } from './context';
import { choose, confirmed, howMany } from './dialogs';
import { Refused, told } from './notify';

const MOST = 256; // workers that are added at once
const ID = ['string', 'The id of a cluster; without one it is asked for.'] as const;

/** Commands for clusters: stop one, add workers or remove them, give a task another process. */
export function addClusterCommands(parts: Parts): void {
  const { commands } = parts.app;
  const { trans } = parts.nbdist;
  commands.addCommand('nbdist:stop-cluster', {
    label: trans.__('Stop a Cluster…'),
    caption: trans.__('End all processes of a cluster'),
    icon: stopIcon,
    describedBy: described({ id: ID }),
    execute: args => told(args, () => stop(textOf(args['id']), parts))
  });
  commands.addCommand('nbdist:grow-cluster', {
    label: trans.__('Add Workers to a Cluster…'),
    caption: trans.__('Start more workers in a cluster that is up'),
    icon: addIcon,
    describedBy: described({ id: ID, workers: ['integer', 'How many; without it that is asked for.'] }),
    execute: args => told(args, () => grow(textOf(args['id']), args['workers'], parts))
  });
  commands.addCommand('nbdist:shrink-cluster', {
    label: trans.__('Remove Workers from a Cluster…'),
    caption: trans.__('End the last workers of a cluster that is up'),
    icon: removeIcon,
    describedBy: described({ id: ID, workers: ['integer', 'How many; without it that is asked for.'] }),
    execute: args => told(args, () => shrink(textOf(args['id']), args['workers'], parts))
  });
  commands.addCommand('nbdist:restart-task', {
    label: trans.__('Restart a Task…'),
    caption: trans.__('Give a task of a cluster another process'),
    icon: refreshIcon,
    describedBy: described({ id: ID, task: ['string', 'Such as worker:1; null for all tasks that have died.'] }),
    execute: args => told(args, () => restart(textOf(args['id']), args['task'], parts))
  });
}

async function stop(id: string | null, parts: Parts): Promise<string | void> {
  const { client, trans } = parts.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await chosen(state.clusters, 'stop', parts) : found(id, state.clusters, parts);
  if (cluster === null) {
    return;
  }
  const reasons = againstStopping(cluster, state.sweeps, trans);
  if (await confirmed(trans.__('Stop cluster %1?', cluster.title), reasons, trans.__('Stop'), trans)) {
    await client.stopCluster(cluster.id);
    return trans.__('Cluster %1 is being stopped.', cluster.title);
  }
}

async function grow(id: string | null, wanted: unknown, parts: Parts): Promise<string | void> {
  const { client, trans } = parts.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await chosen(state.clusters, 'grow', parts) : found(id, state.clusters, parts);
  if (cluster === null) {
    return;
  }
  const title = trans.__('Add workers to cluster %1', cluster.title);
  const workers =
    typeof wanted === 'number'
      ? wanted
      : await howMany(title, trans.__('How many more, 1 to %1', MOST), MOST, trans);
  if (workers !== null) {
    await client.grow(cluster.id, workers);
    return trans._n('%2 gets %1 more worker.', '%2 gets %1 more workers.', workers, cluster.title);
  }
}

async function shrink(id: string | null, wanted: unknown, parts: Parts): Promise<string | void> {
  const { client, trans } = parts.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await chosen(state.clusters, 'shrink', parts) : found(id, state.clusters, parts);
  if (cluster === null) {
    return;
  }
  const most = Math.max(1, (cluster.workers ?? MOST) - 1); // the first one, the chief, stays
  const title = trans.__('Remove workers from cluster %1', cluster.title);
  const workers =
    typeof wanted === 'number' ? wanted : await howMany(title, trans.__('How many, 1 to %1', most), most, trans);
  if (workers !== null) {
    await client.shrink(cluster.id, workers);
    return trans._n('%2 loses %1 worker.', '%2 loses %1 workers.', workers, cluster.title);
  }
}

async function restart(id: string | null, task: unknown, parts: Parts): Promise<string | void> {
  const { client, trans } = parts.nbdist;
  const { clusters } = await client.state(null);
  const cluster = id === null ? await chosen(clusters, 'restart', parts) : found(id, clusters, parts);
  if (cluster === null) {
    return;
  }
  if (task === null) {
    await client.restart(cluster.id, null);
    return trans.__('The tasks that have died get other processes.');
  }
  const { tasks } = await client.state(cluster.id);
  const picked = typeof task === 'string' ? taskOf(cluster, tasks, task, parts) : await chosenTask(cluster, tasks, parts);
  if (picked === null) {
    return;
  }
  const name = shortName(picked.name);
  if (await confirmed(trans.__('Restart %1?', name), againstRestarting(picked, trans), trans.__('Restart'), trans)) {
    await client.restart(cluster.id, name);
    return trans.__('%1 gets another process.', name);
  }
}

function found(id: string, clusters: readonly Cluster[], { nbdist: { trans } }: Parts): Cluster {
  const cluster = clusters.find(one => one.id === id);
  if (!cluster) {
    throw new Refused(trans.__('There is no cluster %1 any more.', id));
  }
  return cluster;
}

function taskOf(cluster: Cluster, tasks: readonly Task[], name: string, { nbdist: { trans } }: Parts): Task {
  const task = tasks.find(one => shortName(one.name) === shortName(name));
  if (!task) {
    throw new Refused(trans.__('Cluster %1 has no task %2.', cluster.title, name));
  }
  return task;
}

function chosenTask(cluster: Cluster, tasks: readonly Task[], { nbdist: { trans } }: Parts): Promise<Task | null> {
  const texts = {
    title: trans.__('Restart a task'),
    label: trans.__('Task of cluster %1', cluster.title),
    none: trans.__('Cluster %1 has no tasks.', cluster.title)
  };
  return choose(tasks, task => `${shortName(task.name)} (${task.state})`, texts, trans);
}

function chosen(clusters: readonly Cluster[], wish: string, { nbdist: { trans } }: Parts): Promise<Cluster | null> {
  const able = clusters.filter(cluster => cluster.can[wish]);
  const nameOf = (cluster: Cluster): string =>
    cluster.engines === null
      ? cluster.title
      : trans._n('%2, %1 engine', '%2, %1 engines', cluster.engines, cluster.title);
  const why = clusters.find(cluster => cluster.why[wish])?.why[wish];
  const none = why ? trans.__('No cluster can do this now: %1.', why) : trans.__('There is no cluster.');
  return choose(able, nameOf, { title: trans.__('Choose a cluster'), label: trans.__('Cluster'), none }, trans);
}

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
