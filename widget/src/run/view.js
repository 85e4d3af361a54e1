// The view of a run: combines its parts and redraws the changed ones, at most once per animation frame.
import { AnnotationList } from "../chart/annotations.js";
import { OVER_TIME, overSteps } from "../chart/across.js";
import { ChartGrid } from "../chart/grid.js";
import { Curves, lineLabel, linesOf } from "../chart/curves.js";
import { extent, valuesWithin } from "../chart/domain.js";
import { make } from "../dom/elements.js";
import { captureKeys } from "../dom/keyboard.js";
import { readColours } from "../dom/theme.js";
import { ExportBar } from "../export/figures.js";
import { formatCount, formatValue, shortTask, stepUnit } from "../text/format.js";
import { GpuSection } from "./gpus.js";
import { FINAL_STATES, Header } from "./header.js";
import { InputSection } from "./input.js";
import { Output } from "./output.js";
import { PictureSection } from "./pictures.js";
import { ReplicaCards } from "./replicas.js";
import { ChartPicker, ChartToolbar } from "./toolbar.js";

/** @typedef {import("../chart/curves.js").ChartSpec} ChartSpec */
/** @typedef {{ title: string, run: string, tasks: string[], total: number | null, controls?: string[], again?: string, charts: ChartSpec[], series: string[] }} Head */
/** @typedef {(kind: string, more?: Record<string, unknown>) => void} Send sends a message to the kernel */
/**
 * @typedef {object} Message
 * @property {"frame"} kind
 * @property {boolean} snapshot
 * @property {Head} [head]
 * @property {Record<string, any>} [progress]
 * @property {import("./output.js").OutputUpdate[]} [output]
 * @property {import("./toolbar.js").Available} [available]
 * @property {import("../chart/annotations.js").Annotation[]} [marks]
 * @property {unknown} [gpus] of the replicas, over time
 * @property {unknown} [pictures] of the run's summaries
 * @property {[number, number][]} replaced
 */
/** @typedef {{ byTime: boolean, log: boolean, smoothing: number, chosen: number | null, table: boolean }} ViewSettings */

const NO_CHARTS = { titles: [], count: 0, most: 0 }; // to choose from
const TABLE_EVERY = 500; // milliseconds

export class RunView {
  /** @param {string} name unique in the page @param {Send} send */
  constructor(name, send) {
    /** @type {Head} */
    this.head = { title: "", run: "", tasks: [], total: null, charts: [], series: [] };
    /** @type {Record<string, any>} */
    this.progress = {};
    this.pending = 0;
    this.tableDue = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.tableTimer = undefined;
    this.element = make("section", { class: "nbdist-live", "aria-label": "Training run" });
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
      across: () => (this.shared.options.byTime ? OVER_TIME : overSteps(this.shared.unit)),
      lines: (plan, options) => linesOf(this.shared.curves, plan, options),
    };
    this.header = new Header(name, (kind, rate) => send(kind, rate === null ? {} : { learning_rate: rate }));
    this.picker = new ChartPicker(name, (titles) => send("charts", { titles }));
    /** @type {import("./toolbar.js").Available} */
    this.available = NO_CHARTS;
    this.replicas = new ReplicaCards((replica) => {
      this.shared.options.chosen = replica;
      this.keepSettings();
      this.redraw();
    });
    this.input = new InputSection();
    this.gpus = new GpuSection();
    /** @type {unknown} */
    this.gpusOverTime = [];
    this.pictures = new PictureSection();
    /** @type {unknown} */
    this.summaries = [];
    this.output = new Output(name);
    this.exports = new ExportBar({
      titles: () => this.head.charts.map(({ title }) => title),
      figure: (title) => this.charts.find(({ plan }) => plan.title === title)?.exported() ?? null,
      rows: (figures) => figures.flatMap(({ rows }, i) => rows.slice(i ? 1 : 0)),
      name: () => this.head.run || this.head.title || "run",
      theme: () => ({ ...this.shared.colours, font: getComputedStyle(this.element).fontFamily }),
    }, "all charts");
    this.table = new DataTable(this.shared, this.exports.element);
    this.toolbar = new ChartToolbar(this.shared.options, () => (this.keepSettings(), this.redraw()), () => this.zoom(null), this.picker.element);
    this.grid = new ChartGrid(this.shared);
    this.annotations = new AnnotationList((step) => this.charts[0]?.goToStep(step));
    this.figures = make("div", { class: "nbd-figures-area", role: "group", "aria-label": "Curves" },
      this.toolbar.element, this.grid.element, this.annotations.element, this.table.element);
    this.figures.hidden = true;
    this.table.element.addEventListener("toggle", () => (this.keepSettings(), this.table.show(this.head.charts)));
    this.releaseKeys = captureKeys(this.element);
    this.element.append(this.header.element, this.figures, this.pictures.element, this.replicas.element, this.input.element, this.gpus.element, this.output.element);
  }

  /** @param {Message} message @param {import("../comm/frames.js").CurveSegment[]} segments */
  apply(message, segments) {
    if (message.head) {
      const known = this.head.run;
      this.head = message.head;
      if (this.head.run !== known) this.restoreSettings();
      this.shared.labels = this.head.tasks.map(shortTask);
      this.shared.curves.clear(); // the numbers of the series may have changed
      this.makeCharts();
    }
    if (message.snapshot) this.output.clear();
    if (message.progress) this.progress = message.progress;
    if (message.gpus) this.gpusOverTime = message.gpus;
    if (message.pictures) this.summaries = message.pictures;
    if (message.marks) this.shared.annotations = message.marks;
    this.shared.curves.apply(message.replaced, segments);
    if (message.available) this.available = { ...this.available, ...message.available };
    this.output.setTabbed(this.head.charts.length > 0);
    if (message.output) this.output.add(message.output, this.head.tasks);
    this.redraw();
  }

  /** The kernel has ended; the drawn curves stay. */
  disconnect() {
    if (FINAL_STATES.includes(this.progress.state)) return;
    this.progress = { ...this.progress, state: "disconnected", note: this.head.again || "the kernel has ended" };
    this.redraw();
  }

  get charts() {
    return this.grid.charts;
  }

  makeCharts() {
    if (!this.grid.setPlans(this.head.charts)) return;
    this.figures.hidden = this.charts.length === 0;
    this.exports.draw();
  }

  /** Applies the stored view settings of the run. */
  restoreSettings() {
    const { table, ...options } = loadSettings(this.head.run);
    if (this.toolbar.time.hidden) delete options.byTime; // a saved run has no times
    Object.assign(this.shared.options, options);
    this.toolbar.show(this.shared.options);
    this.replicas.setChosen(this.shared.options.chosen);
    if (table !== undefined) this.table.element.open = table;
  }

  keepSettings() {
    saveSettings(this.head.run, { ...this.shared.options, table: this.table.element.open });
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
    this.shared.unit = stepUnit(this.progress.unit, this.head.tasks.length);
    this.header.show(this.head, this.progress);
    this.annotations.show(this.shared.annotations, this.shared.unit.one);
    const choosable = this.progress.state === "disconnected" ? NO_CHARTS : this.available;
    this.picker.show(choosable, this.head.charts.map(({ title }) => title));
    this.replicas.show(this.progress.per_replica ?? {}, this.shared.labels);
    this.input.show(this.progress.input, this.head.tasks.length);
    this.gpus.show(this.gpusOverTime, this.shared.labels, FINAL_STATES.includes(this.progress.state), this.head.tasks.length);
    this.pictures.show(this.summaries);
    if (this.grid.draw()) this.showTable();
  }

  /** Writes the table, at most every TABLE_EVERY milliseconds. */
  showTable() {
    const wait = this.tableDue - performance.now();
    clearTimeout(this.tableTimer);
    if (wait > 0) this.tableTimer = setTimeout(() => this.showTable(), wait);
    else {
      this.tableDue = performance.now() + TABLE_EVERY;
      this.table.show(this.head.charts);
    }
  }

  close() {
    cancelAnimationFrame(this.pending);
    clearTimeout(this.tableTimer);
    this.picker.open(false);
    this.releaseKeys();
    this.grid.close();
  }
}

