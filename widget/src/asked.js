// What was asked of the kernel and has not come to pass. Pure: it is told the time and sends nothing.
import { sameRate } from "./rate.js";

export const LONGEST = 15_000; // milliseconds after which something may be asked again, whatever became of it

/** @typedef {"pause" | "resume" | "stop" | "checkpoint" | "set"} Kind */
/** @typedef {{ kind: Kind, value: number | null, since: number, before: string }} Asked */

/**
 * @param {Kind} kind
 * @param {number | null} value
 * @param {Record<string, any>} progress as it is now
 * @param {number} now milliseconds
 * @returns {Asked}
 */
export function ask(kind, value, progress, now) {
  return { kind, value, since: now, before: marks(kind, progress) };
}

/**
 * Whether the run's progress shows what was asked for, or says why not; or nobody will any more.
 * @param {Asked} asked
 * @param {Record<string, any>} progress
 * @param {number} now milliseconds
 */
export function settled({ kind, value, since, before }, progress, now) {
  if (now - since > LONGEST || marks(kind, progress) !== before) return true;
  if (kind === "pause") return progress.state === "paused";
  if (kind === "resume") return progress.state !== "paused";
  return kind === "set" && typeof progress.learning_rate === "number" && sameRate(progress.learning_rate, value ?? NaN);
}

/** What changes in the progress when something of this kind was done or failed. @param {Kind} kind @param {Record<string, any>} progress */
function marks(kind, { checkpoint, problem }) {
  return JSON.stringify([problem?.kind === kind ? problem.number : null, kind === "checkpoint" ? checkpoint ?? null : null]);
}
