import { describe, expect, test } from "vitest";
import { annotationPositions, annotationsAt, drawAnnotations } from "../../src/chart/annotations.js";
import { Curves } from "../../src/chart/curves.js";
import { CLOCK, MEAN } from "../../src/comm/frames.js";

const MARKS = [{ step: 10, kind: "rate", text: "rate 0.1" }, { step: 40, kind: "lost", text: "worker 1" }];

/** Curves whose steps 0, 20 and 40 were made after 0, 4 and 6 seconds. */
function clocked() {
  const curves = new Curves();
  curves.apply([], [{ replica: MEAN, series: CLOCK, steps: [0, 20, 40], values: [0, 4, 6] }]);
  return curves;
}

describe("annotationPositions", () => {
  test("a mark is at its step", () => expect(annotationPositions(MARKS, clocked(), false)).toEqual([10, 40]));

  test("by time it is where its step was made", () => expect(annotationPositions(MARKS, clocked(), true)).toEqual([2, 6]));

  test("without a clock it stays at its step", () => expect(annotationPositions(MARKS, new Curves(), true)).toEqual([10, 40]));
});

test("a line is drawn at each mark within the chart, with the sign of its kind", () => {
  /** @type {[string, ...unknown[]][]} */
  const calls = [];
  const canvas = /** @type {any} */ (new Proxy({}, { get: (_, name) => (/** @type {unknown[]} */ ...given) => calls.push([String(name), ...given]), set: () => true }));
  const plot = /** @type {any} */ ({ ratio: 1, left: 0, top: 5, width: 100, height: 50, x: (/** @type {number} */ at) => 2 * at });
  drawAnnotations(canvas, plot, [...MARKS, { step: 60, kind: "pause", text: "" }], [10, 40, 60], /** @type {any} */ ({ muted: "grey" }));
  expect(calls.filter(([name]) => name === "moveTo")).toEqual([["moveTo", 20.5, 16], ["moveTo", 80.5, 16]]);
  expect(calls.filter(([name]) => name === "fillText")).toEqual([["fillText", "◆", 20.5, 5], ["fillText", "✕", 80.5, 5]]);
});

test("the cursor hits marks near it", () => {
  expect(annotationsAt(MARKS, [10, 40], 12, 0.5)).toEqual([MARKS[0]]);
  expect(annotationsAt(MARKS, [10, 40], 25, 0.5)).toEqual([]);
});
