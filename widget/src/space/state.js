// The kernel's state of the editor (nbdist/ui/space_editor/editor.py).

/**
 * @typedef {{ on: number | string, name: string, values: string, read: string[] }} Condition
 * @typedef {{ id: number, name: string, kind: string, low: string, high: string, step: string, points: string, values: string,
 *   value: string, too_long: boolean, count: number, read: [string, string][], when: Condition[],
 *   problem: { text: string, at: string } | null }} Row
 * @typedef {{ kind: "state", applied: Record<string, number>, kinds: [string, string][], rows: Row[], general: string,
 *   sampler: string, samplers: string[], pruner: string, pruners: string[], trials: string, count: number | null,
 *   points: number | null, trials_problem: string, text: string | null, too_long: boolean, valid: boolean,
 *   startable: boolean, starting: boolean, result: { ok: boolean, text: string } | null }} State
 */

const TICKED = 12; // values of a parameter that are ticked rather than typed

/** Which values of another parameter can be ticked, if it has few. @param {Row | undefined} row @returns {string[] | null} */
export function checkboxValues(row) {
  const lists = row && (row.kind === "choice" || row.kind === "fixed");
  return lists && row.count > 0 && row.count <= TICKED ? row.read.map(([text]) => text) : null;
}

/** A condition's values after one was ticked or not. @param {string[]} all @param {string[]} had @param {string} value @param {boolean} on */
export function toggleValue(all, had, value, on) {
  return all.filter((one) => (one === value ? on : had.includes(one))).join(", ");
}

/** Describes the number of trials. @param {State} state */
export function describeCount(state) {
  if (state.trials_problem) return state.trials_problem;
  if (!state.valid || state.count === null) return "Fix the errors above to see the count.";
  const points = state.points === null ? "" : `The grid has ${plural(state.points, "point")}: `;
  return `${points}${plural(state.count, "trial")}.`;
}

/** @param {number} count @param {string} word */
export function plural(count, word) {
  return `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : "s"}`;
}

/** Why Start is disabled; empty if it is enabled. @param {State} state */
export function startProblem(state) {
  const wrong = state.rows.filter((row) => row.problem).length;
  if (wrong) return `${plural(wrong, "parameter")} ${wrong === 1 ? "has" : "have"} to be corrected first.`;
  return state.general || state.trials_problem;
}
