import { describe, expect, test } from "vitest";
import { aggregateCells, binIndices, binsOf, widest } from "../../src/sweep/figures/bins.js";
import { Brush, maskOf } from "../../src/sweep/figures/brush.js";
import { bestTrials } from "../../src/sweep/figures/curves.js";
import { easeAt, heightAt, nearestLine, sampleRows } from "../../src/sweep/figures/parallel.js";
import { METRIC, TrialPositions } from "../../src/sweep/figures/positions.js";
import { compareValues, keepOrder, sortedRows } from "../../src/sweep/table.js";
import { filled, PARAMETERS } from "./data.js";

/** @param {number} count @param {Record<string, any>} [more] */
function made(count, more) {
  const model = filled(count, more);
  const positions = new TrialPositions(model);
  return { model, positions, brush: new Brush(model, positions) };
}

describe("bins", () => {
  test("of numbers have round edges, and hold every trial", () => {
    const { model, positions } = made(100);
    const axis = positions.axis("lr");
    const bins = binsOf(axis, model.parameters.get("lr") ?? [], 8);
    expect(bins.map(({ start }) => start)).toEqual(["0.0001", "0.0003", "0.001", "0.003", "0.01", "0.03"]);
    expect(bins.at(-1)?.text).toBe("0.03 to 0.1");
    const rows = binIndices(axis.at, bins);
    expect([rows[0], rows[99], Math.min(...rows), Math.max(...rows)]).toEqual([0, 5, 0, 5]);
  });

  test("of a few distinct numbers are those numbers", () => {
    const { model, positions } = made(12, { parameters: { lr: Array.from({ length: 12 }, (_, i) => [0.001, 0.01, 0.1][i % 3]) } });
    const axis = positions.axis("lr");
    const bins = binsOf(axis, model.parameters.get("lr") ?? [], 8);
    expect(bins.map(({ text }) => text)).toEqual(["0.001", "0.01", "0.1"]);
    expect([...binIndices(axis.at, bins)].slice(0, 3)).toEqual([0, 1, 2]);
  });

  test("of a choice are its values, grouped if there are many, with one bin for missing values", () => {
    const { model, positions } = made(10);
    expect(binsOf(positions.axis("width"), model.parameters.get("width") ?? [], 8).map(({ text }) => text)).toEqual(["32", "64"]);
    const momentum = positions.axis("momentum");
    const bins = binsOf(momentum, model.parameters.get("momentum") ?? [], 4);
    expect(bins.at(-1)?.text).toBe("none");
    expect(binIndices(momentum.at, bins)[0]).toBe(bins.length - 1);
    const many = made(2, { parameters: { letter: ["a", "z"] } });
    many.model.head?.parameters.push(/** @type {any} */ ({ name: "letter", kind: "choice", values: [..."abcdefghijklmnopqrstuvwxyz"], text: "", when: null }));
    expect(binsOf(many.positions.axis("letter"), ["a", "z"], 4).map(({ text }) => text)).toEqual(["a … g", "h … n", "o … u", "v … z"]);
  });

  test("cells have the best value, the median and the states of their trials, with a brush of brushed trials only", () => {
    const { model, positions } = made(12);
    const xs = binIndices(positions.axis("width").at, binsOf(positions.axis("width"), [], 4));
    const ys = new Int16Array(12);
    const [even, odd] = aggregateCells(model, xs, ys, 2, 1, null);
    expect([even.rows.length, even.best]).toEqual([6, 0]);
    expect(even.median).toBeCloseTo(4 / 12);
    expect(odd.counts).toEqual([0, 2, 2, 0, 2, 0]);
    const [brushed] = aggregateCells(model, xs, ys, 2, 1, Uint8Array.from({ length: 12 }, (_, i) => Number(i === 6)));
    expect([brushed.rows, brushed.best]).toEqual([[6], 6]);
    const [failed] = aggregateCells(model, xs, ys, 2, 1, Uint8Array.from({ length: 12 }, (_, i) => Number(i === 4)));
    expect([failed.best, failed.median, failed.counts[5]]).toEqual([-1, NaN, 1]);
  });

  test("the two parameters with the most values come first, conditional ones last", () => {
    expect(widest(/** @type {any} */ (PARAMETERS))).toEqual(["lr", "width"]);
    expect(widest([])).toBeNull();
    expect(widest(/** @type {any} */ (PARAMETERS.slice(0, 1)))).toEqual(["lr", "lr"]);
  });
});

