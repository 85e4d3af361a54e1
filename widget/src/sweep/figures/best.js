// The best value so far against the time since the start of the sweep: a step curve, with a mark for each ended trial
// and ticks at the right edge for running ones.
import { scaleLinear } from "d3-scale";
import { make, setText, setTexts } from "../../dom/elements.js";
import { formatCount, formatValue } from "../../text/format.js";
import { drawGlyphs, FAILED, FINISHED, PRUNED, RUNNING, STATES, STOPPED, WAITING } from "../states.js";
import { chartArea, chartHeight, drawXAxis, drawYAxis, formatTime, isOutside, robustScale, settled, timeEnd, timeTicks } from "./axes.js";
import { DirectLayer, Layer } from "./canvas.js";
import { CanvasFigure, drawLabel, listNavigation, sameBrush, timeFacts } from "./figure.js";

/** @typedef {import("../model.js").SweepModel} SweepModel */
/** @typedef {import("./figure.js").Drawing} Drawing */
/** @typedef {{ area: import("./axes.js").Area, x: import("d3-scale").ScaleLinear<number, number>, y: import("./axes.js").Scale }} Plot */

const NEAR = 12; // CSS pixels around a mark within which the pointer hits it
const MARKS_A_FRAME = 2500; // marks drawn in one frame
const AHEAD = 1.08; // end of the time axis, relative to now
const MANY = 2000; // trials from which each mark is a dot
/** Width and height of a dot, where each trial is one: shapes that differ and are cheap to draw. @type {Record<number, [number, number]>} */
const DOTS = { [FINISHED]: [2.5, 2.5], [PRUNED]: [3.5, 1.25], [STOPPED]: [1.25, 3.5] };
const HELP = "Click a mark to choose its trial. Keys: left and right move through the trials in the order of their ends, Enter chooses, Escape clears the choice.";

/** @param {SweepModel} model @returns {import("../view.js").FigureView} */
export function makeBestSoFar(model) {
  return new BestSoFar(model);
}

class BestSoFar {
  /** @param {SweepModel} model */
  constructor(model) {
    this.model = model;
    this.marks = new Layer(MARKS_A_FRAME);
    this.scale = robustScale([]);
    this.end = 1;
    this.version = 0; // changes when a mark changes
    this.placing = 0; // changes when all marks move
    this.dirty = true;
    /** @type {Plot | null} */
    this.plot = null;
    this.figure = new CanvasFigure(model, {
      name: "bestline", title: "Best so far", help: HELP, trialAt: (x, y) => this.trialAt(x, y),
      positionOf: (number) => this.plot && positionOfTrial(model, this.plot, model.row(number), nowOf(model)),
      moveByKey: listNavigation(() => trialsInTime(model), ["ArrowRight", "ArrowUp"], ["ArrowLeft", "ArrowDown"]),
      facts: (row) => timeFacts(model, row),
      outlines: () => (this.plot ? [stepLine(this.plot, model, nowOf(model))] : []),
    });
    this.key = make("span", { class: "nbd-key" }, make("i"), make("span"), make("b"));
    this.counts = make("span", { class: "nbd-legend" });
    this.beyond = make("span", {});
    this.figure.note.append(this.key, this.counts, this.beyond);
    this.element = this.figure.element;
    /** @type {Uint8Array | null} */
    this.mask = null;
    this.marked = new Float64Array(0); // by row: the time and kind of its end, when last read
    this.off = model.on(["data"], () => (this.dirty = true));
  }

  draw() {
    const { model, figure } = this;
    const page = figure.page(chartHeight);
    if (!page) return;
    const done = this.paint(page, this.marks);
    this.write(page);
    figure.continueDrawing(done, () => this.draw());
    figure.describe(() => summary(model));
  }

  exported() {
    this.draw();
    const { model } = this;
    const rows = endedRows(model).sort((a, b) => model.ended[a] - model.ended[b]).map((row) => {
      const best = model.best.findLast(({ time }) => time <= model.ended[row]);
      return [model.ended[row], model.number[row], model.stateOf(row), model.value[row], best?.value];
    });
    return this.figure.exported(chartHeight, (page) => void this.paint(page, new DirectLayer(page)), [["seconds", "trial", "state", "value", "best so far"], ...rows]);
  }

