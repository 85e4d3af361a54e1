// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Brush } from "../../src/sweep/figures/brush.js";
import { colormapFor } from "../../src/sweep/figures/colormap.js";
import { makeHeatmap } from "../../src/sweep/figures/heatmap.js";
import { TrialPositions } from "../../src/sweep/figures/positions.js";
import { filled, snapshot } from "./data.js";

describe("the cells of all trials, where those here are a sample", () => {
  const known = {
    bins: { lr: { edges: [1e-4, 1e-3, 1e-2, 0.1] }, width: { values: [[32], [64]] }, momentum: { edges: [0, 0.5, 1], none: true } },
    pairs: [{ x: "lr", y: "width", cells: [[0, 1, 700, 0.25, 0.5, 0, 1, 30, 4, 0, 5], [2, 0, 3, 0.125, 0.5, 0, 0, 9, 0, 0, 0], [1, 0, -1, NaN, NaN, 0, 0, 0, 0, 0, 2]] }],
  };
  /** @param {string} x @param {string} y @param {object} [more] */
  function heatmap(x, y, more = {}) {
    const model = filled(12);
    model.apply({ ...snapshot(12), of: 1000, cells: known, ...more });
    const positions = new TrialPositions(model);
    const brush = new Brush(model, positions);
    const theme = { colours: /** @type {any} */ ({}), colormap: colormapFor(false), font: "11px sans-serif" };
    const view = makeHeatmap(model, { positions, brush, theme, table: "t" });
    document.body.replaceChildren(view.element);
    const [across, down] = view.element.querySelectorAll("select");
    view.draw();
    [across.value, down.value] = [x, y];
    across.dispatchEvent(new Event("change"));
    const numbers = () => view.exported()?.rows.slice(1) ?? [];
    return { view, brush, model, numbers };
  }

  beforeEach(() => void vi.spyOn(HTMLElement.prototype, "clientWidth", "get").mockReturnValue(600));
  afterEach(() => void vi.restoreAllMocks());

  test("have their counts, their best and their median, in either orientation", () => {
    const { view, numbers } = heatmap("lr", "width");
    expect(view.isOfAll?.()).toBe(true);
    expect(numbers()).toContainEqual(["0.0001 to 0.001", "64", 40, 0.25, 700, 0.5, 0, 1, 30, 4, 0, 5]);
    expect(numbers()).toContainEqual(["0.001 to 0.01", "32", 2, undefined, undefined, undefined, 0, 0, 0, 0, 0, 2]);
    expect(heatmap("width", "lr").numbers()).toContainEqual(["64", "0.0001 to 0.001", 40, 0.25, 700, 0.5, 0, 1, 30, 4, 0, 5]);
  });

  test("a brush, and a pair that the kernel has not counted, show the sample, as they say", () => {
    const { view, brush, numbers } = heatmap("lr", "width");
    brush.set({ width: [0.5, 1] });
    expect(numbers().reduce((sum, row) => sum + Number(row[2]), 0)).toBe(6);
    expect([numbers()[0][0], view.isOfAll?.()]).toEqual(["0.0001 to 0.001", false]); // the bins stay under the pointer
    brush.clear();
    expect([numbers()[0][2], view.isOfAll?.()]).toEqual([40, true]);
    expect(heatmap("lr", "momentum").view.isOfAll?.()).toBe(false);
  });

  test("a value that the page does not know shows the sample", () => {
    const cells = { ...known, bins: { ...known.bins, width: { values: [[32], [4096]] } } };
    const { view, numbers } = heatmap("lr", "width", { cells });
    expect(view.isOfAll?.()).toBe(false);
    expect(numbers().reduce((sum, row) => sum + Number(row[2]), 0)).toBe(12);
  });
});
