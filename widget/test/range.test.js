import { describe, expect, test } from "vitest";
import { rangeOfX, rangeOfY } from "../src/range.js";

/** @param {"points" | "train"} kind @param {number[]} ys */
const line = (kind, ys) => ({ kind, xs: ys.map((_, i) => i), ys });

describe("rangeOfX", () => {
  test("of all lines", () => expect(rangeOfX([{ xs: [2, 5] }, { xs: [] }, { xs: [1, 3] }])).toEqual([1, 5]));
  test("of one point has room around it", () => expect(rangeOfX([{ xs: [4] }])).toEqual([3.5, 4.5]));
  test("of nothing is a range too", () => expect(rangeOfX([])).toEqual([0, 1]));
});

describe("rangeOfY", () => {
  const falling = line("train", [100, 50, 20, 10, 5, 2, 1]);
  test("follows the zoom", () => {
    const [low, high] = rangeOfY([falling], [0, 6], false);
    expect(low).toBeLessThanOrEqual(1);
    expect(high).toBeGreaterThanOrEqual(100);
    expect(rangeOfY([falling], [4, 6], false)[1]).toBeLessThan(6);
  });
  test("is one of logarithms, of which zero and below have none", () => {
    const [low, high] = rangeOfY([line("train", [0, -1, 1, 10, 100])], [0, 4], true);
    expect([low, high]).toEqual([-0.05, 2.05]);
    expect(rangeOfY([line("train", [0, -1])], [0, 1], true)).toEqual([-1, 0]);
  });
  test("is not stretched by single points, nor by what is not finite", () => {
    const points = line("points", Array.from({ length: 1000 }, (_, i) => (i === 500 ? 1e9 : i % 2)));
    expect(rangeOfY([points], [0, 999], false)[1]).toBeLessThan(2);
    expect(rangeOfY([line("train", [1, NaN, Infinity, 2])], [0, 3], false)[1]).toBeLessThan(3);
  });
  test("of nothing is a range too", () => expect(rangeOfY([], [0, 1], false)).toEqual([0, 1]));
});
