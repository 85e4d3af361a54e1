// Domains of a chart's axes, and zoom. A frozen picture has the same y range (nbdist/ui/frozen/run_figure.py).
import { extent as d3Extent } from "d3-array";
import { indexAt } from "./curves.js";

/** @typedef {[number, number]} Range */
/** @typedef {Pick<import("./curves.js").Line, "kind" | "xs" | "ys">} Line */

/** The range of the points' x. @param {Pick<Line, "xs">[]} lines @returns {Range} */
export function domainX(lines) {
  let [low, high] = [Infinity, -Infinity];
  for (const { xs } of lines) {
    if (!xs.length) continue;
    low = Math.min(low, xs[0]);
    high = Math.max(high, xs[xs.length - 1]);
  }
  return low < high ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
}

/**
 * The y range for a range of x: it includes the lines, except for single spikes, and most of the points, as far
 * as these leave half of it to the lines; half of the points always.
 * @param {Line[]} lines
 * @param {Range} within
 * @param {boolean} log whether the range is one of logarithms
 * @returns {Range}
 */
export function domainY(lines, within, log) {
  const values = (/** @type {Line} */ line) => {
    const found = valuesWithin(line, within);
    return log ? found.map(Math.log10).filter(Number.isFinite) : found;
  };
  const points = lines.filter((line) => line.kind === "points").flatMap(values);
  const read = lines.filter((line) => line.kind !== "points").map((line) => withoutSpikes(values(line)));
  const range = extent([...read, pointRange(points, extent(read))]);
  if (!log) return padded(range);
  return range ? [range[0] - 0.05, range[1] + 0.05] : [-1, 0];
}

// The shown range of x: zoomed in, zoomed out or moved, within the whole range.

const NARROWEST = 1e-6; // share of the whole range

/** A range zoomed in (factor below 1) or out around a fixed place; null if it is the whole range.
 * @param {Range} shown @param {number} at @param {number} factor @param {Range} whole @returns {Range | null} */
export function zoomed([from, to], at, factor, whole) {
  const width = Math.max((to - from) * factor, (whole[1] - whole[0]) * NARROWEST);
  const share = to > from ? (at - from) / (to - from) : 0.5;
  return within([at - share * width, at + (1 - share) * width], whole);
}

/** A range moved by a distance, within the whole range. @param {Range} shown @param {number} by @param {Range} whole @returns {Range | null} */
export function panned([from, to], by, whole) {
  const distance = Math.max(whole[0] - from, Math.min(whole[1] - to, by));
  return within([from + distance, to + distance], whole);
}

/** A range moved by the least distance that shows a place. @param {Range} shown @param {number} at @param {Range} whole @returns {Range | null} */
export function panToShow([from, to], at, whole) {
  return panned([from, to], at < from ? at - from : at > to ? at - to : 0, whole);
}

/** A range clipped to the whole range; null if it is the whole range. @param {Range} range @param {Range} whole @returns {Range | null} */
export function within([from, to], [first, last]) {
  const inner = /** @type {Range} */ ([Math.max(from, first), Math.min(to, last)]);
  if (!(inner[0] < inner[1]) || (inner[0] <= first && inner[1] >= last)) return null;
  return inner;
}

// Ranges of values.

/**
 * The finite values with an x in a range, and their neighbours, so that a line that crosses the range counts.
 * @param {{ xs: number[], ys: number[] }} line xs ascend
 * @param {[number, number]} within
 * @returns {number[]}
 */
export function valuesWithin({ xs, ys }, [from, to]) {
  const first = Math.max(0, indexAt(xs, from));
  const last = Math.min(xs.length, indexAt(xs, to) + 2);
  return ys.slice(first, last).filter(Number.isFinite);
}

/**
 * Lowest and highest of all values, or null if there are none.
 * @param {number[][]} lists
 * @returns {[number, number] | null}
 */
export function extent(lists) {
  const [low, high] = d3Extent(lists.flatMap((values) => d3Extent(values)).filter((end) => end !== undefined));
  return low === undefined ? null : [low, high];
}

const FEWEST = 5; // with fewer values a spike cannot be distinguished from a steep curve
const SPIKE = 2; // distance of a spike that is clipped, in ranges of the other values

/**
 * The values without single spikes. Spikes are found with running medians of three, which they do not change.
 * @param {number[]} values
 */
export function withoutSpikes(values) {
  if (values.length < FEWEST) return values;
  const middle = [];
  for (let i = 1; i + 1 < values.length; i++) {
    const [a, b, c] = [values[i - 1], values[i], values[i + 1]];
    middle.push(Math.max(Math.min(a, b), Math.min(Math.max(a, b), c)));
  }
  const [low, high] = /** @type {[number, number]} */ (extent([middle]));
  const margin = SPIKE * (high - low);
  return values.filter((value) => value >= low - margin && value <= high + margin);
}

const SORTED = 2000; // values of a large list that are sampled
const MOST = 0.94; // share of the points that the axis covers where there are no lines

/**
 * The range of most points, within half the lines' range from the lines, and at least of half the points; empty
 * if there are none. Points beyond it may be clipped.
 * @param {number[]} values
 * @param {[number, number] | null} lines
 * @returns {number[]}
 */
export function pointRange(values, lines) {
  if (!values.length) return [];
  // An odd stride, since points arrive in pairs of a minimum and a maximum.
  const stride = 2 * Math.floor(values.length / SORTED / 2) + 1;
  const some = Float64Array.from({ length: Math.ceil(values.length / stride) }, (_, i) => values[i * stride]).sort();
  const at = (/** @type {number} */ share) => some[Math.round(share * (some.length - 1))];
  const [low, high] = [at((1 - MOST) / 2), at((1 + MOST) / 2)];
  if (!lines) return [low, high];
  const room = (lines[1] - lines[0]) / 2;
  return [Math.min(Math.max(low, lines[0] - room), at(0.25)), Math.max(Math.min(high, lines[1] + room), at(0.75))];
}

/**
 * A range with a margin; the margin alone does not extend it across zero.
 * @param {[number, number] | null} range
 * @returns {[number, number]}
 */
export function padded(range) {
  if (!range) return [0, 1];
  const [low, high] = range;
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high <= 0 && low < 0 ? Math.min(0, high + room) : high + room];
}
