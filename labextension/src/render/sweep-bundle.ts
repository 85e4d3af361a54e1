/** Reads `application/vnd.nbdist.sweep+json` (see nbdist/ui/frozen/sweep.py) for the grid's drawing code. */

import { finite, isRecord, type Json, list, record, text, UnreadableError, checkVersion, whole } from './json';

export interface SweepBundle {
  /** A snapshot for the grid's model. */
  snapshot: Json & { head: { id: string; name: string }; status: { state: string }; trials: Trials };
  /** The number of trials in the data, and of all trials. */
  shown: number;
  of: number;
  /** The number of curves left out of the data. */
  leftOut: number;
}

const MOST_ENGINES = 4096;
const MOST_SPANS = 100_000;
const MOST_POINTS = 100_000; // of a curve
const FINISHED_BEFORE = 'complete'; // the state of a finished trial in notebooks saved before 2026-11-22
const STATES = ['waiting', 'running', 'finished', 'pruned', 'stopped', 'failed'];

/** Raises `Unreadable` if the data cannot be drawn; damaged parts are left out. */
export function readSweep(data: unknown): SweepBundle {
  const sweep = checkVersion(data);
  if (!isRecord(sweep['head']) || !isRecord(sweep['status'])) {
    throw new UnreadableError(null);
  }
  const trials = parseTrials(sweep['trials']);
  const known = new Set(trials.number);
  const of = Math.max(whole(sweep['of']) ?? 0, trials.number.length);
  const cells = isRecord(sweep['cells']) ? cellsOf(sweep['cells']) : undefined;
  return {
    snapshot: {
      snapshot: true,
      of,
      head: headOf(sweep['head']),
      status: statusOf(sweep['status'], known),
      trials,
      curves: Object.fromEntries(
        Object.entries(record(sweep['curves'])).flatMap(([number, curve]) => curveOf(Number(number), curve, known))
      ),
      spans: list(sweep['spans'], MOST_SPANS).flatMap(span => spanOf(span, known)),
      best: list(sweep['best'], MOST_SPANS).flatMap(improvementOf),
      ...(cells ? { cells } : {})
    },
    shown: trials.number.length,
    of,
    leftOut: whole(sweep['left_out']) ?? 0
  };
}

function headOf(head: Json): Json & { id: string; name: string } {
  return {
    id: text(head['id']),
    name: text(head['name']),
    metric: text(head['metric']) || 'value',
    direction: head['direction'] === 'min' ? 'min' : 'max',
    began: finite(head['began']) ?? 0,
    sampler: text(head['sampler']),
    pruner: text(head['pruner']),
    per_trial: whole(head['per_trial']) || 1,
    seed: text(head['seed']),
    space: text(head['space']),
    again: text(head['again']),
    engines: list(head['engines'], MOST_ENGINES).flatMap(pair => {
      const [rank, name] = list(pair, 2);
      return whole(rank) === null ? [] : [[rank, text(name)]];
    }),
    parameters: parametersOf(head['parameters'])
  };
}

function statusOf(status: Json, known: Set<number>): Json & { state: string } {
  const counts = record(status['counts']);
  const best = whole(status['best']);
  return {
    state: text(status['state']) || 'unknown',
    now: finite(status['now']) ?? 0,
    wanted: whole(status['wanted']) ?? known.size,
    counts: Object.fromEntries(
      STATES.map(state => [state, whole(counts[state] ?? (state === 'finished' ? counts[FINISHED_BEFORE] : 0)) ?? 0])
    ),
    engines: list(status['engines'], MOST_ENGINES).flatMap(engine => {
      const [rank, state, number] = list(engine, 3);
      const there = whole(rank) !== null && ['busy', 'free', 'gone'].includes(text(state));
      return there ? [[rank, state, whole(number)]] : [];
    }),
    trouble: text(status['trouble']) || null,
    best: best !== null && known.has(best) ? best : null,
    trials_per_second: finite(status['trials_per_second']),
    seconds_left: finite(status['seconds_left']),
    closed: status['closed'] === true,
    ...(status['busy'] === undefined ? {} : { busy: list(status['busy'], MOST_ENGINES).flatMap(shareOf) })
  };
}

