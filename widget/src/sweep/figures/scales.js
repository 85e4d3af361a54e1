// Conversion of a parameter's values to positions on an axis, from 0 to 1, and back; ticks and descriptions of ranges.
import { linearTicks, logTicks } from "../../chart/ticks.js";
import { formatNumber, formatParameter } from "../format.js";
import { valueKey } from "../model.js";
import { makeScale } from "./axes.js";

/** @typedef {import("../model.js").Parameter} Parameter */
/** @typedef {{ position: number, text: string }} Tick */
/** @typedef {{ low: any, high: any }} ValueRange from a value to a value, null for an open end */
/**
 * @typedef {object} Scale
 * @property {any[] | null} values of a choice in their order; null for a continuous range
 * @property {(value: any) => number} position 0 to 1; NaN for none
 * @property {(position: number) => any} value
 * @property {(most: number) => Tick[]} ticks
 * @property {(from: number, to: number) => ValueRange} part
 * @property {(part: ValueRange) => [number, number]} span the positions of a part on the current axis
 * @property {(from: number, to: number) => string} describe
 */

const DECADES = 2; // a parameter that was removed from the space and spans this many is shown on a logarithmic axis
const MOST_TICKS = 60;

/** @param {Parameter | undefined} parameter undefined if it was removed from the space @param {any[]} seen values of trials: some may lie outside of the space @returns {Scale} */
export function scaleOf(parameter, seen) {
  const kind = parameter?.kind ?? guessKind(seen);
  if (kind === "choice" || kind === "fixed") return choiceScale(parameter?.values ?? [], seen);
  const finite = seen.filter((value) => typeof value === "number" && Number.isFinite(value));
  const ends = [parameter?.low, parameter?.high].filter((end) => end !== undefined);
  let low = Infinity;
  let high = -Infinity;
  for (const value of [ends, finite].flat()) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high || seen.some((value) => value !== undefined && typeof value !== "number")) return choiceScale([], seen);
  const log = (kind === "log" || Boolean(parameter?.log)) && low > 0;
  return numberScale(low, high, log, kind === "int");
}

/** @param {any[]} seen @returns {Parameter["kind"]} */
function guessKind(seen) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of seen) {
    if (value === undefined) continue;
    if (typeof value !== "number") return "choice";
    [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  return low > 0 && high / low >= 10 ** DECADES ? "log" : "uniform";
}

/**
 * A scale of numbers. With `clamp`, values beyond an end are shown at that end.
 * @param {number} low @param {number} high @param {boolean} log @param {boolean} [whole] numbers only
 * @returns {Scale}
 */
export function numberScale(low, high, log, whole = false) {
  const axis = makeScale(low, high, log).clamp(true);
  const value = (/** @type {number} */ at) => (whole ? Math.round(axis.invert(at)) : axis.invert(at));
  const position = (/** @type {any} */ one) => (typeof one === "number" ? axis(one) : NaN);
  return {
    values: null, position, value,
    ticks: (most) => numberTicks(low, high, log, whole, most).map((tick) => ({ position: position(tick), text: formatNumber(tick) })),
    part: (a, b) => ({ low: a <= 0 ? null : value(a), high: b >= 1 ? null : value(b) }),
    span: (part) => [part.low === null ? 0 : position(part.low), part.high === null ? 1 : position(part.high)],
    describe: (a, b) => (a <= 0 && b >= 1 ? "all" : a <= 0 ? `≤ ${round(value(b))}` : b >= 1 ? `≥ ${round(value(a))}` : `${round(value(a))} to ${round(value(b))}`),
  };
}

/** @param {number} low @param {number} high @param {boolean} log @param {boolean} whole @param {number} most @returns {number[]} */
function numberTicks(low, high, log, whole, most) {
  const reach = high - low;
  if (!(reach > 0)) return [low];
  if (log) return logTicks(Math.log10(low), Math.log10(high), most).map((power) => 10 ** power);
  return linearTicks(low - reach * 1e-9, high + reach * 1e-9, stepFor(reach, most, whole)).slice(0, MOST_TICKS);
}

/** The least round step of which at most `most` fit. @param {number} reach @param {number} most @param {boolean} whole */
export function stepFor(reach, most, whole) {
  const power = 10 ** Math.floor(Math.log10(reach / Math.max(1, most)));
  const step = power * ([1, 2, 5, 10].find((digit) => reach / (digit * power) <= most) ?? 10);
  return whole ? Math.max(1, Math.round(step)) : step;
}

/** A scale of the values of a choice, at equal distances. d3's scaleBand is not used: it lacks the inverse that a brush needs. @param {any[]} listed @param {any[]} seen @returns {Scale} */
export function choiceScale(listed, seen) {
  const positions = new Map(listed.map((value, i) => /** @type {[any, number]} */ ([valueKey(value), i])));
  const values = [...listed];
  const others = seen.filter((value) => value !== undefined && !positions.has(valueKey(value)) && positions.set(valueKey(value), -1));
  others.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1));
  for (const value of others) positions.set(valueKey(value), values.push(value) - 1);
  const count = Math.max(1, values.length);
  const index = (/** @type {number} */ at) => clamp(Math.floor(at * count), 0, count - 1);
  const within = (/** @type {number} */ from, /** @type {number} */ to) => values.filter((_, i) => (i + 0.5) / count >= from && (i + 0.5) / count <= to);
  return {
    values,
    position: (value) => (value === undefined ? NaN : ((positions.get(valueKey(value)) ?? NaN) + 0.5) / count),
    value: (at) => values[index(at)],
    ticks: () => values.map((value, i) => ({ position: (i + 0.5) / count, text: formatParameter(value) })),
    part: (from, to) => ({ low: within(from, to)[0] ?? null, high: within(from, to).at(-1) ?? null }),
    span: ({ low, high }) => {
      const [a, b] = [positions.get(valueKey(low)), positions.get(valueKey(high))];
      return a === undefined || b === undefined ? [0, 0] : [a / count, (b + 1) / count];
    },
    describe: (from, to) => within(from, to).map(formatParameter).join(", ") || "none",
  };
}

/** Rounds to three digits, the precision of a drag. @param {number} value */
function round(value) {
  return formatNumber(Number(value.toPrecision(3)));
}

/** @param {number} value @param {number} low @param {number} high */
export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}
