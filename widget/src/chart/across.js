// What the x axis of the charts of one view has: steps, epochs or time.
import { formatDuration, formatTick } from "../text/format.js";

/**
 * @typedef {object} Across
 * @property {string} label along the axis
 * @property {(x: number) => string} tick
 * @property {(x: number, at: string) => string} place of the cursor; `at` names the step
 */

/** @param {import("../text/format.js").Unit} unit @returns {Across} */
export function overSteps(unit) {
  return { label: unit.axis, tick: formatTick, place: (_, at) => at };
}

/** @type {Across} */
export const OVER_TIME = { label: "time since the start", tick: formatTickTime, place: (x, at) => `${formatTickTime(x)}, ${at}` };

/** @type {Across} */
export const OVER_EPOCHS = { label: "epochs", tick: formatTick, place: (x, at) => `${formatEpochs(x)}, ${at}` };

/** @param {number} epochs that are done */
function formatEpochs(epochs) {
  return `epoch ${Number(epochs.toFixed(2))}`;
}

/** @param {number} seconds */
function formatTickTime(seconds) {
  return Number.isInteger(seconds) || seconds >= 10 ? formatDuration(seconds).replace(".0 s", " s") : `${formatTick(seconds)} s`;
}
