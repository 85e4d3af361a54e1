// @vitest-environment happy-dom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { SvgCanvas } from "../../src/export/svg.js";
import { SweepView } from "../../src/sweep/view.js";
import { snapshot } from "./data.js";

/** @type {SweepView} */
let view;

beforeEach(() => {
  vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(600);
  vi.stubGlobal("IntersectionObserver", class {
    observe() {}
    disconnect() {}
  });
  view = new SweepView("grid", null);
  document.body.replaceChildren(view.element);
  const spans = [[0, 1, [0], 0, 1, "finished"], [1, 1, [1], 0, 2, "lost"]];
  view.model.apply({ ...snapshot(12), spans, best: [[1, 0, 0.1]], curves: { 0: [[1, 2], [0.5, 0.1]], 1: [[1, 2], [0.7, "NaN"]] } });
  view.draw();
});

afterEach(() => {
  view.destroy();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

/** @param {string} title */
function saved(title) {
  const figure = view.exports.source.figure(title);
  if (!figure) throw new Error(`${title} has nothing to save`);
  const canvas = new SvgCanvas(figure.width, figure.height);
  figure.paint(/** @type {any} */ (canvas));
  const svg = new DOMParser().parseFromString(canvas.toString(), "image/svg+xml").documentElement;
  return { ...figure, svg, texts: [...svg.querySelectorAll("text")].map((one) => one.textContent) };
}

test("commands are shown while a kernel takes them", async () => {
  const hidden = () => view.element.classList.contains("nbs-without-commands");
  expect(hidden()).toBe(true);
  expect(await view.commands.ask("add", { trials: 2 })).toEqual({ ok: false, message: "the kernel is not running" });
  /** @type {unknown[]} */
  const sent = [];
  view.connect((kind, more) => void sent.push([kind, more?.trials]));
  expect(hidden()).toBe(false);
  const answer = view.commands.ask("add", { trials: 2 });
  expect(sent).toEqual([["add", 2]]);
  view.connect(null);
  expect(hidden()).toBe(true);
  expect((await answer).ok).toBe(false);
});

test("every figure of a sweep can be saved, in a saved notebook as well", () => {
  expect(view.exports.source.titles()).toEqual(["Parallel coordinates", "Heat map", "Learning curves", "Best so far", "Engines"]);
  for (const title of view.exports.source.titles()) {
    const { svg, rows } = saved(title);
    expect(svg.querySelectorAll("path, rect").length).toBeGreaterThan(3);
    expect(new Set(rows.map(({ length }) => length)).size).toBe(1);
  }
  expect([...view.element.querySelectorAll(".nbd-export option")].map((one) => one.textContent)).toEqual(["all figures", ...view.exports.source.titles()]);
});

test("a saved grid has no commands, but the choice of the time that its figure shows", () => {
  expect(view.element.classList.contains("nbs-without-commands")).toBe(true);
  expect(view.element.querySelector('figure [aria-label="Time shown"]')).not.toBeNull();
});

test("parallel coordinates have the names of their axes, and their numbers are the trials'", () => {
  const { texts, rows } = saved("Parallel coordinates");
  expect(texts).toEqual(expect.arrayContaining(["lr", "width", "momentum", "loss"]));
  expect(rows[0]).toEqual(["trial", "state", "value", "step", "seconds", "attempts", "seed", "parent", "error", "lr", "width", "momentum", "epochs", "acc"]);
  expect(rows).toHaveLength(13);
  expect(rows[1].slice(0, 3)).toEqual([0, "finished", 0]);
  view.brush.set({ width: [0.5, 1] });
  expect(saved("Parallel coordinates").rows.slice(1).map(([number]) => Number(number) % 2)).toEqual(Array(6).fill(1));
});

test("the numbers of a heat map are its cells', those of the others what they show", () => {
  const cells = saved("Heat map").rows;
  expect(cells[0].slice(0, 6)).toEqual(["lr", "width", "trials", "best", "best trial", "median"]);
  expect(cells.slice(1).reduce((sum, row) => sum + Number(row[2]), 0)).toBe(12);
  expect(saved("Learning curves").rows).toEqual([["trial", "step", "loss"], [0, 1, 0.5], [0, 2, 0.1], [1, 1, 0.7], [1, 2, NaN]]);
  expect(saved("Engines").rows.slice(1, 3)).toEqual([["worker 0", 0, 1, "finished", 0, 1], ["worker 1", 1, 1, "lost", 0, 2]]);
  expect(saved("Best so far").rows.slice(0, 2)).toEqual([["seconds", "trial", "state", "value", "best so far"], [1, 0, "finished", 0, 0.1]]);
});
