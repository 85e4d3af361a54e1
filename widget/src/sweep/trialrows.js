// Which trials a table shows, and in which order. Pure.

/** Compares what may be missing: numbers before texts, what is missing last whichever way one sorts.
 * @param {any} a @param {any} b @param {number} [sign] */
export function compareValues(a, b, sign = 1) {
  const missing = (/** @type {any} */ value) => value === undefined || value === null || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  if (typeof a !== typeof b) return sign * (typeof a < typeof b ? -1 : 1);
  if (typeof a === "object") return compareValues(JSON.stringify(a), JSON.stringify(b), sign);
  return a < b ? -sign : a > b ? sign : 0;
}

/**
 * @param {number[]} ranked rows, the best first
 * @param {Uint8Array | null} mask
 * @param {((row: number) => any) | null} value to sort by; null keeps the best first
 * @param {boolean} down whether the largest comes first
 * @returns {number[]}
 */
export function sortedRows(ranked, mask, value, down) {
  const rows = mask ? ranked.filter((row) => mask[row]) : [...ranked];
  if (!value) return down ? rows.reverse() : rows;
  const keys = new Map(rows.map((row) => [row, value(row)]));
  return rows.sort((a, b) => compareValues(keys.get(a), keys.get(b), down ? -1 : 1)); // equal ones: the better first
}

/** The rows as they stood, without those that are gone, and new ones at the end. @param {number[]} rows @param {number[]} now */
export function inPlace(rows, now) {
  const [known, there] = [new Set(rows), new Set(now)];
  return [...rows.filter((row) => there.has(row)), ...now.filter((row) => !known.has(row))];
}
