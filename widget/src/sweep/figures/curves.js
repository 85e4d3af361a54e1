// Learning curves of all trials: the best few and the chosen one are highlighted, brushed ones are plain, others faint.
// Plain and faint curves are drawn once, in parts; only highlighted ones are redrawn in every frame.
import { bisectRight } from "d3-array";
import { scaleLinear } from "d3-scale";
import { linearTicks } from "../../chart/ticks.js";
import { make, setText, setTexts } from "../../dom/elements.js";
import { formatCount, formatTick, formatValue } from "../../text/format.js";
import { drawGlyphs, FAILED, FINISHED, PRUNED, STATES } from "../states.js";
import { chartArea, chartHeight, drawXAxis, drawYAxis, isOutside, makeScale, robustScale, settled, valueTicks } from "./axes.js";
import { DirectLayer, Layer } from "./canvas.js";
import { clamp } from "./scales.js";
import { CanvasFigure, drawLabel, listNavigation, sameBrush } from "./figure.js";

/** @typedef {import("../model.js").SweepModel} SweepModel */
/** @typedef {import("../model.js").Curve} Curve */
/** @typedef {import("./figure.js").Drawing} Drawing */
/** @typedef {{ x: import("d3-scale").ScaleLinear<number, number>, y: import("./axes.js").Scale, area: import("./axes.js").Area }} Plot */

const BEST = 5;
const A_FRAME = 500; // curves drawn in one frame
const NEAR = 14; // CSS pixels around a curve within which the pointer hits it
const PALE = 0.4; // opacity of all curves beside brushed ones
const MARKED = 200; // trials up to which each curve ends in a glyph
const HELP = "Click a curve to choose its trial. Keys: arrows move to the next better or worse trial, Enter chooses, Escape clears the choice.";

/** @param {SweepModel} model @returns {import("../view.js").FigureView} */
export function makeLearningCurves(model) {
  return new LearningCurves(model);
}

class LearningCurves {
  /** @param {SweepModel} model */
  constructor(model) {
    this.model = model;
    this.extent = new CurveExtent();
    this.all = new CurveLayer();
    this.brushed = new CurveLayer();
    /** @type {number[]} */
    this.best = [];
    /** @type {Plot | null} */
    this.plot = null;
    this.changed = 0; // counts changes of the data
    this.brushes = 0;
    /** @type {Uint8Array | null} */
    this.mask = null;
    this.dirty = true;
    const ranked = () => ranking(model, model.curves.keys());
    this.figure = new CanvasFigure(model, {
      name: "smallcurves", title: "Learning curves", help: HELP,
      trialAt: (x, y) => this.trialAt(x, y),
      positionOf: (number) => this.plot && endOf(this.plot, model.curves.get(number)),
      moveByKey: listNavigation(ranked, ["ArrowDown", "ArrowRight"], ["ArrowUp", "ArrowLeft"]),
      facts: (row) => stepFact(model.curves.get(model.number[row])),
      outlines: (number) => this.outlines(number),
    });
    this.keys = ["best", "chosen", "brushed", "others"].map((kind) => make("span", { class: `nbd-key nbd-key-${kind}` }, make("i"), make("span")));
    this.ends = make("span", { class: "nbd-legend" });
    this.figure.note.append(...this.keys, this.ends);
    this.element = this.figure.element;
    this.off = model.on(["data"], () => (this.dirty = true));
  }

  draw() {
    const { model } = this;
    const page = this.figure.page(chartHeight);
    if (!page) return;
    const done = this.paint(page, this.all, this.brushed);
    this.write(page);
    this.figure.continueDrawing(done, () => this.draw());
    this.figure.describe(() => summary(model, this.best));
  }

  exported() {
    this.draw();
    const { curves, brushed } = this.model;
    const layer = (/** @type {Drawing} */ page, /** @type {number} */ alpha) => new CurveLayer(new DirectLayer(page), alpha);
    const rows = [...curves].filter(([number]) => !brushed || brushed[this.model.row(number)]).flatMap(([number, { steps, values }]) => steps.map((step, i) => [number, step, values[i]]));
    return this.figure.exported(chartHeight, (page) => void this.paint(page, layer(page, brushed ? PALE : 1), layer(page, 1)), [["trial", "step", this.model.head?.metric ?? "value"], ...rows]);
  }

