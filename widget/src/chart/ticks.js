// Where the ticks of a axis stand. Pure.

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
  // Within less than a digit no round value may lie; even steps are better than none.
  return best.length > 1 ? best : [low + (high - low) * 0.15, low + (high - low) * 0.85];
}

/** Multiples of a step. @param {number} low @param {number} high @param {number} step @returns {number[]} */
export function linearTicks(low, high, step) {
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.max(0, Math.floor(high / step) - first + 1) }, (_, i) => (first + i) * step);
}
