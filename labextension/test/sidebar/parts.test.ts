import { describe, expect, it, vi } from 'vitest';
import { EMPTY_STATE, type Machine } from '../../src/api/items';
import { DEFAULTS } from '../../src/settings';
import { clusterActions, restartAction, runActions, sweepActions } from '../../src/sidebar/actions';
import { clusterFacts, hostFigures, memoryText, runFacts, trialFacts } from '../../src/sidebar/facts';
import { formatBytes, formatCount, formatNumber, formatRate, formatSeconds, percentOf } from '../../src/sidebar/format';
import { selectFrom } from '../../src/sidebar/model';
import { nextPosition } from '../../src/sidebar/roving-focus';
import { activeFirst, filterItems } from '../../src/sidebar/runs';
import { curvePath, curveText, trendOf } from '../../src/sidebar/sparkline';
import { changed, coreHint, initialValues, startRequest, validate } from '../../src/sidebar/start-fields';
import { stateLabel } from '../../src/sidebar/state-icon';
import { columnsOf } from '../../src/sidebar/tasks';
import { statusText } from '../../src/status/status-item';
import { ABOUT, CLUSTER, GPU, RUN, SWEEP, TASK, trans } from './items';

vi.mock('@jupyterlab/ui-components', async () => (await import('./icons')).fakeComponents());

const names = (actions: { id: string; why: string | null }[]): string[] =>
  actions.map(({ id, why }) => (why === null ? id : `(${id})`));

describe('figures', () => {
  it('are short', () => {
    expect([0.12345, 12.34567, 1200, 1e-7, -0.5, Infinity].map(formatNumber)).toEqual(
      ['0.1235', '12.35', '1200', '1e−7', '−0.5', '∞']
    );
    expect([5, 950 * 1024 ** 2, 1000 * 1024 ** 2, 80 * 1024 ** 3].map(formatBytes)).toEqual(
      ['5 B', '950 MB', '1 GB', '80 GB']
    );
    expect([0.123, 5.67, 56.3, 1234.5].map(formatRate)).toEqual(['0.12', '5.7', '56', '1,235']);
    expect([7, 12500, -1200, 2e9, 0.5].map(formatCount)).toEqual(['7', '12,500', '−1,200', '2e9', '0.5']);
    expect([8, 100, 7500, 4 * 86400].map(formatSeconds)).toEqual(['8 s', '2 min', '2 h 5 min', '4 d']);
  });

  it('are never 100% before all is done', () => {
    expect([percentOf(999, 1000), percentOf(1000, 1000), percentOf(5, 0), percentOf(7, 5)]).toEqual([99, 100, 0, 100]);
  });
});

describe('actions', () => {
  it('of a cluster are those that can be, and the others with their reason', () => {
    expect(names(clusterActions(CLUSTER, trans))).toEqual(['attach', 'grow', 'shrink', 'stop']);
    const theirs = { ...CLUSTER, dead: ['worker:1'], can: { stop: true }, why: { grow: 'not ours' } };
    expect(names(clusterActions(theirs, trans))).toEqual(['attach', '(grow)', '(shrink)', '(restart)', 'stop']);
    expect(clusterActions(theirs, trans)[1]!.why).toBe('not ours');
    expect(names(clusterActions({ ...CLUSTER, state: 'failed' }, trans))).toEqual(['dismiss']);
    const starting = { ...CLUSTER, state: 'starting' as const, can: { stop: true }, why: { grow: 'it is starting' } };
    expect(clusterActions(starting, trans)[0]).toMatchObject({ id: 'attach', why: 'it is starting' });
  });

  it('of a task leave it to the run that uses it, unless it is dead', () => {
    expect(restartAction(TASK, CLUSTER, trans).why).toContain('run');
    expect(restartAction({ ...TASK, run: null }, CLUSTER, trans).why).toBeNull();
    expect(restartAction({ ...TASK, state: 'dead' }, CLUSTER, trans)).toMatchObject({
      why: null, command: 'nbdist:restart-task', args: { id: 'a', task: 'worker:0' }
    });
  });

  it('of a run depend on what it has written and on what is installed', () => {
    expect(names(runActions(RUN, ABOUT, trans))).toEqual(['stop', 'attach', 'folder', 'tensorboard', 'more']);
    const ended = { ...RUN, status: 'finished' as const, browse: null, tensorboard: false };
    expect(names(runActions(ended, ABOUT, trans))).toEqual(['attach', 'folder', 'tensorboard', 'more']);
    expect(runActions(ended, ABOUT, trans)[1]!.label).toBe('Show the files');
    const failed = { ...ended, status: 'failed' as const, can: { resume: true } };
    expect(names(runActions(failed, ABOUT, trans))[0]).toBe('resume');
    const without = { ...ABOUT, tensorboard: 'it is not installed: pip install tensorboard' };
    expect(runActions(RUN, without, trans).at(-2)!.why).toBe(without.tensorboard);
  });

  it('of a sweep follow its state', () => {
    expect(names(sweepActions(SWEEP, trans))).toEqual(['pause', 'stop', 'attach']);
    const paused = { ...SWEEP, state: 'paused' as const, can: { stop: true, resume: true } };
    expect(names(sweepActions(paused, trans))).toEqual(['resume', 'stop', 'attach']);
    expect(names(sweepActions({ ...SWEEP, state: 'finished' }, trans))).toEqual(['attach']);
  });
});

