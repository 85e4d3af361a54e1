// A heat map's cells: the bins of two axes, and the results of the trials in each cell.
import { bisectRight, median } from "d3-array";
import { formatParameter } from "../format.js";
import { valueKey } from "../model.js";

/** @typedef {{ from: number, to: number, text: string, start: string | null }} Bin places; `start` names its lower edge, null where the bin is a value */
/** @typedef {{ x: number, y: number, rows: number[], best: number, number: number, value: number, median: number, counts: number[], count: number }} Cell
 * `best` is a row or -1, `number` its trial, `value` its value; counts by state. Of a sample, the rows are those of the sample, and `best` may be missing. */

const FEW = 12; // distinct numbers that get a bin each, if trials share them
const STATES = 6;

/**
 * @param {import("./positions.js").Axis} axis
 * @param {any[]} values by row
 * @param {number} most bins
 * @returns {Bin[]}
 */
export function binsOf({ scale, at }, values, most) {
  const bins = scale.values ? grouped(scale.ticks(Infinity).map(({ text }) => text), most) : numberBins(scale, values, most);
  if (at.length > 0 && at.some(Number.isNaN)) bins.push({ from: NaN, to: NaN, text: "none", start: null });
  return bins;
}

/** Bins of a choice: one for each value, or for several neighbours if there are many. @param {string[]} texts @param {number} most @returns {Bin[]} */
function grouped(texts, most) {
  const size = Math.ceil(texts.length / Math.max(1, most));
  return Array.from({ length: Math.ceil(texts.length / size) }, (_, i) => {
    const some = texts.slice(i * size, (i + 1) * size);
    return { from: (i * size) / texts.length, to: (i * size + some.length) / texts.length, text: some.length > 2 ? `${some[0]} … ${some.at(-1)}` : some.join(", "), start: null };
  });
}

/** @param {import("./scales.js").Scale} scale @param {any[]} values @param {number} most @returns {Bin[]} */
function numberBins(scale, values, most) {
  const different = new Map();
  let count = 0;
  for (const value of values) {
    if (value === undefined) continue;
    count++;
    if (different.size <= FEW) different.set(valueKey(value), value);
  }
  if (different.size > 1 && different.size <= Math.min(FEW, most) && count >= 2 * different.size) {
    const sorted = [...different.values()].sort((a, b) => a - b);
    const positions = sorted.map(scale.position);
    return sorted.map((value, i) => ({
      from: i === 0 ? 0 : (positions[i - 1] + positions[i]) / 2, to: i === sorted.length - 1 ? 1 : (positions[i] + positions[i + 1]) / 2, text: formatParameter(value), start: null,
    }));
  }
  const inner = scale.ticks(most - 1).map(({ position }) => position).filter((position) => position > 0.02 && position < 0.98);
  const edges = [0, ...inner, 1];
  const text = (/** @type {number} */ position) => formatParameter(Number(Number(scale.value(position)).toPrecision(3)));
  return edges.slice(1).map((to, i) => ({ from: edges[i], to, text: `${text(edges[i])} to ${text(to)}`, start: text(edges[i]) }));
}

/** The bin of each row; -1 for a row without a bin. @param {Float32Array} at places @param {Bin[]} bins @returns {Int16Array} */
export function binIndices(at, bins) {
  const none = bins.findIndex(({ from }) => Number.isNaN(from));
  const ends = bins.filter(({ from }) => !Number.isNaN(from)).map(({ to }) => Math.fround(to));
  return Int16Array.from(at, (position) => {
    if (Number.isNaN(position)) return none;
    return Math.min(ends.length - 1, bisectRight(ends, position));
  });
}

/**
 * The results in each cell; with a brush only those of brushed trials.
 * @param {import("../model.js").SweepModel} model
 * @param {Int16Array} xs @param {Int16Array} ys bins by row
 * @param {number} columns @param {number} lines
 * @param {Uint8Array | null} mask
 * @returns {Cell[]} line by line
 */
