// The state of a sweep on the page: merges the kernel's messages and notifies the views that have to redraw.
import { FINISHED, STATES } from "./states.js";

/** @typedef {"data" | "chosen" | "hovered" | "brushed"} Kind */
/** @typedef {{ name: string, kind: "uniform" | "log" | "int" | "choice" | "fixed", low?: number, high?: number, step?: number | null, log?: boolean, values?: any[], text: string, when: string | null }} Parameter */
/** @typedef {{ id: string, name: string, metric: string, direction: "max" | "min", began: number, sampler: string, pruner: string, per_trial: number, seed: string, space: string, again: string, engines: [number, string][], parameters: Parameter[] }} Head */
/** @typedef {{ state: string, now: number, wanted: number, counts: Record<string, number>, engines: [number, "busy" | "free" | "gone", number | null][], trouble: string | null, best: number | null, trials_per_second: number | null, seconds_left: number | null, closed: boolean, busy?: [number, number][] }} Status `busy`: the share of the whole time for each rank, where not all spans are there */
/** @typedef {{ steps: number[], values: number[] }} Curve */
/** @typedef {{ edges?: number[], values?: any[][], none?: boolean }} ParameterBins numbers between edges, or some values each; `none` adds the trials without the parameter */
/** @typedef {{ bins: Record<string, ParameterBins>, pairs: { x: string, y: string, cells: number[][] }[] }} AllCells see nbdist/ui/frozen/sweep_cells.py */
/** @typedef {{ number: number, attempt: number, ranks: number[], start: number, end: number, how: string }} Span `end` is NaN while the attempt runs */

const NUMBERS = /** @type {const} */ (["value", "step", "attempt", "parent", "asked", "started", "ended"]);
const PAIR = 8; // bytes of a point: two float32

/** Trials are rows, in the order of their arrival; each column has `count` values. */
export class SweepModel {
  constructor() {
    /** @type {Head | null} */
    this.head = null;
    /** @type {Status | null} */
    this.status = null;
    this.count = 0;
    /** @type {Map<number, number>} */
    this.rows = new Map();
    /** @type {Int32Array} */
    this.number = new Int32Array(0);
    /** @type {Uint8Array} */
    this.state = new Uint8Array(0); // indices into STATES
    /** @type {Float64Array} */
    this.value = new Float64Array(0);
    this.step = this.attempt = this.parent = this.asked = this.started = this.ended = this.value;
    /** @type {(string | null)[]} */
    this.stopping = [];
    /** @type {boolean[]} */
    this.promoted = [];
    /** @type {number[][]} */
    this.ranks = [];
    /** @type {(string | null)[]} */
    this.error = [];
    /** @type {(string | null)[]} */
    this.seed = [];
    /** @type {Map<string, any[]>} */
    this.parameters = new Map(); // undefined where a trial lacks the parameter
    /** @type {Map<string, number[]>} */
    this.metrics = new Map(); // NaN where a trial lacks the metric
    /** @type {Map<number, Curve>} */
    this.curves = new Map();
    /** @type {Span[]} */
    this.spans = [];
    /** @type {{ time: number, number: number, value: number }[]} */
    this.best = [];
    this.of = 0; // the number of all trials, where those here are a sample of them
    /** @type {AllCells | null} */
    this.cells = null; // the heat maps of all trials, where those here are a sample
    this.chosen = -1;
    this.hovered = -1;
    /** @type {Uint8Array | null} */
    this.brushed = null; // 1 in the rows that are brushed; null without a brush, which selects all
    this.brushedCount = 0;
    /** @type {Set<{ kinds: Kind[], callback: (kind: Kind) => void }>} */
    this.listeners = new Set();
  }

  clear() {
    this.count = 0;
    this.number = new Int32Array(0);
    this.state = new Uint8Array(0);
    for (const name of NUMBERS) this[name] = new Float64Array(0);
    for (const one of [this.rows, this.parameters, this.metrics, this.curves]) one.clear();
    for (const one of [this.stopping, this.promoted, this.ranks, this.error, this.seed, this.spans, this.best]) one.length = 0;
  }

  /** Whether the trials are a sample, as in a saved notebook. */
  get sampled() {
    return this.of > this.count;
  }

  /** The row of a trial, or -1. @param {number} number */
  row(number) {
    return this.rows.get(number) ?? -1;
  }

