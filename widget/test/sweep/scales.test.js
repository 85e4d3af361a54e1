import { describe, expect, test } from "vitest";
import { colormapFor, oklch, shadeIndex } from "../../src/sweep/figures/colormap.js";
import { choiceScale, numberScale, scaleOf, stepFor } from "../../src/sweep/figures/scales.js";
import { valueKey } from "../../src/sweep/model.js";

/** @param {any} parameter @param {any[]} [seen] */
const scale = (parameter, seen = []) => scaleOf({ name: "p", text: "", when: null, ...parameter }, seen);

describe("positions of values", () => {
  test("are linear or logarithmic, and invertible", () => {
    const even = scale({ kind: "uniform", low: 0, high: 4 });
    expect([0, 1, 4].map(even.position)).toEqual([0, 0.25, 1]);
    expect(even.value(0.25)).toBe(1);
    const log = scale({ kind: "log", low: 1e-4, high: 1 });
    expect(log.position(0.01)).toBeCloseTo(0.5);
    expect(log.value(0.75)).toBeCloseTo(0.1);
    const whole = scale({ kind: "int", low: 1, high: 9 });
    expect(whole.value(0.26)).toBe(3);
    expect(scale({ kind: "int", low: 16, high: 256, log: true }).position(64)).toBeCloseTo(0.5);
  });

  test("are NaN without a value", () => {
    for (const one of [scale({ kind: "uniform", low: 0, high: 1 }), scale({ kind: "choice", values: ["a"] })]) expect(one.position(undefined)).toBeNaN();
    expect(scale({ kind: "uniform", low: 0, high: 1 }).position(NaN)).toBeNaN();
  });

  test("include values outside the space, as after an edit or in a clone", () => {
    expect([0.5, 2].map(scale({ kind: "uniform", low: 0, high: 1 }, [0.5, 2, undefined]).position)).toEqual([0.25, 1]);
    expect(scale({ kind: "log", low: 0.1, high: 1 }, [0.001]).position(0.001)).toBe(0);
    expect(scale({ kind: "log", low: 0.1, high: 1 }, [-1]).position(1)).toBe(1); // no logarithm of that
    const choice = scale({ kind: "choice", values: ["b", "a"] }, ["c", "a", undefined]);
    expect(choice.values).toEqual(["b", "a", "c"]);
  });

  test("exist for a parameter that was removed from the space", () => {
    expect(scaleOf(undefined, [1e-5, 0.1]).position(1e-3)).toBeCloseTo(0.5);
    expect(scaleOf(undefined, [1, 3]).position(2)).toBeCloseTo(0.5);
    expect(scaleOf(undefined, ["x", 2]).values).toEqual([2, "x"]);
    expect(scaleOf(undefined, []).position(1)).toBeNaN();
    expect(scale({ kind: "uniform", low: 0, high: 1 }, ["text", 0.5]).values).toEqual([0.5, "text"]); // its kind was another once
  });

  test("are in the middle if there is only one value", () => {
    expect(numberScale(3, 3, false).position(3)).toBe(0.5);
    expect(numberScale(3, 3, false).ticks(5)).toEqual([{ position: 0.5, text: "3" }]);
    expect(scale({ kind: "fixed", values: [20] }).position(20)).toBe(0.5);
  });

  test("1 and True and the text 1 are three choices, and lists are values", () => {
    const choice = choiceScale([1, true, "1", [32, 16], null], []);
    expect([1, true, "1", [32, 16], null].map((value) => choice.position(value) * 5)).toEqual([0.5, 1.5, 2.5, 3.5, 4.5]);
    expect(choice.ticks(9).map(({ text }) => text)).toEqual(["1", "True", "1", "(32, 16)", "None"]);
    expect(new Set([1, true, "1"].map(valueKey)).size).toBe(3);
  });
});

describe("ticks and ranges", () => {
  test("ticks are round values, at most as many as fit", () => {
    expect(scale({ kind: "uniform", low: 0, high: 0.6 }).ticks(6).map(({ text }) => text)).toEqual(["0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6"]);
    expect(scale({ kind: "log", low: 1e-4, high: 0.1 }).ticks(5).map(({ text }) => text)).toEqual(["0.0001", "0.001", "0.01", "0.1"]);
    expect(scale({ kind: "int", low: 1, high: 4 }).ticks(9).map(({ text }) => text)).toEqual(["1", "2", "3", "4"]);
    expect(stepFor(10, 4, false)).toBe(5);
  });

  test("a range keeps its values when the axis grows", () => {
    const before = scale({ kind: "uniform", low: 0, high: 1 });
    const after = scale({ kind: "uniform", low: 0, high: 1 }, [2]);
    expect(after.span(before.part(0.5, 0.75))).toEqual([0.25, 0.375]);
    expect(after.span(before.part(0.5, 1))).toEqual([0.25, 1]); // an open end stays open
    const few = choiceScale(["a", "b"], []);
    expect(choiceScale(["a", "b"], ["c", "d"]).span(few.part(0.5, 1))).toEqual([0.25, 0.5]);
    expect(choiceScale(["x"], []).span(few.part(0, 1))).toEqual([0, 0]); // the values were removed
  });

  test("a range is described", () => {
    const even = scale({ kind: "uniform", low: 0, high: 1 });
    expect([even.describe(0, 1), even.describe(0, 0.5), even.describe(0.25, 1), even.describe(0.25, 0.5)]).toEqual(["all", "≤ 0.5", "≥ 0.25", "0.25 to 0.5"]);
    expect(choiceScale(["a", "b", "c"], []).describe(1 / 3, 1)).toBe("b, c");
  });
});

describe("colours", () => {
  test("go in even steps from the lightness of the page to the strongest contrast", () => {
    const light = (/** @type {string} */ css) => (css.match(/\d+/g) ?? []).reduce((sum, one, i) => sum + [0.2126, 0.7152, 0.0722][i] * Number(one) ** 2.2, 0);
    for (const dark of [false, true]) {
      const { css, ink } = colormapFor(dark);
      const shades = css.map(light);
      expect(shades).toEqual(shades.toSorted((a, b) => (dark ? a - b : b - a)));
      expect(new Set(ink)).toEqual(new Set(["#101014", "#ffffff"]));
    }
    expect([shadeIndex(-1), shadeIndex(0), shadeIndex(1), shadeIndex(2)]).toEqual([0, 0, 63, 63]);
  });

  test("are those of OKLCH", () => {
    expect(oklch(1, 0, 0).map((one) => Math.round(255 * one))).toEqual([255, 255, 255]);
    expect(oklch(0.628, 0.2577, 29.23).map((one) => Math.round(255 * one))).toEqual([255, 0, 0]);
  });
});
