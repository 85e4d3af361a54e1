// Reads columns as they travel: missing numbers are null, and what JSON cannot spell is a text.

const SPELLED = /** @type {Record<string, number>} */ ({ NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity });

/** A number that travelled; NaN if it is missing. @param {any} value @returns {number} */
export function number(value) {
  if (typeof value === "number") return value;
  return typeof value === "string" ? SPELLED[value] ?? NaN : NaN;
}

/** @param {any[]} values @returns {number[]} */
export function numbers(values) {
  return values.map(number);
}

/**
 * Writes values into some rows of a named column, which is made if it is new.
 * @template T
 * @param {Map<string, T[]>} columns
 * @param {string} name
 * @param {number} count rows in all
 * @param {T} missing what stands in a row that has none
 * @param {number[]} rows
 * @param {any[]} values
 * @param {(value: any) => T} read
 */
export function columnOf(columns, name, count, missing, rows, values, read) {
  let column = columns.get(name);
  if (!column) columns.set(name, (column = []));
  while (column.length < count) column.push(missing);
  rows.forEach((row, i) => (/** @type {T[]} */ (column)[row] = read(values[i])));
}
