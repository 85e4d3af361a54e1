/** The server's data; see docs/lab-api.md. Times are in seconds since 1970; null means "unknown". */

export const VERSION = 1;

/** The default launcher of a cluster: the first row of the table of launchers. */
export const DEFAULT_LAUNCHER = 'local';

export interface About {
  version: number;
  nbdist: string;
  cores: number;
  gpus: number;
  /** Those that are installed. */
  launchers: string[];
  /** What the form shows of each launcher; a server of an older version sends none. */
  launcher_forms?: Record<string, LauncherForm>;
  /** Why GPU statistics are not available; null if they are. */
  nvml: string | null;
  /** Why TensorBoard cannot be opened; null if it can. */
  tensorboard: string | null;
  home: string;
  /** Why nbdist's folder cannot be used; null if it can. */
  problem: string | null;
}

/** A setting of a launcher. */
export type LauncherSetting = {
  name: string;
  help: string;
  /** What a value looks like, such as "A:2,B:2|FILE". */
  shows: string;
  default: string | number | boolean | null;
  /** Whether it is on or off, without another value; a server of an older version does not say. */
  switch?: boolean;
};

export type LauncherForm = {
  help: string;
  /** Whether the tasks are on other hosts than the server's. */
  elsewhere: boolean;
  settings: LauncherSetting[];
};

/** Which actions are possible, and why the others are not. */
interface Actionable {
  can: Record<string, boolean>;
  why: Record<string, string>;
}

export interface Cluster extends Actionable {
  id: string;
  kind: 'nbdist' | 'ipyparallel';
  title: string;
  state: 'starting' | 'running' | 'stopping' | 'failed' | 'stale';
  launcher: string | null;
  workers: number | null;
  ps: number | null;
  engines: number | null;
  created: number | null;
  owner: { pid: number; session: string; alive: boolean } | null;
  detached: boolean;
  /** Tasks that are dead, such as "worker:1". */
  dead: string[];
  runs: string[];
  /** The other hosts that it is on; none for a cluster on the server's host. */
  hosts: Host[];
  /** When the job of these hosts ends. */
  ends: number | null;
  /** When it ends if nothing uses it; a server of an older version does not say. */
  unused_ends?: number | null;
  /** Code that attaches a notebook to the cluster. */
  attach: string;
  /** The output of its start until now. */
  lines: string[];
  error: string | null;
}

/** A host of a cluster; the figures of one that is not there are null. */
export interface Host {
  name: string;
  address: string | null;
  cores: number | null;
  gpus: number | null;
  /** "absent": it has not come yet, or it was lost and its tasks are on other hosts. */
  state: 'up' | 'lost' | 'absent';
  /** The number of its tasks. */
  tasks: number;
  /** What it uses, if its tasks are shown and it has said so; a server of an older version does not say. */
  machine?: Machine | null;
}

/** What a whole host uses; null is not known. */
export interface Machine {
  /** Percent of all its cores. */
  cpu: number | null;
  /** Bytes in use. */
  memory: number | null;
  total: number | null;
}

/** Figures of a task's GPU; null where it has none. */
export interface Gpu {
  /** Percent. */
  use: number | null;
  /** Bytes of the task's process. */
  memory: number | null;
  total: number | null;
  /** Watts. */
  power: number | null;
  /** Degrees Celsius. */
  temperature: number | null;
  /** The use of the last minute. */
  history: number[];
}

export interface Task {
  cluster: string;
  rank: number;
  name: string;
  job: string;
  index: number;
  host: string;
  pid: number;
  device: string;
  state: string;
  /** Percent of one core. */
  cpu: number | null;
  /** Bytes. */
  memory: number | null;
  gpu: Gpu | null;
  run: string | null;
  step: number | null;
  steps_per_second: number | null;
  /** Its step time relative to the other tasks, if it is slow. */
  straggler: number | null;
  note: string | null;
}

export interface Curve {
  x: number[];
  y: number[];
}

export type RunStatus =
  | 'preparing'
  | 'running'
  | 'paused'
  | 'finished'
  | 'failed'
  | 'stopped'
  | 'damaged'
  | 'lost';

