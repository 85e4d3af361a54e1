// The brushed trials: those within the brush of every axis that has one. All views show the same brush.
// d3-brush is not used: it makes SVG elements for a pointer only. Here each axis is also a slider for keys and screen
// readers, a brush on choices covers whole values, and a brush keeps its values when the ends of its axis change.
import { make, setText } from "../../dom/elements.js";
import { consume, hasModifier } from "../../dom/keyboard.js";
import { formatCount } from "../../text/format.js";
import { clamp } from "./scales.js";

/** @typedef {import("./scales.js").ValueRange} ValueRange */
/** @typedef {[number, number]} Span */

export class Brush {
  /** @param {import("../model.js").SweepModel} model @param {import("./positions.js").TrialPositions} positions */
  constructor(model, positions) {
    this.model = model;
    this.positions = positions;
    /** @type {Map<string, ValueRange>} */
    this.parts = new Map();
  }

  /** The brushed range of an axis, or null. @param {string} name @returns {[number, number] | null} */
  span(name) {
    const part = this.parts.get(name);
    return part ? this.positions.axis(name).scale.span(part) : null;
  }

  /** @param {Record<string, [number, number] | null>} spans by axis; null removes its brush */
  set(spans) {
    for (const [name, span] of Object.entries(spans)) {
      if (span && span[1] > span[0]) this.parts.set(name, this.positions.axis(name).scale.part(...span));
      else this.parts.delete(name);
    }
    this.refresh();
  }

  clear() {
    this.parts.clear();
    this.refresh();
  }

  /** Recomputes which rows are brushed, from the current trials and axes. */
  refresh() {
    if (this.parts.size === 0) return this.model.brush(null);
    const spans = [...this.parts.keys()].map((name) => ({ at: this.positions.axis(name).at, span: /** @type {[number, number]} */ (this.span(name)) }));
    this.model.brush(maskOf(this.model.count, spans));
  }

  /** Describes the brush. */
  describe() {
    return [...this.parts.keys()].map((name) => {
      const { title, scale } = this.positions.axis(name);
      return `${title} ${scale.describe(.../** @type {[number, number]} */ (this.span(name)))}`;
    }).join(", ");
  }
}

/** @param {number} count rows @param {{ at: Float32Array, span: [number, number] }[]} spans @returns {Uint8Array} 1 for rows within all of them */
export function maskOf(count, spans) {
  const mask = new Uint8Array(count).fill(1);
  for (const { at, span: [from, to] } of spans) {
    const [low, high] = [Math.fround(from), Math.fround(to)]; // positions are in single precision
    for (let row = 0; row < count; row++) if (!(at[row] >= low && at[row] <= high)) mask[row] = 0;
  }
  return mask;
}

// The brush on one axis: created, moved and removed with the pointer or with keys.

const EDGE = 6; // CSS pixels around an end of the brush within which a press drags that end
const MOVED = 3; // CSS pixels from which a press is a drag
const STEP = 0.04; // share of the axis for one key press

export class AxisBrush {
  /** @param {Brush} brush */
  constructor(brush) {
    this.brush = brush;
    /** @type {import("./positions.js").Axis | undefined} */
    this.axis = undefined;
    this.height = 1;
    this.label = make("span", { class: "nbs-axis-name", "aria-hidden": "true" });
    this.mark = make("i", { class: "nbs-brushed" });
    this.slider = make("div", { class: "nbs-axis", role: "slider", tabindex: "0", "aria-orientation": "vertical", "aria-valuemin": "0", "aria-valuemax": "100" }, this.mark);
    this.element = make("div", { class: "nbs-axis-place" }, this.label, this.slider);
    this.slider.addEventListener("pointerdown", (event) => this.press(event));
    this.slider.addEventListener("keydown", (event) => this.onKey(event));
  }

  /**
   * @param {import("./positions.js").Axis} axis
   * @param {number} x @param {number} top @param {number} height @param {number} room CSS pixels
   * @param {import("../model.js").SweepModel} model
   */
  show(axis, x, top, height, room, model) {
    this.axis = axis;
    this.height = height;
    this.element.style.left = `${x}px`;
    this.element.classList.toggle("nbs-metric", axis.name === "");
    Object.assign(this.slider.style, { top: `${top}px`, height: `${height}px` });
    this.label.style.maxWidth = `${Math.max(40, room - 6)}px`;
    setText(this.label, axis.title);
    this.label.title = axis.title;
    const span = this.span();
    this.mark.hidden = !span;
    if (span) Object.assign(this.mark.style, { bottom: `${100 * span[0]}%`, height: `${100 * (span[1] - span[0])}%` });
    const words = span ? `${axis.scale.describe(...span)}, ${formatCount(model.brushedCount)} trials brushed` : "not brushed";
    for (const [name, value] of [["aria-label", axis.title], ["aria-valuenow", String(Math.round(span ? 50 * (span[0] + span[1]) : 50))], ["aria-valuetext", words]]) {
      if (this.slider.getAttribute(name) !== value) this.slider.setAttribute(name, value);
    }
  }

