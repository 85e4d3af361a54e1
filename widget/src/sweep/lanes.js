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

/** @param {number} number @param {number} attempt @param {number[]} ranks @param {number} start @param {number} end @param {number} state @param {Map<number, number>} laneOf @returns {Bar} */
function barOf(number, attempt, ranks, start, end, state, laneOf) {
  return { number, attempt, start, end: Math.max(start, end), state, lanes: neighbours(ranks.flatMap((rank) => laneOf.get(rank) ?? [])) };
}

/** The bars of attempts that have ended, kept up to date by looking only at spans that are new. */
export class Ended {
  constructor() {
    /** @type {Bar[]} */
    this.bars = [];
    this.lanes = "";
    /** @type {object | undefined} */
    this.first = undefined;
    this.seen = 0; // spans
    /** @type {number[]} */
    this.open = []; // places of spans that went on when they were looked at
    this.version = 0; // another when bars that were there may be gone
  }

  /** @param {Model} model @param {Lane[]} lanes @returns {number} from which bar on they are new */
  look(model, lanes) {
    const named = lanes.map(({ rank }) => rank).join();
    if (named !== this.lanes || model.spans.length < this.seen || model.spans[0] !== this.first) {
      Object.assign(this, { bars: [], lanes: named, first: model.spans[0], seen: 0, open: [], version: this.version + 1 });
    }
    const before = this.bars.length;
    const laneOf = new Map(lanes.map(({ rank }, i) => [rank, i]));
    const places = this.open;
    for (; this.seen < model.spans.length; this.seen++) places.push(this.seen);
    this.open = places.filter((place) => {
      const { number, attempt, ranks, start, end, how } = model.spans[place];
      if (!Number.isFinite(end)) return true; // its trial runs, and is in a row
      this.bars.push(barOf(number, attempt, ranks, start, end, stateOf(how), laneOf));
      return false;
    });
    return before;
  }
}

/** A bar for each trial that runs. @param {Model} model @param {Lane[]} lanes @param {number} now @returns {Bar[]} */
export function runningBars(model, lanes, now) {
  const laneOf = new Map(lanes.map(({ rank }, i) => [rank, i]));
  const bars = [];
  for (let row = 0; row < model.count; row++) {
    if (model.state[row] !== RUNNING || !Number.isFinite(model.started[row])) continue;
    bars.push(barOf(model.number[row], model.attempt[row], model.ranks[row], model.started[row], now, RUNNING, laneOf));
  }
  return bars;
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

/** The share of a time that each lane had a trial, from 0 to 1. @param {Iterable<Bar>} bars @param {number} count of lanes @param {number} from @param {number} to */
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
