// The trials of each engine over time: a lane for each engine, a bar for each attempt with the colour and shape of its
// end, and at the right the share of the time that the engine was busy.
import { scaleLinear } from "d3-scale";
import { make, setText, setTexts } from "../../dom/elements.js";
import { formatCount, shortTask } from "../../text/format.js";
import { drawGlyphs, FAILED, RUNNING, STATES } from "../states.js";
import { drawXAxis, formatTime, timeEnd, timeTicks } from "./axes.js";
import { DirectLayer, Layer } from "./canvas.js";
import { CanvasFigure, listNavigation, sameBrush, timeFacts } from "./figure.js";

/** @typedef {import("../model.js").SweepModel} SweepModel */
/** @typedef {import("./figure.js").Drawing} Drawing */
/** @typedef {{ left: number, top: number, width: number, height: number, lane: number, from: number, to: number, x: import("d3-scale").ScaleLinear<number, number> }} Plot */
/** @typedef {{ rank: number, label: string, ended: boolean }} Lane */
/**
 * @typedef {object} Bar
 * @property {number} number of the trial
 * @property {number} attempt
 * @property {number} start seconds
 * @property {number} end seconds; the current time while it runs
 * @property {number} state how it ended; LOST if its engine did
 * @property {[number, number][]} lanes the first and the last of each run of neighbours
 */

const TALL = 330; // CSS pixels of all lanes, unless that makes lanes too low
const [LOWEST, LOW, HIGHEST] = [2, 6, 20]; // CSS pixels of a lane
const CROWD = 96; // engines from which lanes may be lower
const WINDOWS = [60, 600, 3600, 21600]; // time windows to choose from, in seconds
const A_FRAME = 2500; // bars drawn in one frame
const AHEAD = 1.05; // end of the time axis, relative to now
const STEPS = 30; // steps per window in which a time window advances
const LABEL = 13; // CSS pixels between two labels
const HELP = "Click a bar to choose its trial. Keys: left and right move through an engine's trials, up and down move between engines, " +
  "plus and minus show less and more time, 0 shows all, Enter chooses, Escape clears the choice.";

/** @param {SweepModel} model @returns {import("../view.js").FigureView} */
export function makeTimeline(model) {
  return new Timeline(model);
}

class Timeline {
  /** @param {SweepModel} model */
  constructor(model) {
    this.model = model;
    this.layer = new Layer(A_FRAME);
    /** @type {Lane[]} */
    this.lanes = [];
    this.ended = new EndedBars();
    /** @type {Bar[]} */
    this.running = [];
    this.shares = new Float64Array(0); // share of the time that each engine was busy
    this.shownOf = ""; // the time range of the shares
    this.end = 1; // of the axis, in seconds
    /** @type {Uint8Array | null} */
    this.mask = null;
    this.window = 0; // seconds that are shown; 0: all
    this.now = 0;
    this.dirty = true;
    this.version = 0;
    this.lane = 0; // the lane of the keyboard cursor
    /** @type {Plot | null} */
    this.plot = null;
    this.figure = new CanvasFigure(model, {
      name: "timeline", title: "Engines", help: HELP, trialAt: (x, y) => this.barAt(x, y)?.number ?? -1,
      positionOf: (number) => this.positionOf(number),
      moveByKey: (number, key) => this.moveByKey(number, key),
      facts: (row) => this.facts(row),
      outlines: (number) => this.outlines(number),
    });
    this.busy = make("span", {});
    this.how = make("span", { class: "nbd-legend" });
    this.buttons = make("span", { class: "nbs-times", role: "group", "aria-label": "Time shown" });
    this.figure.note.append(this.busy, this.how, this.buttons);
    this.element = this.figure.element;
    this.off = model.on(["data"], () => (this.dirty = true));
  }

  get bars() {
    return [...this.ended.bars, ...this.running];
  }

  draw() {
    const { model } = this;
    const before = this.dirty ? this.update() : this.ended.bars.length;
    if (!sameBrush(this.mask, model.brushed)) this.version++;
    this.mask = model.brushed;
    const page = this.figure.page(() => this.height());
    if (!page) return;
    const done = this.paint(page, before, this.layer);
    this.write();
    this.figure.continueDrawing(done, () => this.draw());
    this.figure.describe(() => this.summary());
  }

