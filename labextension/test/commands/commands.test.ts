import { beforeEach, describe, expect, it, vi } from 'vitest';
import { nullTranslator } from '@jupyterlab/translation';
import { CommandRegistry } from '@lumino/commands';
import { ApiError } from '../../src/api/client';
import {
  type CleanResult,
  type CleanRequest,
  type Cluster,
  EMPTY_STATE,
  type Run,
  type State,
  type Sweep,
  type Task
} from '../../src/api/items';
import { addClusterCommands } from '../../src/commands/clusters';
import type { CommandContext } from '../../src/commands/context';
import { addManageCommands, addRunCommands, addTensorBoardCommands, parseTags } from '../../src/commands/runs';
import { addSweepCommands } from '../../src/commands/sweeps';
import { user } from './dialogs';

vi.mock('@jupyterlab/apputils', async () => (await import('./dialogs')).fakeApputils());
vi.mock('@jupyterlab/ui-components', async () => (await import('./dialogs')).fakeComponents());

/** A server with a state that records requests and refuses those that a test chooses. */
class FakeClient {
  asked: unknown[][] = [];
  refusal: ApiError | null = null;
  constructor(public now: State) {}

  state(cluster: string | null): Promise<State> {
    return Promise.resolve({ ...this.now, cluster, tasks: cluster === null ? [] : this.now.tasks });
  }
  run(id: string): Promise<Run> {
    return Promise.resolve(this.now.runs.find(run => run.id === id)!);
  }
  stopCluster = (...args: unknown[]): Promise<void> => this.note('stop', ...args);
  grow = (...args: unknown[]): Promise<void> => this.note('grow', ...args);
  restart = (...args: unknown[]): Promise<void> => this.note('restart', ...args);
  shrink = (...args: unknown[]): Promise<void> => this.note('shrink', ...args);
  labelRun = (...args: unknown[]): Promise<void> => this.note('label', ...args);
  deleteRun = (...args: unknown[]): Promise<void> => this.note('delete', ...args);
  clean = (asked: CleanRequest): Promise<CleanResult> =>
    this.note('clean', asked).then(() => ({ runs: ['r1', 'r2'], bytes: 2 ** 21, under_way: [] }));
  stopRun = (...args: unknown[]): Promise<void> => this.note('stop run', ...args);
  controlRun = (...args: unknown[]): Promise<void> => this.note('control', ...args);
  setLearningRate = (...args: unknown[]): Promise<void> => this.note('rate', ...args);
  controlSweep = (...args: unknown[]): Promise<void> => this.note('command', ...args);
  openTensorBoard = (...args: unknown[]): Promise<string> => this.note('board', ...args).then(() => '/board/');

  private note(...what: unknown[]): Promise<void> {
    this.asked.push(what);
    return this.refusal ? Promise.reject(this.refusal) : Promise.resolve();
  }
}

const can = { stop: true, grow: true, restart: true };
const CLUSTER = {
  id: 'c1', title: 'c1', kind: 'nbdist', runs: [], dead: [], owner: null, can, why: {}, engines: 2
} as unknown as Cluster;
const task = (name: string, state: string, run: string | null = null): Task => ({ name, state, run }) as Task;

let client: FakeClient;
let commands: CommandRegistry;

function begin(state: Partial<State>): void {
  client = new FakeClient({ ...EMPTY_STATE, ...state });
  commands = new CommandRegistry();
  const trans = nullTranslator.load('nbdist');
  const parts = { app: { commands }, nbdist: { client, trans, feed: { state: client.now } } } as unknown as CommandContext;
  addClusterCommands(parts);
  addRunCommands(parts);
  addManageCommands(parts);
  addSweepCommands(parts);
  addTensorBoardCommands(parts);
}

const quietly = (name: string, args: object): Promise<unknown> => commands.execute(name, { ...args, quiet: true });

beforeEach(() => {
  begin({});
  Object.assign(user, { answers: [], shown: [], notices: [] });
});

