// Formats trials and their values for display.
import { formatCount, formatValue } from "../text/format.js";

/** A parameter's value. @param {any} value @returns {string} */
export function formatParameter(value) {
  if (value === undefined) return "–";
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "number") return formatNumber(value);
  if (Array.isArray(value)) return `(${value.map(formatParameter).join(", ")})`;
  return String(value);
}

/** A number to four digits, without trailing zeros. @param {number} value */
export function formatNumber(value) {
  if (!Number.isFinite(value)) return formatValue(value);
  const near = Number.isInteger(value) && Math.abs(value) < 1e6 ? value : Number(value.toPrecision(4));
  const size = Math.abs(near);
  const text = size !== 0 && (size >= 1e6 || size < 1e-4) ? near.toExponential().replace("e+", "e") : String(near);
  return text.replaceAll("-", "−");
}

/** All parameters of a row, in the head's order. @param {import("./model.js").SweepModel} model @param {number} row @returns {[string, any][]} */
export function parametersOf(model, row) {
  const first = (model.head?.parameters ?? []).map(({ name }) => name);
  const names = [...first, ...[...model.parameters.keys()].filter((name) => !first.includes(name))];
  return names.map((name) => /** @type {[string, any]} */ ([name, model.parameters.get(name)?.[row]])).filter(([, value]) => value !== undefined);
}

/** @param {import("./model.js").SweepModel} model @param {number} row */
export function formatParameters(model, row) {
  return parametersOf(model, row).map(([name, value]) => `${name}=${formatParameter(value)}`).join("  ");
}

/** @param {number} count @param {string} one */
export function plural(count, one) {
  return `${formatCount(count)} ${one}${count === 1 ? "" : "s"}`;
}

/** A value as Python source, for a field or a cell. @param {any} value */
export function editableText(value) {
  if (value === undefined) return "";
  if (Array.isArray(value)) return JSON.stringify(value);
  return typeof value === "number" ? String(value) : typeof value === "string" ? value : formatParameter(value);
}
