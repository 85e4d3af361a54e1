// A range's slider: from its places, which are whole numbers, to values and back. Pure.

/** @typedef {{ first: number, last: number, valueAt: (place: number) => number, placeOf: (value: number) => number }} Scale */

const DECADES = { first: -9, last: 6 };
const DOUBLINGS = 20;
const STEPS = 100; // of a slider over floats

/**
 * The scale that the ends of a range are chosen on: as far as the larger one needs, and the same for both.
 * @param {string} kind @param {number} low @param {number} high @returns {Scale}
 */
export function scaleOf(kind, low, high) {
  if (kind === "log") return roundNumbers(DECADES.first, DECADES.last);
  if (kind === "log int") return among(Array.from({ length: DOUBLINGS + 1 }, (_, place) => 2 ** place));
  const largest = Math.max(0, ...[low, high].filter(Number.isFinite).map(Math.abs));
  const negative = low < 0 || high < 0;
  // A whole number can always go one further; a float from 0 to 1 mostly should not.
  const top = kind === "int" ? Math.max(8, 2 ** Math.ceil(Math.log2(largest + 1))) : Math.max(1, 10 ** Math.ceil(Math.log10(largest || 1) - 1e-9));
  const step = kind === "int" ? Math.max(1, top / 256) : top / STEPS;
  const last = Math.round(top / step);
  return {
    first: negative ? -last : 0,
    last,
    valueAt: (place) => Number((place * step).toPrecision(15)),
    placeOf: (value) => clamp(Math.round(value / step), negative ? -last : 0, last),
  };
}

/** 1, 2, 5, 10, ... @param {number} from decade @param {number} to decade */
function roundNumbers(from, to) {
  const values = [];
  for (let decade = from; decade < to; decade++) for (const digit of [1, 2, 5]) values.push(Number(`${digit}e${decade}`));
  return among([...values, Number(`1e${to}`)]);
}

/** @param {number[]} values rising, all positive @returns {Scale} */
function among(values) {
  const far = (/** @type {number} */ place, /** @type {number} */ value) => Math.abs(Math.log(values[place] / value));
  return {
    first: 0,
    last: values.length - 1,
    valueAt: (place) => values[place],
    placeOf: (value) => {
      if (!(value > 0)) return 0;
      let nearest = 0;
      for (let place = 1; place < values.length; place++) if (far(place, value) < far(nearest, value)) nearest = place;
      return nearest;
    },
  };
}

/** What stands in a field, as a number; NaN if it is none. @param {string} text */
export function numberIn(text) {
  return text.trim() === "" ? NaN : Number(text);
}

/** @param {number} value @param {number} low @param {number} high */
function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
