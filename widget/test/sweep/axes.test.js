import { describe, expect, test } from "vitest";
import { formatTime, isLog, isOutside, makeScale, robustScale, settled, timeTicks, valueTicks } from "../../src/sweep/figures/axes.js";
import { bestTrials, CurveExtent, nearestCurve, valueAt } from "../../src/sweep/figures/curves.js";
import { busyShares, contiguousRuns, EndedBars, knownShares, lanesOf, LOST, runningBars } from "../../src/sweep/figures/timeline.js";
import { SweepModel } from "../../src/sweep/model.js";

/** @typedef {import("../../src/sweep/figures/timeline.js").Bar} Bar */

describe("a scale", () => {
  test("is logarithmic where all is positive and spans more than two decades", () => {
    expect(isLog(robustScale([0.001, 0.01, 1]))).toBe(true);
    expect(isLog(robustScale([0.1, 1, 9]))).toBe(false);
    expect(isLog(robustScale([-1, 0.001, 1000]))).toBe(false);
  });
  test("leaves out outliers unless they must be visible", () => {
    const values = [...Array.from({ length: 100 }, (_, i) => i / 100), -1e6];
    expect(isOutside(robustScale(values), -1e6)).toBe(true);
    expect(isOutside(robustScale(values, [-1e6]), -1e6)).toBe(false);
  });
  test.each([[[]], [[3]], [[0, 0]], [[-5, -5]]])("of %j has a width", (values) => {
    const [low, high] = robustScale(values).domain();
    expect(high).toBeGreaterThan(low);
  });
  test("stays while it fits well enough", () => {
    const was = robustScale([0, 1]);
    expect(settled(was, robustScale([0.02, 0.98]))).toBe(was);
    expect(settled(was, robustScale([0, 1.2]))).not.toBe(was);
    expect(settled(was, robustScale([0.4, 0.6]))).not.toBe(was);
  });
  test("has round ticks", () => {
    expect(valueTicks(makeScale(0, 1, false), 5)).toEqual([0, 0.2, 0.4, 0.6000000000000001, 0.8, 1]);
    expect(valueTicks(makeScale(0.01, 1, true), 3)).toEqual([0.01, 0.1, 1]);
  });
});

describe("time", () => {
  test.each([[0, "0 s"], [0.25, "0.25 s"], [59, "59 s"], [60, "1 min"], [90, "1 min 30 s"], [3600, "1 h"], [5400, "1 h 30 min"], [93_600, "1 d 2 h"], [-3, "−3 s"]])(
    "%s is %s", (seconds, words) => expect(formatTime(seconds)).toBe(words));
  test("has ticks at round times", () => {
    expect(timeTicks(0, 130, 5)).toEqual([0, 30, 60, 90, 120]);
    expect(timeTicks(0, 7200, 5)).toEqual([0, 1800, 3600, 5400, 7200]);
    expect(timeTicks(0, 1e8, 4).length).toBeLessThan(6);
  });
});

describe("curves", () => {
  const curve = { steps: [10, 20, 30], values: [1, 2, NaN] };
  test.each([[10, 1], [15, 1.5], [20, 2], [9, NaN], [25, NaN], [31, NaN]])("at step %s the value is %s", (step, value) => expect(valueAt(curve, step)).toBe(value));
  test("the nearest is found, if it is near", () => {
    const curves = new Map([[1, { steps: [0, 10], values: [0, 10] }], [2, { steps: [0, 10], values: [5, 5] }]]);
    expect(nearestCurve(curves.keys(), curves, 4, 0, (value) => Math.abs(value - 4.2))).toBe(1);
    expect(nearestCurve(curves.keys(), curves, 4, 0, (value) => Math.abs(value - 40))).toBe(-1);
  });

  test("only grown curves are extended, and all are redrawn if one was replaced", () => {
    const reach = new CurveExtent();
    const curves = new Map(Array.from({ length: 1100 }, (_, n) => [n, { steps: [...Array(10).keys()], values: Array(10).fill(n / 1100) }]));
    expect(reach.update(curves, [])).toHaveLength(1100);
    const { version } = reach;
    curves.get(7)?.steps.push(9.5);
    curves.get(7)?.values.push(0.5);
    expect(reach.update(curves, [])).toEqual([7]);
    expect(reach.version).toBe(version);
    curves.set(7, { steps: [1], values: [2] });
    expect(reach.update(curves, [])).toHaveLength(1100);
    expect(reach.version).toBeGreaterThan(version);
  });

  test.each([["max", [2, 0]], ["min", [3, 0]]])("the best of a sweep for %s", (direction, expected) => {
    const model = new SweepModel();
    model.apply({ snapshot: true, head: { direction, parameters: [] }, trials: { number: [0, 1, 2, 3], state: [2, 5, 2, 2], value: [0.5, null, 0.9, 0.1] } });
    expect(bestTrials(model, 2)).toEqual(expected);
  });
});

describe("lanes", () => {
  test("neighbours are one bar", () => expect(contiguousRuns([5, 1, 2, 3])).toEqual([[1, 3], [5, 5]]));

  test("every engine has a lane, and every attempt a bar", () => {
    const model = new SweepModel();
    model.apply({
      snapshot: true, head: { engines: [[0, "/job:worker/task:0"], [1, "/job:worker/task:1"]], parameters: [] }, status: { engines: [[1, "gone", null]] },
      trials: { number: [0, 1], state: [2, 1], attempt: [1, 2], started: [0, 9], ended: [4, null], ranks: [[0, 1], [7]] },
      spans: [[0, 1, [0, 1], 0, 4, "finished"], [1, 1, [7], 5, 8, "lost"], [1, 2, [7], 9, null, "running"]],
    });
    const lanes = lanesOf(model);
    expect(lanes).toEqual([{ rank: 0, label: "worker 0", ended: false }, { rank: 1, label: "worker 1", ended: true }, { rank: 7, label: "engine 7", ended: false }]);
    const ended = new EndedBars();
    expect(ended.update(model, lanes)).toBe(0);
    const bars = [...ended.bars, ...runningBars(model, lanes, 12)];
    expect(bars.map(({ number, start, end, state, lanes: [[first, last]] }) => [number, start, end, state, first, last])).toEqual([[0, 0, 4, 2, 0, 1], [1, 5, 8, LOST, 2, 2], [1, 9, 12, 1, 2, 2]]);
    expect([...busyShares(bars, 3, 0, 12)]).toEqual([4 / 12, 4 / 12, 6 / 12]);
    expect([...busyShares(bars, 3, 6, 10)]).toEqual([0, 0, 3 / 4]);
    expect([...knownShares([[3, 0.5], [1, 0.25]], [{ rank: 1 }, { rank: 2 }, { rank: 3 }])]).toEqual([0.25, 0, 0.5]);

    // Only new spans are read: an attempt that has just ended, but not one that still runs.
    model.apply({ snapshot: false, spans: [[1, 2, [7], 9, 20, "pruned"], [2, 1, [0], 5, null, "running"]] });
    expect(ended.update(model, lanes)).toBe(2);
    expect(ended.bars.slice(2).map(({ number, end }) => [number, end])).toEqual([[1, 20]]);
    expect(ended.update(model, lanes)).toBe(3);
    model.apply({ snapshot: true, spans: [[0, 1, [0], 0, 4, "finished"]] });
    expect(ended.update(model, lanes)).toBe(0);
    expect(ended.bars).toHaveLength(1);
  });
});