  /** @param {Drawing} page @param {Layer | DirectLayer} marks @returns {boolean} whether all is drawn */
  paint(page, marks) {
    const { model } = this;
    const now = nowOf(model);
    const ended = this.dirty ? this.update(now) : [];
    if (!sameBrush(this.mask, model.brushed)) this.version++;
    this.mask = model.brushed;
    const area = chartArea(page);
    const plot = (this.plot = {
      area,
      x: scaleLinear([0, this.end], [area.left, area.left + area.width]),
      y: this.scale.copy().range([area.top + area.height, area.top]).clamp(true),
    });
    drawYAxis(page, area, this.scale);
    drawXAxis(page, area, timeTicks(0, this.end, Math.max(2, area.width / 76)).map((time) => ({ at: plot.x(time), text: formatTime(time) })));
    const spot = [page.width, page.height, page.ratio, page.theme.ink, page.theme.good, this.placing].join();
    if (!marks.begin(spot, String(this.version), page, () => endedRows(model))) marks.add(ended);
    marks.work((canvas, rows) => drawMarks(canvas, model, plot, page, rows));
    marks.drawOnto(page);
    drawSteps(page, plot, model, now);
    this.drawRunning(page, plot, now);
    this.drawHighlighted(page, plot, now);
    return marks.isComplete() && marks.key === String(this.version);
  }

  /** Reads new data. @param {number} now @returns {number[]} rows that have ended since the last call */
  update(now) {
    const { model } = this;
    this.dirty = false;
    const end = timeEnd(this.end, now, model.status?.state, AHEAD);
    if (end !== this.end) this.placing++;
    this.end = end;
    const ended = [];
    const marked = new Float64Array(model.count);
    let same = model.count >= this.marked.length;
    for (let row = 0; row < model.count; row++) {
      marked[row] = model.state[row] > RUNNING && Number.isFinite(model.ended[row]) ? 8 * model.ended[row] + model.state[row] : 0;
      if (marked[row] === (this.marked[row] ?? 0)) continue;
      if (this.marked[row]) same = false; // the trial was retried
      else ended.push(row);
    }
    if (!same) this.version++;
    this.marked = marked;
    if (!same || ended.length > 0) this.rescale();
    return ended;
  }

  rescale() {
    const { model } = this;
    const values = Array.from(model.value.subarray(0, model.count)).filter((value, row) => Number.isFinite(value) && model.state[row] !== RUNNING);
    const best = model.best.slice(-3).map(({ value }) => value); // the first values may be outliers
    const scale = settled(this.scale, robustScale(values, best));
    if (scale !== this.scale) this.placing++;
    this.scale = scale;
    this.outside = values.filter((value) => isOutside(this.scale, value)).length;
  }

  /** Draws the running trials at the current time. @param {Drawing} page @param {Plot} plot @param {number} now */
  drawRunning({ canvas, theme }, plot, now) {
    const { model } = this;
    const x = Math.round(plot.x(now)) + 0.5;
    canvas.fillStyle = theme.grid;
    canvas.fillRect(x - 0.5, plot.area.top, 1, plot.area.height);
    canvas.fillStyle = STATES[RUNNING].color(theme);
    for (let row = 0; row < model.count; row++) {
      if (model.state[row] !== RUNNING) continue;
      const value = currentValue(model, row);
      canvas.globalAlpha = !model.brushed || model.brushed[row] ? 1 : 0.25;
      // A trial without a report is drawn at the bottom.
      if (Number.isFinite(value)) canvas.fillRect(x - 4, Math.round(plot.y(value)) - 1, 9, 2);
      else canvas.fillRect(x - 4, plot.area.top + plot.area.height - 2, 9, 2);
    }
    canvas.globalAlpha = 1;
  }

