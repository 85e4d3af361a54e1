/** Reads the columns of a sweep's trials. */

import { finite, list, record, text, whole } from './json';
import { plain } from './sweepparameters';

export type Trials = { number: number[]; state: number[] } & Record<string, unknown>;

const MOST = 100_000;
const FAILED = 5; // the last state

/** Columns of one length; a row without a number of its own or without a state is left out. */
export function readTrials(value: unknown): Trials {
  const trials = record(value);
  const states = list(trials['state'], MOST);
  const known = new Set<number>();
  const rows: number[] = []; // those that are kept
  list(trials['number'], MOST).forEach((one, row) => {
    const [number, state] = [whole(one), whole(states[row])];
    if (number !== null && state !== null && state <= FAILED && !known.has(number)) {
      known.add(number);
      rows.push(row);
    }
  });
  const column = <Item>(name: string, read: (value: unknown) => Item): Item[] => {
    const told = list(trials[name], MOST);
    return rows.map(row => read(told[row]));
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
    ranks: column('ranks', one => list(one, MOST).filter(rank => whole(rank) !== null)),
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

/** A number, or how JSON spells what it has no number for. */
function number(value: unknown): number | string | null {
  return typeof value === 'number' || typeof value === 'string' ? value : null;
}
