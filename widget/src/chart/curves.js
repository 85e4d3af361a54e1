// The points that the page holds, and the lines of one chart made from them.
import { bisectLeft, bisectRight } from "d3-array";
import { CLOCK, MEAN, TREND } from "../comm/frames.js";

/** @typedef {{ steps: number[], values: number[] }} Curve */
/** @typedef {import("../comm/frames.js").CurveSegment} CurveSegment */
/** @typedef {{ title: string, train: number | null, validation: number | null }} ChartSpec */
/** @typedef {{ byTime: boolean, log: boolean, smoothing: number, chosen: number | null }} Options */
/**
 * @typedef {object} Line
 * @property {"points" | "trend" | "train" | "validation" | "chosen" | "run" | "run-validation"} kind
 * @property {number} replica or the run's place in a comparison
 * @property {number[]} steps
 * @property {number[]} xs
 * @property {number[]} ys
 */

/**
 * Exponential moving average with bias correction (as in Adam); values that are not finite are unchanged.
 * @param {number[]} values
 * @param {number} weight of the past, 0 (none) to below 1
 * @returns {number[]}
 */
export function smooth(values, weight) {
  if (weight <= 0) return values;
  let sum = 0;
  let correction = 1;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    correction *= weight;
    return sum / (1 - correction);
  });
}

/**
 * The times in seconds of ascending steps, interpolated linearly between the known ones.
 * @param {number[]} steps
 * @param {{ steps: number[], values: number[] }} clock
 * @returns {number[]}
 */
export function secondsAt(steps, clock) {
  const last = clock.steps.length - 1;
  let at = 0;
  return steps.map((step) => {
    while (at < last - 1 && clock.steps[at + 1] < step) at++;
    if (last < 1) return clock.values[0] ?? 0;
    const [s0, s1, t0, t1] = [clock.steps[at], clock.steps[at + 1], clock.values[at], clock.values[at + 1]];
    return s1 > s0 ? t0 + ((step - s0) / (s1 - s0)) * (t1 - t0) : t0;
  });
}

/**
 * The epoch of a step, given the epochs that begin after some steps; those between them are interpolated.
 * @param {number} step
 * @param {{ steps: number[], values: number[] } | undefined} epochs
 * @returns {number | null}
 */
export function epochAt(step, epochs) {
  if (!epochs?.steps.length) return null;
  const at = Math.max(0, bisectLeft(epochs.steps, step) - 1); // an epoch begins with the step after
  const [s0, e0, s1, e1] = [epochs.steps[at], epochs.values[at], epochs.steps[at + 1], epochs.values[at + 1]];
  if (s1 === undefined || s1 <= s0 || step <= s0) return e0;
  return e0 + Math.floor(((step - s0 - 0.5) / (s1 - s0)) * (e1 - e0));
}

/**
 * The index of the last x that is not above `x`, or -1. `xs` ascends.
 * @param {number[]} xs
 * @param {number} x
 */
export function indexAt(xs, x) {
  return bisectRight(xs, x) - 1;
}

/**
 * The index of the x nearest to `x`, or -1 if there is none. `xs` ascends.
 * @param {number[]} xs
 * @param {number} x
 */
export function nearestIndex(xs, x) {
  const before = indexAt(xs, x);
  if (before < 0) return xs.length ? 0 : -1;
  return before + 1 < xs.length && xs[before + 1] - x < x - xs[before] ? before + 1 : before;
}

// The points of the page, by replica and series. The kernel limits their number.

export class Curves {
  constructor() {
    /** @type {Map<number, Curve>} */
    this.byKey = new Map();
  }

  /**
   * @param {number} replica
   * @param {number | null} series
   * @returns {Curve | undefined}
   */
  get(replica, series) {
    return series === null ? undefined : this.byKey.get(key(replica, series));
  }

  clear() {
    this.byKey.clear();
  }

