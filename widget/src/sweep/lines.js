// The lines of parallel coordinates: which of many are drawn, and drawing them on a canvas a thousand at a time.
import { shadeOf } from "./ramp.js";
import { FINISHED, FAILED, PRUNED, STOPPED } from "./states.js";

/** @typedef {{ xs: number[], at: Float32Array[], top: number, height: number, none: number }} Lines where axes stand, where trials lie on them, and how high those lie that have none */

const GROUPS = 16; // of shades: lines of one are one path

/** Up to `most` rows, the best and a fair choice of the others, which stays the same while others come and go.
 * @param {number[]} ranked rows, the best first @param {Uint8Array | null} mask @param {Int32Array} number @param {number} most @returns {number[]} the best last */
export function thinned(ranked, mask, number, most) {
  const rows = mask ? ranked.filter((row) => mask[row]) : ranked;
  if (rows.length <= most) return rows.toReversed();
  const sure = most >> 3;
  const share = ((most - sure) / (rows.length - sure)) * 2 ** 32;
  return rows.filter((row, i) => i < sure || scatter(number[row]) < share).slice(0, most).reverse();
}

/** A number from 0 to 2**32 that looks drawn by lot, always the same for a trial. @param {number} number */
export function scatter(number) {
  let mixed = Math.imul(number ^ 0x9e3779b9, 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

/** Adds a row's line to the path. @param {CanvasRenderingContext2D} canvas @param {Lines} lines @param {number} row */
export function trace(canvas, { xs, at, top, height, none }, row) {
  let [x, y] = [0, 0];
  for (let i = 0; i < xs.length; i++) {
    const place = at[i][row];
    const here = Number.isNaN(place) ? none : top + (1 - place) * height;
    if (i === 0) canvas.moveTo(xs[0], here);
    else {
      const middle = (x + xs[i]) / 2;
      canvas.bezierCurveTo(middle, y, middle, here, xs[i], here);
    }
    [x, y] = [xs[i], here];
  }
}

/** Where a row's line is at an x. @param {Lines} lines @param {number} row @param {number} segment that x lies on @param {number} ease of x, see `easeAt` */
export function heightAt({ at, top, height, none }, row, segment, ease) {
  const y = (/** @type {number} */ i) => (Number.isNaN(at[i][row]) ? none : top + (1 - at[i][row]) * height);
  return y(segment) + (y(segment + 1) - y(segment)) * ease;
}

/** How far up a curve between two axes has come where it is `share` of the way across. @param {number} share */
export function easeAt(share) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 20; i++) {
    const t = (low + high) / 2;
    if (1.5 * t * (1 - t) + t ** 3 < share) low = t;
    else high = t;
  }
  return low * low * (3 - 2 * low);
}

/** The nearest of some rows' lines at a place, or -1. @param {Lines} lines @param {ArrayLike<number>} rows @param {number} x @param {number} y @param {number} reach CSS pixels */
export function nearestLine(lines, rows, x, y, reach) {
  const { xs } = lines;
  const segment = Math.max(0, Math.min(xs.length - 2, xs.findIndex((right) => right > x) - 1));
  if (xs.length < 2 || x < xs[0] - reach || x > xs[xs.length - 1] + reach) return -1;
  const ease = easeAt(Math.max(0, Math.min(1, (x - xs[segment]) / (xs[segment + 1] - xs[segment]))));
  let [nearest, least] = [-1, reach];
  for (let i = rows.length - 1; i >= 0; i--) { // the best are on top
    const distance = Math.abs(heightAt(lines, rows[i], segment, ease) - y);
    if (distance < least) [nearest, least] = [rows[i], distance];
  }
  return nearest;
}

/**
 * Draws rows in the colours of their values, the last on top: pruned and stopped ones dashed, those without a value plain.
 * @param {CanvasRenderingContext2D} canvas @param {Lines} lines @param {number[]} rows
 * @param {{ state: Uint8Array }} model @param {(row: number) => number} goodness
 * @param {import("./surface.js").Look} look
 */
export function drawLines(canvas, lines, rows, model, goodness, look) {
  /** @type {Map<string, { color: string, dash: number[], rows: number[], rank: number }>} */
  const groups = new Map();
  for (const row of rows) {
    const state = model.state[row];
    const good = goodness(row);
    const group = Number.isNaN(good) ? -1 : Math.round(good * (GROUPS - 1));
    const dashed = state === PRUNED || state === STOPPED;
    const key = group < 0 ? `state ${state}` : `${group} ${dashed}`;
    let one = groups.get(key);
    if (!one) {
      const color = group >= 0 ? look.ramp.css[shadeOf(group / (GROUPS - 1))] : state === FAILED ? look.colours.bad : state === FINISHED ? look.colours.muted : look.colours.accent;
      groups.set(key, (one = { color, dash: dashed ? [4, 3] : [], rows: [], rank: group * 2 + (dashed ? 0 : 1) }));
    }
    one.rows.push(row);
  }
  for (const { color, dash, rows: some } of [...groups.values()].sort((a, b) => a.rank - b.rank)) {
    canvas.strokeStyle = color;
    canvas.setLineDash(dash);
    for (let from = 0; from < some.length; from += 64) { // a path of thousands is slower than its parts
      canvas.beginPath();
      for (const row of some.slice(from, from + 64)) trace(canvas, lines, row);
      canvas.stroke();
    }
  }
  canvas.setLineDash([]);
}
