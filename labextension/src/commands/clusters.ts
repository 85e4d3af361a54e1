import type { TranslationBundle } from '@jupyterlab/translation';
import { addIcon, refreshIcon, stopIcon } from '@jupyterlab/ui-components';
import type { Cluster, Sweep, Task } from '../api/items';
import { removeIcon } from '../icons';
import { lastPart } from '../sidebar/format';
import { argsSchema, type CommandContext, stringArg } from './context';
import { pickItem, confirm, askCount } from './dialogs';
import { RefusedError, withNotifications } from './notify';

const MAX_WORKERS = 256; // workers added by one command
const ID = ['string', 'The id of a cluster; a dialog asks for it if it is missing.'] as const;

/** Commands for clusters: stop one, add or remove workers, restart a task. */
export function addClusterCommands(context: CommandContext): void {
  const { commands } = context.app;
  const { trans } = context.nbdist;
  commands.addCommand('nbdist:stop-cluster', {
    label: trans.__('Stop a Cluster…'),
    caption: trans.__('End all processes of a cluster'),
    icon: stopIcon,
    describedBy: argsSchema({ id: ID }),
    execute: args => withNotifications(args, () => stop(stringArg(args['id']), context))
  });
  commands.addCommand('nbdist:grow-cluster', {
    label: trans.__('Add Workers to a Cluster…'),
    caption: trans.__('Start more workers in a cluster that is up'),
    icon: addIcon,
    describedBy: argsSchema({ id: ID, workers: ['integer', 'The number of workers; a dialog asks for it if it is missing.'] }),
    execute: args => withNotifications(args, () => grow(stringArg(args['id']), args['workers'], context))
  });
  commands.addCommand('nbdist:shrink-cluster', {
    label: trans.__('Remove Workers from a Cluster…'),
    caption: trans.__('End the last workers of a cluster that is up'),
    icon: removeIcon,
    describedBy: argsSchema({ id: ID, workers: ['integer', 'The number of workers; a dialog asks for it if it is missing.'] }),
    execute: args => withNotifications(args, () => shrink(stringArg(args['id']), args['workers'], context))
  });
  commands.addCommand('nbdist:restart-task', {
    label: trans.__('Restart a Task…'),
    caption: trans.__('Start a new process for a task of a cluster'),
    icon: refreshIcon,
    describedBy: argsSchema({ id: ID, task: ['string', 'Such as worker:1; null for all tasks that have died.'] }),
    execute: args => withNotifications(args, () => restart(stringArg(args['id']), args['task'], context))
  });
}

async function stop(id: string | null, context: CommandContext): Promise<string | void> {
  const { client, trans } = context.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await pickCluster(state.clusters, 'stop', context) : clusterById(id, state.clusters, context);
  if (cluster === null) {
    return;
  }
  const reasons = stopWarnings(cluster, state.sweeps, trans);
  if (await confirm(trans.__('Stop cluster %1?', cluster.title), reasons, trans.__('Stop'), trans)) {
    await client.stopCluster(cluster.id);
    return trans.__('Cluster %1 is being stopped.', cluster.title);
  }
}

async function grow(id: string | null, wanted: unknown, context: CommandContext): Promise<string | void> {
  const { client, trans } = context.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await pickCluster(state.clusters, 'grow', context) : clusterById(id, state.clusters, context);
  if (cluster === null) {
    return;
  }
  const title = trans.__('Add workers to cluster %1', cluster.title);
  const workers =
    typeof wanted === 'number'
      ? wanted
      : await askCount(title, trans.__('How many more, 1 to %1', MAX_WORKERS), MAX_WORKERS, trans);
  if (workers !== null) {
    await client.grow(cluster.id, workers);
    return trans._n('Adding %1 worker to %2.', 'Adding %1 workers to %2.', workers, cluster.title);
  }
}

async function shrink(id: string | null, wanted: unknown, context: CommandContext): Promise<string | void> {
  const { client, trans } = context.nbdist;
  const state = await client.state(null);
  const cluster = id === null ? await pickCluster(state.clusters, 'shrink', context) : clusterById(id, state.clusters, context);
  if (cluster === null) {
    return;
  }
  const most = Math.max(1, (cluster.workers ?? MAX_WORKERS) - 1); // the first one, the chief, stays
  const title = trans.__('Remove workers from cluster %1', cluster.title);
  const workers =
    typeof wanted === 'number' ? wanted : await askCount(title, trans.__('How many, 1 to %1', most), most, trans);
  if (workers !== null) {
    await client.shrink(cluster.id, workers);
    return trans._n('Removing %1 worker from %2.', 'Removing %1 workers from %2.', workers, cluster.title);
  }
}