  exported() {
    this.draw();
    const names = (/** @type {Bar} */ { lanes }) => this.lanes.filter((_, i) => lanes.some(([first, last]) => i >= first && i <= last)).map(({ label }) => label).join(" ");
    const rows = this.bars.map((bar) => [names(bar), bar.number, bar.attempt, bar.state === LOST ? "lost" : STATES[bar.state].name, bar.start, bar.state === RUNNING ? undefined : bar.end]);
    return this.figure.exported(() => this.height(), (page) => void this.paint(page, 0, new DirectLayer(page)), [["engines", "trial", "attempt", "end", "from", "to"], ...rows]);
  }

  /** CSS pixels of a lane. */
  laneHeight() {
    const count = Math.max(1, this.lanes.length);
    return Math.max(count > CROWD ? LOWEST : LOW, Math.min(HIGHEST, Math.floor(TALL / count)));
  }

  height() {
    return 4 + this.laneHeight() * Math.max(1, this.lanes.length) + 26;
  }

  /** @param {Drawing} page @param {number} before bars that are drawn @param {Layer | DirectLayer} layer @returns {boolean} whether all is drawn */
  paint(page, before, layer) {
    const plot = (this.plot = this.placeFor(page, this.laneHeight()));
    drawXAxis(page, plot, timeTicks(plot.from, plot.to, Math.max(2, plot.width / 76)).map((time) => ({ at: plot.x(time), text: formatTime(time) })));
    this.drawLanes(page, plot);
    const done = this.drawEnded(page, plot, before, layer);
    this.drawBars(page.canvas, page, plot, null, this.running);
    this.drawHighlighted(page, plot);
    return done;
  }

  /** Reads new data. @returns {number} the index of the first new bar */
  update() {
    const { model } = this;
    this.dirty = false;
    this.now = Math.max(model.status?.now ?? 0, ...model.spans.slice(-50).map(({ end }) => end || 0));
    this.lanes = lanesOf(model);
    this.running = runningBars(model, this.lanes, this.now);
    this.end = timeEnd(this.end, this.now, model.status?.state, AHEAD);
    this.shownOf = "";
    return this.ended.update(model, this.lanes);
  }

  /** @param {Drawing} page @param {Plot} plot @param {number} before bars that are drawn @param {Layer | DirectLayer} layer */
  drawEnded(page, plot, before, layer) {
    const { bars, version } = this.ended;
    const spot = [page.width, page.height, page.ratio, page.theme.ink, page.theme.good, plot.left, plot.from, plot.to, version].join();
    const key = String(this.version);
    const from = (/** @type {number} */ first) => {
      /** @type {number[]} */
      const seen = [];
      for (let i = first; i < bars.length; i++) if (bars[i].end >= plot.from && bars[i].start <= plot.to) seen.push(i);
      return seen;
    };
    if (!layer.begin(spot, key, page, () => from(0))) layer.add(from(before));
    if (!layer.isComplete()) {
      const hatch = hatchPattern(page);
      layer.work((canvas, items) => this.drawBars(canvas, page, plot, hatch, items.map((item) => bars[item])));
    }
    layer.drawOnto(page);
    return layer.isComplete() && layer.key === key;
  }

  /** @param {Drawing} page @param {number} lane @returns {Plot} */
  placeFor(page, lane) {
    page.canvas.font = page.font;
    const widest = Math.max(0, ...this.lanes.slice(0, 200).map((lane) => page.canvas.measureText(nameOf(lane)).width));
    const left = Math.min(Math.ceil(widest) + 10, Math.round(page.width * 0.3));
    // The window advances in steps, so that the layer is not redrawn ten times a second.
    const step = this.window / STEPS;
    const to = this.window ? Math.ceil(this.now / step) * step : this.end;
    const from = this.window ? Math.max(0, to - this.window) : 0;
    const width = Math.max(40, page.width - left - 46);
    const x = scaleLinear([from, to], [left, left + width]);
    return { x, left, top: 4, width, height: lane * Math.max(1, this.lanes.length), lane, from, to };
  }

