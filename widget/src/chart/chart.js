// One chart: uPlot has the axes, the cursor and the selection; the lines are drawn by drawLines below.
import uPlot from "uplot";
import { EPOCHS, MEAN } from "../comm/frames.js";
import { make, setText } from "../dom/elements.js";
import { COLOURED, replicaColour } from "../dom/theme.js";
import { keysOf } from "../export/figures.js";
import { formatCount, formatExact, formatTick, formatValue } from "../text/format.js";
import { annotationPositions, annotationsAt, annotationText, drawAnnotations } from "./annotations.js";
import { epochAt, lineLabel, nearestIndex, RUN_GLYPHS } from "./curves.js";
import { domainX, domainY, panned, panToShow, within, zoomed } from "./domain.js";
import { Readout } from "./readout.js";
import { linearTicks, logTicks } from "./ticks.js";

/** @typedef {import("./curves.js").Line} Line */
/** @typedef {import("./curves.js").ChartSpec} ChartSpec */
/** @typedef {import("./curves.js").Options} Options */
/** @typedef {import("./curves.js").Curves} Curves */
/** @typedef {import("../dom/theme.js").Colours} Colours */
/**
 * The data that the charts of one view share.
 * @typedef {object} Shared
 * @property {Curves} curves
 * @property {Options} options
 * @property {string[]} labels of replicas
 * @property {Colours} colours
 * @property {string} table id of the table with the same data
 * @property {string} sync name of the group whose cursors move together
 * @property {import("../text/format.js").Unit} unit
 * @property {() => import("./across.js").Across} across what the x axis has
 * @property {(plan: ChartSpec, options: Options) => Line[]} lines of a chart, in drawing order
 * @property {import("./annotations.js").Annotation[]} annotations
 * @property {(range: [number, number] | null) => void} zoom show this range of x in all charts
 * @property {[number, number] | null} zoomed
 */
/** @typedef {{ x: (v: number) => number, y: (v: number) => number, left: number, top: number, width: number, height: number, ratio: number }} Plot */
/** @typedef {uPlot.Axis & { _splits?: number[] | null, _values?: string[] | null }} DrawnAxis with the positions and texts of its labels, as uPlot keeps them */

const ASPECT = 0.52;
const [LOWEST, HIGHEST] = [180, 300];
const HELP = "Drag to zoom, Shift and drag to pan, double-click to show all. " +
  "Keys: arrows move the cursor, + and − zoom, Page Up and Page Down pan, 0 shows all.";

/** The tooltip of the value beside a key. */
const TOOLTIPS = /** @type {Record<string, string>} */ ({
  train: "Averaged over neighbouring steps (and all replicas); the pale lines are single steps",
  chosen: "This replica, averaged over neighbouring steps",
  validation: "On the validation data",
});

export class Chart {
  /** @param {ChartSpec} plan @param {Shared} shared */
  constructor(plan, shared) {
    this.plan = plan;
    this.shared = shared;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {number | null} */
    this.at = null; // the x under the cursor
    this.legend = make("div", { class: "nbd-legend" });
    this.readout = new Readout();
    this.box = make("div", { class: "nbd-plot", tabindex: "0", role: "application", "aria-roledescription": "chart", "aria-description": HELP }, this.readout.element);
    this.box.setAttribute("aria-details", shared.table);
    this.liveRegion = make("span", { class: "nbd-spoken", role: "status" });
    this.element = make("figure", { class: "nbd-chart" },
      make("figcaption", {}, make("span", { class: "nbd-chart-title", title: HELP }, plan.title), this.legend), this.box, this.liveRegion);
    this.active = false; // this chart has the pointer or the focus; the cursors of the others follow
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("pointermove", () => (this.active = true));
    this.box.addEventListener("pointerleave", () => this.leave());
    this.box.addEventListener("blur", () => this.leave());
    /** @type {uPlot | undefined} */
    this.plot = undefined;
  }

  /** Draws the current points. @param {number} width in CSS pixels */
  draw(width) {
    this.lines = this.shared.lines(this.plan, this.shared.options);
    const height = Math.max(LOWEST, Math.min(HIGHEST, Math.round(width * ASPECT)));
    if (!this.plot) {
      this.plot = new uPlot(this.uplotOptions(width, height), [[0, 1], [0, 1]], this.box);
    } else if (this.plot.width !== width || this.plot.height !== height) {
      this.plot.setSize({ width, height });
    }
    this.plot.axes[0].label = this.shared.across().label;
    this.plot.setData([[0, 1], [0, 1]]); // makes uPlot call our range functions
    this.write();
  }