  /** @param {Drawing} page @param {CurveLayer} all @param {CurveLayer} brushed @returns {boolean} whether all is drawn */
  paint(page, all, brushed) {
    const { model, extent } = this;
    const grown = this.dirty ? this.update() : [];
    if (!sameBrush(this.mask, model.brushed)) this.brushes++;
    this.mask = model.brushed;
    const area = chartArea(page);
    const from = Math.min(extent.first, 0);
    const plot = (this.plot = {
      area,
      x: scaleLinear([from, extent.end > from ? extent.end : from + 1], [area.left, area.left + area.width]),
      y: extent.scale.copy().range([area.top + area.height, area.top]),
    });
    this.drawAxes(page, plot, from);
    const done = this.drawBackground(page, plot, grown, all, brushed);
    this.drawHighlighted(page, plot);
    return done;
  }

  /** The curve of a trial on the page. @param {number} number */
  outlines(number) {
    const { plot } = this;
    const curve = this.model.curves.get(number);
    return plot && curve ? [{ xs: curve.steps.map(plot.x), ys: curve.values.map((value) => plot.y(value)) }] : [];
  }

  /** Reads new data. @returns {number[]} trials whose curves have grown */
  update() {
    this.dirty = false;
    this.changed++;
    this.best = bestTrials(this.model, BEST).filter((number) => this.model.curves.has(number));
    return this.extent.update(this.model.curves, this.best);
  }

  /** @param {Drawing} page @param {Plot} plot @param {number} from */
  drawAxes(page, plot, from) {
    drawYAxis(page, plot.area, this.extent.scale);
    const steps = valueTicks(makeScale(from, this.extent.end, false), Math.max(2, plot.area.width / 60)).filter(Number.isInteger);
    const ticks = (steps.length > 0 ? steps : linearTicks(from, this.extent.end, 1)).map((step) => ({ at: plot.x(step), text: formatTick(step) }));
    drawXAxis(page, plot.area, ticks, "step");
  }

  /** Draws the curves that are not highlighted. @param {Drawing} page @param {Plot} plot @param {number[]} grown
   * @param {CurveLayer} all @param {CurveLayer} chosen those that are brushed @returns {boolean} whether all are drawn */
  drawBackground(page, plot, grown, all, chosen) {
    const { model, extent } = this;
    const { curves, brushed } = model;
    const few = extent.points <= FEW;
    const spot = [page.width, page.height, page.ratio, page.theme.fan, page.theme.muted, extent.version].join();
    const key = few ? String(this.changed) : "many";
    const isBrushed = (/** @type {number} */ number) => brushed?.[model.row(number)] === 1;
    const style = { marks: curves.size <= MARKED, dashes: few, color: page.theme.fan, alpha: opacity(curves.size), width: 1 };
    all.draw(model, page, plot, style, spot, key, () => [...curves.keys()], grown);
    page.canvas.globalAlpha = brushed ? PALE : 1;
    all.layer.drawOnto(page);
    page.canvas.globalAlpha = 1;
    if (!brushed) return all.isComplete();
    const plain = { ...style, marks: model.brushedCount <= MARKED, color: page.theme.muted, alpha: opacity(model.brushedCount), width: 1.25 };
    chosen.draw(model, page, plot, plain, spot, `${key},${this.brushes}`, () => [...curves.keys()].filter(isBrushed), grown.filter(isBrushed));
    chosen.layer.drawOnto(page);
    return all.isComplete() && chosen.isComplete();
  }