  /** Draws the names of engines and their busy shares. @param {Drawing} page @param {Plot} plot */
  drawLanes({ canvas, theme, font }, plot) {
    const shown = `${plot.from},${this.now}`;
    const busy = this.window ? undefined : this.model.status?.busy; // of all trials, where the bars are a sample
    if (shown !== this.shownOf) {
      this.shares = busy ? knownShares(busy, this.lanes) : busyShares(this.bars, this.lanes.length, plot.from, this.now);
    }
    this.shownOf = shown;
    const every = Math.ceil(LABEL / plot.lane);
    canvas.font = font;
    canvas.textBaseline = "middle";
    this.lanes.forEach((lane, i) => {
      const y = plot.top + i * plot.lane;
      canvas.fillStyle = theme.grid;
      if (plot.lane >= 10 || i % every === 0) canvas.fillRect(plot.left, y + plot.lane - 1, plot.width, 1);
      if (i % every !== 0) {
        if (lane.ended) drawGlyphs(canvas, FAILED, [plot.left - 6, y + plot.lane / 2], 3, theme.bad); // its name does not fit
        return;
      }
      canvas.textAlign = "right";
      canvas.fillStyle = lane.ended ? theme.bad : theme.muted;
      canvas.fillText(nameOf(lane), plot.left - 8, y + plot.lane / 2, plot.left - 10);
      canvas.fillStyle = theme.ink;
      canvas.fillText(`${Math.round(100 * (this.shares[i]))}%`, plot.left + plot.width + 40, y + plot.lane / 2);
    });
  }

  /** @param {CanvasRenderingContext2D} canvas @param {Drawing} page @param {Plot} plot @param {CanvasPattern | null} hatch @param {Bar[]} bars */
  drawBars(canvas, page, plot, hatch, bars) {
    const { model } = this;
    canvas.save();
    canvas.beginPath();
    canvas.rect(plot.left, plot.top, plot.width, plot.height);
    canvas.clip();
    for (const bar of bars) {
      const plain = !model.brushed || model.brushed[model.row(bar.number)] === 1;
      canvas.globalAlpha = plain ? 1 : 0.16;
      for (const { x, y, width, height } of boxes(plot, bar)) {
        canvas.fillStyle = bar.state === LOST ? hatch ?? page.theme.bad : STATES[bar.state].color(page.theme);
        canvas.fillRect(x, y, width, height);
        if (bar.state === LOST && width > 3) {
          canvas.strokeStyle = page.theme.bad;
          canvas.lineWidth = 1;
          canvas.setLineDash([]);
          canvas.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
        }
        if (plain) writeBar(canvas, page, bar, x, y, width, height);
      }
    }
    canvas.restore();
  }

  /** @param {Drawing} page @param {Plot} plot */
  drawHighlighted({ canvas, theme }, plot) {
    const { model } = this;
    canvas.save();
    canvas.beginPath();
    canvas.rect(plot.left - 3, plot.top - 3, plot.width + 6, plot.height + 6);
    canvas.clip();
    for (const [number, color] of /** @type {[number, string][]} */ ([[model.chosen, theme.accent], [model.hovered, theme.ink]])) {
      if (number < 0) continue;
      for (const bar of this.bars) {
        if (bar.number !== number || bar.end < plot.from) continue;
        for (const { x, y, width, height } of boxes(plot, bar)) {
          canvas.setLineDash([]);
          for (const [tone, line] of /** @type {[string, number][]} */ ([[theme.surface, 5], [color, 2.5]])) {
            canvas.strokeStyle = tone;
            canvas.lineWidth = line;
            canvas.strokeRect(x - 0.5, y - 0.5, Math.max(width, 3) + 1, height + 1);
          }
        }
      }
    }
    canvas.restore();
  }

