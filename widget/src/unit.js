// What the steps of a run are called. Pure.

/** @typedef {{ one: string, axis: string }} Unit one of them, and what stands along the axis */

/**
 * @param {unknown} unit "steps", "updates" or "batches", as the run's progress has it
 * @param {number} replicas
 * @returns {Unit}
 */
export function unitWords(unit, replicas) {
  const many = typeof unit === "string" && unit ? unit : "steps";
  const one = many === "batches" ? "batch" : many.replace(/s$/, "");
  // The run counts the updates of all replicas, its curves those of each.
  return { one, axis: many === "updates" && replicas > 1 ? "step (per replica)" : many };
}