  /** Draws the highlighted curves. @param {Drawing} page @param {Plot} plot */
  drawHighlighted(page, plot) {
    const { model } = this;
    const { canvas, theme } = page;
    const others = this.best.filter((number) => number !== model.chosen && number !== model.hovered); // each has one label
    /** @type {[number, string, number][]} */
    const lines = others.reverse().map((number) => [number, theme.good, number === this.best[0] ? 2.25 : 1.5]);
    if (model.chosen >= 0) lines.push([model.chosen, theme.accent, 2.5]);
    if (model.hovered >= 0 && model.hovered !== model.chosen) lines.push([model.hovered, theme.ink, 2]);
    canvas.save();
    clip(canvas, plot);
    for (const [number, color, width] of lines) {
      const curve = model.curves.get(number);
      if (!curve) continue;
      strokeCurve(canvas, plot, curve, 0, { color: theme.surface, alpha: 0.75, width: width + 2.5, dash: false });
      strokeCurve(canvas, plot, curve, 0, { color, alpha: 1, width, dash: model.state[model.row(number)] === PRUNED });
    }
    canvas.restore();
    canvas.textAlign = "right";
    canvas.textBaseline = "bottom";
    /** @type {{ x: number, y: number }[]} */
    const labels = [];
    for (const [number, color] of lines.reverse()) {
      const end = endOf(plot, model.curves.get(number));
      if (!end) continue;
      const ordinary = model.state[model.row(number)] === FINISHED && color === theme.good;
      drawGlyphs(canvas, model.state[model.row(number)], [end.x, end.y], ordinary ? 3 : 4.5, color);
      if (color === theme.good && number !== this.best[0]) continue; // the ends of the best lie close together
      const x = Math.min(end.x + 5, plot.area.left + plot.area.width);
      const isFree = (/** @type {number} */ y) => y > plot.area.top + 11 && !labels.some((other) => Math.abs(other.y - y) < 13 && Math.abs(other.x - x) < 36);
      const y = [end.y - 6, end.y + 18, end.y - 20, end.y + 32].find(isFree);
      if (y === undefined) continue;
      labels.push({ x, y });
      drawLabel(page, number, x, y, color);
    }
  }

  /** The key. @param {Drawing} page */
  write({ theme }) {
    const { model } = this;
    this.figure.setTitle(`${model.head?.metric ?? "Metric"} by step`);
    const others = model.curves.size;
    const missing = model.count - others;
    const parts = [
      this.best.length > 1 ? `best ${this.best.length}` : this.best.length ? "best" : "",
      model.chosen >= 0 ? `trial ${model.chosen}` : "",
      model.brushed ? `${formatCount(model.brushedCount)} brushed` : "",
      `${model.brushed ? "all" : ""} ${formatCount(others)} ${others === 1 ? "curve" : "curves"}${missing > 0 ? ` of ${formatCount(model.count)} trials` : ""}`.trim(),
    ];
    const tones = [theme.good, theme.accent, theme.muted, theme.fan];
    this.keys.forEach((key, i) => {
      key.hidden = parts[i] === "";
      setText(key.children[1], parts[i]);
      key.style.setProperty("--tone", tones[i]);
    });
    const ends = [[PRUNED, "╌ "], [FAILED, ""]].map(([state, line]) => `${line}${STATES[Number(state)].glyph} ${STATES[Number(state)].name}`);
    setTexts(this.ends, ends);
  }

  /** @param {number} x @param {number} y */
  trialAt(x, y) {
    const { model, plot } = this;
    if (!plot || x < plot.area.left - NEAR || x > plot.area.left + plot.area.width + NEAR) return -1;
    const step = plot.x.invert(x);
    const perPixel = plot.x.invert(x + 1) - step;
    const distance = (/** @type {number} */ value) => Math.abs(plot.y(value) - y) / NEAR;
    const near = (/** @type {Iterable<number>} */ trials) => nearestCurve(trials, model.curves, step, NEAR * perPixel, distance);
    const first = near([...this.best, model.chosen]); // highlighted curves are preferred
    if (first >= 0 || !model.brushed) return first >= 0 ? first : near(model.curves.keys());
    return near([...model.curves.keys()].filter((number) => model.brushed?.[model.row(number)] === 1));
  }

  destroy() {
    this.off();
    this.figure.destroy();
  }
}

/** Many curves on a layer: a curve that has grown is extended. */
class CurveLayer {
  /** @param {Layer | DirectLayer} [layer] @param {number} [alpha] of all curves, where they are drawn directly */
  constructor(layer = new Layer(A_FRAME), alpha = 1) {
    this.layer = layer;
    this.alpha = alpha;
    /** @type {Map<number, number>} */
    this.drawn = new Map(); // drawn points of each curve
    this.wanted = "";
  }

