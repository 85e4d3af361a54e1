// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { Curves } from "../../src/chart/curves.js";
import { MEAN } from "../../src/comm/frames.js";
import { curvesAsCsv } from "../../src/run/export.js";

test("the curves are saved with their exact values, and no name becomes a formula", () => {
  const curves = new Curves();
  curves.apply([], [
    { replica: 0, series: 0, steps: [1, 2], values: [0.5, NaN] },
    { replica: MEAN, series: 0, steps: [1, 2], values: [0.5, 0.25] },
  ]);
  const shared = /** @type {any} */ ({ curves, labels: ["worker 0"], options: { byTime: true, log: true, smoothing: 0.9, chosen: 0 } });
  const [head, ...rows] = curvesAsCsv([{ title: '=loss, "of all"', train: 0, validation: null }], shared).trimEnd().split("\n");
  expect(head).toBe("chart,curve,kind,step,value");
  expect(rows.every((row) => row.startsWith(`"'=loss, ""of all""",`))).toBe(true);
  expect(rows.filter((row) => row.endsWith(",2,0.25"))).toHaveLength(1);
});
