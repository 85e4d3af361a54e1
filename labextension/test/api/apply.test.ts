import { describe, expect, it } from 'vitest';
import { applyChanges } from '../../src/api/feed';
import { type Cluster, EMPTY_STATE, type Task } from '../../src/api/items';

const cluster = (id: string, created: number): Cluster => ({ id, created }) as Cluster;
const task = (rank: number, step = 0): Task => ({ rank, step }) as Task;

describe('apply', () => {
  it('keeps the objects of items that are as before', () => {
    const [old, new_] = [cluster('a', 1), cluster('b', 2)];
    const state = { ...EMPTY_STATE, clusters: [new_, old] };
    const after = applyChanges(state, { kind: 'changes', clusters: { set: [cluster('b', 2)], removed: [] } });
    expect(after.clusters[1]).toBe(old);
    expect(after.clusters[0]).not.toBe(new_);
    expect(after.runs).toBe(state.runs);
  });

  it('puts new items where their time belongs, and removes items that the server no longer has', () => {
    const state = { ...EMPTY_STATE, clusters: [cluster('a', 1)] };
    const after = applyChanges(state, { kind: 'changes', clusters: { set: [cluster('b', 2)], removed: ['a'] } });
    expect(after.clusters.map(one => one.id)).toEqual(['b']);
  });

  it('drops the tasks of another cluster', () => {
    const state = { ...EMPTY_STATE, cluster: 'a', tasks: [task(0), task(1)] };
    const after = applyChanges(state, { kind: 'changes', cluster: 'b', tasks: { set: [task(2)], removed: [] } });
    expect(after.cluster).toBe('b');
    expect(after.tasks.map(one => one.rank)).toEqual([2]);
  });

  it('sorts tasks by rank', () => {
    const state = { ...EMPTY_STATE, cluster: 'a', tasks: [task(1)] };
    const after = applyChanges(state, { kind: 'changes', tasks: { set: [task(0), task(1, 5)], removed: [] } });
    expect(after.tasks.map(one => [one.rank, one.step])).toEqual([[0, 0], [1, 5]]);
  });
});