  leave() {
    this.active = false;
    this.plot?.setCursor({ left: -10, top: -10 });
    this.readout.hide();
  }

  close() {
    this.plot?.destroy();
  }

  /** @param {number} width @param {number} height @returns {uPlot.Options} */
  uplotOptions(width, height) {
    const { shared } = this;
    const axis = () => ({
      stroke: () => shared.colours.muted,
      grid: { stroke: () => shared.colours.grid, width: 1 },
      ticks: { show: false },
      font: `11px ${getComputedStyle(this.box).fontFamily}`,
    });
    return {
      width, height,
      padding: [8, 20, 0, 0], // right: half of a label such as 1000 or 12.5k at the end of the axis
      legend: { show: false },
      cursor: {
        sync: { key: shared.sync, scales: ["x", null] },
        drag: { x: true, y: false, setScale: false },
        points: { show: false },
        y: false,
        bind: {
          dblclick: () => () => (shared.zoom(null), null),
          mousedown: (plot, _, handler) => (event) => (event.shiftKey ? this.pan(plot, event) : handler(event)),
        },
      },
      scales: { x: { time: false, range: () => this.shownDomain() }, y: { range: () => domainY(this.lines, this.shownDomain(), shared.options.log) } },
      axes: [
        { ...axis(), size: 24, gap: 4, space: 60, label: shared.across().label, labelSize: 16, labelGap: 0, labelFont: axis().font,
          values: (_, ticks) => ticks.map(shared.across().tick) },
        { ...axis(), size: 52, gap: 4, space: 32,
          splits: (plot, _, low, high, step, space) => shared.options.log
            ? logTicks(low, high, Math.max(2, Math.floor(plot.bbox.height / devicePixelRatio / space)))
            : linearTicks(low, high, step),
          values: (_, ticks) => ticks.map((tick) => formatTick(shared.options.log ? 10 ** tick : tick)) },
      ],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      hooks: {
        draw: [(plot) => this.paint(plot.ctx, this.plotOn(plot, devicePixelRatio))],
        setCursor: [(plot) => this.onCursor(plot)],
        setScale: [(plot, scale) => scale === "x" && this.onCursor(plot)], // other points are under the cursor now
        setSelect: [(plot) => this.onSelect(plot)],
      },
    };
  }

  /** @returns {[number, number]} */
  shownDomain() {
    return this.shared.zoomed ?? this.fullDomain();
  }

  /** @returns {[number, number]} */
  fullDomain() {
    return domainX(this.lines);
  }

  /** The area of the lines on a canvas. @param {uPlot} plot @param {number} ratio pixels of the canvas for each CSS pixel @returns {Plot} */
  plotOn(plot, ratio) {
    const [left, top, width, height] = [plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height].map((length) => (length * ratio) / devicePixelRatio);
    const [x0, x1] = [plot.scales.x.min ?? 0, plot.scales.x.max ?? 1];
    const [y0, y1] = [plot.scales.y.min ?? 0, plot.scales.y.max ?? 1];
    const { log } = this.shared.options;
    return {
      left, top, width, height, ratio,
      x: (v) => left + ((v - x0) / (x1 - x0)) * width,
      y: (v) => top + (1 - ((log ? Math.log10(v) : v) - y0) / (y1 - y0)) * height,
    };
  }

  /** @param {CanvasRenderingContext2D} canvas @param {Plot} on */
  paint(canvas, on) {
    const { annotations, colours } = this.shared;
    if (annotations.length) drawAnnotations(canvas, on, annotations, this.annotationXs(), colours);
    drawLines(canvas, on, this.lines, colours);
  }

  /** The chart for a file; null while it is not drawn. @returns {import("../export/figures.js").Figure | null} */
  exported() {
    const { plot } = this;
    if (!plot) return null;
    const paint = (/** @type {CanvasRenderingContext2D} */ canvas) => {
      const on = this.plotOn(plot, 1);
      const family = getComputedStyle(this.box).fontFamily;
      drawAxes(canvas, on, /** @type {DrawnAxis[]} */ (plot.axes), this.shared, family);
      this.paint(canvas, on);
    };
    return { title: this.plan.title, width: plot.width, height: plot.height, keys: keysOf(this.legend), paint, rows: [CURVE_HEADINGS, ...curveRows(this.plan, this.shared)] };
  }