export function aggregateCells(model, xs, ys, columns, lines, mask) {
  const cells = Array.from({ length: columns * lines }, (_, i) => /** @type {Cell} */ ({ x: i % columns, y: Math.floor(i / columns), rows: [], best: -1, number: -1, value: NaN, median: NaN, counts: Array(STATES).fill(0), count: 0 }));
  for (let row = 0; row < model.count; row++) {
    if (xs[row] < 0 || ys[row] < 0 || (mask && !mask[row])) continue;
    const cell = cells[ys[row] * columns + xs[row]];
    cell.rows.push(row);
    cell.count++;
    cell.counts[model.state[row]]++;
    if (model.outranks(row, cell.best)) cell.best = row;
  }
  for (const cell of cells) {
    cell.median = median(cell.rows, (row) => model.value[row]) ?? NaN;
    if (cell.best >= 0) [cell.number, cell.value] = [model.number[cell.best], model.value[cell.best]];
  }
  return cells;
}

/** The bins that the kernel has counted all trials in; null where the axis lacks one of their values. @param {import("./positions.js").Axis} axis @param {import("../model.js").ParameterBins} bins @returns {Bin[] | null} */
export function knownBins({ scale }, { edges, values, none }) {
  const last = none ? [{ from: NaN, to: NaN, text: "none", start: null }] : [];
  if (edges) {
    const places = edges.map((edge, i) => (i === 0 ? 0 : i === edges.length - 1 ? 1 : scale.position(edge)));
    const texts = edges.map((edge) => formatParameter(Number(edge.toPrecision(3))));
    const bins = places.slice(1).map((to, i) => ({ from: places[i], to, text: `${texts[i]} to ${texts[i + 1]}`, start: texts[i] }));
    return scale.values || bins.some(({ from, to }) => !(from < to)) ? null : [...bins, ...last];
  }
  const groups = (values ?? []).map((group) => ({ places: group.map(scale.position), text: group.length > 2 ? `${formatParameter(group[0])} … ${formatParameter(group.at(-1))}` : group.map(formatParameter).join(", ") }));
  const ends = groups.map(({ places }) => [Math.min(...places), Math.max(...places)]);
  const bins = groups.map(({ text }, i) => ({ text, start: null, from: i === 0 ? 0 : (ends[i - 1][1] + ends[i][0]) / 2, to: i === groups.length - 1 ? 1 : (ends[i][1] + ends[i + 1][0]) / 2 }));
  return bins.some(({ from, to }) => !(from < to)) ? null : [...bins, ...last];
}

/**
 * Replaces what a sample tells of each cell by what all trials do.
 * @param {Cell[]} cells line by line, of the sample @param {number} columns
 * @param {number[][]} known for each cell its bins across and upwards, the best trial or -1, its value, the median and the counts
 * @param {(upwards: number) => number} line of a bin @param {import("../model.js").SweepModel} model
 */
export function replaceByKnown(cells, columns, known, line, model) {
  for (const [x, y, number, value, middle, ...counts] of known) {
    const cell = cells[line(y) * columns + x];
    if (cell) Object.assign(cell, { number, value, median: middle, counts, count: counts.reduce((sum, one) => sum + one, 0), best: model.row(number) });
  }
}

/** The two parameters with the most possible values: a conditional parameter comes last. @param {import("../model.js").Parameter[]} parameters @returns {[string, string] | null} */
export function widest(parameters) {
  const size = (/** @type {import("../model.js").Parameter} */ { kind, low = 0, high = 0, step, values }) =>
    kind === "log" || kind === "uniform" ? Infinity : kind === "int" ? (high - low) / (step || 1) + 1 : values?.length ?? 1;
  // A parameter that some trials lack comes after those that all trials have.
  const sorted = parameters.map((one, i) => ({ name: one.name, size: size(one), some: Number(Boolean(one.when)), i }))
    .sort((a, b) => a.some - b.some || (a.size === b.size ? a.i - b.i : b.size - a.size));
  if (sorted.length === 0) return null;
  const two = sorted.slice(0, 2).sort((a, b) => a.i - b.i);
  return [two[0].name, (two[1] ?? two[0]).name];
}
