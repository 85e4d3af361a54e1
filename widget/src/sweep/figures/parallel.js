// Parallel coordinates: an axis for each parameter and one for the metric, a line for each trial. Lines are drawn
// into cached layers; the trials under the pointer, chosen or brushed are drawn over them.
import { plainEntry, Readout } from "../../chart/readout.js";
import { make, setText } from "../../dom/elements.js";
import { keysOf } from "../../export/figures.js";
import { formatCount, formatValue } from "../../text/format.js";
import { formatParameter, parametersOf } from "../format.js";
import { drawGlyphs, FAILED, FINISHED, PRUNED, STATES, STOPPED } from "../states.js";
import { trialRows } from "../table.js";
import { AxisBrush } from "./brush.js";
import { pixelRatio, resizeCanvas, truncateText } from "./canvas.js";
import { shadeIndex } from "./colormap.js";
import { METRIC } from "./positions.js";
import { clamp } from "./scales.js";

/** @typedef {import("./positions.js").Axis} Axis */
/** @typedef {{ xs: number[], at: Float32Array[], top: number, height: number, none: number }} LineGeometry where axes stand, where trials lie on them, and the height of those without a value */

const HELP = "Drag along an axis to brush it, click the brush to remove it; click a line to choose its trial. " +
  "Keys on an axis: up and down move the brush, with Shift its upper end, Escape removes it.";
const [TOP, HEIGHT, NONE, BOTTOM] = [30, 210, 18, 12]; // CSS pixels: names, axes, the place of missing values below them, bottom margin
const TALL = TOP + HEIGHT + NONE + BOTTOM;
const [LEFT, RIGHT, NEAREST] = [44, 58, 66]; // CSS pixels: left margin, right margin, least distance between two axes
const MOST_AXES = 30;
const [MOST_SHOWN, MOST_UNBRUSHED] = [500, 400]; // lines drawn: more of them look the same and take longer
const FEW = 60; // lines up to which they are wide: lines of one pixel are drawn ten times as fast
const REDRAW_EVERY = 1000; // milliseconds
const REACH = 8; // CSS pixels around a line within which the pointer hits it
const NAMED = 8; // parameters in the readout

