import { expect, test } from "vitest";
import { EditQueue } from "../../src/space/editor.js";
import { parseNumber, sliderScale } from "../../src/space/parameter.js";
import { checkboxValues, describeCount, plural, startProblem, toggleValue } from "../../src/space/state.js";

/** @param {string} kind @param {number} low @param {number} high */
function thereAndBack(kind, low, high) {
  const scale = sliderScale(kind, low, high);
  for (let place = scale.first; place <= scale.last; place++) expect(scale.positionOf(scale.valueAt(place))).toBe(place);
  return scale;
}

test.each([
  ["log", 1e-4, 0.1, 1e-9, 1e6],
  ["log int", 1, 1024, 1, 2 ** 20],
  ["uniform", 0, 1, 0, 1],
  ["uniform", 0, 0.99, 0, 1],
  ["uniform", -3, 5, -10, 10],
  ["uniform", 0, 1e30, 0, 1e30],
  ["int", 1, 7, 0, 8],
  ["int", 1, 8, 0, 16],
  ["int", -4, 0, -8, 8],
  ["int", 0, 2 ** 40, 0, 2 ** 41],
])("the slider of %s from %d to %d goes from %d to %d", (kind, low, high, first, last) => {
  const scale = thereAndBack(kind, low, high);
  expect([scale.valueAt(scale.first), scale.valueAt(scale.last)]).toEqual([first, last]);
});

test("a log slider goes over 1, 2, 5, 10", () => {
  const scale = sliderScale("log", 1e-4, 0.1);
  const place = scale.positionOf(0.001);
  expect([0, 1, 2, 3].map((more) => scale.valueAt(place + more))).toEqual([0.001, 0.002, 0.005, 0.01]);
  expect(scale.positionOf(1e-300)).toBe(scale.first);
  expect(scale.positionOf(-1)).toBe(scale.first);
  expect(scale.positionOf(1e300)).toBe(scale.last);
});

test.each([["uniform"], ["log"], ["int"], ["log int"]])("a %s with invalid ends still has a slider", (kind) => {
  const scale = sliderScale(kind, NaN, Infinity);
  expect(scale.last).toBeGreaterThan(scale.first);
  expect(Number.isFinite(scale.valueAt(scale.last))).toBe(true);
});

test("the text of a field is a number or NaN", () => {
  expect(["1e-3", " 5 ", "", "x", "-2"].map(parseNumber)).toEqual([0.001, 5, NaN, NaN, -2]);
});

/** @param {Partial<import("../../src/space/state.js").Row>} more */
const row = (more) => /** @type {any} */ ({ kind: "choice", count: 2, read: [["'sgd'", "text"], ["'adam'", "text"]], problem: null, ...more });
/** @param {object} more */
const state = (more) => /** @type {any} */ ({ rows: [], general: "", trials_problem: "", valid: true, count: 12, points: null, ...more });

test("a few values have checkboxes, many are typed", () => {
  expect(checkboxValues(row({}))).toEqual(["'sgd'", "'adam'"]);
  expect(checkboxValues(row({ count: 13 }))).toBe(null);
  expect(checkboxValues(row({ count: 0, read: [] }))).toBe(null);
  expect(checkboxValues(row({ kind: "int" }))).toBe(null);
  expect(checkboxValues(undefined)).toBe(null);
  expect(toggleValue(["1", "2", "3"], ["3"], "1", true)).toBe("1, 3");
  expect(toggleValue(["1", "2"], ["1"], "1", false)).toBe("");
});

test("the number of trials is described", () => {
  expect(describeCount(state({}))).toBe("12 trials.");
  expect(describeCount(state({ count: 1 }))).toBe("1 trial.");
  expect(describeCount(state({ points: 1200, count: 1200 }))).toBe("The grid has 1,200 points: 1,200 trials.");
  expect(describeCount(state({ valid: false, count: 5 }))).toBe("Fix the errors above to see the count.");
  expect(describeCount(state({ trials_problem: "no end" }))).toBe("no end");
  expect(plural(0, "point")).toBe("0 points");
});

test("the reason for a disabled Start button is shown", () => {
  expect(startProblem(state({}))).toBe("");
  expect(startProblem(state({ rows: [row({ problem: { text: "x", at: "name" } })] }))).toBe("1 parameter has to be corrected first.");
  expect(startProblem(state({ general: "the space is empty" }))).toBe("the space is empty");
  expect(startProblem(state({ trials_problem: "no end" }))).toBe("no end");
});

test("while an edit of a field is pending, only the latest text follows", () => {
  /** @type {[number, import("../../src/space/editor.js").Change][]} */
  const sent = [];
  const edits = new EditQueue((number, change) => sent.push([number, change]));
  const typed = (/** @type {string} */ value) => ({ what: "field", value });
  for (const value of ["1", "12", "123"]) edits.sendLatest("lr", typed(value));
  expect(sent).toEqual([[1, typed("1")]]);
  edits.acknowledge(0);
  expect(edits.isPending("lr")).toBe(true);
  edits.acknowledge(1);
  expect(sent[1]).toEqual([2, typed("123")]);
  expect(edits.isPending("lr")).toBe(true);
  edits.acknowledge(2);
  expect(edits.isPending("lr")).toBe(false);
  edits.sendLatest("lr", typed("5"));
  edits.sendLatest("lr", typed("6"));
  edits.sendNow({ what: "add" }); // needs what was typed before it
  expect(sent.slice(2).map(([, change]) => change)).toEqual([typed("5"), typed("6"), { what: "add" }]);
  edits.clear();
  expect(edits.isPending("lr")).toBe(false);
});