  /**
   * Clears the replaced curves, then appends the segments.
   * @param {[number, number][]} replaced pairs of replica and series
   * @param {CurveSegment[]} segments
   */
  apply(replaced, segments) {
    for (const [replica, series] of replaced) this.byKey.delete(key(replica, series));
    for (const { replica, series, steps, values } of segments) {
      const curve = this.byKey.get(key(replica, series));
      if (!curve) {
        this.byKey.set(key(replica, series), { steps, values });
      } else {
        for (let i = 0; i < steps.length; i++) {
          curve.steps.push(steps[i]);
          curve.values.push(values[i]);
        }
      }
    }
  }

  /** @param {number | null} series @returns {number[]} the replicas that have points of it, sorted */
  replicas(series) {
    if (series === null) return [];
    return [...this.byKey.keys()]
      .filter((k) => k % 65536 === series)
      .map((k) => Math.floor(k / 65536))
      .sort((a, b) => a - b);
  }
}

/** @param {number} replica @param {number} series */
function key(replica, series) {
  return replica * 65536 + series;
}

// The lines of one chart, in drawing order.

/**
 * Each replica's points, pale; with several replicas their trends; the mean; validation; and on top the chosen
 * replica. Smoothing applies to trends and means.
 * @param {Curves} curves
 * @param {ChartSpec} plan
 * @param {Options} options
 * @returns {Line[]}
 */
export function linesOf(curves, plan, options) {
  const clock = options.byTime ? curves.get(MEAN, CLOCK) : undefined;
  /** @type {Line[]} */
  const lines = [];
  const add = (/** @type {Line["kind"]} */ kind, /** @type {number} */ replica, /** @type {number | null} */ series, named = replica) => {
    const curve = curves.get(replica, series);
    if (!curve) return;
    const xs = clock ? secondsAt(curve.steps, clock) : curve.steps;
    const weight = kind === "points" || kind === "validation" ? 0 : options.smoothing;
    lines.push({ kind, replica: named, steps: curve.steps, xs, ys: smooth(curve.values, weight) });
  };

  const { train, validation } = plan;
  const replicas = curves.replicas(train).filter((replica) => replica !== MEAN);
  const several = replicas.length > 1;
  for (const replica of replicas) add("points", replica, train);
  if (several && train !== null) {
    for (const replica of replicas) if (replica !== options.chosen) add("trend", replica, train | TREND);
  }
  add("train", MEAN, train, several ? MEAN : replicas[0]);
  add("validation", MEAN, validation);
  if (several && train !== null && options.chosen !== null) add("chosen", options.chosen, train | TREND);
  return lines;
}

// The lines of one chart of a comparison.

/** A glyph for each run, so that its line is known without its colour; nbdist/ui/compare/saved.py has the same. */
export const RUN_GLYPHS = ["●", "■", "▲", "◆", "▼", "✚", "✖", "★"];

/**
 * The curve of each run that is not hidden, and dashed that of its validation data.
 * @param {Curves} curves by run
 * @param {(Curve | undefined)[] | null} places of steps on the x axis, by run; null: the steps themselves
 * @param {ChartSpec} plan
 * @param {Options} options
 * @param {Set<number>} hidden
 * @returns {Line[]}
 */
export function runLines(curves, places, { train, validation }, options, hidden) {
  /** @type {Line[]} */
  const lines = [];
  for (const [kind, series] of /** @type {["run" | "run-validation", number | null][]} */ ([["run", train], ["run-validation", validation]])) {
    for (const replica of curves.replicas(series)) {
      const [curve, along] = [curves.get(replica, series), places?.[replica]];
      if (!curve || hidden.has(replica) || (places && !along)) continue;
      const xs = along ? secondsAt(curve.steps, along) : curve.steps;
      lines.push({ kind, replica, steps: curve.steps, xs, ys: smooth(curve.values, kind === "run" ? options.smoothing : 0) });
    }
  }
  return lines;
}

/** The name of a line in the legend and the table. @param {Line} line @param {string[]} labels of replicas */
export function lineLabel(line, labels) {
  if (line.kind === "validation") return "validation";
  if (line.kind === "run-validation") return `${labels[line.replica]}, validation`;
  if (line.kind === "train") return line.replica === MEAN ? "mean over replicas" : "training";
  return labels[line.replica] ?? `replica ${line.replica}`;
}