/** @param {import("../model.js").SweepModel} model @param {import("./figure.js").SharedOptions} options @returns {import("../view.js").FigureView} */
export function makeParallel(model, options) {
  const unbrushedLayer = new CachedLayer();
  const shownLayer = new CachedLayer();
  /** @type {number[]} */
  let rows = []; // highlighted rows
  /** @type {LineGeometry} */
  let lines = { xs: [], at: [], top: TOP, height: HEIGHT, none: TOP + HEIGHT + NONE };
  /** @type {AxisBrush[]} */
  const brushes = [];
  let brushCount = 0;
  let drawn = -1; // the version of the drawn trials
  let due = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  /** @type {Uint8Array | null} */
  let mask = null;
  const note = make("span", { class: "nbs-note" });
  const surface = make("canvas", { "aria-hidden": "true" });
  const readout = new Readout();
  const axes = make("div", { class: "nbs-axes" });
  const inner = make("div", { class: "nbs-inner" }, surface, axes);
  const box = make("div", { class: "nbs-across", role: "group", "aria-label": "Parallel coordinates: an axis for each parameter", "aria-description": HELP, "aria-details": options.table }, inner);
  const frame = make("div", { class: "nbs-plot" }, box, readout.element);
  const caption = make("figcaption", {}, make("span", { class: "nbd-chart-title", title: HELP }, "Parallel coordinates"),
    make("span", { class: "nbd-legend" }, key("finished"), key("pruned", "nbs-dashed"), key("failed", "nbs-failed"), note));
  const element = make("figure", { class: "nbd-chart nbs-parallel" }, caption, frame);
  surface.addEventListener("pointermove", onPointerMove);
  surface.addEventListener("pointerleave", leave);
  surface.addEventListener("click", (event) => model.choose(trialUnder(event)));

  function draw() {
    const width = box.clientWidth;
    if (width === 0 || !model.head) return;
    const shown = axesShown();
    const whole = Math.max(width, LEFT + RIGHT + NEAREST * (shown.length - 1));
    const step = (whole - LEFT - RIGHT) / Math.max(1, shown.length - 1);
    lines = { ...lines, xs: shown.map((_, i) => LEFT + i * step), at: shown.map(({ at }) => at) };
    const canvas = resizeCanvas(surface, whole, TALL);
    inner.style.height = `${TALL}px`;
    placeBrushes(shown, step);
    if (!canvas) return;
    if (mask !== model.brushed) [mask, brushCount] = [model.brushed, brushCount + 1];
    paint(canvas, whole, shown, unbrushedLayer, shownLayer);
    const count = model.brushed ? model.brushedCount : model.count;
    setText(note, rows.length < count ? `${formatCount(rows.length)} of ${formatCount(count)} lines are drawn` : "");
  }

  function exported() {
    draw();
    const whole = RIGHT + (lines.xs.at(-1) ?? LEFT);
    const shown = axesShown();
    const onCanvas = (/** @type {CanvasRenderingContext2D} */ canvas) => {
      const layer = new DirectLines(canvas);
      paint(canvas, whole, shown, layer, layer);
      drawNames(canvas, shown);
    };
    const keys = keysOf(caption);
    return lines.xs.length ? { title: "Parallel coordinates", width: whole, height: TALL, keys, paint: onCanvas, rows: trialRows(model, options.positions) } : null;
  }

  /** @param {CanvasRenderingContext2D} canvas @param {number} whole its width @param {Axis[]} shown @param {CachedLayer | DirectLines} unbrushed @param {CachedLayer | DirectLines} plain */
  function paint(canvas, whole, shown, unbrushed, plain) {
    const scene = [versionNow(), whole, pixelRatio(), shown.map(({ name }) => name), options.theme.colormap.css[0], options.theme.colours.muted].join("\n");
    drawLayers(scene, whole, unbrushed, plain);
    if (model.brushed) unbrushed.drawOnto(canvas, whole, TALL);
    plain.drawOnto(canvas, whole, TALL);
    drawFailed(canvas);
    drawAxes(canvas, shown);
    drawHighlighted(canvas, model.hovered, 1.5);
    drawHighlighted(canvas, model.chosen, 2.5);
    drawTicks(canvas, shown);
  }

  /** Draws what the page has as elements: the names of the axes and the brushed parts. @param {CanvasRenderingContext2D} canvas @param {Axis[]} shown */
  function drawNames(canvas, shown) {
    const { colours, font } = options.theme;
    const step = lines.xs.length > 1 ? lines.xs[1] - lines.xs[0] : lines.xs[0];
    canvas.textAlign = "center";
    canvas.textBaseline = "alphabetic";
    shown.forEach(({ name, title }, i) => {
      canvas.font = font.replace("11px", name === METRIC ? "700 12px" : "500 12px");
      canvas.fillStyle = colours.ink;
      canvas.fillText(truncateText(canvas, title, Math.max(40, step - 6)), lines.xs[i], 15);
      const span = options.brush.span(name);
      if (!span) return;
      canvas.strokeStyle = canvas.fillStyle = colours.accent;
      canvas.lineWidth = 1.5;
      const [x, y, width, height] = [lines.xs[i] - 8, TOP + (1 - span[1]) * HEIGHT, 16, (span[1] - span[0]) * HEIGHT];
      canvas.globalAlpha = 0.26;
      canvas.fillRect(x, y, width, height);
      canvas.globalAlpha = 1;
      canvas.strokeRect(x, y, width, height);
    });
  }

  /** The version of the drawn lines. If not all trials are drawn, new trials redraw them at most once a second. */
  function versionNow() {
    const { version } = options.positions;
    const wait = due - performance.now();
    clearTimeout(later);
    if (version !== drawn && model.count > MOST_SHOWN && wait > 0) later = setTimeout(draw, wait);
    else if (version !== drawn) [drawn, due] = [version, performance.now() + REDRAW_EVERY];
    return drawn;
  }

  /** The axes of parameters that differ between trials, and the metric's axis. @returns {Axis[]} */
  function axesShown() {
    const { positions } = options;
    const axes = positions.names().map((name) => positions.axis(name));
    const varied = axes.filter(({ scale }) => !scale.values || scale.values.length > 1);
    return [...varied.slice(0, MOST_AXES), positions.axis(METRIC)];
  }

  /** @param {string} scene what the lines depend on, but for the brush @param {number} width @param {CachedLayer | DirectLines} unbrushed @param {CachedLayer | DirectLines} plain */
  function drawLayers(scene, width, unbrushed, plain) {
    const { positions, theme } = options;
    if (model.brushed) {
      unbrushed.draw(scene, width, TALL, (canvas) => {
        canvas.strokeStyle = theme.colours.muted;
        const rows = sampleRows(positions.ranked(), null, model.number, MOST_UNBRUSHED);
        canvas.lineWidth = 1 / pixelRatio();
        canvas.globalAlpha = clamp(20 / rows.length, 0.08, 0.3);
        for (const row of rows) {
          canvas.beginPath();
          tracePath(canvas, lines, row);
          canvas.stroke();
        }
      });
    }
    plain.draw(`${scene}\n${brushCount}`, width, TALL, (canvas) => {
      rows = sampleRows(positions.ranked(), model.brushed, model.number, MOST_SHOWN);
      canvas.lineWidth = rows.length > FEW ? 1 / pixelRatio() : 1.5;
      canvas.globalAlpha = clamp(150 / rows.length, 0.45, 0.9);
      drawLines(canvas, lines, rows, model, (row) => positions.quality(row), theme);
    });
  }

  /** @param {CanvasRenderingContext2D} canvas @param {Axis[]} shown */
  function drawAxes(canvas, shown) {
    const { xs } = lines;
    canvas.fillStyle = options.theme.colours.muted;
    for (const x of xs) canvas.fillRect(x - 0.5, TOP, 1, HEIGHT);
    drawRamp(canvas, xs[shown.length - 1], options.theme.colormap);
  }

  /** Draws the labels last, with a halo, so that they are legible over many lines. @param {CanvasRenderingContext2D} canvas @param {Axis[]} shown */
  function drawTicks(canvas, shown) {
    const { colours, font } = options.theme;
    const { xs, none } = lines;
    canvas.font = font;
    canvas.textAlign = "left";
    canvas.textBaseline = "middle";
    canvas.lineJoin = "round";
    canvas.strokeStyle = colours.surface;
    canvas.lineWidth = 4;
    const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) => {
      canvas.strokeText(text, x, y);
      canvas.fillStyle = colours.ink;
      canvas.fillText(text, x, y);
    };
    shown.forEach(({ scale, at }, i) => {
      const room = (xs[i + 1] ?? xs[i] + RIGHT) - xs[i] - 12;
      for (const { position, text } of thinTicks(scale.ticks(6), 13 / HEIGHT)) {
        const y = TOP + (1 - position) * HEIGHT;
        canvas.fillStyle = colours.muted;
        canvas.fillRect(xs[i] - 3, y - 0.5, 6, 1);
        write(truncate(text, room), xs[i] + 9, y);
      }
      if (at.some(Number.isNaN)) write("none", xs[i] + 9, none);
    });
  }

  /** Draws the metric's axis in its colours. @param {CanvasRenderingContext2D} canvas @param {number} x @param {import("./colormap.js").Colormap} colormap */
  function drawRamp(canvas, x, colormap) {
    const gradient = canvas.createLinearGradient(0, TOP, 0, TOP + HEIGHT);
    for (let i = 0; i <= 16; i++) gradient.addColorStop(i / 16, colormap.css[shadeIndex(options.positions.qualityAt(1 - i / 16))]);
    canvas.fillStyle = gradient;
    canvas.fillRect(x - 3, TOP, 6, HEIGHT);
  }

  /** Draws a cross at the metric's axis on each line of a failed trial. @param {CanvasRenderingContext2D} canvas */
  function drawFailed(canvas) {
    const { xs, at, top, height, none } = lines;
    const last = xs.length - 1;
    const positions = rows.filter((row) => model.state[row] === FAILED).slice(-60).flatMap((row) => {
      const y = last > 0 && !Number.isNaN(at[last - 1][row]) ? top + (1 - at[last - 1][row]) * height : none;
      const end = Number.isNaN(at[last][row]) ? none : top + (1 - at[last][row]) * height;
      return last > 0 ? [(xs[last - 1] + xs[last]) / 2, (y + end) / 2] : [];
    });
    if (positions.length) drawGlyphs(canvas, FAILED, positions, 4, options.theme.colours.bad);
  }

  /** @param {CanvasRenderingContext2D} canvas @param {number} number of a trial @param {number} width */
  function drawHighlighted(canvas, number, width) {
    const row = model.row(number);
    const { theme } = options;
    if (row < 0) return;
    canvas.lineJoin = "round";
    const stroke = (/** @type {string} */ color, /** @type {number} */ wide) => {
      canvas.strokeStyle = color;
      canvas.lineWidth = wide;
      canvas.beginPath();
      tracePath(canvas, lines, row);
      canvas.stroke();
    };
    stroke(theme.colours.surface, width + 3.5);
    stroke(theme.colours.ink, width);
    canvas.fillStyle = theme.colours.ink;
    canvas.beginPath();
    lines.xs.forEach((x, i) => {
      const position = lines.at[i][row];
      const y = Number.isNaN(position) ? lines.none : TOP + (1 - position) * HEIGHT;
      canvas.moveTo(x + width + 1, y);
      canvas.arc(x, y, width + 1, 0, 2 * Math.PI);
    });
    canvas.fill();
  }

  /** @param {Axis[]} shown @param {number} step */
  function placeBrushes(shown, step) {
    while (brushes.length > shown.length) brushes.pop()?.element.remove();
    shown.forEach((axis, i) => {
      const one = brushes[i] ?? (brushes[i] = new AxisBrush(options.brush));
      if (!one.element.isConnected) axes.append(one.element);
      one.show(axis, lines.xs[i], TOP, HEIGHT, step, model);
    });
  }

  /** @param {MouseEvent} event @returns {number} the trial under the pointer, or -1 */
  function trialUnder(event) {
    const { left, top } = surface.getBoundingClientRect();
    const row = nearestLine(lines, rows, event.clientX - left, event.clientY - top, REACH);
    return row < 0 ? -1 : model.number[row];
  }

  /** @param {PointerEvent} event */
  function onPointerMove(event) {
    const number = trialUnder(event);
    surface.style.cursor = number < 0 ? "" : "pointer";
    model.hover(number);
    const row = model.row(number);
    if (row < 0) return readout.hide();
    const { left, top } = frame.getBoundingClientRect();
    const page = surface.getBoundingClientRect();
    const line = outlineOf(lines, row);
    const outline = { xs: line.xs.map((x) => x + page.left - left), ys: line.ys.map((y) => y + page.top - top) };
    const { glyph, name } = STATES[model.state[row]];
    readout.show(`${glyph} trial ${number}, ${name}`, [plainEntry(model.head?.metric ?? "value", formatValue(model.value[row])),
      ...parametersOf(model, row).slice(0, NAMED).map(([parameter, value]) => plainEntry(parameter, formatParameter(value)))], { x: event.clientX - left, y: event.clientY - top }, [outline]);
  }

  function leave() {
    readout.hide();
    model.hover(-1);
  }

  function destroy() {
    clearTimeout(later);
    element.remove();
  }

  return { element, draw, exported, destroy };
}

