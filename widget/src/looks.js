// A user's view settings of a run, kept in the browser by the run's id: they survive the end of the run and a reload.

const KEY = "nbdist-looks";
const MOST = 60; // runs; the oldest is forgotten

/** @typedef {{ byTime: boolean, log: boolean, smoothing: number, chosen: number | null, table: boolean }} Look */

/** @returns {Record<string, Partial<Look>>} */
function all() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return found && typeof found === "object" && !Array.isArray(found) ? found : {};
  } catch {
    return {}; // the storage may be missing, or have content of another program
  }
}

/** The stored settings of a run. @param {string} run @returns {Partial<Look>} */
export function keptLook(run) {
  const found = run && Object.hasOwn(all(), run) ? all()[run] : {};
  /** @type {Partial<Look>} */
  const look = {};
  if (!found || typeof found !== "object") return look;
  if (typeof found.byTime === "boolean") look.byTime = found.byTime;
  if (typeof found.log === "boolean") look.log = found.log;
  if (typeof found.table === "boolean") look.table = found.table;
  if (typeof found.smoothing === "number" && found.smoothing >= 0 && found.smoothing < 1) look.smoothing = found.smoothing;
  if (Number.isInteger(found.chosen)) look.chosen = found.chosen;
  return look;
}

/** Stores the settings of a run. @param {string} run @param {Look} look */
export function keepLook(run, look) {
  if (!run) return;
  const { [run]: _, ...others } = all();
  const kept = Object.entries(others).slice(1 - MOST);
  try {
    localStorage.setItem(KEY, JSON.stringify({ ...Object.fromEntries(kept), [run]: look }));
  } catch {
    // no storage, or a full one: the settings are optional
  }
}
