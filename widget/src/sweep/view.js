// The page of a sweep: combines the views and redraws the changed ones, at most once per animation frame.
import { button } from "../dom/buttons.js";
import { make, setText } from "../dom/elements.js";
import { captureKeys } from "../dom/keyboard.js";
import { readColours } from "../dom/theme.js";
import { ExportBar } from "../export/figures.js";
import { formatCount } from "../text/format.js";
import { CommandChannel } from "./commands.js";
import { makeBestSoFar } from "./figures/best.js";
import { Brush } from "./figures/brush.js";
import { colormapFor } from "./figures/colormap.js";
import { makeLearningCurves } from "./figures/curves.js";
import { makeHeatmap } from "./figures/heatmap.js";
import { makeParallel } from "./figures/parallel.js";
import { TrialPositions } from "./figures/positions.js";
import { makeTimeline } from "./figures/timeline.js";
import { Header } from "./header.js";
import { SweepModel } from "./model.js";
import { makeTrialPanel } from "./panel.js";
import { FINAL_STATES } from "./states.js";
import { makeTable, trialRows } from "./table.js";

/** @typedef {{ element: HTMLElement, draw: () => void, destroy: () => void }} View */
/** @typedef {View & { exported: () => import("../export/figures.js").Figure | null, isOfAll?: () => boolean }} FigureView a figure that can be saved; `isOfAll` where it may show all trials though those here are a sample */

const COLORMAPS = { light: colormapFor(false), dark: colormapFor(true) };
const HIDDEN_FRAMES = 30; // for which a page without a width is checked again: JupyterLab hides it while it changes its theme
const AROUND = "200px"; // figures this near to the visible area are drawn
const FONT_SIZE = 11; // CSS pixels, on canvases

