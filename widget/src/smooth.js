// Small pure functions on curves.

/**
 * Exponential moving average, corrected for its start (as in Adam); what is not finite stays as it is.
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
 * The seconds at which these (ascending) steps were reached, between the known ones by proportion.
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
 * The index of the last x that is not above `x`, or -1. `xs` ascends.
 * @param {number[]} xs
 * @param {number} x
 */
export function indexAt(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * The index of the x nearest to `x`, or -1 if there is none. `xs` ascends.
 * @param {number[]} xs
 * @param {number} x
 */
export function nearest(xs, x) {
  const before = indexAt(xs, x);
  if (before < 0) return xs.length ? 0 : -1;
  return before + 1 < xs.length && xs[before + 1] - x < x - xs[before] ? before + 1 : before;
}

/**
 * The finite values whose x lies in a range, and those next to it, so that a line that only crosses counts.
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
  let [low, high] = [Infinity, -Infinity];
  for (const values of lists) {
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : null;
}

const FEWEST = 5; // values among which a spike can be told from a steep curve
const FAR = 2; // times the range of the others, beyond which a spike leaves the plot

/**
 * The values but for single spikes: far off medians with both neighbours, which spikes do not move.
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
  const far = FAR * (high - low);
  return values.filter((value) => value >= low - far && value <= high + far);
}

const SORTED = 2000; // values of a large list that are looked at

/**
 * The range that holds most of the values, or null if there are none. What is beyond may leave the plot.
 * @param {number[]} values
 * @returns {number[]}
 */
export function mostOf(values) {
  if (!values.length) return [];
  // An odd stride, since points come as pairs of a lowest and a highest.
  const stride = 2 * Math.floor(values.length / SORTED / 2) + 1;
  const some = Float64Array.from({ length: Math.ceil(values.length / stride) }, (_, i) => values[i * stride]).sort();
  const at = (/** @type {number} */ share) => some[Math.round(share * (some.length - 1))];
  return [at(0.03), at(0.97)];
}

/**
 * A range with some room around, that does not cross zero only for the room's sake.
 * @param {[number, number] | null} range
 * @returns {[number, number]}
 */
export function withRoom(range) {
  if (!range) return [0, 1];
  const [low, high] = range;
  const room = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high <= 0 && low < 0 ? Math.min(0, high + room) : high + room];
}