describe('what is listed', () => {
  it('has the running runs first', () => {
    const [old, going] = [{ ...RUN, id: 'old', status: 'finished' as const }, { ...RUN, id: 'going' }];
    expect(activeFirst([old, going]).map(run => run.id)).toEqual(['going', 'old']);
  });

  it('is filtered by all words that are typed', () => {
    const runs = [RUN, { ...RUN, id: 'x', name: 'words', status: 'failed' as const, tags: ['baseline'] }];
    const found = (typed: string): string[] =>
      filterItems(runs, typed, run => stateLabel(run.status, trans).word).map(run => run.id);
    expect([found(''), found('WORDS fail'), found('digits failed')]).toEqual([['r', 'x'], ['x'], []]);
    expect(found('BASE words')).toEqual(['x']);
  });

  it('says in short what an item is', () => {
    const theirs = { ...CLUSTER, workers: null, engines: 4, owner: { pid: 1, session: 'a/b.ipynb', alive: false } };
    expect(clusterFacts({ ...CLUSTER, ps: 1, detached: true }, trans)).toEqual(['2 workers', '1 ps', 'runs until stopped']);
    expect(clusterFacts(theirs, trans)).toEqual(['4 engines', 'b.ipynb (ended)']);
    expect(runFacts(RUN, trans)).toEqual(['40 of 100', 'loss 0.125', '5 steps/s', '12 s left']);
    expect(trialFacts(SWEEP, trans)).toEqual(['2 running', '9 finished', '3 pruned', '6 waiting']);
    expect(stateLabel('something new', trans)).toEqual({ shape: 'ring', tone: 'plain', word: 'something new' });
  });

  it('has only columns that a task has something in', () => {
    const ids = (tasks: (typeof TASK)[]): string[] => columnsOf(tasks, trans).map(column => column.id);
    expect(ids([TASK])).toEqual(['rate', 'cpu', 'memory', 'step', 'host', 'pid', 'device']);
    const idle = { ...TASK, step: null, steps_per_second: null };
    expect(ids([idle])).toEqual(['cpu', 'memory', 'host', 'pid', 'device']);
    expect(memoryText(GPU)).toBe('1 GB / 8 GB');
    expect(memoryText({ ...GPU, memory: null })).toBeNull();
  });

  it('has what is known of the use of a host', () => {
    const host = { name: 'a', address: null, cores: 8, gpus: 0, state: 'up' as const, tasks: 1 };
    const texts = (machine?: Machine | null): string[] => hostFigures({ ...host, machine }, trans).map(([, text]) => text);
    expect(texts({ cpu: 0, memory: 2 ** 30, total: 2 ** 33 })).toEqual(['CPU 0%', 'Memory 1 GB / 8 GB']);
    expect(texts({ cpu: null, memory: 2 ** 30, total: null })).toEqual(['Memory 1 GB']);
    expect([texts(null), texts()]).toEqual([[], []]);
  });

  it('chooses the requested cluster, else the newest that runs', () => {
    const starting = { ...CLUSTER, id: 'new', state: 'starting' as const };
    expect(selectFrom([starting, CLUSTER], null)).toBe('a');
    expect(selectFrom([starting, CLUSTER], 'new')).toBe('new');
    expect(selectFrom([starting], 'gone')).toBe('new');
    expect(selectFrom([], 'a')).toBeNull();
  });
});

