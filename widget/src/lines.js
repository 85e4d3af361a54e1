// From curves to the lines of one chart, in drawing order. Pure.
import { CLOCK, MEAN, TREND } from "./frame.js";
import { secondsAt, smooth } from "./smooth.js";

/** @typedef {import("./curves.js").Curves} Curves */
/** @typedef {{ title: string, train: number | null, validation: number | null }} Plan */
/** @typedef {{ byTime: boolean, log: boolean, smoothing: number, chosen: number | null }} Options */
/**
 * @typedef {object} Line
 * @property {"points" | "trend" | "train" | "validation" | "chosen"} kind
 * @property {number} replica
 * @property {number[]} steps
 * @property {number[]} xs
 * @property {number[]} ys
 */

/**
 * Every replica's points, pale; where there are several, their trends; the mean; validation; and on top the
 * replica that was chosen. Smoothing acts on trends and means.
 * @param {Curves} curves
 * @param {Plan} plan
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

/** What a line is called in the legend and the table. @param {Line} line @param {string[]} labels of replicas */
export function lineLabel(line, labels) {
  if (line.kind === "validation") return "validation";
  if (line.kind === "train") return line.replica === MEAN ? "mean over replicas" : "training";
  return labels[line.replica] ?? `replica ${line.replica}`;
}
