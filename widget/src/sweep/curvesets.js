// What the view of curves has to know of them: how far they reach, which are best, and which is at a place. Pure.
import { scaleFor, settled, share } from "./axes.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {import("./model.js").Curve} Curve */

const SAMPLE = 20_000; // values that a scale is made from
const AHEAD = 1.1; // how much further the steps may go before everything is drawn anew
export const FEW = 10_000; // points up to which all is drawn anew when something changes

/** How far the curves reach, kept up to date by looking only at points that are new. */
export class Reach {
  constructor() {
    this.version = 0; // another when nothing that was drawn can stay
    /** @type {import("./axes.js").Scale} */
    this.scale = scaleFor([]);
    this.end = 1; // the last step on the axis
    this.points = this.scaled = 0; // those there are, and those there were when the scale was made
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
  look(curves, best) {
    let grown = this.grownIn(curves);
    if (!grown) {
      this.clear();
      grown = this.grownIn(curves) ?? [];
    }
    if (grown.length > 0) this.rescale(curves, best);
    return grown;
  }

  /** @param {Map<number, Curve>} curves @returns {number[] | null} null if some curve is not the one that it was */
  grownIn(curves) {
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
    const outside = must.some((value) => share(this.scale, value) < 0 || share(this.scale, value) > 1);
    if (!many || outside || this.points > this.scaled * AHEAD) {
      const scale = settled(this.scale, scaleFor(sample(curves, this.points), must));
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

/** The trials with the best values, the best one first. @param {Model} model @param {number} most @returns {number[]} */
export function bestFew(model, most) {
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
  let [low, high] = [0, last];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle;
    else high = middle;
  }
  if (step <= steps[low] || low === high) return values[low];
  if (step >= steps[high]) return values[high];
  const [left, right] = [values[low], values[high]];
  return left + ((right - left) * (step - steps[low])) / (steps[high] - steps[low]);
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
    const far = curve ? distance(valueAt(curve, step, slack)) : NaN;
    if (far < least) [found, least] = [number, far];
  }
  return found;
}
