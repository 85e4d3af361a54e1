// The base of a figure of trials on a canvas: a caption, a canvas in device pixels, a box with exact values beside the
// pointer, keys that move from trial to trial, and a text for screen readers.
import { Readout } from "../../chart/readout.js";
import { make, setText } from "../../dom/elements.js";
import { readColours } from "../../dom/theme.js";
import { keysOf } from "../../export/figures.js";
import { formatValue } from "../../text/format.js";
import { RUNNING, STATES } from "../states.js";
import { formatTime } from "./axes.js";

/** @typedef {import("../model.js").SweepModel} SweepModel */
/** @typedef {import("../../dom/theme.js").Colours} Colours */
/** @typedef {{ canvas: CanvasRenderingContext2D, width: number, height: number, ratio: number, theme: Colours, font: string }} Drawing sizes in CSS pixels */
/** @typedef {(number: number, key: string) => number | null} Move from a trial (-1: none) by a key to another; null if the key has no meaning here */
/**
 * @typedef {object} FigureOptions
 * @property {string} name for the style sheet
 * @property {string} title
 * @property {string} help the actions of pointer and keys
 * @property {(x: number, y: number) => number} trialAt the trial at a position on the page, or -1
 * @property {Move} moveByKey
 * @property {(number: number) => { x: number, y: number } | null} positionOf the position of a trial on the page
 * @property {(row: number) => string[]} [facts] texts on a trial besides its state and value
 * @property {(number: number) => import("../../chart/readout.js").Outline[]} [outlines] the lines on the page that show a trial
 */
/** @typedef {{ colours: import("../../dom/theme.js").Colours, colormap: import("./colormap.js").Colormap, font: string }} FigureTheme what all figures share */
/** @typedef {{ positions: import("./positions.js").TrialPositions, brush: import("./brush.js").Brush, theme: FigureTheme, table: string }} SharedOptions `table` is the id of the table with the same data */

const CALM = 2000; // milliseconds between summaries for screen readers
const FONT = "11px";

export class CanvasFigure {
  /** @param {SweepModel} model @param {FigureOptions} options */
  constructor(model, options) {
    this.model = model;
    this.options = options;
    this.surface = make("canvas", { "aria-hidden": "true" });
    this.surface.style.cssText = "display:block;width:100%";
    this.readout = new Readout();
    const summary = `nbd-${options.name}-${Math.random().toString(36).slice(2)}`;
    this.summary = make("span", { class: "nbd-spoken", id: summary });
    this.spoken = make("span", { class: "nbd-spoken", role: "status" });
    this.box = make("div", {
      class: "nbd-plot nbd-sheet", tabindex: "0", role: "application", "aria-roledescription": "chart",
      "aria-label": options.title, "aria-describedby": summary, "aria-description": options.help,
    }, this.surface, this.readout.element);
    this.box.style.position = "relative";
    this.title = make("span", { class: "nbd-chart-title", title: options.help }, options.title);
    this.note = make("span", { class: "nbd-legend" });
    this.caption = make("figcaption", {}, this.title, this.note);
    this.element = make("figure", { class: `nbd-chart nbd-${options.name}` }, this.caption, this.box, this.summary, this.spoken);
    this.shown = -1; // the trial in the readout
    this.pending = this.due = 0;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.later = undefined;
    this.box.addEventListener("pointermove", (event) => this.onPointerMove(event));
    this.box.addEventListener("pointerleave", () => this.leave());
    this.box.addEventListener("click", (event) => model.choose(this.trialUnder(event)));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("blur", () => this.leave());
  }