describe("the brush", () => {
  test("selects trials within all ranges", () => {
    const { model, brush } = made(100);
    brush.set({ lr: [0, 0.5], width: [0.5, 1] });
    expect(model.brushedCount).toBe(25);
    expect(brush.describe()).toBe("lr ≤ 0.00316, width 64");
    brush.set({ lr: null });
    expect(model.brushedCount).toBe(50);
    brush.clear();
    expect(model.brushed).toBeNull();
  });

  test("leaves out trials without a value, and includes new trials", () => {
    const { model, positions, brush } = made(12);
    brush.set({ [METRIC]: [0, 1] });
    expect(model.brushedCount).toBe(10); // two are NaN
    model.apply({ trials: { number: [12], state: [2], value: [0.5], parameters: { lr: [0.01] } } });
    positions.invalidate();
    brush.refresh();
    expect(model.brushedCount).toBe(11);
  });

  test("reads each axis of each trial once", () => {
    const at = Float32Array.from({ length: 10_000 }, (_, i) => i / 10_000);
    let looks = 0;
    const counting = new Proxy(at, { get: (array, key) => (typeof key === "string" && /^\d/.test(key) && looks++, Reflect.get(array, key)) });
    const mask = maskOf(at.length, [{ at: counting, span: [0.25, 0.5] }]);
    expect(mask.reduce((sum, one) => sum + one, 0)).toBe(2501);
    expect(looks).toBeLessThanOrEqual(2 * at.length);
  });
});

describe("lines", () => {
  test("of too many trials are the best ones and a stable sample", () => {
    const ranked = Array.from({ length: 10_000 }, (_, i) => i);
    const number = Int32Array.from(ranked);
    const some = sampleRows(ranked, null, number, 800);
    expect(some.length).toBeGreaterThan(700);
    expect(some.length).toBeLessThanOrEqual(800);
    expect(some.slice(-100)).toEqual(ranked.slice(0, 100).reverse()); // the best are drawn last
    expect(some.filter((row) => row >= 5000).length).toBeGreaterThan(250);
    expect(sampleRows(ranked, Uint8Array.from(ranked, (row) => Number(row % 2 === 0)), number, 10_000)).toHaveLength(5000);
  });

  test("the nearest to the pointer is found, also among lines with a missing value", () => {
    const lines = { xs: [0, 100], at: [Float32Array.of(0, 1, NaN), Float32Array.of(0, 1, 0.5)], top: 0, height: 100, none: 120 };
    expect(easeAt(0.5)).toBeCloseTo(0.5);
    expect(heightAt(lines, 2, 0, 0)).toBe(120);
    expect([nearestLine(lines, [0, 1, 2], 50, 2, 8), nearestLine(lines, [0, 1, 2], 50, 98, 8), nearestLine(lines, [0, 1, 2], 1, 119, 8), nearestLine(lines, [0, 1, 2], 50, 50, 8)]).toEqual([1, 0, 2, -1]);
  });
});

describe("ranks", () => {
  test("the best trial is a finished one, even if others are better", () => {
    const state = [4, 2, 3, 2, 1, 5]; // stopped, finished, pruned, finished, running, failed
    const { model, positions } = made(6, { state, value: [0.1, 3, 0.2, 2, 0.3, 0.4] });
    /** @type {any} */ (model.status).best = 3;
    expect(positions.ranked().map((row) => model.number[row])).toEqual([3, 1, 0, 2, 4, 5]);
    expect(bestTrials(model, 3)).toEqual([3, 1, 0]);
    const all = Int16Array.from({ length: 6 }, () => 0);
    expect(aggregateCells(model, all, all, 1, 1, null)[0].best).toBe(3);
  });

  test("the best is first, trials without a value are last, equal ones by number", () => {
    const { model, positions } = made(6, { state: Array(6).fill(2), value: [3, "NaN", 1, "Infinity", 1, null] });
    expect(positions.ranked().map((row) => model.number[row])).toEqual([2, 4, 0, 3, 1, 5]);
    /** @type {any} */ (model.head).direction = "max";
    positions.invalidate();
    expect(positions.ranked()).toEqual([0, 2, 4, 3, 1, 5]);
  });

  test("the quality is 1 for the best and 0 for the worst with its own colour", () => {
    const { positions } = made(6, { value: [3, "NaN", 1, 2, 5, null] });
    expect([2, 4, 3].map((row) => positions.quality(row))).toEqual([1, 0, expect.closeTo(0.75)]);
    expect(positions.quality(1)).toBeNaN();
    expect(made(1, { value: [4] }).positions.quality(0)).toBe(1);
    expect(made(1, { value: [null] }).positions.quality(0)).toBeNaN();
  });

  test("rows are sorted by any column, missing values last in both directions", () => {
    const values = [3, undefined, "a", 1];
    const by = (/** @type {boolean} */ down) => sortedRows([0, 1, 2, 3], null, (row) => values[row], down);
    expect([by(false), by(true)]).toEqual([[3, 0, 2, 1], [2, 0, 3, 1]]);
    expect(sortedRows([2, 0, 1], Uint8Array.of(1, 0, 1), null, false)).toEqual([2, 0]);
    expect(compareValues([1, 2], [1, 3])).toBe(-1);
  });
});

test("rows under the pointer keep their order: removed rows leave, new rows are appended", () => {
  expect(keepOrder([3, 1, 2], [0, 1, 2, 4])).toEqual([1, 2, 0, 4]);
});
