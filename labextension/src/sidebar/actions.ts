import type { TranslationBundle } from '@jupyterlab/translation';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import type { About, Cluster, Run, Sweep, Task } from '../api/items';

export type ActionIcon =
  | 'attach' | 'more' | 'grow' | 'shrink' | 'restart' | 'stop' | 'pause' | 'resume' | 'rate' | 'folder' | 'tensorboard' | 'dismiss';

/** One button of a row: its command, and the reason why it is disabled (null if it is enabled). */
export interface Action {
  id: string;
  icon: ActionIcon;
  label: string;
  command: string;
  args: ReadonlyPartialJSONObject;
  why: string | null;
}

/** The actions on a cluster. */
export function clusterActions(cluster: Cluster, trans: TranslationBundle): Action[] {
  const id = cluster.id;
  if (cluster.state === 'failed') {
    return [
      action('dismiss', 'dismiss', trans.__('Dismiss'), 'nbdist:dismiss-cluster', { id }, null)
    ];
  }
  const why = (name: string): string | null => reason(cluster, name, trans);
  const up = cluster.state === 'running' ? null : (cluster.why['grow'] ?? trans.__('it does not run'));
  const actions = [
    { ...attach(cluster.attach, trans), why: up },
    action('grow', 'grow', trans.__('Add workers'), 'nbdist:grow-cluster', { id }, why('grow')),
    action('shrink', 'shrink', trans.__('Remove workers'), 'nbdist:shrink-cluster', { id }, why('shrink'))
  ];
  if (cluster.dead.length) {
    const label = trans._n('Restart the dead task', 'Restart the %1 dead tasks', cluster.dead.length);
    actions.push(action('restart', 'restart', label, 'nbdist:restart-task', { id, task: null }, why('restart')));
  }
  actions.push(action('stop', 'stop', trans.__('Stop the cluster'), 'nbdist:stop-cluster', { id }, why('stop')));
  return actions;
}

/** Restart one task in a new process; a task in use by a run is left to the run. */
export function restartAction(task: Task, cluster: Cluster, trans: TranslationBundle): Action {
  const used = task.run !== null && task.state !== 'dead' ? trans.__('a run is using it') : null;
  const args = { id: task.cluster, task: `${task.job}:${task.index}` };
  const label = trans.__('Restart %1', shortTask(task));
  return action('restart', 'restart', label, 'nbdist:restart-task', args, used ?? reason(cluster, 'restart', trans));
}

/** The actions on a run. */
export function runActions(run: Run, about: About | null, trans: TranslationBundle): Action[] {
  const id = run.id;
  const actions = [];
  if (isActive(run)) {
    const why = reason(run, 'stop', trans);
    actions.push(action('stop', 'stop', trans.__('Stop the run'), 'nbdist:stop-run', { id }, why));
  } else if (run.can['resume'] === true) {
    const label = trans.__('Resume the run from its newest state');
    actions.push(action('resume', 'resume', label, 'nbdist:control-run', { id, command: 'resume' }, null));
  }
  // The folder is usually outside Jupyter's root; the command then shows its files on the run's page.
  const files = run.browse === null ? trans.__('Show the files') : trans.__('Open the folder');
  // For a run without event files the server writes them.
  const board = about?.tensorboard ?? null;
  return [
    ...actions,
    attach(run.attach, trans),
    action('folder', 'folder', files, 'nbdist:open-folder', { id }, null),
    action('tensorboard', 'tensorboard', trans.__('Open TensorBoard'), 'nbdist:open-tensorboard', { id }, board),
    action('more', 'more', trans.__('Name, tags, note, delete…'), 'nbdist:run-menu', { id }, null)
  ];
}

/** The further controls on the page of a run while it trains; its live view has the same. */
export function runControls(run: Run, trans: TranslationBundle): Action[] {
  if (!isActive(run) || !run.training) {
    return [];
  }
  const control = (name: 'pause' | 'resume', label: string): Action =>
    action(name, name, label, 'nbdist:control-run', { id: run.id, command: name }, reason(run, name, trans));
  return [
    run.status === 'paused' ? control('resume', trans.__('Resume the run')) : control('pause', trans.__('Pause the run')),
    action('rate', 'rate', trans.__('Learning rate…'), 'nbdist:set-learning-rate', { id: run.id }, reason(run, 'set', trans))
  ];
}

/** The actions on a sweep. */
export function sweepActions(sweep: Sweep, trans: TranslationBundle): Action[] {
  const id = sweep.id;
  const sweepAction = (name: 'pause' | 'resume' | 'stop', label: string): Action =>
    action(name, name, label, 'nbdist:sweep-command', { id, command: name }, reason(sweep, name, trans));
  const actions = [];
  if (sweep.state === 'paused') {
    actions.push(sweepAction('resume', trans.__('Resume the sweep')));
  } else if (sweep.state === 'running') {
    actions.push(sweepAction('pause', trans.__('Pause the sweep')));
  }
  if (sweep.state === 'paused' || sweep.state === 'running') {
    actions.push(sweepAction('stop', trans.__('Stop the sweep')));
  }
  return [...actions, attach(sweep.attach, trans)];
}

/** The display name of a task, such as "worker 1". */
export function shortTask(task: { job: string; index: number }): string {
  return `${task.job} ${task.index}`;
}

/** Whether a run has not ended. */
export function isActive(run: Run): boolean {
  return run.status === 'preparing' || run.status === 'running' || run.status === 'paused';
}

function attach(code: string, trans: TranslationBundle): Action {
  const label = trans.__('Insert code that attaches a notebook');
  return action('attach', 'attach', label, 'nbdist:insert-attach', { code }, null);
}

function action(
  id: string,
  icon: ActionIcon,
  label: string,
  command: string,
  args: ReadonlyPartialJSONObject,
  why: string | null
): Action {
  return { id, icon, label, command, args, why };
}

function reason(
  item: { can: Record<string, boolean>; why: Record<string, string> },
  name: string,
  trans: TranslationBundle
): string | null {
  return item.can[name] ? null : (item.why[name] ?? trans.__('this is not possible now'));
}
