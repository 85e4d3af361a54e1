// Formats numbers for display.

/** @typedef {{ one: string, axis: string }} Unit one of them, and what stands along the axis */

const NOTHING = "–";

/** A metric's value, to about four digits. @param {number | null | undefined} value */
export function formatValue(value) {
  if (value === null || value === undefined) return NOTHING;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size === 0) return "0";
  const text =
    size >= 1e6 || size < 1e-4
      ? value.toExponential(2).replace("e+", "e")
      : size >= 1000
        ? formatCount(value)
        : size >= 0.01
          ? value.toFixed(Math.min(4, 3 - Math.floor(Math.log10(size))))
          : value.toPrecision(3);
  return text.replace("-", "−");
}

/** A tick on an axis: no more digits than needed. @param {number} value */
export function formatTick(value) {
  if (!Number.isFinite(value)) return "";
  const size = Math.abs(value);
  if (size >= 1e4) return formatShort(value);
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return String(Number(value.toPrecision(3)));
}

/** A count with thousands separated. @param {number | null | undefined} value */
export function formatCount(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Three significant digits with k, M or G. @param {number | null | undefined} value */
export function formatShort(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  for (const [size, unit] of /** @type {[number, string][]} */ ([[1e9, "G"], [1e6, "M"], [1e3, "k"]])) {
    if (Math.abs(value) >= size * 0.9995) return `${Number((value / size).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** Seconds as a duration. @param {number | null | undefined} seconds */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return NOTHING;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

/** `/job:worker/task:0` as `worker 0`; any other name as it is. @param {string} task */
export function shortTask(task) {
  const parts = /^\/job:([^/:]+)(?:\/replica:\d+)?\/task:(\d+)$/.exec(task);
  return parts ? `${parts[1]} ${parts[2]}` : task;
}

/** A short duration, such as that of a step. @param {number | null | undefined} seconds */
export function formatMoment(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return NOTHING;
  if (seconds >= 1) return formatDuration(seconds);
  return seconds >= 1e-3 ? `${Number((seconds * 1e3).toPrecision(2))} ms` : `${Number((seconds * 1e6).toPrecision(2))} µs`;
}

/** A value to seven digits, as single precision has. @param {number | null | undefined} value */
export function formatExact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return formatValue(value);
  return String(Number(value.toPrecision(7))).replace("e+", "e").replaceAll("-", "−");
}

/**
 * @param {unknown} unit "steps", "updates" or "batches", as the run's progress has it
 * @param {number} replicas
 * @returns {Unit}
 */
export function stepUnit(unit, replicas) {
  const many = typeof unit === "string" && unit ? unit : "steps";
  // The run counts the updates of all replicas, its curves and their annotations those of each.
  if (many === "updates" && replicas > 1) return { one: "step", axis: "step (per replica)" };
  return { one: many === "batches" ? "batch" : many.replace(/s$/, ""), axis: many };
}
