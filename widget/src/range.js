// How far the axes of a chart reach. Pure; a frozen picture does the same (yrange.py).
import { extent, mostOf, valuesWithin, withRoom, withoutSpikes } from "./smooth.js";

/** @typedef {[number, number]} Range */
/** @typedef {Pick<import("./lines.js").Line, "kind" | "xs" | "ys">} Line */

/** The range of x in which there are points. @param {Pick<Line, "xs">[]} lines @returns {Range} */
export function rangeOfX(lines) {
  let [low, high] = [Infinity, -Infinity];
  for (const { xs } of lines) {
    if (!xs.length) continue;
    low = Math.min(low, xs[0]);
    high = Math.max(high, xs[xs.length - 1]);
  }
  return low < high ? [low, high] : Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
}

/**
 * The range that shows what lies within a range of x: the lines, but for single spikes, and most of the points.
 * @param {Line[]} lines
 * @param {Range} within
 * @param {boolean} log whether the range is one of logarithms
 * @returns {Range}
 */
export function rangeOfY(lines, within, log) {
  const values = (/** @type {Line} */ line) => {
    const found = valuesWithin(line, within);
    return log ? found.map(Math.log10).filter(Number.isFinite) : found;
  };
  const points = lines.filter((line) => line.kind === "points").flatMap(values);
  const read = lines.filter((line) => line.kind !== "points").map((line) => withoutSpikes(values(line)));
  const range = extent([...read, mostOf(points)]);
  if (!log) return withRoom(range);
  return range ? [range[0] - 0.05, range[1] + 0.05] : [-1, 0];
}
