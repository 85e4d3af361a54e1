import { describe, expect, test } from "vitest";
import { domainX, domainY, panned, panToShow, within, zoomed } from "../../src/chart/domain.js";
import { stepUnit } from "../../src/text/format.js";

/** @param {"points" | "train"} kind @param {number[]} ys */
const line = (kind, ys) => ({ kind, xs: ys.map((_, i) => i), ys });

describe("rangeOfX", () => {
  test("of all lines", () => expect(domainX([{ xs: [2, 5] }, { xs: [] }, { xs: [1, 3] }])).toEqual([1, 5]));
  test("of one point has a margin", () => expect(domainX([{ xs: [4] }])).toEqual([3.5, 4.5]));
  test("of no points is a default range", () => expect(domainX([])).toEqual([0, 1]));
});

describe("rangeOfY", () => {
  const falling = line("train", [100, 50, 20, 10, 5, 2, 1]);
  test("follows the zoom", () => {
    const [low, high] = domainY([falling], [0, 6], false);
    expect(low).toBeLessThanOrEqual(1);
    expect(high).toBeGreaterThanOrEqual(100);
    expect(domainY([falling], [4, 6], false)[1]).toBeLessThan(6);
  });
  test("is logarithmic, without zero and negative values", () => {
    const [low, high] = domainY([line("train", [0, -1, 1, 10, 100])], [0, 4], true);
    expect([low, high]).toEqual([-0.05, 2.05]);
    expect(domainY([line("train", [0, -1])], [0, 1], true)).toEqual([-1, 0]);
  });
  test("is not stretched by single points, nor by values that are not finite", () => {
    const points = line("points", Array.from({ length: 1000 }, (_, i) => (i === 500 ? 1e9 : i % 2)));
    expect(domainY([points], [0, 999], false)[1]).toBeLessThan(2);
    expect(domainY([line("train", [1, NaN, Infinity, 2])], [0, 3], false)[1]).toBeLessThan(3);
  });
  test("leaves half of it to the lines, and shows half of the points", () => {
    const points = line("points", Array.from({ length: 1000 }, (_, i) => (i % 10) - 4.5)); // -4.5 to 4.5
    const curve = line("train", Array.from({ length: 1000 }, (_, i) => 2 - i / 250)); // 2 to -2
    const [low, high] = domainY([points, curve], [0, 999], false);
    expect([low, high]).toEqual([expect.closeTo(-4.5, 0), expect.closeTo(4.5, 0)]);
    expect(4 / (high - low)).toBeGreaterThan(0.44); // without the margins: a half
    const flat = line("train", Array.from({ length: 1000 }, () => 0.1));
    expect(domainY([points, flat], [0, 999], false)).toEqual([expect.closeTo(-2.5 - 0.3, 5), expect.closeTo(2.5 + 0.3, 5)]);
  });
  test("of no points is a default range", () => expect(domainY([], [0, 1], false)).toEqual([0, 1]));
});

/** @typedef {[number, number]} Range */
const WHOLE = /** @type {Range} */ ([0, 100]);

describe("zoomed", () => {
  test("keeps its place", () => {
    expect(zoomed([0, 100], 50, 0.5, WHOLE)).toEqual([25, 75]);
    expect(zoomed([0, 100], 20, 0.5, WHOLE)).toEqual([10, 60]);
  });
  test("is null if everything is shown", () => expect(zoomed([25, 75], 50, 2, WHOLE)).toBeNull());
  test("stays within the whole range", () => expect(zoomed([0, 20], 10, 2, WHOLE)).toEqual([0, 30]));
  test("has a minimum width", () => {
    let range = /** @type {Range} */ ([0, 100]);
    for (let i = 0; i < 100; i++) range = zoomed(range, 50, 0.5, WHOLE) ?? range;
    expect(range[1] - range[0]).toBeGreaterThan(0);
  });
});

describe("panned", () => {
  test("moves within the whole range", () => {
    expect(panned([10, 30], 5, WHOLE)).toEqual([15, 35]);
    expect(panned([10, 30], 500, WHOLE)).toEqual([80, 100]);
    expect(panned([10, 30], -500, WHOLE)).toEqual([0, 20]);
  });
  test("is null if everything is shown", () => expect(panned(WHOLE, 5, WHOLE)).toBeNull());
});

test("showing a place moves by the least distance", () => {
  expect(panToShow([10, 30], 20, WHOLE)).toEqual([10, 30]);
  expect(panToShow([10, 30], 40, WHOLE)).toEqual([20, 40]);
  expect(panToShow([10, 30], 5, WHOLE)).toEqual([5, 25]);
});

test("within is null for an empty range", () => {
  expect(within([120, 130], WHOLE)).toBeNull();
  expect(within([-10, 10], WHOLE)).toEqual([0, 10]);
});

test.each([
  ["steps", 4, "step", "steps"], ["updates", 3, "step", "step (per replica)"], ["updates", 1, "update", "updates"],
  ["batches", 3, "batch", "batches"], [undefined, 1, "step", "steps"], [7, 1, "step", "steps"],
])("%s of %s replicas", (unit, replicas, one, axis) => expect(stepUnit(unit, replicas)).toEqual({ one, axis }));