async function restart(id: string | null, task: unknown, context: CommandContext): Promise<string | void> {
  const { client, trans } = context.nbdist;
  const { clusters } = await client.state(null);
  const cluster = id === null ? await pickCluster(clusters, 'restart', context) : clusterById(id, clusters, context);
  if (cluster === null) {
    return;
  }
  if (task === null) {
    await client.restart(cluster.id, null);
    return trans.__('The dead tasks are being restarted.');
  }
  const { tasks } = await client.state(cluster.id);
  const picked = typeof task === 'string' ? taskByName(cluster, tasks, task, context) : await pickTask(cluster, tasks, context);
  if (picked === null) {
    return;
  }
  const name = shortTaskName(picked.name);
  if (await confirm(trans.__('Restart %1?', name), restartWarnings(picked, trans), trans.__('Restart'), trans)) {
    await client.restart(cluster.id, name);
    return trans.__('%1 is being restarted.', name);
  }
}

function clusterById(id: string, clusters: readonly Cluster[], { nbdist: { trans } }: CommandContext): Cluster {
  const cluster = clusters.find(one => one.id === id);
  if (!cluster) {
    throw new RefusedError(trans.__('Cluster %1 does not exist any more.', id));
  }
  return cluster;
}

function taskByName(cluster: Cluster, tasks: readonly Task[], name: string, { nbdist: { trans } }: CommandContext): Task {
  const task = tasks.find(one => shortTaskName(one.name) === shortTaskName(name));
  if (!task) {
    throw new RefusedError(trans.__('Cluster %1 has no task %2.', cluster.title, name));
  }
  return task;
}

function pickTask(cluster: Cluster, tasks: readonly Task[], { nbdist: { trans } }: CommandContext): Promise<Task | null> {
  const texts = {
    title: trans.__('Restart a task'),
    label: trans.__('Task of cluster %1', cluster.title),
    none: trans.__('Cluster %1 has no tasks.', cluster.title)
  };
  return pickItem(tasks, task => `${shortTaskName(task.name)} (${task.state})`, texts, trans);
}

function pickCluster(clusters: readonly Cluster[], command: string, { nbdist: { trans } }: CommandContext): Promise<Cluster | null> {
  const able = clusters.filter(cluster => cluster.can[command]);
  const nameOf = (cluster: Cluster): string =>
    cluster.engines === null
      ? cluster.title
      : trans._n('%2, %1 engine', '%2, %1 engines', cluster.engines, cluster.title);
  const why = clusters.find(cluster => cluster.why[command])?.why[command];
  const none = why ? trans.__('No cluster can do this now: %1.', why) : trans.__('There is no cluster.');
  return pickItem(able, nameOf, { title: trans.__('Choose a cluster'), label: trans.__('Cluster'), none }, trans);
}

/** The consequences of stopping a cluster; empty if nothing uses it. */
export function stopWarnings(cluster: Cluster, sweeps: readonly Sweep[], trans: TranslationBundle): string[] {
  const reasons = cluster.runs.map(run => trans.__('Run %1 uses it and ends.', run));
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
        : trans.__('The process that started it is still running: %1.', owner.pid)
    );
  }
  if (cluster.kind === 'ipyparallel') {
    reasons.push(trans.__('It was not started by nbdist but by ipyparallel: others may use it.'));
  }
  return reasons;
}

/** The consequences of restarting a task; empty if it is dead. */
export function restartWarnings(task: Task, trans: TranslationBundle): string[] {
  if (task.state === 'dead') {
    return [];
  }
  const reasons = [trans.__('The task is running: the data in its memory is lost.')];
  if (task.run !== null) {
    reasons.push(trans.__('Run %1 uses it and loses a task.', task.run));
  }
  return reasons;
}

/** The name of a task in the magics, such as "worker:1" for "/job:worker/task:1". */
export function shortTaskName(task: string): string {
  const match = /^\/job:(\w+)\/task:(\d+)$/.exec(task);
  return match ? `${match[1]}:${match[2]}` : task;
}