  span() {
    return this.axis ? this.brush.span(this.axis.name) : null;
  }

  /** @param {Span | null} span */
  set(span) {
    if (this.axis) this.brush.set({ [this.axis.name]: span && snapToValues(span, this.axis.scale.values?.length ?? 0) });
  }

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0) return;
    const { slider, height } = this;
    const positionOf = (/** @type {PointerEvent} */ { clientY }) => snapToEnds(1 - (clientY - slider.getBoundingClientRect().top) / height, EDGE / height);
    const start = positionOf(event);
    const span = this.span();
    const drag = span ? brushDrag(span, start, EDGE / height) : null;
    const inside = Boolean(span && start >= span[0] && start <= span[1]);
    let moved = false;
    const move = (/** @type {PointerEvent} */ at) => {
      moved ||= Math.abs(at.clientY - event.clientY) > MOVED;
      if (moved) this.set(drag ? drag(positionOf(at)) : [Math.min(start, positionOf(at)), Math.max(start, positionOf(at))]);
    };
    const end = () => {
      slider.removeEventListener("pointermove", move);
      slider.removeEventListener("pointerup", lift);
      slider.removeEventListener("pointercancel", end);
    };
    const lift = () => {
      end();
      if (moved) return;
      const count = this.axis?.scale.values?.length ?? 0;
      if (inside) this.set(null);
      else if (count) this.set([start, start]); // the value that was clicked
    };
    slider.addEventListener("pointermove", move);
    slider.addEventListener("pointerup", lift);
    slider.addEventListener("pointercancel", end);
    slider.setPointerCapture?.(event.pointerId);
    slider.focus({ preventScroll: true });
    event.preventDefault();
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (hasModifier(event)) return;
    const span = this.span();
    const next = brushAfterKey(span, event.key, event.shiftKey, this.axis?.scale.values?.length ?? 0);
    if (next === undefined || (next === null && !span)) return;
    this.set(next);
    consume(event);
  }
}

/** The change of the brush by a drag that starts in or at it; null if the drag starts elsewhere. @param {Span} span @param {number} start @param {number} edge @returns {((to: number) => Span) | null} */
export function brushDrag([from, to], start, edge) {
  if (Math.abs(start - to) <= edge) return (at) => [Math.min(from, at), Math.max(from, at)];
  if (Math.abs(start - from) <= edge) return (at) => [Math.min(to, at), Math.max(to, at)];
  if (start < from || start > to) return null;
  return (at) => shifted([from, to], at - start);
}

/** The brush after a key; undefined if the key has no meaning here. @param {Span | null} span @param {string} key @param {boolean} shift @param {number} count of values of a choice, 0 for numbers @returns {Span | null | undefined} */
export function brushAfterKey(span, key, shift, count) {
  if (key === "Escape" || key === "Delete" || key === "Backspace") return null;
  const step = count ? 1 / count : STEP;
  const by = /** @type {Record<string, number>} */ ({ ArrowUp: step, ArrowDown: -step, ArrowRight: step, ArrowLeft: -step, PageUp: 5 * step, PageDown: -5 * step, Home: -1, End: 1 })[key];
  if (by === undefined) return undefined;
  if (!span) return count ? (by > 0 ? [0, step] : [1 - step, 1]) : by > 0 ? [0, 0.25] : [0.75, 1];
  if (shift) return [span[0], clamp(span[1] + by, span[0] + step, 1)];
  return shifted(span, by);
}

/** A position on an axis, snapped to an end near it: values at the end would be hard to include otherwise. @param {number} position @param {number} edge */
export function snapToEnds(position, edge) {
  return position <= edge ? 0 : position >= 1 - edge ? 1 : position;
}

/** A brush moved within the axis. @param {Span} span @param {number} by @returns {Span} */
function shifted([from, to], by) {
  const move = clamp(by, -from, 1 - to);
  return [from + move, to + move];
}

/** A brush extended to whole values of a choice. @param {Span} span @param {number} count 0 for numbers @returns {Span} */
export function snapToValues([from, to], count) {
  if (!count) return [from, to];
  const low = Math.min(count - 1, Math.floor(from * count + 1e-6));
  return [low / count, Math.max(low + 1, Math.ceil(to * count - 1e-6)) / count];
}