export class SweepView {
  /** @param {string} name unique in the page @param {((kind: string, more?: Record<string, unknown>) => void) | null} send null where no kernel receives commands */
  constructor(name, send) {
    this.model = new SweepModel();
    this.commands = new CommandChannel(null);
    this.pending = 0;
    this.hiddenFrames = HIDDEN_FRAMES;
    const ask = this.commands.ask.bind(this.commands);
    const positions = (this.positions = new TrialPositions(this.model));
    const brush = (this.brush = new Brush(this.model, positions));
    this.header = new Header(this.model, name, ask);
    this.element = make("section", { class: "nbdist-sweep", "aria-label": "Sweep" });
    /** @type {import("./figures/figure.js").FigureTheme} */
    this.theme = { colours: readColours(this.element), colormap: COLORMAPS.light, font: `${FONT_SIZE}px sans-serif` };
    const options = { positions, brush, theme: this.theme, table: `${name}-trials` };
    const [parallel, heatmap, best, curves, timeline, table] = [makeParallel(this.model, options), makeHeatmap(this.model, options),
      makeBestSoFar(this.model), makeLearningCurves(this.model), makeTimeline(this.model), makeTable(this.model, options)];
    const panel = makeTrialPanel(this.model, { name, ask });
    const titled = { "Parallel coordinates": parallel, "Heat map": heatmap, "Learning curves": curves, "Best so far": best, Engines: timeline };
    /** @type {Map<string, FigureView>} */
    const figures = new Map(Object.entries(titled));
    this.exports = new ExportBar({
      titles: () => [...figures.keys()],
      figure: (title) => figures.get(title)?.exported() ?? null,
      rows: () => trialRows(this.model, positions),
      name: () => this.model.head?.id || this.model.head?.name || "sweep",
      theme: () => ({ ...this.theme.colours, font: getComputedStyle(this.element).fontFamily }),
    }, "all figures");
    /** @type {View[]} */
    this.views = [parallel, heatmap, best, curves, timeline, table, panel];
    this.brushStatus = make("span", { role: "status" });
    this.clear = button("Show all", "Clear the brush", () => brush.clear());
    this.hint = make("span", {}, "Drag along an axis to brush"); // its line is always reserved, so that nothing moves under the pointer
    this.brushed = make("div", { class: "nbs-brushing" }, this.brushStatus, this.hint, this.clear);
    this.figures = make("div", { class: "nbs-figures-area", role: "group", "aria-label": "Figures" },
      make("div", { class: "nbs-wide" }, this.brushed, parallel.element), heatmap.element, curves.element, best.element, timeline.element,
      make("div", { class: "nbs-wide" }, this.exports.element));
    this.body = make("div", { class: "nbs-body" }, this.figures, panel.element, table.element);
    this.body.hidden = true;
    this.element.append(this.header.element, this.body);
    this.connect(send);
    this.samples = [...figures.values()].map((figure) => {
      const sample = make("span", { class: "nbd-legend" });
      figure.element.querySelector("figcaption")?.append(sample);
      return { figure, sample };
    });
    /** @type {Set<Element>} */
    this.unseen = new Set(); // figures outside the visible area are not drawn; table and panel always are, for screen readers
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.unseen[isIntersecting ? "delete" : "add"](target);
      if (entries.some(({ isIntersecting }) => isIntersecting)) this.redraw();
    }, { rootMargin: AROUND });
    for (const { element } of [parallel, heatmap, best, curves, timeline]) this.watch.observe(element);
    this.releaseKeys = captureKeys(this.element);
    this.unsubscribe = [
      this.model.on("data", () => this.onData()),
      this.model.on(["chosen", "hovered", "brushed"], () => this.redraw()),
    ];
  }

  /** Sends the commands by `send` from now on; null hides them. @param {((kind: string, more?: Record<string, unknown>) => void) | null} send */
  connect(send) {
    this.commands.connect(send);
    this.element.classList.toggle("nbs-without-commands", !send);
  }

  onData() {
    this.positions.invalidate();
    if (this.brush.parts.size) this.brush.refresh();
    this.redraw();
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.model.head) return;
    this.element.setAttribute("aria-label", `Sweep ${this.model.head.name}`);
    this.header.draw();
    this.body.hidden = false;
    this.readTheme();
    const { brushed, brushedCount, count, of, sampled } = this.model;
    setText(this.brushStatus, brushed ? `${formatCount(brushedCount)} of ${formatCount(count)} trials: ${this.brush.describe()}` : "");
    this.exports.draw();
    this.brushed.classList.toggle("nbs-idle", !brushed);
    this.clear.hidden = !brushed;
    this.hint.hidden = Boolean(brushed);
    for (const view of this.views) if (!this.unseen.has(view.element)) view.draw();
    for (const { figure, sample } of this.samples) setText(sample, sampled && !figure.isOfAll?.() ? `a sample: ${formatCount(count)} of ${formatCount(of)} trials` : "");
    if (this.element.clientWidth > 0) this.hiddenFrames = HIDDEN_FRAMES;
    else if (this.hiddenFrames-- > 0) this.redraw(); // hidden: retry in the next frame, since no event reports the end
  }

  /** Reads the theme again: canvases do not follow it automatically. */
  readTheme() {
    const style = getComputedStyle(this.element);
    this.theme.colours = readColours(this.element);
    this.theme.font = `${FONT_SIZE}px ${style.fontFamily}`;
    this.theme.colormap = isLight(style.color) ? COLORMAPS.dark : COLORMAPS.light; // light text means a dark page
  }

  /** Shows that the kernel has ended; the figures stay. */
  disconnect() {
    const { status, head } = this.model;
    this.commands.failAll();
    if (!status || FINAL_STATES.includes(status.state)) return;
    this.model.status = { ...status, state: "disconnected", trouble: head?.again || "the kernel is not running" };
    this.redraw();
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.watch.disconnect();
    for (const off of this.unsubscribe) off();
    for (const view of this.views) view.destroy();
    this.releaseKeys();
  }
}

/** @param {string} color as a browser computes it */
function isLight(color) {
  const [red, green, blue] = (color.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
}