/** The share of the time for which an engine was busy. */
function shareOf(value: unknown): [number, number][] {
  const [rank, share] = list(value, 2);
  const [known, busy] = [whole(rank), finite(share)];
  return known === null || busy === null ? [] : [[known, busy]];
}

/** Ascending steps and their values: packed, or in two lists in notebooks saved before 2026-11-22. */
function curveOf(number: number, value: unknown, known: Set<number>): [string, [number[], unknown[]]][] {
  if (!known.has(number)) {
    return [];
  }
  const [first, second] = typeof value === 'string' ? unpacked(value) : list(value, 2);
  const listed = list(second, MOST_POINTS);
  const steps: number[] = [];
  const values: unknown[] = [];
  list(first, MOST_POINTS).forEach((one, i) => {
    const step = finite(one);
    if (step !== null && i < listed.length && step > (steps.at(-1) ?? -Infinity)) {
      steps.push(step);
      values.push(listed[i]);
    }
  });
  return steps.length ? [[String(number), [steps, values]]] : [];
}

/** Pairs of float32, step and value, from base64; no points if the text is not valid. */
function unpacked(text: string): [number[], (number | string)[]] {
  const [steps, values]: [number[], (number | string)[]] = [[], []];
  let bytes = '';
  try {
    bytes = atob(text.slice(0, Math.ceil((MOST_POINTS * 8) / 3) * 4));
  } catch {
    return [steps, values];
  }
  const view = new DataView(Uint8Array.from(bytes, one => one.charCodeAt(0)).buffer);
  for (let at = 0; at + 8 <= view.byteLength; at += 8) {
    const value = view.getFloat32(at + 4, true);
    steps.push(view.getFloat32(at, true));
    values.push(Number.isFinite(value) ? value : String(value));
  }
  return [steps, values];
}

/** Trial, attempt, ranks, start and end in seconds, and the kind of its end. */
function spanOf(value: unknown, known: Set<number>): unknown[][] {
  const [number, attempt, ranks, start, end, how] = list(value, 6);
  const trial = whole(number);
  const began = finite(start);
  if (trial === null || began === null || !known.has(trial)) {
    return [];
  }
  const on = list(ranks, MOST_ENGINES).filter(rank => whole(rank) !== null);
  return [[trial, whole(attempt) ?? 1, on, began, finite(end), text(how) === FINISHED_BEFORE ? 'finished' : text(how)]];
}

function improvementOf(value: unknown): unknown[][] {
  const [at, number, best] = list(value, 3);
  return finite(at) === null || whole(number) === null ? [] : [[at, number, best]];
}

const MOST_PAIRS = 256;
const MOST_BINS = 64;
const FIELDS = 5 + STATES.length; // of a cell
const NUMBERS = new Map([['nan', NaN], ['inf', Infinity], ['-inf', -Infinity]]);

/** The heat maps of all trials (see nbdist/ui/frozen/sweep_cells.py); damaged parts are left out. */
function cellsOf(value: Json): Json {
  const bins = Object.fromEntries(Object.entries(record(value['bins'])).flatMap(([name, one]) => binsOf(name, record(one))));
  const pairs = list(value['pairs'], MOST_PAIRS).flatMap(one => {
    const { x, y, cells } = record(one);
    return Object.hasOwn(bins, text(x)) && Object.hasOwn(bins, text(y)) ? [{ x, y, cells: cellRows(text(cells)) }] : [];
  });
  return { bins, pairs };
}

/** Ascending edges, or groups of values. */
function binsOf(name: string, { edges, values, none }: Json): [string, Json][] {
  const numbers = list(edges, MOST_BINS).flatMap(one => finite(one) ?? []);
  if (numbers.length > 1 && numbers.every((one, i) => i === 0 || one > numbers[i - 1]!)) {
    return [[name, { edges: numbers, none: none === true }]];
  }
  const groups = list(values, MOST_BINS).map(group => list(group, MOST_PARAMETERS).filter(plain)).filter(({ length }) => length > 0);
  return groups.length ? [[name, { values: groups, none: none === true }]] : [];
}