  /** Whether a value is better than another; any value is better than NaN. @param {number} value @param {number} other */
  better(value, other) {
    if (Number.isNaN(value)) return false;
    if (Number.isNaN(other)) return true;
    return this.head?.direction === "max" ? value > other : value < other;
  }

  /** Whether a row is better than another (-1: none): rows that can be the best precede all others. @param {number} row @param {number} other */
  outranks(row, other) {
    if (other < 0) return !Number.isNaN(this.value[row]);
    const [mine, its] = [this.counts(row), this.counts(other)];
    return mine === its ? this.better(this.value[row], this.value[other]) : mine;
  }

  /** Whether a row can be the best: it has finished (a promoted one once before), with a finite value. @param {number} row */
  counts(row) {
    return Number.isFinite(this.value[row]) && (this.state[row] === FINISHED || this.number[row] === this.status?.best);
  }

  /** Takes one message of kind "sweep", which must be the next one or a snapshot. @param {Record<string, any>} content @param {DataView[]} [buffers] */
  apply(content, buffers = []) {
    const before = content.snapshot ? { number: this.number, brushed: this.brushed } : null;
    if (content.snapshot) this.clear();
    if (content.snapshot) [this.of, this.cells] = [content.of ?? 0, content.cells ?? null];
    if (content.head) this.head = content.head;
    if (content.status) this.status = content.status;
    if (content.trials) this.applyTrials(content.trials);
    for (const number of content.replaced ?? []) this.curves.delete(number);
    if (content.points) this.applyPoints(content.points, buffers[0]);
    for (const [trial, [steps, values]] of Object.entries(content.curves ?? {})) {
      this.curves.set(Number(trial), { steps, values: numbers(values) });
    }
    for (const [trial, attempt, ranks, start, end, how] of content.spans ?? []) this.applySpan({ number: trial, attempt, ranks, start: number(start), end: number(end), how });
    for (const [time, trial, value] of content.best ?? []) this.best.push({ time, number: trial, value: number(value) });
    if (this.chosen >= 0 && this.row(this.chosen) < 0) this.choose(-1);
    if (this.hovered >= 0 && this.row(this.hovered) < 0) this.hover(-1);
    if (this.brushed) this.remapBrush(before);
    this.notify("data");
  }

  /** @param {Record<string, any>} trials columns of the rows that changed */
  applyTrials(trials) {
    const { number: names, parameters = {}, metrics = {} } = trials;
    const rows = names.map((/** @type {number} */ one) => this.rows.get(one) ?? (this.rows.set(one, this.count), this.count++));
    this.number = resized(this.number, this.count);
    this.state = resized(this.state, this.count);
    for (const name of NUMBERS) this[name] = resized(this[name], this.count);
    rows.forEach((/** @type {number} */ row, /** @type {number} */ i) => {
      this.number[row] = names[i];
      this.state[row] = trials.state[i];
      for (const name of NUMBERS) this[name][row] = number(trials[name]?.[i]);
      this.stopping[row] = trials.stopping?.[i] ?? null;
      this.promoted[row] = Boolean(trials.promoted?.[i]);
      this.ranks[row] = trials.ranks?.[i] ?? [];
      this.error[row] = trials.error?.[i] ?? null;
      this.seed[row] = trials.seed?.[i] ?? null;
    });
    const keepsNull = new Set(this.head?.parameters.filter(({ when, values }) => !when && values?.includes(null)).map(({ name }) => name));
    const readParameter = (/** @type {string} */ name) => (/** @type {any} */ value) => (value === null && !keepsNull.has(name) ? undefined : value);
    for (const [name, column] of Object.entries(parameters)) writeColumn(this.parameters, name, this.count, undefined, rows, column, readParameter(name));
    for (const [name, column] of Object.entries(metrics)) writeColumn(this.metrics, name, this.count, NaN, rows, column, number);
    for (const column of this.parameters.values()) while (column.length < this.count) column.push(undefined);
    for (const column of this.metrics.values()) while (column.length < this.count) column.push(NaN);
  }

  /** Appends points, trial after trial. @param {{ number: number[], count: number[] }} points @param {DataView | undefined} bytes */
  applyPoints({ number: trials, count }, bytes) {
    const all = count.reduce((sum, one) => sum + one, 0);
    if ((bytes?.byteLength ?? 0) !== PAIR * all) throw new RangeError(`${all} points cannot have ${bytes?.byteLength ?? 0} bytes`);
    let at = 0;
    trials.forEach((trial, i) => {
      const curve = this.curves.get(trial) ?? { steps: [], values: [] };
      this.curves.set(trial, curve);
      for (const end = at + PAIR * count[i]; at < end; at += PAIR) {
        curve.steps.push(/** @type {DataView} */ (bytes).getFloat32(at, true));
        curve.values.push(/** @type {DataView} */ (bytes).getFloat32(at + 4, true));
      }
    });
  }