describe('nbdist:stop-cluster', () => {
  it('asks no question if the cluster is not in use', async () => {
    begin({ clusters: [CLUSTER] });
    await quietly('nbdist:stop-cluster', { id: 'c1' });
    expect(client.asked).toEqual([['stop', 'c1']]);
  });

  it('asks first where a run or a notebook uses it', async () => {
    const owner = { pid: 7, session: 'lab/train.ipynb', alive: true };
    begin({ clusters: [{ ...CLUSTER, runs: ['r1'], owner }] });
    user.answers = ['Cancel', 'Stop'];
    await quietly('nbdist:stop-cluster', { id: 'c1' });
    expect(user.shown[0]!.text).toMatch(/Run r1 uses it.*[^/]train\.ipynb is open/);
    expect(client.asked).toEqual([]);
    await quietly('nbdist:stop-cluster', { id: 'c1' });
    expect(client.asked).toEqual([['stop', 'c1']]);
  });

  it('has one chosen', async () => {
    begin({ clusters: [{ ...CLUSTER, id: 'c0', can: { stop: false } }, CLUSTER] });
    user.answers = ['c1, 2 engines'];
    await quietly('nbdist:stop-cluster', {});
    expect(user.shown[0]!.items).toEqual(['c1, 2 engines']);
    expect(client.asked).toEqual([['stop', 'c1']]);
  });

  it('says so where there is none, or not the one', async () => {
    await expect(quietly('nbdist:stop-cluster', {})).rejects.toThrow('There is no cluster');
    await expect(quietly('nbdist:stop-cluster', { id: 'c9' })).rejects.toThrow('Cluster c9 does not exist');
  });

  it('lets the caller have what the server says', async () => {
    begin({ clusters: [CLUSTER] });
    client.refusal = new ApiError(409, 'it is being stopped');
    await expect(quietly('nbdist:stop-cluster', { id: 'c1' })).rejects.toBe(client.refusal);
  });
});

describe('nbdist:grow-cluster', () => {
  it('takes the number, or asks for it', async () => {
    begin({ clusters: [CLUSTER] });
    await quietly('nbdist:grow-cluster', { id: 'c1', workers: 3 });
    user.answers = ['4', 'Cancel'];
    await quietly('nbdist:grow-cluster', { id: 'c1' });
    await quietly('nbdist:grow-cluster', { id: 'c1' });
    const field = user.shown[1]!.field!;
    expect([field.type, field.min, field.max, field.value]).toEqual(['number', '1', '256', '1']);
    expect(client.asked).toEqual([['grow', 'c1', 3], ['grow', 'c1', 4]]);
  });

  it('says why no cluster can', async () => {
    begin({ clusters: [{ ...CLUSTER, can: {}, why: { grow: 'an MPI world cannot add processes' } }] });
    await expect(quietly('nbdist:grow-cluster', {})).rejects.toThrow('an MPI world');
  });
});

describe('nbdist:restart-task', () => {
  const tasks = [task('/job:worker/task:0', 'running', 'r1'), task('/job:worker/task:1', 'dead')];
  beforeEach(() => begin({ clusters: [{ ...CLUSTER, dead: ['worker:1'] }], tasks }));

  it('restarts one that has died, or all of them', async () => {
    await quietly('nbdist:restart-task', { id: 'c1', task: '/job:worker/task:1' });
    await quietly('nbdist:restart-task', { id: 'c1', task: null });
    expect(client.asked).toEqual([['restart', 'c1', 'worker:1'], ['restart', 'c1', null]]);
  });

  it('asks before it restarts one that lives', async () => {
    user.answers = ['Restart'];
    await quietly('nbdist:restart-task', { id: 'c1', task: 'worker:0' });
    expect(user.shown[0]!.text).toMatch(/running.*Run r1/);
    expect(client.asked).toEqual([['restart', 'c1', 'worker:0']]);
  });

  it('has one chosen, and knows which there are', async () => {
    user.answers = ['worker:1 (dead)'];
    await quietly('nbdist:restart-task', { id: 'c1' });
    expect(user.shown[0]!.items).toEqual(['worker:0 (running)', 'worker:1 (dead)']);
    expect(client.asked).toEqual([['restart', 'c1', 'worker:1']]);
    await expect(quietly('nbdist:restart-task', { id: 'c1', task: 'ps:0' })).rejects.toThrow('no task ps:0');
  });
});