/** A layer of lines, cached until its key changes. */
class CachedLayer {
  constructor() {
    this.surface = document.createElement("canvas");
    this.key = "";
  }

  /** @param {string} key @param {number} width @param {number} height CSS pixels @param {(canvas: CanvasRenderingContext2D) => void} paint */
  draw(key, width, height, paint) {
    if (key === this.key) return;
    this.key = key;
    const canvas = resizeCanvas(this.surface, width, height);
    if (canvas) paint(canvas);
  }

  /** @param {CanvasRenderingContext2D} canvas @param {number} width @param {number} height */
  drawOnto(canvas, width, height) {
    if (this.surface.width > 0) canvas.drawImage(this.surface, 0, 0, width, height);
  }
}

/** In place of a cached layer where the figure is drawn once, for a file. */
class DirectLines {
  /** @param {CanvasRenderingContext2D} canvas */
  constructor(canvas) {
    this.canvas = canvas;
  }

  /** @param {string} _key @param {number} _width @param {number} _height @param {(canvas: CanvasRenderingContext2D) => void} paint */
  draw(_key, _width, _height, paint) {
    this.canvas.save();
    paint(this.canvas);
    this.canvas.restore();
  }

  drawOnto() {}
}

/** Ticks with at least a distance of `apart`. @param {import("./scales.js").Tick[]} ticks @param {number} apart */
export function thinTicks(ticks, apart) {
  const size = Math.ceil(apart / Math.max(1e-9, Math.abs((ticks[1]?.position ?? 1) - (ticks[0]?.position ?? 0))));
  return ticks.filter((_, i) => i % size === 0);
}