describe('a small curve', () => {
  it('fills its box, from left to right and from its least to its greatest value', () => {
    expect(curvePath({ x: [10, 20, 30], y: [0, 1, 0.5] }, 102, 12)).toBe('M1 11L51 1L101 6');
    expect(curvePath({ x: [1], y: [1] }, 10, 10)).toBe('');
    expect(curvePath({ x: [1, 2], y: [3, 3] }, 12, 12)).toBe('M1 6L11 6');
  });

  it('is said in words', () => {
    expect(curveText('loss', RUN.curve, trans)).toBe('loss 0.125, falling');
    expect(curveText('loss', { x: [], y: [] }, trans)).toBe('loss: nothing yet');
    expect(trendOf({ x: [], y: [1, 1, 1, 1] })).toBe('steady');
    expect(trendOf({ x: [], y: [0, 1] })).toBe('rising');
  });
});

describe('the arrow keys', () => {
  it('lead to the next row and the next place in it, and not over the edge', () => {
    const stops = [3, 1, 2];
    expect(nextPosition('ArrowDown', 0, 2, stops)).toEqual([1, 0]);
    expect(nextPosition('ArrowUp', 0, 0, stops)).toBeNull();
    expect(nextPosition('ArrowRight', 2, 1, stops)).toBeNull();
    expect(nextPosition('ArrowLeft', 2, 1, stops)).toEqual([2, 0]);
    expect(nextPosition('End', 0, 1, stops)).toEqual([2, 0]);
    expect(nextPosition('x', 0, 0, stops)).toBeNull();
  });
});

describe('the form', () => {
  it('begins with what fits the machine, and sends what was typed', () => {
    const values = initialValues(ABOUT, DEFAULTS);
    expect(values.workers).toBe('2');
    expect(validate(values, trans, ABOUT)).toEqual({});
    expect(startRequest({ ...values, memory: ' 2 G ', threads: '1', gpus: '1', gpu_memory: '0.4' }, ABOUT)).toEqual({
      name: null, workers: 2, ps: 0, launcher: 'local', settings: {}, gpus: 1, threads: 1, memory: '2G', gpu_memory: 0.4
    });
    expect(startRequest(values, ABOUT)).toMatchObject({ gpus: 'auto', threads: null, memory: null, gpu_memory: null });
  });

  it('says which field has which fault', () => {
    const wrong = {
      name: 'a b', workers: '0', ps: '-1', launcher: 'local', gpus: 'auto', gpu_memory: '2', threads: 'x', memory: 'much',
      settings: {}
    };
    expect(Object.keys(validate(wrong, trans, ABOUT)).sort()).toEqual(['gpu_memory', 'memory', 'name', 'ps', 'threads', 'workers']);
  });

  it('leaves workers and GPUs to other hosts, and sends the settings of the chosen launcher', () => {
    const first = initialValues(ABOUT, DEFAULTS);
    const there = { ...changed(first, 'launcher', 'ssh', ABOUT), settings: { hosts: ' a:2,b ', python_path: ' ', nodes: '2', sync_env: 'on' } };
    expect(there.workers).toBe('');
    expect(validate(there, trans, ABOUT)).toEqual({});
    expect(startRequest(there, ABOUT)).toMatchObject({ launcher: 'ssh', workers: null, gpus: 'auto', settings: { hosts: 'a:2,b', sync_env: true } });
    const back = changed(there, 'launcher', 'mpi', ABOUT);
    expect(startRequest(back, ABOUT)).toMatchObject({ launcher: 'mpi', workers: 2, settings: {} });
    expect(Object.keys(validate({ ...back, workers: '' }, trans, ABOUT))).toEqual(['workers']);
    expect(changed(back, 'launcher', 'local', ABOUT).workers).toBe('2');
  });

  it('warns of tasks that have to share the cores', () => {
    const values = { ...initialValues(ABOUT, DEFAULTS), workers: '3', ps: '1' };
    expect(coreHint(values, ABOUT, trans)).toContain('4 tasks');
    expect(coreHint({ ...values, workers: '1' }, ABOUT, trans)).toBeNull();
    expect(coreHint(values, null, trans)).toBeNull();
  });
});

describe('the status bar', () => {
  it('counts what is running, and is empty when nothing is', () => {
    expect(statusText(EMPTY_STATE, trans)).toBe('');
    expect(statusText({ ...EMPTY_STATE, runs: [{ ...RUN, status: 'finished' }] }, trans)).toBe('');
    const state = { ...EMPTY_STATE, clusters: [CLUSTER, { ...CLUSTER, id: 'b' }], runs: [RUN] };
    expect(statusText(state, trans)).toBe('nbdist: 2 clusters · 1 run 40%');
    const endless = { ...RUN, id: 'y', total: null };
    expect(statusText({ ...state, runs: [RUN, endless], sweeps: [SWEEP] }, trans)).toBe(
      'nbdist: 2 clusters · 2 runs · 1 sweep'
    );
  });
});