  annotationXs() {
    return annotationPositions(this.shared.annotations, this.shared.curves, this.shared.options.byTime);
  }

  /** The text of the marks under the cursor. @param {uPlot} plot */
  annotationText(plot) {
    const { annotations } = this.shared;
    if (!annotations.length || this.at === null) return "";
    const [x0, x1] = this.shownDomain();
    return annotationText(annotationsAt(annotations, this.annotationXs(), this.at, (x1 - x0) / Math.max(1, plot.over.clientWidth)));
  }

  /** @param {uPlot} plot */
  onCursor(plot) {
    const left = plot.cursor.left ?? -1;
    this.at = left < 0 ? null : plot.posToVal(left, "x");
    this.write();
  }

  /** @param {uPlot} plot */
  onSelect(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.shared.zoom(within([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")], this.fullDomain()));
  }

  /** Moves the shown range with the pointer. @param {uPlot} plot @param {MouseEvent} event */
  pan(plot, event) {
    const shown = this.shownDomain();
    const perPixel = (shown[1] - shown[0]) / plot.over.clientWidth;
    const move = (/** @type {MouseEvent} */ { clientX }) =>
      this.shared.zoomed && this.shared.zoom(panned(shown, (event.clientX - clientX) * perPixel, this.fullDomain()));
    document.addEventListener("mousemove", move);
    document.addEventListener("mouseup", () => document.removeEventListener("mousemove", move), { once: true });
    return null;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { plot } = this;
    const mainLine = this.mainLine();
    if (!plot || !mainLine || event.ctrlKey || event.metaKey || event.altKey) return;
    const shown = this.shownDomain();
    const fullDomain = this.fullDomain();
    const middle = this.at ?? (shown[0] + shown[1]) / 2;
    const half = (shown[1] - shown[0]) / 2;
    const here = nearestIndex(mainLine.xs, this.at ?? shown[1]);
    const count = event.shiftKey ? 10 : 1;
    const last = mainLine.xs.length - 1;
    const moves = /** @type {Record<string, () => void>} */ ({
      ArrowLeft: () => this.goTo(mainLine, here - count), ArrowRight: () => this.goTo(mainLine, here + count),
      Home: () => this.goTo(mainLine, 0), End: () => this.goTo(mainLine, last),
      PageUp: () => this.shared.zoom(panned(shown, -half, fullDomain)), PageDown: () => this.shared.zoom(panned(shown, half, fullDomain)),
      "+": () => this.shared.zoom(zoomed(shown, middle, 0.5, fullDomain)), "-": () => this.shared.zoom(zoomed(shown, middle, 2, fullDomain)),
      0: () => this.shared.zoom(null), Escape: () => this.shared.zoom(null),
    });
    const act = moves[event.key === "=" ? "+" : event.key];
    if (!act) return;
    act();
    event.preventDefault();
    event.stopPropagation(); // the notebook binds the same keys
  }

  /** Moves the cursor to a step. @param {number} step */
  goToStep(step) {
    const [x] = annotationPositions([{ step, kind: "", text: "" }], this.shared.curves, this.shared.options.byTime);
    this.goToX(x);
  }

  /** Moves the cursor to a point of the line. @param {Line} mainLine @param {number} index */
  goTo(mainLine, index) {
    this.goToX(mainLine.xs[Math.max(0, Math.min(mainLine.xs.length - 1, index))]);
  }

  /** Moves the cursor, and the shown range with it. @param {number} x */
  goToX(x) {
    this.active = true;
    const place = () => {
      this.plot?.setCursor({ left: this.plot.valToPos(x, "x"), top: 10 });
      setText(this.liveRegion, this.box.getAttribute("aria-label") ?? "");
    };
    if (!this.shared.zoomed) return place();
    this.shared.zoom(panToShow(this.shared.zoomed, x, this.fullDomain()));
    requestAnimationFrame(place); // all charts have the new range then
  }

  /** The colour of a line's key. @param {Line} line */
  tone({ kind, replica }) {
    const { colours } = this.shared;
    if (kind === "run" || kind === "run-validation") return replicaColour(colours, replica, COLOURED);
    if (kind !== "chosen") return kind === "validation" ? colours.second : colours.accent;
    const count = this.lines.filter((line) => line.kind === "points").length;
    return count > COLOURED ? colours.ink : replicaColour(colours, replica, count);
  }

  /** The line that the cursor follows. */
  mainLine() {
    return this.lines.find((line) => line.kind === "train") ?? this.lines.find((line) => line.kind === "validation" || line.kind === "run") ?? this.lines[0];
  }

  /** Writes the values under the cursor, or the latest ones, to the legend, the readout and the label. */
  write() {
    const { one } = this.shared.unit;
    const shown = this.lines.filter((line) => line.kind !== "points" && line.kind !== "trend");
    const entries = shown.map((line) => {
      const index = this.at === null ? line.xs.length - 1 : nearestIndex(line.xs, this.at);
      const [tone, kind, step] = [this.tone(line), line.kind, line.steps[index]];
      return { tone, kind, step, x: line.xs[index], y: line.ys[index], label: lineLabel(line, this.shared.labels) };
    });
    this.writeLegend(entries.map((entry) => ({ ...entry, value: formatValue(entry.y) })));
    const [mainLine] = entries;
    const epoch = mainLine?.step === undefined ? null : epochAt(mainLine.step, this.shared.curves.get(MEAN, EPOCHS));
    const at = mainLine?.step === undefined ? "no points yet" : `${one} ${formatCount(mainLine.step)}${epoch === null ? "" : `, epoch ${formatCount(epoch)}`}`;
    const values = entries.map(({ label, y }) => `${label} ${formatValue(y)}`).join(", ");
    this.box.setAttribute("aria-label", `${this.plan.title} by ${one}; at ${at}: ${values}`);

    const { plot } = this;
    if (!plot || this.at === null || !this.active || !mainLine) return this.readout.hide();
    const place = [this.shared.across().place(mainLine.x, at), this.annotationText(plot)].filter(Boolean).join(" · ");
    this.readout.show(place, entries.map(({ tone, kind, label, y, step }) => ({
      tone, kind, label, value: formatExact(y), where: step === mainLine.step ? "" : `${one} ${formatCount(step)}`,
    })), ...this.aside(plot, entries));
  }

  /** What the readout describes, and the lines beside which it stands. @param {uPlot} plot @param {{ x: number, y: number }[]} points @returns {[import("./readout.js").Place, import("./readout.js").Outline[]]} */
  aside(plot, points) {
    const on = this.plotOn(plot, 1);
    const x = on.left + (plot.cursor.left ?? 0);
    const ys = points.map(({ y }) => on.y(y)).filter(Number.isFinite);
    const [top, bottom] = ys.length ? [Math.min(...ys), Math.max(...ys)] : [on.top, on.top];
    const shown = this.lines.filter(({ kind }) => kind !== "points" && kind !== "trend");
    const labels = { xs: [on.left, on.left + on.width], ys: [on.top + on.height + 10, on.top + on.height + 10] };
    return [{ x, y: top, height: bottom - top }, [labels, ...shown.map((line) => ({ xs: line.xs.map(on.x), ys: line.ys.map(on.y) }))]];
  }

  /** @param {{ tone: string, kind: string, label: string, value: string }[]} entries */
  writeLegend(entries) {
    while (this.legend.children.length > entries.length) this.legend.lastChild?.remove();
    entries.forEach((entry, i) => {
      const item = /** @type {HTMLElement} */ (this.legend.children[i]) ?? this.legend.appendChild(make("span", {}, make("i"), make("span"), make("b")));
      item.style.setProperty("--tone", entry.tone);
      item.className = `nbd-key nbd-key-${entry.kind}`;
      item.title = TOOLTIPS[entry.kind] ?? "";
      setText(item.children[1], entry.label);
      setText(item.children[2], entry.value);
    });
  }
}

// What a file of a chart has: its axes, which uPlot draws on the page only, and its points.

const CURVE_HEADINGS = ["chart", "curve", "kind", "step", "value"];

/** @param {CanvasRenderingContext2D} canvas @param {Plot} on in CSS pixels @param {DrawnAxis[]} axes @param {Shared} shared @param {string} family of the font */
function drawAxes(canvas, on, [across, up], { colours, options }, family) {
  canvas.font = `11px ${family}`;
  const [right, bottom] = [on.left + on.width, on.top + on.height];
  const each = (/** @type {DrawnAxis} */ axis, /** @type {(value: number, text: string) => void} */ draw) => axis._splits?.forEach((value, i) => draw(value, String(axis._values?.[i] ?? "")));
  each(across, (value, text) => {
    const x = on.x(value);
    canvas.fillStyle = colours.grid;
    canvas.fillRect(x - 0.5, on.top, 1, on.height);
    canvas.fillStyle = colours.muted;
    canvas.textAlign = "center";
    canvas.textBaseline = "top";
    canvas.fillText(text, x, bottom + 4);
  });
  each(up, (value, text) => {
    const y = on.y(options.log ? 10 ** value : value);
    canvas.fillStyle = colours.grid;
    canvas.fillRect(on.left, y - 0.5, right - on.left, 1);
    canvas.fillStyle = colours.muted;
    canvas.textAlign = "right";
    canvas.textBaseline = "middle";
    canvas.fillText(text, on.left - 4, y);
  });
  canvas.textAlign = "center";
  canvas.textBaseline = "top";
  canvas.fillText(String(across.label ?? ""), on.left + on.width / 2, bottom + 24);
}

/** The points of a chart's curves, without smoothing; a step in which several replicas have points is a row for each.
 * @param {ChartSpec} plan @param {Shared} shared @returns {(string | number)[][]} */
export function curveRows(plan, shared) {
  const options = { ...shared.options, byTime: false, smoothing: 0, chosen: null };
  return shared.lines(plan, options).flatMap((line) => {
    const label = lineLabel(line, shared.labels);
    return line.steps.map((step, i) => [plan.title, label, line.kind, step, line.ys[i]]);
  });
}

// Draws the lines of one chart on a canvas.

const MOST_MARKERS = 40; // points below which each gets a marker
const MARKER_SPACING = 48; // CSS pixels between the markers of a chosen line

/**
 * @param {CanvasRenderingContext2D} canvas
 * @param {Plot} plot
 * @param {Line[]} lines
 * @param {Colours} colours
 */
export function drawLines(canvas, plot, lines, colours) {
  const replicas = Math.max(1, lines.filter((line) => line.kind === "points").length);
  const few = replicas <= COLOURED;
  const chosen = lines.find((line) => line.kind === "chosen");
  canvas.save();
  canvas.beginPath();
  canvas.rect(plot.left, plot.top, plot.width, plot.height);
  canvas.clip();
  canvas.lineJoin = "round";
  for (const line of lines) {
    const { kind } = line;
    const isChosen = kind === "chosen" || (kind === "points" && line.replica === chosen?.replica);
    canvas.globalAlpha = kind === "points" ? pointOpacity(replicas, isChosen) : kind === "trend" && !few ? trendOpacity(replicas) : 1;
    canvas.lineWidth = plot.ratio * { points: 1, trend: few ? 1.25 : 1, train: 2.5, validation: 2, chosen: 2, run: 2, "run-validation": 1.75 }[kind];
    canvas.setLineDash(kind.endsWith("validation") ? [6 * plot.ratio, 4 * plot.ratio] : []);
    canvas.strokeStyle =
      kind === "run" || kind === "run-validation" ? replicaColour(colours, line.replica, COLOURED)
      : kind === "validation" ? colours.second
      : kind === "train" ? colours.accent
      : isChosen ? (few ? replicaColour(colours, line.replica, replicas) : colours.ink)
      : kind === "trend" ? replicaColour(colours, line.replica, replicas)
      : replicas === 1 ? colours.accent
      : colours.fan;
    strokeLine(canvas, plot, line);
    if (kind === "validation") drawMarkers(canvas, plot, line, colours);
    if (kind === "chosen") drawDiamonds(canvas, plot, line);
    if (kind === "run" || kind === "run-validation") drawGlyphs(canvas, plot, line);
    canvas.globalAlpha = 1;
    if (kind !== "points" && kind !== "trend") drawNonFinite(canvas, plot, line, colours);
  }
  canvas.restore();
}

/** The opacity of points, lower with more replicas, so that their sum stays pale. @param {number} replicas @param {boolean} chosen */
function pointOpacity(replicas, chosen) {
  return chosen || replicas === 1 ? 0.17 : Math.max(0.02, 0.28 / replicas);
}

/** The opacity of one of many trends. @param {number} replicas */
function trendOpacity(replicas) {
  return Math.max(0.15, 6 / replicas);
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line */
function strokeLine(canvas, plot, { xs, ys }) {
  canvas.beginPath();
  let pen = false;
  for (let i = 0; i < xs.length; i++) {
    const y = plot.y(ys[i]);
    if (!Number.isFinite(y)) {
      pen = false; // a gap, where the value is not a number
    } else if (pen) {
      canvas.lineTo(plot.x(xs[i]), y);
    } else {
      canvas.moveTo(plot.x(xs[i]), y);
      // A point with a gap on both sides would not be visible.
      if (!Number.isFinite(plot.y(ys[i + 1]))) canvas.lineTo(plot.x(xs[i]) + 1, y);
      pen = true;
    }
  }
  canvas.stroke();
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line @param {Colours} colours */
function drawMarkers(canvas, plot, { xs, ys }, colours) {
  if (xs.length > MOST_MARKERS) return;
  canvas.setLineDash([]);
  canvas.fillStyle = colours.surface;
  for (let i = 0; i < xs.length; i++) {
    const y = plot.y(ys[i]);
    if (!Number.isFinite(y)) continue;
    canvas.beginPath();
    canvas.arc(plot.x(xs[i]), y, 3 * plot.ratio, 0, 2 * Math.PI);
    canvas.fill();
    canvas.stroke();
  }
}

/** Markers at intervals, so that a line can be recognized without its colour.
 * @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line */
function drawDiamonds(canvas, plot, { xs, ys }) {
  const r = 4 * plot.ratio;
  let last = -Infinity;
  canvas.fillStyle = canvas.strokeStyle;
  canvas.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const [x, y] = [plot.x(xs[i]), plot.y(ys[i])];
    if (!Number.isFinite(y) || x < plot.left || x - last < MARKER_SPACING * plot.ratio) continue;
    last = x;
    canvas.moveTo(x, y - r);
    canvas.lineTo(x + r, y);
    canvas.lineTo(x, y + r);
    canvas.lineTo(x - r, y);
    canvas.closePath();
  }
  canvas.fill();
}

const GLYPH_SPACING = 96; // CSS pixels between the glyphs of a run's line

/** The glyph of a run at intervals, which differ from those of other runs. @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line */
function drawGlyphs(canvas, plot, { xs, ys, replica }) {
  canvas.fillStyle = canvas.strokeStyle;
  canvas.font = `${10 * plot.ratio}px sans-serif`;
  canvas.textAlign = "center";
  canvas.textBaseline = "middle";
  const spacing = GLYPH_SPACING * plot.ratio;
  let next = plot.left + (spacing * ((replica * 3) % RUN_GLYPHS.length)) / RUN_GLYPHS.length;
  for (let i = 0; i < xs.length; i++) {
    const [x, y] = [plot.x(xs[i]), plot.y(ys[i])];
    const last = i === xs.length - 1;
    if (!Number.isFinite(y) || (x < next && !last)) continue;
    canvas.fillText(RUN_GLYPHS[replica % RUN_GLYPHS.length], x, y);
    while (next <= x) next += spacing;
  }
}

/** A cross at the upper edge for every value that is not finite.
 * @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line @param {Colours} colours */
function drawNonFinite(canvas, plot, { xs, ys }, colours) {
  const r = 3.5 * plot.ratio;
  const y = plot.top + r + 2 * plot.ratio;
  let last = -Infinity;
  canvas.setLineDash([]);
  canvas.lineWidth = 1.5 * plot.ratio;
  canvas.strokeStyle = colours.bad;
  canvas.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const x = plot.x(xs[i]);
    if (Number.isFinite(ys[i]) || x - last < 4 * r) continue;
    last = x;
    canvas.moveTo(x - r, y - r);
    canvas.lineTo(x + r, y + r);
    canvas.moveTo(x - r, y + r);
    canvas.lineTo(x + r, y - r);
  }
  canvas.stroke();
}
