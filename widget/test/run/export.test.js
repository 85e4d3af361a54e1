// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { Curves } from "../../src/chart/curves.js";
import { MEAN } from "../../src/comm/frames.js";
import { curvesAsCsv, keysOf } from "../../src/run/export.js";

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

test("the picture has the legend", () => {
  const legend = document.createElement("div");
  legend.innerHTML = '<span class="nbd-key" style="--tone: #1a66b8"><i></i><span>mean</span><b>0.25</b></span><span class="nbd-key"><i></i><span>validation</span><b></b></span>';
  expect(keysOf(legend)).toEqual([{ tone: "#1a66b8", text: "mean 0.25" }, { tone: "", text: "validation" }]);
});
