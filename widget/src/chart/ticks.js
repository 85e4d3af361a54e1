// The positions of an axis's ticks.
//
// d3's ticks are not used: d3.ticks and tickStep take the number of ticks as a hint and return up to 1.4 times as many,
// so labels would overlap; and scaleLog().ticks() returns only the multiples 1 to 9 within a decade, and none in a
// narrower range, such as that of a converged loss.
import { range } from "d3-array";

/*! d3-array and d3-scale: Copyright 2010-2023 Mike Bostock, ISC license, https://github.com/d3/d3/blob/main/LICENSE */

const STEPS = [[1], [1, 3], [1, 2, 5], [1, 2, 3, 5, 7], [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]];

/**
 * Round values, as logarithms, between two logarithms: as many as fit into `most`.
 * @param {number} low log10 of the lowest value
 * @param {number} high log10 of the highest value
 * @param {number} most
 * @returns {number[]}
 */
export function logTicks(low, high, most) {
  const decades = Math.max(1, Math.ceil((high - low) / most));
  /** @type {number[]} */
  let best = [];
  for (const digits of STEPS) {
    const ticks = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power++) {
      if (digits.length === 1 && power % decades !== 0) continue;
      for (const digit of digits) {
        const tick = power + Math.log10(digit);
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    }
    if (ticks.length > most && best.length > 0) break;
    best = ticks;
  }
  // A range of less than a digit may contain no round value; use even steps instead.
  return best.length > 1 ? best : [low + (high - low) * 0.15, low + (high - low) * 0.85];
}

/** Multiples of a step. @param {number} low @param {number} high @param {number} step @returns {number[]} */
export function linearTicks(low, high, step) {
  return range(Math.ceil(low / step), Math.floor(high / step) + 1).map((i) => i * step);
}
