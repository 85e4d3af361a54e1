import { expect, test } from "vitest";
import { brushAfterKey, brushDrag, snapToEnds, snapToValues } from "../../src/sweep/figures/brush.js";

test("a brush that begins or ends near the end of an axis extends to the end", () => {
  expect([-0.2, 0.01, 0.5, 0.98, 1.3].map((position) => snapToEnds(position, 0.03))).toEqual([0, 0, 0.5, 1, 1]);
});

test("a drag moves one end or the whole brush, or makes a new brush", () => {
  expect(brushDrag([0.2, 0.6], 0.61, 0.02)?.(0.9)).toEqual([0.2, 0.9]);
  expect(brushDrag([0.2, 0.6], 0.19, 0.02)?.(0.7)).toEqual([0.6, 0.7]);
  expect(brushDrag([0.25, 0.5], 0.4, 0.02)?.(2)).toEqual([0.75, 1]);
  expect(brushDrag([0.2, 0.6], 0.8, 0.02)).toBe(null);
});

test("keys make a brush, move it and its upper end, and remove it", () => {
  expect(brushAfterKey(null, "ArrowUp", false, 0)).toEqual([0, 0.25]);
  expect(brushAfterKey(null, "ArrowDown", false, 4)).toEqual([0.75, 1]);
  expect(brushAfterKey([0, 0.25], "End", false, 0)).toEqual([0.75, 1]);
  expect(brushAfterKey([0, 0.25], "ArrowUp", true, 4)).toEqual([0, 0.5]);
  expect(brushAfterKey([0, 0.25], "Escape", false, 0)).toBe(null);
  expect(brushAfterKey([0, 0.25], "x", false, 0)).toBe(undefined);
});

test("a brush on choices covers whole values", () => {
  expect(snapToValues([0.3, 0.3], 4)).toEqual([0.25, 0.5]);
  expect(snapToValues([0.3, 0.6], 0)).toEqual([0.3, 0.6]);
});
