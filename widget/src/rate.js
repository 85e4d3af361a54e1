// Learning rates: between a slider's place, a field's text and a number. Pure.

/** Decades that the slider reaches to either side of the first rate seen. */
export const DECADES = 2;

/** The rate at a place of the slider, to two digits. @param {number} place in decades @param {number} first */
export function rateAt(place, first) {
  return place === 0 ? first : Number((first * 10 ** place).toPrecision(2));
}

/** The slider's place for a rate; a rate outside of its range is at its end. @param {number} rate @param {number} first */
export function placeOf(rate, first) {
  if (!(rate > 0)) return -DECADES;
  return Math.max(-DECADES, Math.min(DECADES, Math.log10(rate / first)));
}

/** A rate as it is written: digits enough to tell it from others, no zeros in their thousands. @param {number} rate */
export function rateText(rate) {
  const text = String(Number(rate.toPrecision(6)));
  return text.length <= 8 ? text : String(Number(rate.toPrecision(3)));
}

/**
 * Reads what was typed: a rate, or what is wrong with it.
 * @param {string} text
 * @returns {{ rate: number } | { problem: string }}
 */
export function readRate(text) {
  const rate = text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(rate)) return { problem: "not a number" };
  if (rate < 0) return { problem: "must be at least 0" };
  return { rate };
}

/** The next round rate, as arrow keys go: 1, 2, 5, 10. @param {number} rate @param {boolean} up @returns {number} */
export function nextRate(rate, up) {
  if (!(rate > 0)) return 0;
  const power = Math.floor(Math.log10(rate));
  const round = [-1, 0, 1].flatMap((more) => [1, 2, 5].map((digit) => Number(`${digit}e${power + more}`)));
  const near = rate * 1e-9;
  const found = up ? round.find((r) => r > rate + near) : round.findLast((r) => r < rate - near);
  return found ?? rate;
}

/** Whether two rates are the same one, kept in single or double precision. @param {number} a @param {number} b */
export function sameRate(a, b) {
  return Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));
}