  /** Writes the key and the buttons of the time window. */
  write() {
    const { shares } = this;
    const mean = shares.reduce((sum, one) => sum + one, 0) / (shares.length || 1);
    setText(this.busy, shares.length ? `${formatCount(shares.length)} engines, ${Math.round(100 * mean)}% busy` : "no engines yet");
    const lost = this.ended.bars.some(({ state }) => state === LOST);
    const shown = STATES.filter((_, state) => (state === RUNNING ? this.running.length > 0 : this.ended.bars.some((bar) => bar.state === state)));
    setTexts(this.how, [...shown.map(({ glyph, name }) => `${glyph} ${name}`), ...(lost ? ["▨ lost"] : [])]);
    const windows = [0, ...WINDOWS.filter((seconds) => seconds < this.now)];
    while (this.buttons.children.length > windows.length) this.buttons.lastChild?.remove();
    windows.forEach((seconds, i) => {
      const button = /** @type {HTMLElement} */ (this.buttons.children[i] ?? this.buttons.appendChild(this.button()));
      button.dataset.seconds = String(seconds);
      setText(button, seconds ? `last ${formatTime(seconds)}` : "all");
      button.setAttribute("aria-pressed", String(seconds === this.window));
    });
    this.buttons.hidden = windows.length < 2;
  }

  button() {
    const button = make("button", { class: "nbd-button", type: "button" });
    button.addEventListener("click", () => this.show(Number(button.dataset.seconds)));
    return button;
  }

  /** @param {number} seconds at the end; 0: all */
  show(seconds) {
    this.window = seconds;
    this.draw();
  }

  /** @param {number} x @param {number} y */
  barAt(x, y) {
    const { plot } = this;
    if (!plot || x < plot.left - 3 || x > plot.left + plot.width + 3) return null;
    const lane = Math.floor((y - plot.top) / plot.lane);
    let found = null;
    let least = 4; // CSS pixels beside a bar that may be too narrow to hit
    for (const bar of this.bars) {
      if (!bar.lanes.some(([first, last]) => lane >= first && lane <= last)) continue;
      const distance = Math.max(plot.x(bar.start) - x, x - plot.x(bar.end), 0);
      if (distance < least || (distance === 0 && least === 0)) [found, least] = [bar, distance];
    }
    return found;
  }

  /** @param {number} number @param {string} key */
  moveByKey(number, key) {
    if (key === "+" || key === "=" || key === "-" || key === "0") {
      const windows = [0, ...WINDOWS.filter((seconds) => seconds < this.now).reverse()];
      const at = windows.indexOf(this.window) + (key === "0" ? -windows.length : key === "-" ? -1 : 1);
      this.show(windows[Math.max(0, Math.min(windows.length - 1, at))]);
      return number;
    }
    const bars = this.bars.filter(({ end }) => end >= (this.plot?.from ?? 0)).sort((a, b) => a.start - b.start);
    const mine = bars.find((bar) => bar.number === number && holds(bar, this.lane)) ?? bars.findLast((bar) => bar.number === number);
    if (mine && !holds(mine, this.lane)) this.lane = mine.lanes[0]?.[0] ?? 0;
    if (key === "ArrowUp" || key === "ArrowDown") {
      this.lane = Math.max(0, Math.min(this.lanes.length - 1, this.lane + (key === "ArrowDown" ? 1 : -1)));
      const time = mine ? (mine.start + mine.end) / 2 : this.now;
      const distance = (/** @type {Bar} */ bar) => Math.max(bar.start - time, time - bar.end, 0);
      const near = bars.filter((bar) => holds(bar, this.lane)).reduce((/** @type {Bar | null} */ best, bar) => (!best || distance(bar) < distance(best) ? bar : best), null);
      return near?.number ?? number;
    }
    return listNavigation(() => [...new Set(bars.filter((bar) => holds(bar, this.lane)).map((bar) => bar.number))], ["ArrowRight"], ["ArrowLeft"])(number, key);
  }

  /** @param {number} number */
  positionOf(number) {
    const { plot } = this;
    const bar = this.bars.findLast((each) => each.number === number);
    const [box] = plot && bar ? boxes(plot, bar) : [];
    return box ? { x: box.x + box.width / 2, y: box.y + box.height } : null;
  }

  /** The bars of a trial on the page. @param {number} number */
  outlines(number) {
    const { plot } = this;
    return plot ? this.bars.filter((bar) => bar.number === number).flatMap((bar) => boxes(plot, bar).map(outlineOf)) : [];
  }

