// @vitest-environment happy-dom
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from "vitest";
import { makeBestSoFar } from "../../src/sweep/figures/best.js";
import { SweepModel } from "../../src/sweep/model.js";
import { makeLearningCurves } from "../../src/sweep/figures/curves.js";
import { makeTimeline } from "../../src/sweep/figures/timeline.js";

/** @type {SweepModel} */
let model;
const HOSTILE = "<img src=x onerror=alert(1)>";

beforeAll(() => {
  // A canvas with a width of 600 pixels that accepts all drawing calls.
  const canvas = new Proxy({}, { get: (_, name) => (name === "measureText" ? () => ({ width: 30 }) : () => null), set: () => true });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(/** @type {any} */ (canvas));
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(600);
  vi.stubGlobal("DOMMatrix", class { scale() {} });
});

afterAll(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

beforeEach(() => {
  model = new SweepModel();
  const [steps, values] = [[1, 2, 3], [[0.1, 0.2, 0.3], [0.2, 0.5, 0.9], [0.1, 0.1, 0.2], [0.3, 0.4, 0.5]]];
  model.apply({
    snapshot: true,
    head: { metric: HOSTILE, direction: "max", engines: [[0, "/job:worker/task:0"], [1, HOSTILE]], parameters: [], began: 0, per_trial: 1 },
    status: { state: "running", now: 100, best: 1, counts: { finished: 2, pruned: 1, running: 1 }, engines: [[0, "busy", 3], [1, "gone", null]] },
    trials: { number: [0, 1, 2, 3, 4], state: [2, 2, 3, 1, 0], value: [0.3, 0.9, 0.2, 0.5, null], step: [3, 3, 3, 3, null], attempt: [1, 2, 1, 1, 0],
      parent: [-1, -1, -1, -1, -1], asked: [0, 0, 0, 0, 0], started: [0, 10, 20, 60, null], ended: [10, 40, 55, null, null], ranks: [[0], [1], [0], [0], []] },
    curves: Object.fromEntries(values.map((each, i) => [i, [steps, each]])),
    spans: [[0, 1, [0], 0, 10, "finished"], [1, 1, [1], 0, 8, "lost"], [1, 2, [1], 10, 40, "finished"], [2, 1, [0], 20, 55, "pruned"]],
    best: [[10, 0, 0.3], [40, 1, 0.9]],
  });
});

/** @param {(model: SweepModel) => { element: HTMLElement, draw: () => void, destroy: () => void }} makeView */
function shown(makeView) {
  const view = makeView(model);
  document.body.replaceChildren(view.element);
  view.draw();
  const box = /** @type {HTMLElement} */ (view.element.querySelector(".nbd-sheet"));
  const press = (/** @type {string[]} */ ...keys) => keys.forEach((key) => box.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })));
  const words = () => document.getElementById(box.getAttribute("aria-describedby") ?? "")?.textContent ?? "";
  return { element: view.element, destroy: () => view.destroy(), box, press, words, text: () => view.element.textContent ?? "" };
}

test.each([["curves", makeLearningCurves], ["the best line", makeBestSoFar], ["the timeline", makeTimeline]])("%s is a focusable figure with a name and a text", (_, makeView) => {
  const view = shown(makeView);
  expect(view.element.tagName).toBe("FIGURE");
  expect(view.element.querySelector("figcaption")).not.toBeNull();
  expect(view.box.tabIndex).toBe(0);
  expect(view.words()).not.toBe("");
  expect(view.element.querySelectorAll("img")).toHaveLength(0); // whatever things are called, it is text
  view.press("Tab");
  expect(model.hovered).toBe(-1);
  view.destroy();
  expect(document.body.children).toHaveLength(0);
  expect(model.listeners.size).toBe(0);
});

describe("keys", () => {
  test("move from the best curve to the next, and choose", () => {
    const view = shown(makeLearningCurves);
    view.press("ArrowDown");
    expect(model.hovered).toBe(1);
    view.press("ArrowDown", "ArrowDown", "Enter");
    expect(model.chosen).toBe(3);
    expect(view.element.querySelector("[role=status]")?.textContent).toContain("trial 3, running");
    view.press("End");
    expect(model.hovered).toBe(2);
    view.press("Escape");
    expect([model.hovered, model.chosen]).toEqual([-1, -1]);
  });

  test("move through the trials in the order of their ends, running ones last", () => {
    const view = shown(makeBestSoFar);
    view.press("ArrowRight", "ArrowRight");
    expect(model.hovered).toBe(1);
    view.press("End");
    expect(model.hovered).toBe(3);
  });

  test("move along an engine and between engines", () => {
    const view = shown(makeTimeline);
    view.press("ArrowRight");
    expect(model.hovered).toBe(0);
    view.press("ArrowRight");
    expect(model.hovered).toBe(2);
    view.press("ArrowDown");
    expect(model.hovered).toBe(1);
    view.press("+");
    expect(view.element.querySelector("[aria-pressed=true]")?.textContent).toBe("last 1 min");
    view.press("0");
    expect(view.element.querySelector("[aria-pressed=true]")?.textContent).toBe("all");
  });
});

test("the texts describe the figures", () => {
  expect(shown(makeLearningCurves).words()).toBe("Curves of 4 trials. Best: trial 1 0.9000, trial 0 0.3000, trial 3 0.5000, trial 2 0.2000.");
  expect(shown(makeBestSoFar).words()).toBe("Best so far 0.9000, by trial 1 after 40 s, improved 2 times. Trials: 1 running, 2 finished, 1 pruned; 1 min 40 s since the start.");
  expect(shown(makeTimeline).words()).toBe(`5 attempts on 2 engines in 1 min 40 s, 1 running. Busy: worker 0 85%, ${HOSTILE} (lost) 38%.`);
});

test("the best value is that of the header, also after a promotion that made a trial worse", () => {
  const best = [[70, 0, 0.3]];
  model.apply({ best, status: { state: "running", now: 100, best: 0, counts: { finished: 2 }, engines: [] } });
  expect(shown(makeBestSoFar).words()).toContain("Best so far 0.3000, by trial 0 after 1 min 10 s, improved 2 times.");
});

test("the texts describe an empty sweep", () => {
  model = new SweepModel();
  expect(shown(makeLearningCurves).words()).toContain("Best: none yet");
  expect(shown(makeBestSoFar).words()).toContain("No value yet");
  expect(shown(makeTimeline).text()).toContain("no engines yet");
});

test("a click chooses the trial under the pointer, or none", () => {
  const view = shown(makeTimeline);
  const surface = /** @type {HTMLElement} */ (view.element.querySelector("canvas"));
  surface.dispatchEvent(new MouseEvent("click", { clientX: 60, clientY: 10, bubbles: true }));
  expect(model.chosen).toBe(0);
  surface.dispatchEvent(new MouseEvent("click", { clientX: 599, clientY: 10, bubbles: true }));
  expect(model.chosen).toBe(-1);
});