  /** @param {SweepModel} model @param {Drawing} page @param {Plot} plot @param {{ marks: boolean, dashes: boolean, color: string, alpha: number, width: number }} style
   * @param {string} spot @param {string} key @param {() => number[]} list @param {number[]} grown since it was last drawn */
  draw(model, page, plot, style, spot, key, list, grown) {
    this.wanted = `${spot} ${key}`;
    if (this.layer.begin(spot, key, page, list)) this.drawn.clear();
    else if (key === this.layer.key) this.layer.add(grown);
    this.layer.work((canvas, items) => {
      canvas.save();
      clip(canvas, plot);
      for (const number of items) {
        const curve = model.curves.get(number);
        if (!curve || this.drawn.get(number) === curve.steps.length) continue;
        const state = model.state[model.row(number)];
        const start = Math.max(0, (this.drawn.get(number) ?? 0) - 1);
        strokeCurve(canvas, plot, curve, start, { ...style, alpha: style.alpha * this.alpha, dash: style.dashes && state === PRUNED });
        this.drawn.set(number, curve.steps.length);
        const end = style.marks && (state === PRUNED || state === FAILED) ? endOf(plot, curve) : null;
        if (end) drawGlyphs(canvas, state, [end.x, end.y], 3.5, STATES[state].color(page.theme));
      }
      canvas.restore();
      if (!style.marks) this.layer.tint(canvas, page, style.color);
    });
  }

  isComplete() {
    return this.layer.isComplete() && this.wanted === `${this.layer.geometry} ${this.layer.key}`;
  }
}

