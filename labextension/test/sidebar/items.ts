import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { Signal } from '@lumino/signaling';
import type { Feed } from '../../src/api/feed';
import { type About, type Cluster, EMPTY_STATE, type Gpu, type Run, type State, type Sweep, type Task } from '../../src/api/items';
import { SidebarModel } from '../../src/sidebar/model';
import { SectionStore } from '../../src/sidebar/store';

export const trans = nullTranslator.load('nbdist');

export const ABOUT: About = {
  version: 1, nbdist: '0.1.0', cores: 2, gpus: 0, launchers: ['local', 'mpi', 'ssh'], nvml: 'no driver', tensorboard: null,
  launcher_forms: {
    local: { help: 'plain engines', elsewhere: false, settings: [] },
    mpi: { help: 'one MPI world', elsewhere: false, settings: [] },
    ssh: {
      help: 'engines on other hosts, by ssh', elsewhere: true,
      settings: [
        { name: 'hosts', help: 'the hosts', shows: 'A:2,B:2|FILE', default: null },
        { name: 'python_path', help: 'the Python there', shows: 'PATH', default: null },
        { name: 'sync_env', help: 'make the environment there', shows: '', default: false, switch: true }
      ]
    }
  },
  home: '/home/nbdist', problem: null
};

export const CLUSTER: Cluster = {
  id: 'a', kind: 'nbdist', title: 'train.ipynb', state: 'running', launcher: 'local', workers: 2, ps: 0,
  engines: 2, created: 100, owner: null, detached: false, dead: [], runs: [], hosts: [], ends: null, attach: '%cluster attach a',
  can: { stop: true, grow: true, shrink: true, restart: true }, why: {}, lines: [], error: null
};

export const TASK: Task = {
  cluster: 'a', rank: 0, name: '/job:worker/task:0', job: 'worker', index: 0, host: 'here', pid: 41,
  device: '/device:CPU:0', state: 'running', cpu: 97, memory: 300 * 1024 ** 2, gpu: null, run: 'r',
  step: 40, steps_per_second: 56.3, straggler: null, note: null
};

export const GPU: Gpu = {
  use: 40, memory: 2 ** 30, total: 8 * 2 ** 30, power: 610, temperature: 67, history: [0, 20, 40]
};

export const RUN: Run = {
  id: 'r', name: 'digits', status: 'running', created: 200, ended: null, paused: 0, cluster: 'a', strategy: 'sync',
  replicas: 2, step: 40, total: 100, seconds_left: 12, steps_per_second: 5, learning_rate: 0.01, metric: 'loss', value: 0.125,
  curve: { x: [0, 10, 20, 40], y: [2, 1, 0.5, 0.125] }, error: null, error_line: null, tags: [], remark: null, training: true, bytes: null, note: null, session: 'train.ipynb',
  folder: '/home/runs/r', browse: 'runs/r', tensorboard: true, resumed_from: null, attach: "nb.attach('r')", can: { stop: true },
  why: {}
};

export const SWEEP: Sweep = {
  id: 's', name: 'rates', state: 'running', created: 300, metric: 'accuracy', direction: 'max', wanted: 20,
  counts: { waiting: 6, running: 2, finished: 9, pruned: 3, stopped: 0, failed: 0 },
  best: { number: 7, value: 0.98, parameters: { rate: 0.01, kind: 'adam' } },
  curve: { x: [0, 5, 10], y: [0.5, 0.7, 0.98] }, cluster: 'a', session: 's.ipynb', note: null, error: null,
  attach: "nb.attach('s')", can: { stop: true, pause: true, resume: false }, why: { resume: 'it runs' }
};

/** A feed that says what a test tells it. */
export class FakeFeed {
  state: State = EMPTY_STATE;
  connection = 'live';
  error: string | null = null;
  reachable = true;
  requested: (string | null)[] = [];
  views = new Set<object>();
  readonly changed = new Signal<this, void>(this);

  tell(state: Partial<State>): void {
    this.state = { ...this.state, ...state };
    this.changed.emit();
  }

  requestTasks(cluster: string | null): void {
    this.requested.push(cluster);
  }

  addView(part: object): { isDisposed: boolean; dispose: () => void } {
    this.views.add(part);
    return { isDisposed: false, dispose: () => void this.views.delete(part) };
  }

  refresh(): Promise<void> {
    return Promise.resolve();
  }
}

/** A panel's model and store over a fake feed, with commands that a test adds. */
export function fakePanel(state: Partial<State> = {}): {
  feed: FakeFeed; commands: CommandRegistry; model: SidebarModel; store: SectionStore;
} {
  const feed = new FakeFeed();
  feed.state = { ...EMPTY_STATE, ...state };
  const commands = new CommandRegistry();
  const client = { about: () => new Promise(() => undefined) };
  const model = new SidebarModel({ feed: feed as unknown as Feed, client: client as never, trans }, commands);
  const store = new SectionStore(model);
  store.setVisible(true);
  return { feed, commands, model, store };
}
