// Which bars stand in which lanes of the timeline, and how busy each engine was. Pure.
import { shortTask } from "../format.js";
import { RUNNING, STATES } from "./states.js";

/** @typedef {import("./model.js").Model} Model */
/** @typedef {{ rank: number, label: string, gone: boolean }} Lane */
/**
 * @typedef {object} Bar
 * @property {number} number of the trial
 * @property {number} attempt
 * @property {number} start seconds
 * @property {number} end seconds; of one that goes on, now
 * @property {number} state how it ended; LOST if its engine did
 * @property {[number, number][]} lanes the first and the last of each run of neighbours
 */

export const LOST = STATES.length;

/** A lane for each engine: those that the sweep began with, and any that it had besides. @param {Model} model @returns {Lane[]} */
export function lanesOf(model) {
  const tasks = new Map(model.head?.engines ?? []);
  for (const [rank] of model.status?.engines ?? []) if (!tasks.has(rank)) tasks.set(rank, "");
  for (const { ranks } of model.spans) for (const rank of ranks) if (!tasks.has(rank)) tasks.set(rank, "");
  const sorted = [...tasks].sort(([a], [b]) => a - b);
  const gone = new Set((model.status?.engines ?? []).filter(([, how]) => how === "gone").map(([rank]) => rank));
  return sorted.map(([rank, task]) => ({ rank, label: task ? shortTask(task) : `engine ${rank}`, gone: gone.has(rank) }));
}

/** A bar for each attempt that ended, and one for each trial that runs. @param {Model} model @param {Lane[]} lanes @param {number} now
 * @param {WeakMap<object, Bar>} [known] bars made before, of spans in the same lanes @returns {Bar[]} by when they began */
export function barsOf(model, lanes, now, known = new WeakMap()) {
  const laneOf = new Map(lanes.map(({ rank }, i) => [rank, i]));
  const bar = (/** @type {number} */ number, /** @type {number} */ attempt, /** @type {number[]} */ ranks, /** @type {number} */ start, /** @type {number} */ end, /** @type {number} */ state) =>
    ({ number, attempt, start, end: Math.max(start, end), state, lanes: neighbours(ranks.flatMap((rank) => laneOf.get(rank) ?? [])) });
  const bars = [];
  for (const span of model.spans) {
    if (!Number.isFinite(span.end)) continue; // its trial runs, and is in a row
    const made = known.get(span) ?? bar(span.number, span.attempt, span.ranks, span.start, span.end, stateOf(span.how));
    known.set(span, made);
    bars.push(made);
  }
  for (let row = 0; row < model.count; row++) {
    if (model.state[row] !== RUNNING || !Number.isFinite(model.started[row])) continue;
    bars.push(bar(model.number[row], model.attempt[row], model.ranks[row], model.started[row], now, RUNNING));
  }
  return bars.sort((a, b) => a.start - b.start);
}

/** @param {string} how an attempt ended */
function stateOf(how) {
  const state = STATES.findIndex(({ name }) => name === how);
  return state < 0 ? LOST : state;
}

/** Numbers as runs of neighbours. @param {number[]} lanes @returns {[number, number][]} */
export function neighbours(lanes) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const lane of [...lanes].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && lane <= last[1] + 1) last[1] = lane;
    else runs.push([lane, lane]);
  }
  return runs;
}

/** The share of a time that each lane had a trial, from 0 to 1. @param {Bar[]} bars @param {number} count of lanes @param {number} from @param {number} to */
export function busyShares(bars, count, from, to) {
  const busy = new Float64Array(count);
  if (!(to > from)) return busy;
  for (const bar of bars) {
    const time = Math.min(bar.end, to) - Math.max(bar.start, from);
    if (time <= 0) continue;
    for (const [first, last] of bar.lanes) for (let lane = first; lane <= last; lane++) busy[lane] += time;
  }
  return busy.map((time) => Math.min(1, time / (to - from)));
}
