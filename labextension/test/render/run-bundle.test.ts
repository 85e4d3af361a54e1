import { describe, expect, it } from 'vitest';
import { CLOCK, MEAN, TREND } from '@widget/comm/frames.js';
import { UnreadableError } from '../../src/render/json';
import { readRun } from '../../src/render/run-bundle';
import { RUBBISH, spoilt } from './rubbish';

const RUN = {
  version: 1,
  run: 'r1',
  title: 'digits',
  state: 'finished',
  tasks: ['/job:worker/task:0', '/job:worker/task:1'],
  step: 500,
  unit: 'steps',
  seconds: 3.2,
  elapsed: 9.5,
  steps_per_second: 156,
  remarks: ['worker 1 has ended', 'it is slow'],
  metrics: { loss: 0.12 },
  charts: [
    { title: 'loss', train: 'loss', validation: 'val_loss' },
    { title: 'accuracy', train: null, validation: 'val_accuracy' }
  ],
  series: [
    { name: 'loss', replica: 'mean', kind: 'trend', steps: '0 10 20', values: '2.3 nan -inf' },
    { name: 'loss', replica: 1, kind: 'trend', steps: '0 10', values: '2 1' },
    { name: 'loss', replica: 0, kind: 'trend', steps: '0 10', values: '2.2 1' },
    { name: 'loss', replica: 0, kind: 'points', steps: '0 1', values: '2.31 2.4' },
    { name: 'val_accuracy', replica: 'mean', kind: 'trend', steps: '10', values: '0.5' },
    { name: 'no chart has it', replica: 'mean', kind: 'trend', steps: '10', values: '0.5' }
  ],
  clock: { steps: '0 20', values: '0 3.2' },
  replicas: [{ state: 'finished', step: 500, host: 'b' }, { state: 'lost', step: 'x' }],
  left_out: 1
};

describe('readRun', () => {
  it('makes the messages of the live view from saved data', () => {
    const { head, progress, curves, metrics, leftOut } = readRun(RUN);
    expect(head.charts).toEqual([
      { title: 'loss', train: 0, validation: 1 },
      { title: 'accuracy', train: null, validation: 2 }
    ]);
    expect(head.series).toEqual(['loss', 'val_loss', 'val_accuracy']);
    expect(progress).toMatchObject({ state: 'finished', step: 500, training_seconds: 3.2, elapsed: 9.5, note: 'worker 1 has ended · it is slow' });
    expect(progress.per_replica).toEqual({ 0: { state: 'finished', step: 500, host: 'b' }, 1: { state: 'lost', step: null, host: null } });
    expect(curves.at(-1)).toEqual({ replica: MEAN, series: CLOCK, steps: [0, 20], values: [0, 3.2] });
    expect(readRun({ ...RUN, clock: null, replicas: 7 }).progress.per_replica).toMatchObject({ 0: { state: '', step: null } });
    expect(curves[0]).toEqual({ replica: MEAN, series: 0, steps: [0, 10, 20], values: [2.3, NaN, -Infinity] });
    expect(curves[1]).toEqual({ replica: 1, series: TREND, steps: [0, 10], values: [2, 1] });
    expect(curves[3]).toEqual({ replica: 0, series: 0, steps: [0, 1], values: [2.31, 2.4] });
    expect(metrics).toEqual([['loss', 0.12]]);
    expect(leftOut).toBe(1);
  });

  it('lets the trend of a replica whose points had no room stand for them', () => {
    const points = readRun(RUN).curves.filter(({ replica, series }) => series === 0 && replica !== MEAN);
    expect(points.map(({ replica, values }) => [replica, values])).toEqual([
      [0, [2.31, 2.4]],
      [1, [2, 1]]
    ]);
  });

  it('says of a newer version which one it is', () => {
    expect(() => readRun({ ...RUN, version: 7 })).toThrow(expect.objectContaining({ newer: 7 }));
  });

  it.each(RUBBISH)('refuses what is no run: %j', data => {
    expect(() => readRun(data)).toThrow(UnreadableError);
  });

  it('draws what is left of damaged data', () => {
    for (const data of spoilt(RUN, 400)) {
      const { head, curves } = readRun({ ...data, version: 1 });
      for (const { steps, values } of curves) {
        expect(steps.length).toBe(values.length);
        expect(steps.every((step, i) => Number.isFinite(step) && step > (steps[i - 1] ?? -Infinity))).toBe(true);
        expect(values.every(value => typeof value === 'number')).toBe(true);
      }
      expect(head.charts.every(({ title }) => typeof title === 'string')).toBe(true);
    }
  });
});