/** @param {string} text @param {number} room CSS pixels */
function truncate(text, room) {
  const most = Math.max(3, Math.floor(room / 6));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

// The lines of parallel coordinates: selects the lines to draw and draws them in groups.

const GROUPS = 16; // groups of shades: the lines of a group are one path

/** Up to `most` rows: the best ones, and a sample of the others by hash, which new rows hardly change.
 * @param {number[]} ranked rows, the best first @param {Uint8Array | null} mask @param {Int32Array} number @param {number} most @returns {number[]} the best last */
export function sampleRows(ranked, mask, number, most) {
  const rows = mask ? ranked.filter((row) => mask[row]) : ranked;
  if (rows.length <= most) return rows.toReversed();
  const sure = most >> 3;
  const share = ((most - sure) / (rows.length - sure)) * 2 ** 32;
  return rows.filter((row, i) => i < sure || hashTrial(number[row]) < share).slice(0, most).reverse();
}

/** A hash from 0 to 2**32 of a trial's number. @param {number} number */
export function hashTrial(number) {
  let mixed = Math.imul(number ^ 0x9e3779b9, 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

/** Adds a row's line to the path. @param {CanvasRenderingContext2D} canvas @param {LineGeometry} lines @param {number} row */
export function tracePath(canvas, { xs, at, top, height, none }, row) {
  let [x, y] = [0, 0];
  for (let i = 0; i < xs.length; i++) {
    const position = at[i][row];
    const here = Number.isNaN(position) ? none : top + (1 - position) * height;
    if (i === 0) canvas.moveTo(xs[0], here);
    else {
      const middle = (x + xs[i]) / 2;
      canvas.bezierCurveTo(middle, y, middle, here, xs[i], here);
    }
    [x, y] = [xs[i], here];
  }
}

const PIECES = 8; // of a curve between two axes

/** A row's line as straight pieces. @param {LineGeometry} lines @param {number} row */
export function outlineOf(lines, row) {
  const { xs } = lines;
  const shares = Array.from({ length: PIECES }, (_, i) => i / PIECES);
  const places = xs.slice(1).flatMap((right, i) => shares.map((share) => ({ i, share, x: xs[i] + share * (right - xs[i]) })));
  return { xs: places.map(({ x }) => x), ys: places.map(({ i, share }) => heightAt(lines, row, i, easeAt(share))) };
}

/** The y of a row's line at an x. @param {LineGeometry} lines @param {number} row @param {number} segment that x lies on @param {number} ease of x, see `easeAt` */
export function heightAt({ at, top, height, none }, row, segment, ease) {
  const y = (/** @type {number} */ i) => (Number.isNaN(at[i][row]) ? none : top + (1 - at[i][row]) * height);
  return y(segment) + (y(segment + 1) - y(segment)) * ease;
}

/** The eased height, from 0 to 1, of a curve between two axes at a share of its width. @param {number} share */
export function easeAt(share) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 20; i++) {
    const t = (low + high) / 2;
    if (1.5 * t * (1 - t) + t ** 3 < share) low = t;
    else high = t;
  }
  return low * low * (3 - 2 * low);
}

/** The nearest of some rows' lines at a place, or -1. @param {LineGeometry} lines @param {ArrayLike<number>} rows @param {number} x @param {number} y @param {number} reach CSS pixels */
export function nearestLine(lines, rows, x, y, reach) {
  const { xs } = lines;
  const segment = Math.max(0, Math.min(xs.length - 2, xs.findIndex((right) => right > x) - 1));
  if (xs.length < 2 || x < xs[0] - reach || x > xs[xs.length - 1] + reach) return -1;
  const ease = easeAt(Math.max(0, Math.min(1, (x - xs[segment]) / (xs[segment + 1] - xs[segment]))));
  let [nearest, least] = [-1, reach];
  for (let i = rows.length - 1; i >= 0; i--) { // the best rows are on top
    const distance = Math.abs(heightAt(lines, rows[i], segment, ease) - y);
    if (distance < least) [nearest, least] = [rows[i], distance];
  }
  return nearest;
}

/**
 * Draws rows in the colours of their values, the last on top: pruned and stopped trials are dashed, trials without a value have the colour of their state.
 * @param {CanvasRenderingContext2D} canvas @param {LineGeometry} lines @param {number[]} rows
 * @param {{ state: Uint8Array }} model @param {(row: number) => number} quality
 * @param {import("./figure.js").FigureTheme} theme
 */
export function drawLines(canvas, lines, rows, model, quality, theme) {
  /** @type {Map<string, { color: string, dash: number[], rows: number[], rank: number }>} */
  const groups = new Map();
  for (const row of rows) {
    const state = model.state[row];
    const good = quality(row);
    const group = Number.isNaN(good) ? -1 : Math.round(good * (GROUPS - 1));
    const dashed = state === PRUNED || state === STOPPED;
    const key = group < 0 ? `state ${state}` : `${group} ${dashed}`;
    let one = groups.get(key);
    if (!one) {
      const color = group >= 0 ? theme.colormap.css[shadeIndex(group / (GROUPS - 1))] : state === FAILED ? theme.colours.bad : state === FINISHED ? theme.colours.muted : theme.colours.accent;
      groups.set(key, (one = { color, dash: dashed ? [4, 3] : [], rows: [], rank: group * 2 + (dashed ? 0 : 1) }));
    }
    one.rows.push(row);
  }
  for (const { color, dash, rows: some } of [...groups.values()].sort((a, b) => a.rank - b.rank)) {
    canvas.strokeStyle = color;
    canvas.setLineDash(dash);
    for (let from = 0; from < some.length; from += 64) { // one path with thousands of lines is slower than several shorter ones
      canvas.beginPath();
      for (const row of some.slice(from, from + 64)) tracePath(canvas, lines, row);
      canvas.stroke();
    }
  }
  canvas.setLineDash([]);
}

/** A figure's caption with its keys. @param {string} text @param {string} [kind] */
export function key(text, kind = "") {
  return make("span", { class: `nbd-key ${kind}` }, make("i"), make("span", {}, text));
}
