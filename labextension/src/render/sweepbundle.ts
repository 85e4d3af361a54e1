/** Reads `application/vnd.nbdist.sweep+json` (nbdist/ui/frozen/sweep.py says what it is) for the grid's drawing code. */

import { finite, isRecord, type Json, list, record, text, whole } from './json';
import { parametersOf } from './sweepparameters';
import { readTrials, type Trials } from './sweeptrials';
import { Unreadable, versioned } from './unreadable';

export interface SweepBundle {
  /** A snapshot, as the grid's model takes it. */
  snapshot: Json & { head: { id: string; name: string }; status: { state: string }; trials: Trials };
  /** Trials that the data have, of so many. */
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

/** Raises `Unreadable` if it cannot be drawn; what is damaged in it otherwise is left out. */
export function readSweep(data: unknown): SweepBundle {
  const sweep = versioned(data);
  if (!isRecord(sweep['head']) || !isRecord(sweep['status'])) {
    throw new Unreadable(null);
  }
  const trials = readTrials(sweep['trials']);
  const known = new Set(trials.number);
  return {
    snapshot: {
      snapshot: true,
      head: headOf(sweep['head']),
      status: statusOf(sweep['status'], known),
      trials,
      curves: Object.fromEntries(
        Object.entries(record(sweep['curves'])).flatMap(([number, curve]) => curveOf(Number(number), curve, known))
      ),
      spans: list(sweep['spans'], MOST_SPANS).flatMap(span => spanOf(span, known)),
      best: list(sweep['best'], MOST_SPANS).flatMap(improvementOf)
    },
    shown: trials.number.length,
    of: Math.max(whole(sweep['of']) ?? 0, trials.number.length),
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
    closed: status['closed'] === true
  };
}

/** Steps that ascend, and a value for each: packed, or as notebooks saved before 2026-11-22 have them in two lists. */
function curveOf(number: number, value: unknown, known: Set<number>): [string, [number[], unknown[]]][] {
  if (!known.has(number)) {
    return [];
  }
  const [first, second] = typeof value === 'string' ? unpacked(value) : list(value, 2);
  const told = list(second, MOST_POINTS);
  const steps: number[] = [];
  const values: unknown[] = [];
  list(first, MOST_POINTS).forEach((one, i) => {
    const step = finite(one);
    if (step !== null && i < told.length && step > (steps.at(-1) ?? -Infinity)) {
      steps.push(step);
      values.push(told[i]);
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

/** Trial, attempt, ranks, seconds at its start and end, and how it ended. */
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