describe('runs and sweeps', () => {
  const run = (id: string, other: object): Run => ({ id, status: 'running', can: {}, ...other }) as unknown as Run;
  const sweep = (id: string, able: object): Sweep => ({ id, state: 'paused', can: able, why: {} }) as unknown as Sweep;

  it('are distinguished by their ids', async () => {
    user.answers = ['Cancel', 'Stop'];
    await quietly('nbdist:stop-run', { id: 'r1' });
    expect(client.asked).toEqual([]); // a stopped run cannot continue
    await quietly('nbdist:stop-run', { id: 'r1' });
    await quietly('nbdist:sweep-command', { id: 's1', command: 'resume' });
    expect(client.asked).toEqual([['stop run', 'r1'], ['command', 's1', 'resume']]);
  });

  it('pause, resume and get another learning rate', async () => {
    begin({ runs: [run('r1', { learning_rate: 0.1, can: { pause: true, set: true } }), run('r2', { can: { resume: true } })] });
    user.answers = ['r1 (running)', '0.05', 'Cancel'];
    await quietly('nbdist:control-run', { command: 'pause' });
    await quietly('nbdist:control-run', { command: 'resume', id: 'r2' });
    await quietly('nbdist:set-learning-rate', { id: 'r1' });
    await quietly('nbdist:set-learning-rate', { id: 'r1' });
    expect(client.asked).toEqual([['control', 'r1', 'pause'], ['control', 'r2', 'resume'], ['rate', 'r1', 0.05]]);
    const { field } = user.shown.at(-1)!;
    expect([field!.value, field!.min, field!.step, field!.required]).toEqual(['0.1', '0', 'any', true]);
    await expect(commands.execute('nbdist:control-run', { command: 'fly', quiet: true })).rejects.toThrow();
  });

  it('are chosen among those that can', async () => {
    begin({ runs: [run('r1', {}), run('r2', { can: { stop: true } })] });
    user.answers = ['r2 (running)', 'Stop', 's1 (paused)'];
    await quietly('nbdist:stop-run', {});
    expect(user.shown[0]!.items).toEqual(['r2 (running)']);
    expect(client.asked).toEqual([['stop run', 'r2']]);
    begin({ sweeps: [sweep('s1', { resume: true }), sweep('s2', {})] });
    await quietly('nbdist:sweep-command', { command: 'resume' });
    expect(client.asked).toEqual([['command', 's1', 'resume']]);
  });

  it('of a sweep asks before it stops it', async () => {
    begin({ sweeps: [sweep('s1', { stop: true })] });
    user.answers = ['Cancel', 'Stop'];
    await quietly('nbdist:sweep-command', { id: 's1', command: 'stop' });
    await quietly('nbdist:sweep-command', { id: 's1', command: 'stop' });
    expect(client.asked).toEqual([['command', 's1', 'stop']]);
  });

  it('name a run, tag it and delete it once that is confirmed', async () => {
    begin({ runs: [run('r1', { name: 'digits', tags: ['a'], bytes: 2 ** 21, can: { delete: true } })] });
    user.answers = ['baseline', 'a, lr 0.1,, a', 'Cancel', 'Delete'];
    await quietly('nbdist:rename-run', { id: 'r1' });
    await quietly('nbdist:tag-run', { id: 'r1' });
    await quietly('nbdist:delete-run', { id: 'r1' });
    expect(user.shown.map(({ text }) => text).slice(0, 2)).toEqual(['digits', 'a']);
    expect(user.shown[2]!.text).toContain('2 MB');
    await quietly('nbdist:delete-run', { id: 'r1' });
    expect(client.asked).toEqual([
      ['label', 'r1', { name: 'baseline' }],
      ['label', 'r1', { tags: ['a', 'lr 0.1'] }],
      ['delete', 'r1']
    ]);
    expect(parseTags(' , ')).toEqual([]);
  });

  it('delete old runs after they were shown', async () => {
    user.answers = ['30d', 'Cancel', '30d', 'Delete'];
    await quietly('nbdist:clean-runs', {});
    await quietly('nbdist:clean-runs', {});
    const asked = { older_than: '30d', keep: null };
    expect(client.asked).toEqual([
      ['clean', { ...asked, dry_run: true }],
      ['clean', { ...asked, dry_run: true }],
      ['clean', { ...asked, dry_run: false }]
    ]);
    expect(user.shown[1]!.text).toContain('r1, r2');
    expect(user.notices).toEqual(['success: 2 runs are deleted, 2 MB.']);
  });

  it('knows three commands', () => {
    expect(commands.isEnabled('nbdist:sweep-command', { command: 'pause' })).toBe(true);
    expect(commands.isEnabled('nbdist:sweep-command', { command: 'explode' })).toBe(false);
    expect(commands.isVisible('nbdist:sweep-command', { command: 'pause' })).toBe(false);
    begin({ sweeps: [sweep('s1', { pause: true })] });
    expect(commands.isVisible('nbdist:sweep-command', { command: 'pause' })).toBe(true);
  });

  it('shows a folder where Jupyter has it, else the run', async () => {
    begin({ runs: [run('r1', { browse: 'runs/r1' }), run('r2', { browse: null, folder: '/far/r2' })] });
    await expect(quietly('nbdist:open-folder', { id: 'r2' })).rejects.toThrow('/far/r2');
    const opened: unknown[] = [];
    commands.addCommand('filebrowser:go-to-path', { execute: ({ path }) => void opened.push(path) });
    commands.addCommand('nbdist:open-run', { execute: ({ id }) => void opened.push(id) });
    await quietly('nbdist:open-folder', { id: 'r1' });
    await quietly('nbdist:open-folder', { id: 'r2' });
    expect(opened).toEqual(['runs/r1', 'r2']);
  });
});

