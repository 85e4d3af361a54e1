import { describe, expect, test } from "vitest";
import { unitWords } from "../src/unit.js";
import { panned, showing, within, zoomed } from "../src/zoom.js";

/** @typedef {[number, number]} Range */
const WHOLE = /** @type {Range} */ ([0, 100]);

describe("zoomed", () => {
  test("keeps its place", () => {
    expect(zoomed([0, 100], 50, 0.5, WHOLE)).toEqual([25, 75]);
    expect(zoomed([0, 100], 20, 0.5, WHOLE)).toEqual([10, 60]);
  });
  test("is nothing when all is shown", () => expect(zoomed([25, 75], 50, 2, WHOLE)).toBeNull());
  test("does not leave what there is", () => expect(zoomed([0, 20], 10, 2, WHOLE)).toEqual([0, 30]));
  test("ends somewhere", () => {
    let range = /** @type {Range} */ ([0, 100]);
    for (let i = 0; i < 100; i++) range = zoomed(range, 50, 0.5, WHOLE) ?? range;
    expect(range[1] - range[0]).toBeGreaterThan(0);
  });
});

describe("panned", () => {
  test("moves as far as there is something", () => {
    expect(panned([10, 30], 5, WHOLE)).toEqual([15, 35]);
    expect(panned([10, 30], 500, WHOLE)).toEqual([80, 100]);
    expect(panned([10, 30], -500, WHOLE)).toEqual([0, 20]);
  });
  test("nothing moves where all is shown", () => expect(panned(WHOLE, 5, WHOLE)).toBeNull());
});

test("showing moves no further than it must", () => {
  expect(showing([10, 30], 20, WHOLE)).toEqual([10, 30]);
  expect(showing([10, 30], 40, WHOLE)).toEqual([20, 40]);
  expect(showing([10, 30], 5, WHOLE)).toEqual([5, 25]);
});

test("within is nothing for what is empty", () => {
  expect(within([120, 130], WHOLE)).toBeNull();
  expect(within([-10, 10], WHOLE)).toEqual([0, 10]);
});

test.each([
  ["steps", 4, "step", "steps"], ["updates", 3, "update", "step (per replica)"], ["updates", 1, "update", "updates"],
  ["batches", 3, "batch", "batches"], [undefined, 1, "step", "steps"], [7, 1, "step", "steps"],
])("%s of %s replicas", (unit, replicas, one, axis) => expect(unitWords(unit, replicas)).toEqual({ one, axis }));