export interface Run extends Actionable {
  id: string;
  name: string;
  status: RunStatus;
  created: number;
  ended: number | null;
  /** Total seconds of pauses, including a current one. */
  paused: number;
  cluster: string | null;
  strategy: string | null;
  replicas: number | null;
  step: number | null;
  total: number | null;
  seconds_left: number | null;
  steps_per_second: number | null;
  /** The current rate; null if the replicas have several. */
  learning_rate: number | null;
  metric: string | null;
  value: number | null;
  curve: Curve;
  /** The tasks that it has lost so far, one name for each loss; a server of an older version does not say. */
  lost?: string[];
  error: string | null;
  /** The user's. */
  tags: string[];
  /** The user's note. */
  remark: string | null;
  /** Whether the run trains or logs metrics; a plain cell does neither. */
  training: boolean;
  /** Bytes on disk; null while it runs. */
  bytes: number | null;
  /** The exception, the line of the cell and the task, in one line. */
  error_line: string | null;
  note: string | null;
  session: string;
  folder: string;
  /** The run whose training it continues. */
  resumed_from: string | null;
  /** Its folder below the server's root; null if the file browser cannot show it. */
  browse: string | null;
  tensorboard: boolean;
  attach: string;
}

export interface RunFile {
  path: string;
  bytes: number;
  modified: number;
}

/** An output as a notebook saves it: a MIME bundle, and whether the run or sweep has ended. */
export interface SavedOutput {
  data: Record<string, unknown>;
  over: boolean;
}

export interface DisplayFile extends RunFile {
  task: string;
}

export interface RunDetails extends Run {
  code: string;
  /** The line that starts it as a cell; empty for a function. */
  first_line: string;
  /** The end of each task's output. */
  output: { task: string; text: string }[];
  /** The files of the objects that its tasks have displayed, by time. */
  displays: DisplayFile[];
  seed: number | null;
  versions: Record<string, string>;
  options: Record<string, unknown>;
  tasks: string[];
  files: RunFile[];
}

export type TrialState = 'waiting' | 'running' | 'finished' | 'pruned' | 'stopped' | 'failed';

export interface Sweep extends Actionable {
  id: string;
  name: string;
  state: 'running' | 'paused' | 'finished' | 'stopped' | 'failed' | 'lost' | 'damaged';
  created: number;
  metric: string;
  direction: 'max' | 'min';
  wanted: number | null;
  counts: Record<TrialState, number>;
  best: { number: number; value: number | null; parameters: Record<string, unknown> } | null;
  /** The best value over time, in seconds since the start. */
  curve: Curve;
  cluster: string | null;
  session: string;
  note: string | null;
  error: string | null;
  attach: string;
}

export interface State {
  version: number;
  clusters: Cluster[];
  runs: Run[];
  sweeps: Sweep[];
  /** Those of `cluster`. */
  tasks: Task[];
  cluster: string | null;
  problems: string[];
}

export interface Change<Item, Key> {
  set: Item[];
  removed: Key[];
}

/** The changes since the last message; a missing part has not changed. */
export interface Changes {
  kind: 'changes';
  clusters?: Change<Cluster, string>;
  runs?: Change<Run, string>;
  sweeps?: Change<Sweep, string>;
  tasks?: Change<Task, number>;
  cluster?: string | null;
  problems?: string[];
}

export type Message = ({ kind: 'state' } & State) | Changes;

/** The options of a new cluster; null means that nbdist decides. */
export interface StartRequest {
  /** The new cluster's id; null if nbdist chooses it. */
  name: string | null;
  /** Null for as many as the hosts take. */
  workers: number | null;
  ps: number;
  launcher: string;
  /** The launcher's own settings: texts, and true for a switch; missing ones have their defaults. */
  settings: Record<string, string | true>;
  gpus: 'auto' | 'none' | number;
  threads: number | null;
  memory: string | null;
  gpu_memory: number | null;
}

/** The labels of a run that a user may change. */
export interface Labels {
  name?: string;
  tags?: string[];
  note?: string;
}

/** The runs to delete: those older than an age such as "30d", except a number of the newest. */
export interface CleanRequest {
  older_than: string | null;
  keep: number | null;
  dry_run: boolean;
}

export interface CleanResult {
  runs: string[];
  bytes: number;
  under_way: string[];
}

export const EMPTY_STATE: State = {
  version: VERSION,
  clusters: [],
  runs: [],
  sweeps: [],
  tasks: [],
  cluster: null,
  problems: []
};