// The charts as a table, for screen readers and for exact values.

const HEADINGS = (/** @type {string} */ one) => ["curve", "latest", `at ${one}`, "lowest", "highest", "points"];

export class DataTable {
  /** @param {import("../chart/chart.js").Shared} shared @param {HTMLElement} exports saves the charts */
  constructor(shared, exports) {
    this.shared = shared;
    this.body = make("tbody");
    this.head = make("tr");
    this.element = make("details", { class: "nbd-data", id: shared.table }, make("summary", {}, "Data table"), exports,
      make("div", { class: "nbd-scroll", tabindex: "0", role: "group", "aria-label": "Data table" },
        make("table", {}, make("caption", {}, "The curves of the charts above"), make("thead", {}, this.head), this.body)));
    this.unit = "";
  }

  /** Writes the table if it is open. @param {import("../chart/curves.js").ChartSpec[]} plans */
  show(plans) {
    if (!this.element.open) return;
    if (this.unit !== this.shared.unit.one) {
      this.unit = this.shared.unit.one;
      this.head.replaceChildren(...HEADINGS(this.unit).map((text) => make("th", { scope: "col" }, text)));
    }
    const options = { ...this.shared.options, byTime: false, smoothing: 0, chosen: null };
    this.body.replaceChildren(...plans.flatMap((plan) =>
      linesOf(this.shared.curves, plan, options).filter(({ kind }) => kind !== "trend").map((line) => {
        const range = extent([valuesWithin(line, [-Infinity, Infinity])]);
        const last = line.ys.length - 1;
        return make("tr", {}, make("th", { scope: "row" }, `${plan.title}, ${lineLabel(line, this.shared.labels)}`),
          ...[formatValue(line.ys[last]), formatCount(line.steps[last]), formatValue(range?.[0]),
            formatValue(range?.[1]), formatCount(line.ys.length)].map((text) => make("td", {}, text)));
      })));
  }
}

// A user's view settings of a run, kept in the browser by the run's id: they survive the end of the run and a reload.

const KEY = "nbdist-looks";
const MOST = 60; // runs; the oldest is removed

/** @returns {Record<string, Partial<ViewSettings>>} */
function all() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {}; // the storage may be unavailable, or contain data of another program
  }
}

/** The stored settings of a run. @param {string} run @returns {Partial<ViewSettings>} */
export function loadSettings(run) {
  const found = run && Object.hasOwn(all(), run) ? all()[run] : {};
  /** @type {Partial<ViewSettings>} */
  const look = {};
  if (!found || typeof found !== "object") return look;
  if (typeof found.byTime === "boolean") look.byTime = found.byTime;
  if (typeof found.log === "boolean") look.log = found.log;
  if (typeof found.table === "boolean") look.table = found.table;
  if (typeof found.smoothing === "number" && found.smoothing >= 0 && found.smoothing < 1) look.smoothing = found.smoothing;
  if (Number.isInteger(found.chosen)) look.chosen = found.chosen;
  return look;
}

/** Stores the settings of a run. @param {string} run @param {ViewSettings} look */
export function saveSettings(run, look) {
  if (!run) return;
  const { [run]: _, ...others } = all();
  const kept = Object.entries(others).slice(1 - MOST);
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...Object.fromEntries(kept), [run]: look }));
  } catch {
    // The storage is unavailable or full; the settings are optional.
  }
}
