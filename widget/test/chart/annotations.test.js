// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { AnnotationList, annotationPositions, annotationsAt, annotationText, drawAnnotations, drawnAnnotations } from "../../src/chart/annotations.js";
import { Curves, epochAt } from "../../src/chart/curves.js";
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

test("of marks that would stand on each other the most important one is drawn", () => {
  const kinds = ["state", "lost", "rate", "restart", "unknown"];
  const marks = kinds.map((kind, step) => ({ step, kind, text: "" }));
  expect(drawnAnnotations(marks, [10, 12, 40, NaN, 44], 9)).toEqual([{ kind: "lost", place: 12 }, { kind: "rate", place: 40 }]);
  const many = Array.from({ length: 5000 }, (_, step) => ({ step, kind: "state", text: "" }));
  expect(drawnAnnotations(many, many.map(({ step }) => step / 10), 9).length).toBeLessThanOrEqual(500 / 9 + 1);
});

test("marks in the order of their time have their places by time", () => {
  expect(annotationPositions([MARKS[1], MARKS[0]], clocked(), true)).toEqual([6, 2]);
});

test("many texts under the cursor are counted", () => {
  expect(annotationText(MARKS)).toBe("rate 0.1, worker 1");
  expect(annotationText(Array.from({ length: 9 }, (_, n) => ({ step: 1, kind: "rate", text: String(n) })))).toBe("0, 1, 2, 3, and 5 more");
});

describe("the list", () => {
  /** @param {import("../../src/chart/annotations.js").Annotation[]} marks */
  function listed(marks) {
    /** @type {number[]} */
    const went = [];
    const list = new AnnotationList((step) => went.push(step));
    list.show(marks, "step");
    return { list, went, buttons: [...list.element.querySelectorAll("button")] };
  }

  test("has a button for each event, which moves the cursor to it", () => {
    const { buttons, went } = listed([{ step: 1200, kind: "rate", text: "rate 0.1", epoch: 3, time: 1e9 }, MARKS[1]]);
    expect(buttons.map(({ textContent }) => textContent)).toEqual(["◆step 1,200, epoch 3: rate 0.1", "✕step 40: worker 1"]);
    expect(buttons[0].title).toContain("2001");
    buttons[0].click();
    expect(went).toEqual([1200]);
  });

  test("has the last state only", () => {
    const states = [1, 2, 3].map((step) => ({ step, kind: "state", text: "state written" }));
    const { list, buttons } = listed([...states, MARKS[1]]);
    expect(buttons.map(({ textContent }) => textContent)).toEqual(["▽step 3: state written (the last of 3)", "✕step 40: worker 1"]);
    list.show([], "step");
    expect(list.element.hidden).toBe(true);
  });
});

describe("epochAt", () => {
  const epochs = { steps: [0, 10, 20, 40], values: [1, 2, 3, 7] };

  test.each([[1, 1], [10, 1], [11, 2], [20, 2], [21, 3], [25, 3], [26, 4], [40, 6], [41, 7], [900, 7], [0, 1]])("step %i is in epoch %i", (step, epoch) => {
    expect(epochAt(step, epochs)).toBe(epoch);
  });

  test("is not known of a loop without epochs", () => expect(epochAt(7, undefined)).toBe(null));
});

test("the cursor hits marks near it", () => {
  expect(annotationsAt(MARKS, [10, 40], 12, 0.5)).toEqual([MARKS[0]]);
  expect(annotationsAt(MARKS, [10, 40], 25, 0.5)).toEqual([]);
});