  /** @param {number} row */
  facts(row) {
    const { model } = this;
    const attempts = this.bars.filter(({ number }) => number === model.number[row]);
    const names = this.lanes.filter(({ rank }) => model.ranks[row]?.includes(rank)).map(({ label }) => label);
    return [
      ...timeFacts(model, row),
      ...(names.length ? [names.length > 3 ? `${names[0]} to ${names[names.length - 1]}, ${names.length} engines` : names.join(", ")] : []),
      ...(attempts.length > 1 ? [`${attempts.length} attempts${attempts.some(({ state }) => state === LOST) ? ", one with an engine that was lost" : ""}`] : []),
    ];
  }

  summary() {
    const shares = [...this.shares];
    const lanes = this.lanes.slice(0, 16).map(({ label, ended }, i) => `${label}${ended ? " (lost)" : ""} ${Math.round(100 * (shares[i] ?? 0))}%`);
    const time = this.window ? `in the last ${formatTime(this.window)}` : `in ${formatTime(this.now)}`;
    const more = this.lanes.length > 16 ? `, and ${this.lanes.length - 16} more` : "";
    return `${formatCount(this.bars.length)} attempts on ${this.lanes.length} engines ${time}, ${this.running.length} running. Busy: ${lanes.join(", ") || "none"}${more}.`;
  }

  destroy() {
    this.off();
    this.figure.destroy();
  }
}

/** @param {{ x: number, y: number, width: number, height: number }} box */
function outlineOf({ x, y, width, height }) {
  return { xs: [x, x + width, x + width, x, x], ys: [y, y, y + height, y + height, y] };
}

/** @param {Lane} lane */
function nameOf({ label, ended }) {
  return ended ? `✕ ${label}` : label;
}

/** @param {Bar} bar @param {number} lane */
function holds(bar, lane) {
  return bar.lanes.some(([first, last]) => lane >= first && lane <= last);
}

/** A bar's boxes on the page: one for each run of neighbouring lanes. @param {Plot} plot @param {Bar} bar */
function boxes(plot, bar) {
  const left = Math.max(plot.left - 4, plot.x(bar.start));
  const right = Math.max(left, plot.x(bar.end));
  const gap = right - left > 3 ? 1 : 0; // between one bar and the next
  const rim = plot.lane >= 10 ? 2 : 1;
  return bar.lanes.map(([first, last]) => ({
    x: left, y: plot.top + first * plot.lane + rim - 1, width: Math.max(0.75, right - left - gap), height: (last - first + 1) * plot.lane - rim,
  }));
}

/** Draws the end's glyph and the trial's number on a bar if they fit. @param {CanvasRenderingContext2D} canvas @param {Drawing} page @param {Bar} bar
 * @param {number} x @param {number} y @param {number} width @param {number} height */
function writeBar(canvas, { theme, font }, { state, number }, x, y, width, height) {
  if (height < 9 || width < 14 || state === LOST) return;
  const r = Math.min(4, height / 2 - 2);
  drawGlyphs(canvas, state, [x + 7, y + height / 2], r, theme.surface);
  const text = String(number);
  if (height < 12 || width < 20 + 7 * text.length) return;
  canvas.font = font;
  canvas.textAlign = "left";
  canvas.textBaseline = "middle";
  canvas.fillStyle = theme.surface;
  canvas.fillText(text, x + 14, y + height / 2 + 0.5);
}

