// The position of each trial on each axis, and its quality: computed once for all views when trials change.
import { isLog, robustScale } from "./axes.js";
import { clamp, numberScale, scaleOf } from "./scales.js";

/** @typedef {{ name: string, title: string, scale: import("./scales.js").Scale, at: Float32Array }} Axis `at` by row: 0 to 1, NaN for none */

/** The name of the metric's axis; no parameter can have this name. */
export const METRIC = "";

const [FEW, WORST] = [20, 0.08]; // with more than FEW trials, the worst 8% share one colour

export class TrialPositions {
  /** @param {import("../model.js").SweepModel} model */
  constructor(model) {
    this.model = model;
    this.version = 0;
    /** @type {Map<string, Axis>} */
    this.axes = new Map();
    /** @type {number[] | null} */
    this.order = null;
    /** @type {{ worst: number, best: number } | null} */
    this.colours = null;
  }

  /** Trials have changed. */
  invalidate() {
    this.version++;
    this.axes.clear();
    this.order = null;
    this.colours = null;
  }

  /** All parameters, those of the space first, and the metric. @returns {string[]} */
  names() {
    const first = (this.model.head?.parameters ?? []).map(({ name }) => name);
    return [...first, ...[...this.model.parameters.keys()].filter((name) => !first.includes(name))];
  }

  /** @param {string} name of a parameter, or METRIC @returns {Axis} */
  axis(name) {
    let axis = this.axes.get(name);
    if (!axis) this.axes.set(name, (axis = name === METRIC ? this.metric() : this.parameter(name)));
    return axis;
  }

  /** @param {string} name @returns {Axis} */
  parameter(name) {
    const values = this.model.parameters.get(name) ?? [];
    const scale = scaleOf(this.model.head?.parameters.find((one) => one.name === name), values);
    return { name, title: name, scale, at: positionsOf(values, scale.position) };
  }

  /** @returns {Axis} */
  metric() {
    const { value } = this.model;
    const finite = Array.from(value).filter(Number.isFinite);
    const shown = robustScale(finite, [finite.reduce((a, b) => (this.model.better(a, b) ? a : b), NaN)]);
    const [low, high] = shown.domain();
    const scale = numberScale(low, high, isLog(shown));
    return { name: METRIC, title: this.model.head?.metric ?? "value", scale, at: positionsOf(value, scale.position) };
  }

  /** The quality of a row's value: 1 is the best so far, 0 the worst with a colour of its own; NaN without one. @param {number} row */
  quality(row) {
    return this.qualityAt(this.axis(METRIC).at[row]);
  }

  /** The quality of a position on the metric's axis. @param {number} position */
  qualityAt(position) {
    const { worst, best } = this.colourDomain();
    return worst === best ? (Number.isNaN(position) ? NaN : 1) : clamp((position - worst) / (best - worst), 0, 1);
  }

  /** The positions on the metric's axis of the worst and the best colour; up to 8% of the values are worse. @returns {{ worst: number, best: number }} */
  colourDomain() {
    if (this.colours) return this.colours;
    const { at } = this.axis(METRIC);
    const positions = at.filter((position) => !Number.isNaN(position)).sort();
    if (this.model.head?.direction !== "max") positions.reverse();
    const pick = (/** @type {number} */ share) => positions[Math.floor(share * (positions.length - 1))] ?? 0;
    return (this.colours = { worst: pick(positions.length > FEW ? WORST : 0), best: pick(1) });
  }

  /** Rows, the best first: those that have finished, then the others; those without a value last. @returns {number[]} */
  ranked() {
    if (this.order) return this.order;
    const { model } = this;
    const { value, number, head } = model;
    const other = Uint8Array.from({ length: model.count }, (_, row) => Number(!model.counts(row)));
    const sign = head?.direction === "max" ? -1 : 1;
    const key = (/** @type {number} */ row) => (Number.isNaN(value[row]) ? Infinity : sign * value[row]);
    this.order = Array.from({ length: this.model.count }, (_, row) => row);
    return this.order.sort((a, b) => {
      if (other[a] !== other[b]) return other[a] - other[b];
      const [x, y] = [key(a), key(b)];
      return x < y ? -1 : x > y ? 1 : Number(Number.isNaN(value[a])) - Number(Number.isNaN(value[b])) || number[a] - number[b];
    });
  }
}

/** @param {ArrayLike<any>} values @param {(value: any) => number} position */
function positionsOf(values, position) {
  const at = new Float32Array(values.length);
  for (let row = 0; row < at.length; row++) at[row] = position(values[row]);
  return at;
}
