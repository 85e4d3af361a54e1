/** Reads what a sweep's parameters may be. */

import { finite, isRecord, type Json, list, text } from './json';

const MOST = 256;
const RANGES = ['uniform', 'log', 'int'];
const CHOICES = ['choice', 'fixed'];

/** The parameters that an axis can be made of; names occur once. */
export function parametersOf(value: unknown): Json[] {
  const known = new Set<string>();
  return list(value, MOST).flatMap(one => {
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
    const values = list(one['values'], MOST).filter(plain);
    return values.length ? { ...about, values } : null;
  }
  const [low, high] = [finite(one['low']), finite(one['high'])];
  const log = kind === 'log' || one['log'] === true;
  if (!RANGES.includes(kind) || low === null || high === null || low > high || (log && low <= 0)) {
    return null;
  }
  return { ...about, low, high, step: finite(one['step']), log };
}

/** What a parameter may be: a number, a text, a truth value, nothing, or a list of such. */
export function plain(value: unknown): boolean {
  return value === null || ['number', 'string', 'boolean'].includes(typeof value) || (Array.isArray(value) && value.every(plain));
}
