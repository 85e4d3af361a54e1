// The view of several runs: their curves over each other, what differs between them, their last and best metrics.
import { OVER_EPOCHS, OVER_TIME, overSteps } from "../chart/across.js";
import { Curves, RUN_GLYPHS, runLines } from "../chart/curves.js";
import { ChartGrid } from "../chart/grid.js";
import { make, setText } from "../dom/elements.js";
import { captureKeys } from "../dom/keyboard.js";
import { readColours, replicaColour } from "../dom/theme.js";
import { ExportBar } from "../export/figures.js";
import { ChartToolbar } from "../run/toolbar.js";
import { stepUnit } from "../text/format.js";
import { AxisSwitch } from "./axis.js";
import { DifferencesTable } from "./differences.js";

/** @typedef {import("./axis.js").By} By */
/** @typedef {{ id: string, name: string, status: string }} ComparedRun */
/** @typedef {{ run: number, by: By, steps: number[], values: number[] }} Axis where steps of a run are on an axis */
/** @typedef {{ name: string, texts: string[], best: number[] }} Row a text for each run, and the places of the best */
/**
 * @typedef {object} Comparison as nbdist/ui/compare/saved.py describes it; `replica` of a curve is the place of its run
 * @property {By} by
 * @property {ComparedRun[]} runs
 * @property {import("../chart/curves.js").ChartSpec[]} charts
 * @property {import("../comm/frames.js").CurveSegment[]} curves
 * @property {Axis[]} axes
 * @property {Row[]} differences
 * @property {Row[]} metrics
 */

const MANY = 4; // runs above which the charts have no keys of their own

export class CompareView {
  /** @param {string} name unique in the page */
  constructor(name) {
    /** @type {Comparison} */
    this.data = { by: "step", runs: [], charts: [], curves: [], axes: [], differences: [], metrics: [] };
    /** @type {By} */
    this.by = "step";
    this.first = true;
    /** @type {Set<number>} */
    this.hidden = new Set();
    this.pending = 0;
    this.element = make("section", { class: "nbdist-live nbd-comparison", "aria-label": "Comparison of runs" });
    /** @type {import("../chart/chart.js").Shared} */
    this.shared = {
      curves: new Curves(),
      options: { byTime: false, log: false, smoothing: 0, chosen: null },
      labels: [],
      colours: readColours(this.element),
      sync: name,
      table: `${name}-data`,
      annotations: [],
      zoomed: null,
      zoom: (range) => this.zoom(range),
      unit: stepUnit("steps", 1),
      across: () => (this.by === "time" ? OVER_TIME : this.by === "epoch" ? OVER_EPOCHS : overSteps(this.shared.unit)),
      lines: (plan, options) => runLines(this.shared.curves, this.placesOf(this.by), plan, options, this.hidden),
    };
    this.axis = new AxisSwitch((by) => this.show(by));
    this.legend = make("div", { class: "nbd-runs", role: "group", "aria-label": "Runs: press one to hide or show its curves" });
    this.toolbar = new ChartToolbar(this.shared.options, () => this.redraw(), () => this.zoom(null), this.axis.element, this.axis.element);
    this.grid = new ChartGrid(this.shared);
    this.exports = new ExportBar({
      titles: () => this.data.charts.map(({ title }) => title),
      figure: (title) => this.grid.charts.find(({ plan }) => plan.title === title)?.exported() ?? null,
      rows: (figures) => figures.flatMap(({ rows }, i) => rows.slice(i ? 1 : 0)),
      name: () => `comparison of ${this.data.runs.length} runs`,
      theme: () => ({ ...this.shared.colours, font: getComputedStyle(this.element).fontFamily }),
    }, "all charts");
    this.empty = make("p", { class: "nbd-note" }, "None of these runs has logged a metric.");
    this.leftOut = make("div", { class: "nbd-note", role: "status" });
    const saving = make("details", { class: "nbd-data" }, make("summary", {}, "Save figures"), this.exports.element);
    this.figures = make("div", { class: "nbd-figures-area", role: "group", "aria-label": "Curves" }, this.toolbar.element, this.leftOut, this.grid.element, saving);
    this.table = new DifferencesTable(this.shared.table);
    this.releaseKeys = captureKeys(this.element);
    this.element.append(this.legend, this.figures, this.empty, this.table.element);
  }

  /** Shows a comparison; the axis, hidden runs and zoom of the one before stay. @param {Comparison} data */
  apply(data) {
    this.data = data;
    if (this.first) this.by = data.by;
    this.first = false;
    if (!this.has(this.by)) this.by = "step";
    this.shared.labels = data.runs.map(({ name }, i) => `${RUN_GLYPHS[i % RUN_GLYPHS.length]} ${name}`);
    this.shared.curves.clear();
    this.shared.curves.apply([], data.curves);
    this.legend.replaceChildren(...data.runs.map((run, i) => this.key(run, i)));
    this.grid.setPlans(data.charts);
    this.figures.hidden = data.charts.length === 0;
    this.empty.hidden = data.charts.length > 0;
    this.exports.draw();
    this.redraw();
  }

  /** The button of a run, which hides and shows its curves. @param {ComparedRun} run @param {number} place */
  key({ id, name, status }, place) {
    const key = make("button", { class: "nbd-button nbd-run-key", type: "button", "aria-pressed": "true", title: `${id}, ${status}: hide or show its curves` },
      make("i", { "aria-hidden": "true" }, RUN_GLYPHS[place % RUN_GLYPHS.length]), make("span", {}, name));
    key.addEventListener("click", () => {
      if (!this.hidden.delete(place)) this.hidden.add(place);
      this.zoom(this.shared.zoomed);
    });
    return key;
  }

  /** Whether the curves of a run can be drawn over an axis. @param {By} by */
  has(by) {
    return by === "step" || this.data.axes.some((axis) => axis.by === by);
  }

  /** Draws the curves over an axis. @param {By} by */
  show(by) {
    this.by = by;
    this.zoom(null); // the zoomed range is in the other unit
  }

  /** Where steps are on an axis, by run. @param {By} by */
  placesOf(by) {
    if (by === "step") return null;
    /** @type {(Axis | undefined)[]} */
    const places = [];
    for (const axis of this.data.axes) if (axis.by === by) places[axis.run] = axis;
    return places;
  }

  /** Which runs are not drawn, because they lack the axis. */
  leftOutText() {
    const places = this.placesOf(this.by);
    if (!places) return "";
    const names = this.data.runs.filter((_, i) => !places[i] && this.data.curves.some(({ replica }) => replica === i)).map(({ name }) => name);
    return names.length ? `Without ${this.by === "epoch" ? "epochs" : "times"} on record, and not drawn: ${names.join(", ")}` : "";
  }

  /** @param {[number, number] | null} range */
  zoom(range) {
    this.shared.zoomed = range;
    this.toolbar.all.hidden = range === null;
    this.redraw();
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    const colours = readColours(this.element);
    const tones = this.data.runs.map((_, i) => replicaColour(colours, i, 1));
    this.axis.show(this.by, (by) => this.has(by));
    [...this.legend.children].forEach((key, i) => {
      /** @type {HTMLElement} */ (key).style.setProperty("--tone", tones[i]);
      key.setAttribute("aria-pressed", String(!this.hidden.has(i)));
    });
    this.element.classList.toggle("nbd-many-runs", this.data.runs.length - this.hidden.size > MANY);
    setText(this.leftOut, this.leftOutText());
    this.table.show(this.data, tones, this.hidden);
    this.grid.draw();
  }

  close() {
    cancelAnimationFrame(this.pending);
    this.releaseKeys();
    this.grid.close();
  }
}