  /** The cleared canvas in device pixels; null while it has no width. @param {(width: number) => number} heightFor @returns {Drawing | null} */
  page(heightFor) {
    if (this.shown !== this.model.hovered) this.readout.hide(); // another view shows another trial
    const width = this.box.clientWidth;
    const canvas = width > 0 ? this.surface.getContext("2d") : null;
    if (!canvas) return null;
    const [height, ratio] = [heightFor(width), globalThis.devicePixelRatio || 1];
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.surface.width !== across) this.surface.width = across;
    if (this.surface.height !== down) this.surface.height = down;
    if (this.surface.style.height !== `${height}px`) this.surface.style.height = `${height}px`;
    canvas.setTransform(1, 0, 0, 1, 0, 0);
    canvas.clearRect(0, 0, across, down);
    canvas.setTransform(ratio, 0, 0, ratio, 0, 0);
    canvas.globalAlpha = 1;
    canvas.setLineDash([]);
    return this.drawing(canvas, width, height, ratio);
  }

  /** @param {CanvasRenderingContext2D} canvas @param {number} width @param {number} height @param {number} ratio @returns {Drawing} */
  drawing(canvas, width, height, ratio) {
    return { canvas, width, height, ratio, theme: readColours(this.element), font: `${FONT} ${getComputedStyle(this.box).fontFamily}` };
  }

  /** The figure for a file; null while it has no width. @param {(width: number) => number} heightFor @param {(page: Drawing) => void} paint
   * @param {import("../../export/figures.js").Rows} rows @returns {import("../../export/figures.js").Figure | null} */
  exported(heightFor, paint, rows) {
    const width = this.box.clientWidth;
    const height = heightFor(width);
    const onCanvas = (/** @type {CanvasRenderingContext2D} */ canvas) => paint(this.drawing(canvas, width, height, 1));
    return width > 0 ? { title: this.title.textContent ?? "", width, height, keys: keysOf(this.caption), paint: onCanvas, rows } : null;
  }

  /** @param {MouseEvent} event */
  trialUnder(event) {
    const { left, top } = this.surface.getBoundingClientRect();
    return this.options.trialAt(event.clientX - left, event.clientY - top);
  }

  /** @param {PointerEvent} event */
  onPointerMove(event) {
    const number = this.trialUnder(event);
    const { left, top } = this.surface.getBoundingClientRect();
    this.box.style.cursor = number < 0 ? "" : "pointer";
    this.model.hover(number);
    this.show(number, event.clientX - left, event.clientY - top);
  }

  leave() {
    this.readout.hide();
    this.model.hover(-1);
  }

  /** Shows exact values beside a position. @param {number} number @param {number} x @param {number} y in CSS pixels of the page */
  show(number, x, y) {
    const row = this.model.row(number);
    this.shown = number;
    if (row < 0) return this.readout.hide();
    const entries = [this.valueOf(row), ...(this.options.facts?.(row) ?? [])].map((text) => ({ tone: "transparent", kind: "fact", label: withoutBreaks(text), value: "", where: "" }));
    this.readout.show(this.nameOf(row), entries, { x, y }, this.options.outlines?.(number) ?? []);
  }

  /** @param {number} row */
  nameOf(row) {
    const { glyph, name } = STATES[this.model.state[row]];
    return `${glyph} trial ${this.model.number[row]}, ${name}`;
  }

  /** @param {number} row */
  valueOf(row) {
    return `${this.model.head?.metric ?? "value"} ${formatValue(this.model.value[row])}`;
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { model, options } = this;
    const here = model.hovered >= 0 ? model.hovered : model.chosen;
    if (event.key === "Enter" || event.key === " ") model.choose(here);
    else if (event.key === "Escape" && here >= 0) {
      model.hover(-1);
      model.choose(-1);
      this.readout.hide();
    } else {
      const there = options.moveByKey(here, event.key);
      if (there === null) return;
      model.hover(there);
      const row = model.row(there);
      if (row >= 0) {
        const facts = [this.nameOf(row).slice(2), this.valueOf(row), ...(options.facts?.(row) ?? [])];
        setText(this.spoken, facts.join(", "));
        const { x, y } = options.positionOf(there) ?? { x: 0, y: 0 };
        this.show(there, x, y);
      }
    }
    event.preventDefault();
    event.stopPropagation(); // the notebook binds the same keys
  }

  /** @param {string} title */
  setTitle(title) {
    setText(this.title, title);
    if (this.box.getAttribute("aria-label") !== title) this.box.setAttribute("aria-label", title);
  }

  /** Writes a summary for screen readers, at most every two seconds. @param {() => string} write */
  describe(write) {
    const wait = this.due - performance.now();
    clearTimeout(this.later);
    if (wait > 0) this.later = setTimeout(() => this.describe(write), wait);
    else {
      this.due = performance.now() + CALM;
      setText(this.summary, write());
    }
  }

  /** Continues an unfinished drawing in the next animation frame. @param {boolean} done @param {() => void} draw */
  continueDrawing(done, draw) {
    cancelAnimationFrame(this.pending);
    this.pending = done ? 0 : requestAnimationFrame(draw);
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    clearTimeout(this.later);
    this.element.remove();
  }
}

/** Whether a brush is unchanged except for new rows. @param {Uint8Array | null} was @param {Uint8Array | null} now */
export function sameBrush(was, now) {
  if (was === now || !was || !now) return was === now;
  const both = Math.min(was.length, now.length);
  for (let row = 0; row < both; row++) if (was[row] !== now[row]) return false;
  return true;
}

/** Joins a number and its unit with a no-break space. @param {string} text */
function withoutBreaks(text) {
  return text.replace(/(\d) (?=[a-zµ])/g, "$1\u00a0");
}

/** Draws the name of a trial beside its mark, with a halo. @param {Drawing} page @param {number} number @param {number} x @param {number} y @param {string} color */
export function drawLabel({ canvas, theme, font }, number, x, y, color) {
  canvas.font = `600 ${font}`;
  canvas.lineWidth = 3;
  canvas.strokeStyle = theme.surface;
  canvas.lineJoin = "round";
  canvas.setLineDash([]);
  canvas.strokeText(`#${number}`, x, y);
  canvas.fillStyle = color;
  canvas.fillText(`#${number}`, x, y);
}

/** A move along a list of trials by key: next, previous, first and last.
 * @param {() => number[]} list of trial numbers, in the order of the keys @param {string[]} next @param {string[]} before @returns {Move} */
export function listNavigation(list, next, before) {
  return (number, key) => {
    const by = next.includes(key) ? 1 : before.includes(key) ? -1 : 0;
    if (!by && key !== "Home" && key !== "End") return null;
    const numbers = list();
    if (numbers.length === 0) return -1;
    const here = numbers.indexOf(number);
    const last = numbers.length - 1;
    if (key === "Home" || (here < 0 && by > 0)) return numbers[0];
    if (key === "End" || here < 0) return numbers[last];
    return numbers[Math.max(0, Math.min(last, here + by))];
  };
}

/** @param {SweepModel} model @param {number} row */
export function timeFacts(model, row) {
  const [start, end] = [model.started[row], model.ended[row]];
  if (!Number.isFinite(start)) return [];
  if (!Number.isFinite(end) || model.state[row] === RUNNING) return [`started after ${formatTime(start)}`];
  return [`${formatTime(start)} – ${formatTime(end)}, duration ${formatTime(end - start)}`];
}
