/** Data that are not what they should be. */

export const RUBBISH: unknown[] = [
  null, undefined, 0, NaN, 'text', '', [], [1], {}, true, { version: '1' }, { version: null }, { version: 0 },
  { version: [1] }, { data: { version: 1 } }
]; // prettier-ignore

const SPLINTERS: unknown[] = [
  null, undefined, -1, 0, 0.5, 1e300, NaN, Infinity, '', 'x', '1 2 3', 'nan', '<img src=x onerror=alert(1)>', [], [[]],
  [null], {}, { length: 3 }, { __proto__: null }, true, [1, 'a', null], 'constructor', '__proto__'
]; // prettier-ignore

/** Copies of data in which things are replaced by others, always the same ones. */
export function spoilt(data: object, count: number): Record<string, unknown>[] {
  const random = randomNumbers(7);
  const pick = <One>(from: readonly One[]): One => from[Math.floor(random() * from.length)]!;
  return Array.from({ length: count }, () => {
    const copy = structuredClone(data) as Record<string, unknown>;
    for (let i = 0; i < 3; i++) {
      let place: Record<string, unknown> = copy;
      for (;;) {
        const keys = Object.keys(place);
        if (!keys.length) {
          break;
        }
        const key = pick(keys);
        const inner = place[key];
        if (typeof inner === 'object' && inner !== null && random() < 0.75) {
          place = inner as Record<string, unknown>;
        } else {
          place[key] = pick(SPLINTERS);
          break;
        }
      }
    }
    return copy;
  });
}

/** From 0 to below 1 (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}