  /** Draws the chosen trial and the one under the pointer. @param {Drawing} page @param {Plot} plot @param {number} now */
  drawHighlighted(page, plot, now) {
    const { canvas, theme } = page;
    const { model } = this;
    for (const [number, color] of /** @type {[number, string][]} */ ([[model.chosen, theme.accent], [model.hovered, theme.ink]])) {
      const row = model.row(number);
      const spot = row < 0 || model.state[row] === WAITING ? null : positionOfTrial(model, plot, row, now);
      if (!spot) continue;
      canvas.fillStyle = theme.surface;
      canvas.beginPath();
      canvas.arc(spot.x, spot.y, 8, 0, 2 * Math.PI);
      canvas.fill();
      canvas.strokeStyle = color;
      canvas.lineWidth = 2;
      canvas.setLineDash([]);
      canvas.stroke();
      drawGlyphs(canvas, model.state[row], [spot.x, spot.y], 4.5, STATES[model.state[row]].color(theme));
      canvas.textBaseline = "middle";
      canvas.textAlign = spot.x > plot.area.left + plot.area.width - 60 ? "right" : "left";
      const x = spot.x + (canvas.textAlign === "right" ? -12 : 12);
      drawLabel(page, number, x, spot.y, color);
    }
  }

  /** The key. @param {Drawing} page */
  write({ theme }) {
    const { model } = this;
    const best = bestOf(model);
    this.figure.setTitle(`Best ${model.head?.metric ?? "value"} so far`);
    this.key.style.setProperty("--tone", theme.good);
    this.key.hidden = !best;
    if (best) {
      setText(this.key.children[1], `trial ${best.number}, after ${formatTime(best.time)}`);
      setText(this.key.children[2], formatValue(best.value));
    }
    const counts = model.status?.counts ?? {};
    setTexts(this.counts, STATES.filter(({ name }) => name !== "waiting" && counts[name] > 0).map(({ glyph, name }) => `${glyph} ${formatCount(counts[name])} ${name}`));
    setText(this.beyond, this.outside ? `${formatCount(this.outside)} beyond the axis, at its edge` : "");
  }

  /** @param {number} x @param {number} y */
  trialAt(x, y) {
    const { model, plot } = this;
    if (!plot) return -1;
    const now = nowOf(model);
    let [found, least] = [-1, NEAR * NEAR];
    for (let row = 0; row < model.count; row++) {
      if (model.state[row] === WAITING || (model.brushed && !model.brushed[row])) continue;
      const time = model.state[row] === RUNNING ? now : model.ended[row];
      const across = plot.x(time) - x;
      if (!(Math.abs(across) < NEAR)) continue;
      const spot = positionOfTrial(model, plot, row, now);
      const distance = spot ? across * across + (spot.y - y) ** 2 : Infinity;
      if (distance < least) [found, least] = [model.number[row], distance];
    }
    return found;
  }

  destroy() {
    this.off();
    this.figure.destroy();
  }
}

/** The time since the start of the sweep, in seconds. @param {SweepModel} model */
function nowOf(model) {
  let now = model.status?.now ?? 0;
  for (let row = 0; row < model.count; row++) if (model.ended[row] > now) now = model.ended[row];
  return now;
}

/** The value that a running trial reported last. @param {SweepModel} model @param {number} row */
function currentValue(model, row) {
  const curve = model.curves.get(model.number[row]);
  return curve?.values.at(-1) ?? model.value[row];
}

/** The position of a trial's mark; one without a value is at the bottom. @param {SweepModel} model @param {Plot} plot @param {number} row @param {number} now */
function positionOfTrial(model, plot, row, now) {
  const running = model.state[row] === RUNNING;
  const [time, value] = running ? [now, currentValue(model, row)] : [model.ended[row], model.value[row]];
  if (!Number.isFinite(time)) return null;
  return { x: plot.x(time), y: Number.isFinite(value) ? plot.y(value) : plot.area.top + plot.area.height };
}

/** Rows of all ended trials in drawing order: finished ones first, brushed ones last, on top. @param {SweepModel} model */
function endedRows(model) {
  /** @type {number[][]} */
  const heaps = [[], [], [], []];
  for (let row = 0; row < model.count; row++) {
    if (model.state[row] <= RUNNING || !Number.isFinite(model.ended[row])) continue;
    heaps[(model.brushed?.[row] ? 2 : 0) + (model.state[row] === FINISHED ? 0 : 1)].push(row);
  }
  return heaps.flat();
}

