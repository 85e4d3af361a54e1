import { describe, expect, test } from "vitest";
import { Curves } from "../../src/chart/curves.js";
import { CLOCK, MEAN, TREND } from "../../src/comm/frames.js";
import { lineLabel, linesOf } from "../../src/chart/curves.js";

const OPTIONS = { byTime: false, log: false, smoothing: 0, chosen: null };
const PLAN = { title: "loss", train: 0, validation: 1 };

/** @param {number} replica @param {number} series @param {number[]} steps @param {number[]} [values] */
const run = (replica, series, steps, values = steps.map((step) => step / 10)) => ({ replica, series, steps, values });

describe("Curves", () => {
  test("appends points, and clears replaced curves", () => {
    const curves = new Curves();
    curves.apply([], [run(0, 0, [1]), run(0, 0, [2])]);
    expect(curves.get(0, 0)?.steps).toEqual([1, 2]);
    curves.apply([[0, 0]], [run(0, 0, [1]), run(1, 0, [5])]);
    expect(curves.get(0, 0)?.steps).toEqual([1]);
    expect(curves.replicas(0)).toEqual([0, 1]);
    curves.clear();
    expect(curves.replicas(0)).toEqual([]);
  });
});

describe("linesOf", () => {
  test("of one replica the mean is the training line, over its points", () => {
    const curves = new Curves();
    curves.apply([], [run(0, 0, [1, 2]), run(MEAN, 0, [2])]);
    expect(linesOf(curves, PLAN, OPTIONS).map(({ kind, replica }) => [kind, replica])).toEqual([["points", 0], ["train", 0]]);
  });

  test("points, then trends, then their mean, validation on top", () => {
    const curves = new Curves();
    curves.apply([], [run(0, 0, [1]), run(1, 0, [1]), run(0, TREND, [1]), run(1, TREND, [1]), run(MEAN, 0, [1]), run(MEAN, 1, [1])]);
    const kinds = (/** @type {number | null} */ chosen) => linesOf(curves, PLAN, { ...OPTIONS, chosen }).map(({ kind, replica }) => [kind, replica]);
    expect(kinds(null)).toEqual([["points", 0], ["points", 1], ["trend", 0], ["trend", 1], ["train", MEAN], ["validation", MEAN]]);
    expect(kinds(1)).toEqual([["points", 0], ["points", 1], ["trend", 0], ["train", MEAN], ["validation", MEAN], ["chosen", 1]]);
  });

  test("smoothing does not change points and validation", () => {
    const curves = new Curves();
    curves.apply([], [run(0, 0, [1, 2, 3], [0, 1, 0]), run(MEAN, 0, [1, 2, 3], [0, 1, 0]), run(MEAN, 1, [1, 2, 3], [0, 1, 0])]);
    const [points, train, validation] = linesOf(curves, PLAN, { ...OPTIONS, smoothing: 0.5 });
    expect([points.ys, validation.ys]).toEqual([[0, 1, 0], [0, 1, 0]]);
    expect(train.ys[1]).toBeLessThan(1);
  });

  test("wall time comes from the clock", () => {
    const curves = new Curves();
    curves.apply([], [run(0, 0, [0, 10]), run(MEAN, CLOCK, [0, 10], [0, 5])]);
    expect(linesOf(curves, PLAN, { ...OPTIONS, byTime: true })[0].xs).toEqual([0, 5]);
    expect(linesOf(curves, PLAN, OPTIONS)[0].xs).toEqual([0, 10]);
  });

  test("there are no lines without points", () => expect(linesOf(new Curves(), PLAN, OPTIONS)).toEqual([]));
});

test("lineLabel", () => {
  const line = (/** @type {any} */ kind, /** @type {number} */ replica) => lineLabel({ kind, replica, steps: [], xs: [], ys: [] }, ["worker 0"]);
  expect([line("train", MEAN), line("train", 0), line("points", 0), line("trend", 7), line("validation", 0)]).toEqual(
    ["mean over replicas", "training", "worker 0", "replica 7", "validation"]);
});