/** The opacity of one of many curves, lower with more curves. @param {number} count */
function opacity(count) {
  return 0.75 * Math.min(1, (36 / count) ** 0.7);
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot */
function clip(canvas, { area }) {
  canvas.beginPath();
  canvas.rect(area.left - 5, area.top - 4, area.width + 10, area.height + 8);
  canvas.clip();
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Curve} curve @param {number} start
 * @param {{ color: string, alpha: number, width: number, dash: boolean }} style */
function strokeCurve(canvas, plot, { steps, values }, start, style) {
  canvas.strokeStyle = style.color;
  canvas.lineWidth = style.width;
  canvas.globalAlpha = style.alpha;
  canvas.setLineDash(style.dash ? [5, 3] : []);
  canvas.beginPath();
  let pen = false;
  for (let i = start; i < steps.length; i++) {
    const [x, y] = [plot.x(steps[i]), plot.y(values[i])];
    if (!Number.isFinite(y)) pen = false; // a gap, where the value is not a number
    else if (pen) canvas.lineTo(x, y);
    else {
      canvas.moveTo(x, y);
      if (!Number.isFinite(plot.y(values[i + 1]))) canvas.lineTo(x + 1, y); // a single point would not be visible
      pen = true;
    }
  }
  canvas.stroke();
  canvas.globalAlpha = 1;
}

/** The end of a curve on the page. @param {Plot} plot @param {Curve | undefined} curve */
function endOf(plot, curve) {
  const last = curve?.values.findLastIndex(Number.isFinite) ?? -1;
  if (!curve || last < 0) return null;
  const [low, high] = plot.y.domain();
  return { x: plot.x(curve.steps[last]), y: plot.y(clamp(curve.values[last], low, high)) };
}

/** The best first; those with no value last. @param {SweepModel} model @param {Iterable<number>} trials */
function ranking(model, trials) {
  const outranks = (/** @type {number} */ a, /** @type {number} */ b) => Number(model.outranks(model.row(a), model.row(b)));
  return [...trials].sort((a, b) => outranks(b, a) - outranks(a, b) || a - b);
}

/** @param {Curve | undefined} curve */
function stepFact(curve) {
  const last = curve ? curve.steps.length - 1 : -1;
  return curve && last >= 0 ? [`at step ${formatCount(curve.steps[last])}: ${formatValue(curve.values[last])}`] : [];
}

/** @param {SweepModel} model @param {number[]} best */
function summary(model, best) {
  const parts = best.map((number) => `trial ${number} ${formatValue(model.value[model.row(number)])}`);
  const chosen = model.chosen >= 0 ? ` Trial ${model.chosen} is chosen.` : "";
  return `Curves of ${formatCount(model.curves.size)} trials. Best: ${parts.join(", ") || "none yet"}.${chosen}`;
}

// The extent of the curves, the best ones, and the one under the pointer.

const SAMPLE = 20_000; // values that determine a scale
const AHEAD = 1.1; // end of the step axis relative to the last step: with this margin it is rarely redrawn
export const FEW = 10_000; // points up to which everything is redrawn on a change

/** The extent of the curves, updated from new points only. */
export class CurveExtent {
  constructor() {
    this.version = 0; // changes when everything has to be redrawn
    /** @type {import("./axes.js").Scale} */
    this.scale = robustScale([]);
    this.end = 1; // the last step on the axis
    this.points = this.scaled = 0; // the current number, and the number at the last change of the scale
    [this.first, this.last] = [Infinity, -Infinity]; // steps
    /** @type {Map<number, { curve: Curve, count: number }>} */
    this.known = new Map();
  }

  clear() {
    this.known.clear();
    this.points = this.scaled = 0;
    [this.first, this.last] = [Infinity, -Infinity];
    this.version++;
  }

  /** @param {Map<number, Curve>} curves @param {number[]} best @returns {number[]} the trials whose curves have grown */
  update(curves, best) {
    let grown = this.newPoints(curves);
    if (!grown) {
      this.clear();
      grown = this.newPoints(curves) ?? [];
    }
    if (grown.length > 0) this.rescale(curves, best);
    return grown;
  }

  /** @param {Map<number, Curve>} curves @returns {number[] | null} null if a curve was replaced */
  newPoints(curves) {
    const grown = [];
    if (curves.size < this.known.size) return null;
    for (const [number, curve] of curves) {
      const known = this.known.get(number);
      if (known && (known.curve !== curve || known.count > curve.steps.length)) return null;
      const from = known?.count ?? 0;
      if (from === curve.steps.length) continue;
      grown.push(number);
      this.first = Math.min(this.first, curve.steps[0]);
      this.last = Math.max(this.last, curve.steps[curve.steps.length - 1]);
      this.points += curve.steps.length - from;
      if (known) known.count = curve.steps.length;
      else this.known.set(number, { curve, count: curve.steps.length });
    }
    return grown;
  }

  /** @param {Map<number, Curve>} curves @param {number[]} best */
  rescale(curves, best) {
    const must = best.map((number) => curves.get(number)?.values.at(-1) ?? NaN);
    const many = this.points > FEW;
    const outside = must.some((value) => isOutside(this.scale, value));
    if (!many || outside || this.points > this.scaled * AHEAD) {
      const scale = settled(this.scale, robustScale(sample(curves, this.points), must));
      if (scale !== this.scale) this.version++;
      [this.scale, this.scaled] = [scale, this.points];
    }
    if (many ? this.last <= this.end && this.end <= 2 * this.last : this.last === this.end) return;
    this.end = many ? this.last * AHEAD : this.last;
    this.version++;
  }
}

/** @param {Map<number, Curve>} curves @param {number} points */
function sample(curves, points) {
  const stride = Math.max(1, Math.ceil(points / SAMPLE));
  const values = [];
  let at = 0;
  for (const { values: all } of curves.values()) {
    for (; at < all.length; at += stride) if (Number.isFinite(all[at])) values.push(all[at]);
    at -= all.length;
  }
  return values;
}

/** The trials with the best values, the best one first. @param {SweepModel} model @param {number} most @returns {number[]} */
export function bestTrials(model, most) {
  /** @type {number[]} rows */
  const best = [];
  for (let row = 0; row < model.count; row++) {
    const value = model.value[row];
    if (!Number.isFinite(value)) continue;
    if (best.length === most && !model.outranks(row, best[most - 1])) continue;
    let at = best.length;
    while (at > 0 && model.outranks(row, best[at - 1])) at--;
    best.splice(at, 0, row);
    if (best.length > most) best.pop();
  }
  return best.map((row) => model.number[row]);
}

/** A curve's value at a step, between its points; NaN outside. @param {Curve} curve @param {number} step @param {number} slack beyond its ends */
export function valueAt({ steps, values }, step, slack = 0) {
  const last = steps.length - 1;
  if (last < 0 || step < steps[0] - slack || step > steps[last] + slack) return NaN;
  const after = bisectRight(steps, step);
  if (after === 0) return values[0];
  const before = after - 1;
  if (after > last || step === steps[before]) return values[before];
  const [left, right] = [values[before], values[after]];
  return left + ((right - left) * (step - steps[before])) / (steps[after] - steps[before]);
}

/**
 * The trial whose curve is nearest, by its value at a step.
 * @param {Iterable<number>} trials @param {Map<number, Curve>} curves
 * @param {number} step @param {number} slack steps beyond a curve's ends
 * @param {(value: number) => number} distance of a value
 * @returns {number} -1 if none is within a distance of 1
 */
export function nearestCurve(trials, curves, step, slack, distance) {
  let [found, least] = [-1, 1];
  for (const number of trials) {
    const curve = curves.get(number);
    const apart = curve ? distance(valueAt(curve, step, slack)) : NaN;
    if (apart < least) [found, least] = [number, apart];
  }
  return found;
}
