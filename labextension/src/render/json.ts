/** Reads unknown JSON: every function returns its declared type for any input. */

export type Json = Record<string, unknown>;

export function isRecord(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function record(value: unknown): Json {
  return isRecord(value) ? value : {};
}

export function list(value: unknown, most: number): unknown[] {
  return Array.isArray(value) ? value.slice(0, most) : [];
}

const LONGEST = 20_000; // characters

export function text(value: unknown): string {
  return typeof value === 'string' ? value.slice(0, LONGEST) : '';
}

export function texts(value: unknown, most: number): string[] {
  return list(value, most).filter(one => typeof one === 'string').map(text);
}

/** A finite number, or null. */
export function finite(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/** An integer of at least 0, or null. */
export function whole(value: unknown): number | null {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : null;
}

/** The id in the output of a live view, which holds no data; null in all other data. */
export function liveId(data: unknown): string | null {
  return text(record(data)['live']) || null;
}

export const VERSION = 1;

/** Data that this version of the extension cannot draw. */
export class UnreadableError extends Error {
  /** `newer`: the version of the data, if it is newer than this extension. */
  constructor(readonly newer: number | null) {
    super(newer === null ? 'not data of nbdist' : `data of version ${newer}; this is ${VERSION}`);
    this.name = 'Unreadable';
  }
}

/** The data, if their version is known; raises `Unreadable` otherwise. */
export function checkVersion(data: unknown): Json {
  const version = isRecord(data) ? data['version'] : undefined;
  if (isRecord(data) && version === VERSION) {
    return data;
  }
  throw new UnreadableError(typeof version === 'number' && version > VERSION ? version : null);
}
