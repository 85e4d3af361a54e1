// @vitest-environment happy-dom
import { afterEach, expect, test } from "vitest";
import { CompareView } from "../../src/compare/view.js";

const HOSTILE = "<img src=x onerror=alert(1)>";
const RUNS = [{ id: "r1", name: "baseline", status: "finished" }, { id: "r2", name: HOSTILE, status: "failed" }];

/** @returns {import("../../src/compare/view.js").Comparison} */
function data() {
  return {
    by: "step", runs: RUNS, charts: [{ title: "loss", train: 0, validation: 1 }],
    curves: [
      { replica: 0, series: 0, steps: [0, 10, 20], values: [2, 1, 0.5] }, { replica: 0, series: 1, steps: [10, 20], values: [1.2, 0.9] },
      { replica: 1, series: 0, steps: [0, 40], values: [3, 0.4] },
    ],
    axes: [{ run: 0, by: "epoch", steps: [0, 10], values: [0, 1] }, { run: 1, by: "epoch", steps: [0, 40], values: [0, 2] }],
    differences: [{ name: "--strategy", texts: ["ps", HOSTILE], best: [] }],
    metrics: [{ name: "loss (best)", texts: ["0.5", "0.4"], best: [1] }],
  };
}

/** @type {CompareView[]} */
const open = [];

/** @param {Partial<import("../../src/compare/view.js").Comparison>} [more] */
function shown(more = {}) {
  const view = new CompareView("c");
  open.push(view);
  document.body.replaceChildren(view.element);
  view.apply({ ...data(), ...more });
  view.draw();
  return view;
}

afterEach(() => open.splice(0).forEach((view) => view.close()));

const lines = (/** @type {CompareView} */ view) => view.shared.lines(view.data.charts[0], view.shared.options);
const press = (/** @type {CompareView} */ view, /** @type {string} */ name) =>
  /** @type {HTMLElement} */ ([...view.element.querySelectorAll("button")].find((one) => one.textContent === name)).click();

test("the curves of all runs are over each other, those of validation data dashed", () => {
  const found = lines(shown());
  expect(found.map(({ kind, replica, xs }) => [kind, replica, xs])).toEqual([
    ["run", 0, [0, 10, 20]], ["run", 1, [0, 40]], ["run-validation", 0, [10, 20]],
  ]);
});

test("the axis is chosen among those on record", () => {
  const view = shown();
  press(view, "Epoch");
  view.draw();
  expect(lines(view).map(({ xs }) => xs)).toEqual([[0, 1, 2], [0, 2], [1, 2]]);
  expect(view.shared.across().place(1.5, "step 15")).toBe("epoch 1.5, step 15");
  const time = view.axis.buttons[2];
  expect([time.getAttribute("aria-disabled"), time.title]).toEqual(["true", "No run has its times on record"]);
  time.click();
  expect(view.by).toBe("epoch");
  expect(view.axis.buttons.map((one) => one.getAttribute("aria-pressed"))).toEqual(["false", "true", "false"]);
});

test("a run that lacks an axis is left out of it", () => {
  const view = shown({ by: "epoch", axes: [data().axes[0]] });
  expect(lines(view).map(({ replica }) => replica)).toEqual([0, 0]);
  expect(view.leftOut.textContent).toBe(`Without epochs on record, and not drawn: ${HOSTILE}`);
  press(view, "Step");
  view.draw();
  expect(view.leftOut.textContent).toBe("");
  expect(shown({ by: "time" }).by).toBe("step");
});

test("a press on a run hides its curves, and another one shows them", () => {
  const view = shown();
  const [, second] = view.legend.querySelectorAll("button");
  second.click();
  view.draw();
  expect(lines(view).map(({ replica }) => replica)).toEqual([0, 0]);
  expect(second.getAttribute("aria-pressed")).toBe("false");
  expect(view.element.querySelectorAll(".nbd-hidden-run")).toHaveLength(3); // its column
  second.click();
  expect(lines(view)).toHaveLength(3);
});

test("what differs is the first column, and the best of a metric is marked", () => {
  const view = shown();
  const rows = [...view.table.element.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.textContent));
  expect(rows).toEqual([
    ["what differs", "● baseline", `■ ${HOSTILE}`], ["--strategy", "ps", HOSTILE], ["metrics"], ["loss (best)", "0.5", "0.4 ★"],
  ]);
  expect(view.element.querySelectorAll("img")).toHaveLength(0);
  expect(shown({ differences: [] }).table.element.textContent).toContain("nothing: options, inputs, code, seed and versions are equal");
});

test("smoothing and the axis stay when the data are shown again", () => {
  const view = shown();
  view.shared.options.smoothing = 0.5;
  press(view, "Epoch");
  view.apply(data());
  expect([view.by, lines(view)[0].ys[1]]).toEqual(["epoch", 4 / 3]);
});

test("runs without metrics have a table only", () => {
  const view = shown({ charts: [], curves: [], metrics: [] });
  expect([view.figures.hidden, view.empty.hidden]).toEqual([true, false]);
});
