import { isRecord, type Json } from './json';

export const VERSION = 1;

/** Data that this version of the extension cannot draw. */
export class Unreadable extends Error {
  /** `newer`: the version of the data, if that is why. */
  constructor(readonly newer: number | null) {
    super(newer === null ? 'not data of nbdist' : `data of version ${newer}; this is ${VERSION}`);
    this.name = 'Unreadable';
  }
}

/** The data, if they are of a version that is known; raises `Unreadable` else. */
export function versioned(data: unknown): Json {
  const version = isRecord(data) ? data['version'] : undefined;
  if (isRecord(data) && version === VERSION) {
    return data;
  }
  throw new Unreadable(typeof version === 'number' && version > VERSION ? version : null);
}
