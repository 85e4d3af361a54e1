// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { curveRows } from "../../src/chart/chart.js";
import { Curves, linesOf } from "../../src/chart/curves.js";
import { MEAN } from "../../src/comm/frames.js";
import { asCsv, asSvg, ExportBar, keysOf } from "../../src/export/figures.js";

const THEME = { ink: "#111111", surface: "#ffffff", font: "sans-serif" };
/** @param {Partial<import("../../src/export/figures.js").Figure>} [more] @returns {import("../../src/export/figures.js").Figure} */
const figure = (more) => ({ title: "loss", width: 200, height: 100, keys: [], paint: (canvas) => canvas.fillRect(1, 2, 3, 4), rows: [["step"], [1]], ...more });
const parsed = (/** @type {string} */ svg) => new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;

test("the curves are saved with their exact values, and no name becomes a formula", () => {
  const curves = new Curves();
  curves.apply([], [
    { replica: 0, series: 0, steps: [1, 2], values: [0.5, NaN] },
    { replica: MEAN, series: 0, steps: [1, 2], values: [0.5, 0.25] },
  ]);
  const shared = /** @type {any} */ ({ curves, labels: ["worker 0"], options: { byTime: true, log: true, smoothing: 0.9, chosen: 0 }, lines: (/** @type {any} */ plan, /** @type {any} */ options) => linesOf(curves, plan, options) });
  const rows = asCsv(curveRows({ title: '=loss, "of all"', train: 0, validation: null }, shared)).trimEnd().split("\n");
  expect(rows.every((row) => row.startsWith(`"'=loss, ""of all""",`))).toBe(true);
  expect(rows.filter((row) => row.endsWith(",2,0.25"))).toHaveLength(1);
  expect(rows.filter((row) => row.endsWith(",2,NaN"))).toHaveLength(1);
});

test("a picture has the keys of the caption", () => {
  const caption = document.createElement("figcaption");
  caption.innerHTML = '<span class="nbd-chart-title">loss</span><span class="nbd-legend"><span class="nbd-key" style="--tone: #1a66b8"><i></i><span>mean</span><b>0.25</b></span>' +
    '<span class="nbd-key nbd-key-validation" style="--tone: red"><i></i><span>validation</span><b></b></span></span><span>3 of 9 lines are drawn</span><span hidden>none</span>';
  expect(keysOf(caption)).toEqual([{ tone: "#1a66b8", text: "mean 0.25" }, { tone: "red", text: "validation", dashed: true }, { text: "3 of 9 lines are drawn" }]);
});

test("a picture as SVG has each figure under its title, and keys in as many lines as they need", () => {
  const keys = Array.from({ length: 4 }, (_, i) => ({ text: `worker ${i}, the mean`, tone: "#1a66b8" }));
  const svg = parsed(asSvg([figure({ keys }), figure({ title: "a < b & c" })], THEME, "run"));
  const texts = [...svg.querySelectorAll("text")].map((one) => [one.textContent, Number(one.getAttribute("y"))]);
  expect(texts.map(([text]) => text)).toEqual(["loss", ...keys.map(({ text }) => text), "a < b & c"]);
  const lines = new Set(texts.slice(0, 5).map(([, y]) => y));
  expect(lines.size).toBeGreaterThan(1);
  expect(svg.querySelectorAll('rect[x="1"][y="2"]')).toHaveLength(2);
  expect(svg.querySelector("title")?.textContent).toBe("run");
});

describe("the buttons", () => {
  /** @type {{ name: string, blob: Blob }[]} */
  let saved = [];

  beforeEach(() => {
    saved = [];
    /** @type {Blob} */
    let last;
    vi.spyOn(URL, "createObjectURL").mockImplementation((blob) => (last = /** @type {Blob} */ (blob), "blob:1"));
    vi.spyOn(HTMLAnchorElement.prototype, "click").mockImplementation(/** @this {HTMLAnchorElement} */ function () {
      saved.push({ name: this.download, blob: last });
    });
  });
  afterEach(() => vi.restoreAllMocks());

  test("save all figures, or the selected one", async () => {
    const figures = /** @type {Record<string, any>} */ ({ loss: figure(), "a/b": figure({ title: "a/b", rows: [["x"], [2]] }), hidden: null });
    const bar = new ExportBar({ titles: () => Object.keys(figures), figure: (title) => figures[title], rows: (some) => [["of all"], [some.length]], name: () => "run-7", theme: () => THEME }, "all charts");
    bar.draw();
    const press = (/** @type {string} */ text) => [...bar.element.querySelectorAll("button")].find((one) => one.textContent === text)?.click();
    press("Save CSV");
    press("Save SVG");
    bar.select.value = "a/b";
    bar.draw();
    press("Save CSV");
    press("Save SVG");
    expect(saved.map(({ name }) => name)).toEqual(["run-7.csv", "run-7.svg", "run-7-a-b.csv", "run-7-a-b.svg"]);
    const [all, pictures, one, picture] = await Promise.all(saved.map(({ blob }) => blob.text()));
    expect([all, one]).toEqual(["of all\n2\n", "x\n2\n"]);
    const titles = (/** @type {string} */ svg) => [...parsed(svg).querySelectorAll("text")].map((text) => text.textContent);
    expect([titles(pictures), titles(picture)]).toEqual([["loss", "a/b"], ["a/b"]]);
  });
});