  /** Adds a span, or replaces it: the kernel sends a span at its start and again at its end. @param {Span} span */
  applySpan(span) {
    for (let i = this.spans.length - 1; i >= 0; i--) {
      const one = this.spans[i];
      if (one.number !== span.number || one.attempt !== span.attempt || one.start !== span.start) continue;
      this.spans[i] = span;
      return;
    }
    this.spans.push(span);
  }

  /** Transfers the brush to the new rows: a new trial is not brushed until the brush is refreshed. @param {{ number: Int32Array, brushed: Uint8Array | null } | null} before a snapshot */
  remapBrush(before) {
    const mask = new Uint8Array(this.count);
    if (before) before.number.forEach((trial, row) => this.row(trial) >= 0 && (mask[this.row(trial)] = before.brushed?.[row] ?? 0));
    else mask.set(/** @type {Uint8Array} */ (this.brushed).subarray(0, this.count));
    this.brush(mask);
  }

  /** @param {number} trial its number, or -1 for none */
  choose(trial) {
    if (trial === this.chosen) return;
    this.chosen = trial;
    this.notify("chosen");
  }

  /** @param {number} trial its number, or -1 for none */
  hover(trial) {
    if (trial === this.hovered) return;
    this.hovered = trial;
    this.notify("hovered");
  }

  /** @param {Uint8Array | null} mask by row; null clears the brush */
  brush(mask) {
    if (!mask && !this.brushed) return;
    this.brushed = mask;
    this.brushedCount = 0;
    if (mask) for (const one of mask) this.brushedCount += one;
    this.notify("brushed");
  }

  /** @param {Kind | Kind[]} kinds @param {(kind: Kind) => void} callback @returns {() => void} unsubscribes */
  on(kinds, callback) {
    const listener = { kinds: [kinds].flat(), callback };
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** @param {Kind} kind */
  notify(kind) {
    for (const listener of [...this.listeners]) if (listener.kinds.includes(kind)) listener.callback(kind);
  }

  /** The name of a row's state. @param {number} row */
  stateOf(row) {
    return STATES[this.state[row]].name;
  }
}

/** A longer array with the same start; its buffer doubles, so that growth by one element stays cheap.
 * @template {Int32Array | Uint8Array | Float64Array} A @param {A} array @param {number} count @returns {A} */
function resized(array, count) {
  if (array.length === count) return array;
  const kind = /** @type {any} */ (array.constructor);
  if (count * array.BYTES_PER_ELEMENT <= array.buffer.byteLength) return new kind(array.buffer, 0, count);
  const larger = new kind(new ArrayBuffer(2 * count * array.BYTES_PER_ELEMENT), 0, count);
  larger.set(array);
  return larger;
}

// Decodes columns: missing numbers are null, and numbers that JSON lacks are texts.

const SPELLED = /** @type {Record<string, number>} */ ({ NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity });

/** Decodes a number; NaN if it is missing. @param {any} value @returns {number} */
export function number(value) {
  if (typeof value === "number") return value;
  return typeof value === "string" ? SPELLED[value] ?? NaN : NaN;
}

/** @param {any[]} values @returns {number[]} */
export function numbers(values) {
  return values.map(number);
}

/**
 * Writes values into some rows of a named column, which is created if it is new.
 * @template T
 * @param {Map<string, T[]>} columns
 * @param {string} name
 * @param {number} count rows in all
 * @param {T} missing value of a row that has none
 * @param {number[]} rows
 * @param {any[]} values
 * @param {(value: any) => T} read
 */
export function writeColumn(columns, name, count, missing, rows, values, read) {
  let column = columns.get(name);
  if (!column) columns.set(name, (column = []));
  while (column.length < count) column.push(missing);
  rows.forEach((row, i) => (/** @type {T[]} */ (column)[row] = read(values[i])));
}

/** A key that is equal for equal values: 1, True and "1" differ, and lists are compared by their elements. @param {any} value */
export function valueKey(value) {
  return Array.isArray(value) ? `list ${JSON.stringify(value)}` : value;
}