/** A pattern of stripes for lost attempts. @param {Drawing} page */
function hatchPattern({ canvas, theme, ratio }) {
  const size = Math.round(6 * ratio);
  const tile = make("canvas", { width: String(size), height: String(size) });
  const ink = tile.getContext("2d");
  if (!ink) return null;
  ink.strokeStyle = theme.bad;
  ink.lineWidth = 1.6 * ratio;
  for (const shift of [-size, 0, size]) {
    ink.beginPath();
    ink.moveTo(shift - 1, size + 1);
    ink.lineTo(shift + size + 1, -1);
    ink.stroke();
  }
  const pattern = canvas.createPattern(tile, "repeat");
  pattern?.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

// The bars of each lane, and the busy share of each engine.

export const LOST = STATES.length;

/** A lane for each engine that the sweep has or had. @param {SweepModel} model @returns {Lane[]} */
export function lanesOf(model) {
  const tasks = new Map(model.head?.engines ?? []);
  for (const [rank] of model.status?.engines ?? []) if (!tasks.has(rank)) tasks.set(rank, "");
  for (const { ranks } of model.spans) for (const rank of ranks) if (!tasks.has(rank)) tasks.set(rank, "");
  const sorted = [...tasks].sort(([a], [b]) => a - b);
  const ended = new Set((model.status?.engines ?? []).filter(([, how]) => how === "gone").map(([rank]) => rank));
  return sorted.map(([rank, task]) => ({ rank, label: task ? shortTask(task) : `engine ${rank}`, ended: ended.has(rank) }));
}

/** @param {number} number @param {number} attempt @param {number[]} ranks @param {number} start @param {number} end @param {number} state @param {Map<number, number>} laneOf @returns {Bar} */
function barOf(number, attempt, ranks, start, end, state, laneOf) {
  return { number, attempt, start, end: Math.max(start, end), state, lanes: contiguousRuns(ranks.flatMap((rank) => laneOf.get(rank) ?? [])) };
}

/** The bars of ended attempts, updated from new spans only. */
export class EndedBars {
  constructor() {
    /** @type {Bar[]} */
    this.bars = [];
    this.lanes = "";
    /** @type {object | undefined} */
    this.first = undefined;
    this.seen = 0; // spans read
    /** @type {number[]} */
    this.open = []; // indices of spans that had not ended at the last update
    this.version = 0; // changes when bars may have been removed
  }

  /** @param {SweepModel} model @param {Lane[]} lanes @returns {number} the index of the first new bar */
  update(model, lanes) {
    const named = lanes.map(({ rank }) => rank).join();
    if (named !== this.lanes || model.spans.length < this.seen || model.spans[0] !== this.first) {
      Object.assign(this, { bars: [], lanes: named, first: model.spans[0], seen: 0, open: [], version: this.version + 1 });
    }
    const before = this.bars.length;
    const laneOf = new Map(lanes.map(({ rank }, i) => [rank, i]));
    const places = this.open;
    for (; this.seen < model.spans.length; this.seen++) places.push(this.seen);
    this.open = places.filter((plot) => {
      const { number, attempt, ranks, start, end, how } = model.spans[plot];
      if (!Number.isFinite(end)) return true; // its trial still runs
      this.bars.push(barOf(number, attempt, ranks, start, end, stateOf(how), laneOf));
      return false;
    });
    return before;
  }
}

/** A bar for each running trial. @param {SweepModel} model @param {Lane[]} lanes @param {number} now @returns {Bar[]} */
export function runningBars(model, lanes, now) {
  const laneOf = new Map(lanes.map(({ rank }, i) => [rank, i]));
  const bars = [];
  for (let row = 0; row < model.count; row++) {
    if (model.state[row] !== RUNNING || !Number.isFinite(model.started[row])) continue;
    bars.push(barOf(model.number[row], model.attempt[row], model.ranks[row], model.started[row], now, RUNNING, laneOf));
  }
  return bars;
}

/** @param {string} how an attempt ended */
function stateOf(how) {
  const state = STATES.findIndex(({ name }) => name === how);
  return state < 0 ? LOST : state;
}

/** Groups numbers into contiguous ranges. @param {number[]} lanes @returns {[number, number][]} */
export function contiguousRuns(lanes) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const lane of [...lanes].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && lane <= last[1] + 1) last[1] = lane;
    else runs.push([lane, lane]);
  }
  return runs;
}

/** The busy share of each lane from the kernel's own count. @param {[number, number][]} busy rank and share @param {{ rank: number }[]} lanes */
export function knownShares(busy, lanes) {
  const shares = new Map(busy);
  return Float64Array.from(lanes, ({ rank }) => shares.get(rank) ?? 0);
}

/** The share of a time range in which each lane had a trial, from 0 to 1. @param {Iterable<Bar>} bars @param {number} count of lanes @param {number} from @param {number} to */
export function busyShares(bars, count, from, to) {
  const busy = new Float64Array(count);
  if (!(to > from)) return busy;
  for (const bar of bars) {
    const time = Math.min(bar.end, to) - Math.max(bar.start, from);
    if (time <= 0) continue;
    for (const [first, last] of bar.lanes) for (let lane = first; lane <= last; lane++) busy[lane] += time;
  }
  return busy.map((time) => Math.min(1, time / (to - from)));
}
