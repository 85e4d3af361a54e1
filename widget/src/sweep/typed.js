// A parameter's value as it is typed into a field: read, and checked as far as the page can. Pure.
import { sameKey } from "./scales.js";
import { numberWords } from "./words.js";

/** @typedef {import("./model.js").Parameter} Parameter */
/** @typedef {{ value: any, note?: string } | { problem: string }} Read a value of undefined is none; a note is no hindrance */

const NUMBER = /^[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const NAMED = /** @type {Record<string, any>} */ ({ True: true, False: false, None: null });

/** @param {Parameter} parameter @param {string} text @returns {Read} */
export function readValue({ name, kind, low, high, when, text: range }, text) {
  const typed = text.trim();
  if (typed === "") return when || kind === "fixed" ? { value: undefined } : { problem: `${name} is missing; it may be ${range}` };
  if (kind === "choice" || kind === "fixed") return { value: readPlain(typed) };
  if (!NUMBER.test(typed)) return { problem: `${name}: "${text}" is not a number` };
  const value = Number(typed.replaceAll("_", ""));
  if (!Number.isFinite(value)) return { problem: `${name}: ${text} is too large` };
  if (kind === "int" && !Number.isInteger(value)) return { problem: `${name}: ${numberWords(value)} is not a whole number` };
  if (kind === "log" && value <= 0) return { problem: `${name}: ${numberWords(value)} is not above 0` };
  const outside = value < (low ?? -Infinity) || value > (high ?? Infinity);
  return outside ? { value, note: `${name}=${numberWords(value)} is outside of ${range}` } : { value };
}

/** A number, True, False, None, a list, or else a text. @param {string} typed */
export function readPlain(typed) {
  if (Object.hasOwn(NAMED, typed)) return NAMED[typed];
  if (NUMBER.test(typed)) return Number(typed.replaceAll("_", ""));
  if (!typed.startsWith("[")) return typed;
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}

/**
 * What is to be changed for a new trial, or the first thing that is wrong.
 * @param {{ parameter: Parameter, before: any, read: () => Read }[]} fields
 * @returns {{ changes: Record<string, any>, notes: string[] } | { problem: string }}
 */
export function readChanges(fields) {
  const changes = /** @type {Record<string, any>} */ ({});
  const notes = [];
  for (const { parameter, before, read: readField } of fields) {
    const read = readField();
    if ("problem" in read) return read;
    if (read.value === undefined || sameKey(read.value) === sameKey(before)) continue;
    changes[parameter.name] = read.value;
    if (read.note) notes.push(read.note);
  }
  return { changes, notes };
}