/** The numbers of each cell whose place and counts are whole numbers. */
function cellRows(packed: string): number[][] {
  const numbers = packed.split(' ', MOST_BINS * MOST_BINS * FIELDS).map(one => NUMBERS.get(one) ?? Number(one || NaN));
  const rows = Array.from({ length: Math.floor(numbers.length / FIELDS) }, (_, i) => numbers.slice(i * FIELDS, (i + 1) * FIELDS));
  return rows.filter(([x, y, best, , , ...counts]) => [x, y, ...counts].every(one => whole(one) !== null) && Number.isInteger(best));
}

const MOST_PARAMETERS = 256;
const RANGES = ['uniform', 'log', 'int'];
const CHOICES = ['choice', 'fixed'];

/** The parameters that can have an axis; names are unique. */
export function parametersOf(value: unknown): Json[] {
  const known = new Set<string>();
  return list(value, MOST_PARAMETERS).flatMap(one => {
    const parameter = isRecord(one) ? parameterOf(one) : null;
    if (!parameter || known.has(parameter['name'] as string)) {
      return [];
    }
    known.add(parameter['name'] as string);
    return [parameter];
  });
}

function parameterOf(one: Json): Json | null {
  const kind = text(one['kind']);
  const name = one['name'];
  if (typeof name !== 'string') {
    return null;
  }
  const about = { name, kind, text: text(one['text']), when: text(one['when']) || null };
  if (CHOICES.includes(kind)) {
    const values = list(one['values'], MOST_PARAMETERS).filter(plain);
    return values.length ? { ...about, values } : null;
  }
  const [low, high] = [finite(one['low']), finite(one['high'])];
  const log = kind === 'log' || one['log'] === true;
  if (!RANGES.includes(kind) || low === null || high === null || low > high || (log && low <= 0)) {
    return null;
  }
  return { ...about, low, high, step: finite(one['step']), log };
}

/** A parameter's value: a number, a string, a boolean, null, or a list of these. */
export function plain(value: unknown): boolean {
  return value === null || ['number', 'string', 'boolean'].includes(typeof value) || (Array.isArray(value) && value.every(plain));
}

export type Trials = { number: number[]; state: number[] } & Record<string, unknown>;

const MOST_TRIALS = 100_000;
const FAILED = 5; // the last state

/** Columns of equal length; a row without a unique number or without a state is left out. */
export function parseTrials(value: unknown): Trials {
  const trials = record(value);
  const states = list(trials['state'], MOST_TRIALS);
  const known = new Set<number>();
  const rows: number[] = []; // the rows that are kept
  list(trials['number'], MOST_TRIALS).forEach((one, row) => {
    const [number, state] = [whole(one), whole(states[row])];
    if (number !== null && state !== null && state <= FAILED && !known.has(number)) {
      known.add(number);
      rows.push(row);
    }
  });
  const column = <Item>(name: string, read: (value: unknown) => Item): Item[] => {
    const column = list(trials[name], MOST_TRIALS);
    return rows.map(row => read(column[row]));
  };
  return {
    number: [...known],
    state: rows.map(row => states[row] as number),
    value: column('value', number),
    step: column('step', number),
    attempt: column('attempt', one => whole(one) ?? 1),
    parent: column('parent', one => whole(one) ?? -1),
    asked: column('asked', finite),
    started: column('started', finite),
    ended: column('ended', finite),
    stopping: column('stopping', one => text(one) || null),
    promoted: column('promoted', one => one === true),
    ranks: column('ranks', one => list(one, MOST_TRIALS).filter(rank => whole(rank) !== null)),
    error: column('error', one => text(one) || null),
    seed: column('seed', one => text(one) || null),
    parameters: columnsOf(trials['parameters'], rows, one => (one !== undefined && plain(one) ? one : null)),
    metrics: columnsOf(trials['metrics'], rows, number)
  };
}

function columnsOf(value: unknown, rows: number[], read: (value: unknown) => unknown): Record<string, unknown[]> {
  const columns = Object.entries(record(value)).flatMap(([name, column]) =>
    Array.isArray(column) ? [[name, rows.map(row => read(column[row]))] as const] : []
  );
  return Object.fromEntries(columns);
}

/** A number, or the text of one that JSON lacks. */
function number(value: unknown): number | string | null {
  return typeof value === 'number' || typeof value === 'string' ? value : null;
}
