import { describe, expect, it } from 'vitest';
import { UnreadableError } from '../../src/render/json';
import { readComparison } from '../../src/render/comparison-bundle';
import { RUBBISH, spoilt } from './rubbish';

const DATA = {
  version: 1,
  by: 'epoch',
  runs: [
    { id: 'r1', name: 'baseline', status: 'finished' },
    { id: 'r2', name: '', status: 'failed' }
  ],
  charts: [{ title: 'loss', train: 'loss', validation: 'val_loss' }],
  series: [
    { name: 'loss', run: 0, steps: '0 10', values: '2.3 nan' },
    { name: 'val_loss', run: 1, steps: '10', values: '0.5' },
    { name: 'loss', run: 2, steps: '0', values: '1' },
    { name: 'no chart has it', run: 0, steps: '0', values: '1' }
  ],
  axes: [
    { run: 0, by: 'epoch', steps: '0 10', values: '0 1' },
    { run: 1, by: 'time', steps: '0 10', values: '0 nan' },
    { run: 1, by: 'hours', steps: '0 10', values: '0 1' }
  ],
  differences: [{ name: '--strategy', texts: ['ps', 'mirrored'] }],
  metrics: [{ name: 'loss (best)', texts: ['0.3', '0.2'], best: [1, 7] }],
  left_out: 2
};

describe('readComparison', () => {
  it('makes what the view draws from saved data', () => {
    const found = readComparison(DATA);
    expect(found.by).toBe('epoch');
    expect(found.runs.map(({ name }) => name)).toEqual(['baseline', 'r2']);
    expect(found.charts).toEqual([{ title: 'loss', train: 0, validation: 1 }]);
    expect(found.curves).toEqual([
      { replica: 0, series: 0, steps: [0, 10], values: [2.3, NaN] },
      { replica: 1, series: 1, steps: [10], values: [0.5] }
    ]);
    expect(found.axes).toEqual([{ run: 0, by: 'epoch', steps: [0, 10], values: [0, 1] }]);
    expect(found.differences).toEqual([{ name: '--strategy', texts: ['ps', 'mirrored'], best: [] }]);
    expect(found.metrics[0]?.best).toEqual([1]);
    expect(found.leftOut).toBe(2);
  });

  it.each(RUBBISH)('refuses what is no comparison: %j', data => {
    expect(() => readComparison(data)).toThrow(UnreadableError);
  });

  it('draws what is left of damaged data', () => {
    for (const data of spoilt(DATA, 400)) {
      const { runs, curves, axes, differences, metrics } = readComparison({ ...data, version: 1 });
      expect(curves.every(({ replica, steps, values }) => replica < runs.length && steps.length === values.length)).toBe(true);
      expect(axes.every(({ run, values }) => run < runs.length && values.every(Number.isFinite))).toBe(true);
      expect([...differences, ...metrics].every(({ texts }) => texts.every(one => typeof one === 'string'))).toBe(true);
    }
  });
});
