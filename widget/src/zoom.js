// Ranges of x: what is shown, made narrower, wider, or moved along, within what there is. Pure.

/** @typedef {[number, number]} Range */

const NARROWEST = 1e-6; // of all there is

/** Narrower (factor below 1) or wider around a place, which stays where it is; null if it shows all.
 * @param {Range} shown @param {number} at @param {number} factor @param {Range} whole @returns {Range | null} */
export function zoomed([from, to], at, factor, whole) {
  const width = Math.max((to - from) * factor, (whole[1] - whole[0]) * NARROWEST);
  const share = to > from ? (at - from) / (to - from) : 0.5;
  return within([at - share * width, at + (1 - share) * width], whole);
}

/** Moved by a distance, as far as there is something. @param {Range} shown @param {number} by @param {Range} whole @returns {Range | null} */
export function panned([from, to], by, whole) {
  const far = Math.max(whole[0] - from, Math.min(whole[1] - to, by));
  return within([from + far, to + far], whole);
}

/** Moved no further than it takes to show a place. @param {Range} shown @param {number} at @param {Range} whole @returns {Range | null} */
export function showing([from, to], at, whole) {
  return panned([from, to], at < from ? at - from : at > to ? at - to : 0, whole);
}

/** The part of a range in which there is something; null if that is all. @param {Range} range @param {Range} whole @returns {Range | null} */
export function within([from, to], [first, last]) {
  const inner = /** @type {Range} */ ([Math.max(from, first), Math.min(to, last)]);
  if (!(inner[0] < inner[1]) || (inner[0] <= first && inner[1] >= last)) return null;
  return inner;
}