/** @param {CanvasRenderingContext2D} canvas @param {SweepModel} model @param {Plot} plot @param {Drawing} page @param {number[]} rows */
function drawMarks(canvas, model, plot, { theme }, rows) {
  const many = model.count > MANY;
  const r = many ? 2 : model.count > 300 ? 2.75 : 4;
  /** @type {Map<string, { state: number, brushed: boolean, places: number[] }>} */
  const groups = new Map();
  for (const row of rows) {
    const spot = positionOfTrial(model, plot, row, 0);
    if (!spot) continue;
    const [state, brushed] = [model.state[row], !model.brushed || model.brushed[row] === 1];
    const key = `${state},${brushed}`;
    const group = groups.get(key) ?? { state, brushed, places: [] };
    groups.set(key, group);
    group.places.push(spot.x, spot.y);
  }
  for (const { state, brushed, places } of groups.values()) {
    const color = STATES[state].color(theme);
    canvas.globalAlpha = brushed ? (many ? 0.55 : 0.85) : 0.13;
    if (!many || state === FAILED) drawGlyphs(canvas, state, places, r, color);
    else {
      const [width, height] = DOTS[state];
      canvas.fillStyle = color;
      for (let i = 0; i < places.length; i += 2) canvas.fillRect(places[i] - width / 2, places[i + 1] - height / 2, width, height);
    }
  }
  canvas.globalAlpha = 1;
}

/** @param {Drawing} page @param {Plot} plot @param {SweepModel} model @param {number} now */
function drawSteps({ canvas, theme }, plot, model, now) {
  const { best } = model;
  if (best.length === 0) return;
  const { xs, ys } = stepLine(plot, model, now);
  canvas.beginPath();
  canvas.moveTo(xs[0], ys[0]);
  for (let i = 1; i < xs.length; i++) canvas.lineTo(xs[i], ys[i]);
  for (const [color, width] of /** @type {[string, number][]} */ ([[theme.surface, 5], [theme.good, 2.25]])) {
    canvas.strokeStyle = color;
    canvas.lineWidth = width;
    canvas.stroke();
  }
  drawGlyphs(canvas, FINISHED, best.flatMap(({ time, value }) => [plot.x(time), plot.y(value)]), 4, theme.good);
}

/** The best value over time, as a line of steps. @param {Plot} plot @param {SweepModel} model @param {number} now */
function stepLine(plot, { best }, now) {
  const [times, values] = [best.flatMap(({ time }) => [time, time]), best.flatMap(({ value }) => [value, value])];
  return { xs: [...times.slice(1), Math.max(now, times.at(-1) ?? now)].map(plot.x), ys: values.map((value) => plot.y(value)) };
}

/** Trials in the order of their ends; running ones last. @param {SweepModel} model */
function trialsInTime(model) {
  const rows = [];
  for (let row = 0; row < model.count; row++) if (model.state[row] !== WAITING) rows.push(row);
  const time = (/** @type {number} */ row) => (model.state[row] === RUNNING ? Infinity : model.ended[row]);
  return rows.sort((a, b) => (time(a) === time(b) ? a - b : time(a) - time(b))).map((row) => model.number[row]);
}

/** @param {SweepModel} model */
function summary(model) {
  const best = bestOf(model);
  const counts = model.status?.counts ?? {};
  const parts = STATES.filter(({ name }) => counts[name] > 0).map(({ name }) => `${formatCount(counts[name])} ${name}`);
  const steps = model.best.filter(({ value }, i) => i === 0 || model.better(value, model.best[i - 1].value)).length;
  const found = best ? `Best so far ${formatValue(best.value)}, by trial ${best.number} after ${formatTime(best.time)}, improved ${steps === 1 ? "once" : `${formatCount(steps)} times`}.` : "No value yet.";
  return `${found} Trials: ${parts.join(", ")}; ${formatTime(nowOf(model))} since the start.`;
}

/** The latest improvement, which is also the header's best trial. @param {SweepModel} model */
function bestOf(model) {
  return model.row(model.status?.best ?? -1) < 0 ? undefined : model.best.at(-1);
}