describe('a command without a view that shows its errors', () => {
  it('says what it did, what it will not do, and what went wrong', async () => {
    begin({ clusters: [CLUSTER] });
    await commands.execute('nbdist:stop-cluster', { id: 'c1' });
    await commands.execute('nbdist:stop-cluster', { id: 'c9' });
    client.refusal = new ApiError(500, 'no reason');
    await commands.execute('nbdist:stop-cluster', { id: 'c1' });
    expect(user.notices).toEqual([
      'info: Cluster c1 is being stopped.',
      'warning: Cluster c9 does not exist any more.',
      'error: no reason'
    ]);
  });
});

describe('nbdist:open-tensorboard', () => {
  class Tab {
    closed = false;
    shown = '';
    opener: unknown = window;
    readonly document = document.implementation.createHTMLDocument();
    readonly location = { replace: (url: string) => (this.shown = url) };
    close = (): boolean => (this.closed = true);
  }

  it('opens the tab while the click is still seen, and leads it to where the board is', async () => {
    const opened = new Tab();
    const open = vi.spyOn(window, 'open').mockReturnValue(opened as never);
    const done = quietly('nbdist:open-tensorboard', { id: 'r1' });
    expect(open).toHaveBeenCalledWith('', '_blank');
    await done;
    expect(opened.shown).toBe('/board/');
    expect(opened.opener).toBeNull();
  });

  it('shows the newest runs on one page', async () => {
    const opened = new Tab();
    vi.spyOn(window, 'open').mockReturnValue(opened as never);
    await quietly('nbdist:compare-runs', {});
    expect(client.asked).toContainEqual(['board', 'all']);
    expect(opened.shown).toBe('/board/');
  });

  it('closes the tab where there is none', async () => {
    const opened = new Tab();
    vi.spyOn(window, 'open').mockReturnValue(opened as never);
    client.refusal = new ApiError(503, 'TensorBoard is not installed');
    await expect(quietly('nbdist:open-tensorboard', { id: 'r1' })).rejects.toThrow('not installed');
    expect(opened.closed).toBe(true);
  });
});
