import { describe, expect, it } from 'vitest';
import type { IStateDB } from '@jupyterlab/statedb';
import type { ReadonlyPartialJSONValue } from '@lumino/coreutils';
import { persistSelection, selectFrom } from '../../src/sidebar/model';
import { CLUSTER, fakePanel } from './items';

const KEY = 'nbdist:chosen-cluster';
const clusters = [CLUSTER, { ...CLUSTER, id: 'b' }];

/** A workspace that holds these values. */
function workspace(values: Record<string, ReadonlyPartialJSONValue>): IStateDB {
  return {
    fetch: async (id: string) => values[id],
    save: async (id: string, value: ReadonlyPartialJSONValue) => void (values[id] = value)
  } as unknown as IStateDB;
}

describe('the chosen cluster', () => {
  it('is kept, and chosen again in the next page', async () => {
    const values = {};
    const { model } = fakePanel({ clusters });
    await persistSelection(model, workspace(values));
    expect(values).toEqual({});
    model.select('b');
    expect(values).toEqual({ [KEY]: 'b' });
    const next = fakePanel({ clusters });
    expect(next.model.selected).toBe('a');
    await persistSelection(next.model, workspace(values));
    expect(next.model.selected).toBe('b');
  });

  it('is the one that trains, where the user has chosen none', () => {
    const trains = { ...CLUSTER, id: 'c', runs: ['r'] };
    expect(selectFrom([...clusters, trains], null)).toBe('c');
    expect(selectFrom([...clusters, { ...trains, state: 'stale' }], null)).toBe('a');
    expect(selectFrom([...clusters, trains], 'b')).toBe('b');
  });

  it('is kept, too, where it was the one that is shown by itself', async () => {
    const values = {};
    const { model } = fakePanel({ clusters });
    await persistSelection(model, workspace(values));
    model.select('a');
    expect(values).toEqual({ [KEY]: 'a' });
  });

  it('is what the user chooses while the workspace is still being read', async () => {
    const values = { [KEY]: 'b' };
    const { model } = fakePanel({ clusters });
    const kept = persistSelection(model, workspace(values));
    model.select('a');
    await kept;
    expect(model.selected).toBe('a');
    expect(values).toEqual({ [KEY]: 'a' });
  });

  it('gives way to another if it was removed or is invalid', async () => {
    for (const value of ['gone', 7, null, { id: 'b' }]) {
      const { model } = fakePanel({ clusters });
      await persistSelection(model, workspace({ [KEY]: value }));
      expect(model.selected).toBe('a');
    }
  });
});
