// Forms for a clone and for a promotion, filled with the trial's own values.
import { button } from "../dom/buttons.js";
import { make } from "../dom/elements.js";
import { formatCount } from "../text/format.js";
import { CommandStatus } from "./commands.js";
import { editableText, formatNumber, formatParameter } from "./format.js";
import { valueKey } from "./model.js";

/** @typedef {import("./model.js").Parameter} Parameter */
/** @typedef {{ value: any, note?: string } | { problem: string }} Parsed a value of undefined is none; a note does not prevent it */

/** A clone with changes: a field for each parameter. */
export class CloneForm {
  /** @param {import("./model.js").SweepModel} model @param {string} name unique in the page @param {import("./commands.js").SendCommand} ask */
  constructor(model, name, ask) {
    this.model = model;
    this.ask = ask;
    this.name = name;
    this.number = -1;
    /** @type {{ parameter: Parameter, before: any, field: HTMLElement, read: () => Parsed }[]} */
    this.fields = [];
    this.status = new CommandStatus();
    this.list = make("div", { class: "nbs-fields" });
    this.element = make("form", { class: "nbs-form", id: `${name}-clone`, "aria-label": "Clone with changes" }, this.list,
      make("div", { class: "nbs-row" }, button("Clone", "Start a new trial with these parameters", () => this.send()), this.status.element));
    this.element.addEventListener("submit", (event) => event.preventDefault());
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.target instanceof HTMLInputElement) this.send();
    });
  }

  /** @param {number} number of the trial */
  show(number) {
    if (number === this.number) return;
    this.number = number;
    this.status.show("");
    const row = this.model.row(number);
    this.fields = (this.model.head?.parameters ?? []).map((parameter, i) => this.field(parameter, this.model.parameters.get(parameter.name)?.[row], `${this.name}-clone-${i}`));
    this.list.replaceChildren(...this.fields.map(({ parameter, field }) => make("div", { class: "nbs-field" },
      make("label", { for: field.id, title: parameter.when ? `${parameter.text}, when ${parameter.when}` : parameter.text }, parameter.name), field)));
  }

  /** @param {Parameter} parameter @param {any} before @param {string} id */
  field(parameter, before, id) {
    if (parameter.kind !== "choice") {
      const field = make("input", { id, type: "text", autocomplete: "off", spellcheck: "false", title: parameter.text });
      field.value = editableText(before);
      field.placeholder = before === undefined ? "none" : "";
      return { parameter, before, field, read: () => (field.value === editableText(before) ? { value: before } : readValue(parameter, field.value)) };
    }
    const values = [...(parameter.values ?? [])];
    if (!values.some((value) => valueKey(value) === valueKey(before))) values.unshift(before);
    const field = make("select", { id, title: parameter.text }, ...values.map((value) => make("option", {}, value === undefined ? "none" : formatParameter(value))));
    field.selectedIndex = values.findIndex((value) => valueKey(value) === valueKey(before));
    return { parameter, before, field, read: () => ({ value: values[field.selectedIndex] }) };
  }

  send() {
    const read = readChanges(this.fields);
    if ("problem" in read) return this.status.show(read.problem, true);
    // The form stays open with the cloned trial: users often clone a trial several times.
    this.status.follow(this.ask("clone", { number: this.number, changes: read.changes }), ["sent…", ...read.notes].join(" "));
  }
}

/** A promotion: longer, or on more engines, from where the trial stopped. */
export class PromoteForm {
  /** @param {import("./model.js").SweepModel} model @param {string} name unique in the page @param {import("./commands.js").SendCommand} ask */
  constructor(model, name, ask) {
    this.model = model;
    this.ask = ask;
    this.number = -1;
    this.status = new CommandStatus();
    this.epochs = make("input", { id: `${name}-epochs`, type: "number", min: "1", step: "1", placeholder: "as before" });
    this.engines = make("input", { id: `${name}-engines`, type: "number", min: "1", step: "1", placeholder: "as before" });
    this.element = make("form", { class: "nbs-form", id: `${name}-promote`, "aria-label": "Promote" },
      make("p", { class: "nbs-help" }, "Continues training from the trial's checkpoint, without pruning."),
      make("div", { class: "nbs-fields" },
        make("div", { class: "nbs-field" }, make("label", { for: this.epochs.id }, "epochs"), this.epochs),
        make("div", { class: "nbs-field" }, make("label", { for: this.engines.id }, "engines"), this.engines)),
      make("div", { class: "nbs-row" },
        button("Continue from its checkpoint", "Use the epochs and engines above", () => this.send(readCount(this.engines))),
        button("On the whole cluster", "Use every engine of the cluster", () => this.send(this.all()))),
      this.status.element);
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  /** The number of engines that have not ended. */
  all() {
    const { status, head } = this.model;
    return (status?.engines ?? []).filter(([, state]) => state !== "gone").length || (head?.engines.length ?? 1);
  }

  /** @param {number} number of the trial */
  show(number) {
    if (number === this.number) return;
    this.number = number;
    this.status.show("");
    this.epochs.value = this.engines.value = "";
  }

  /** @param {number | null} engines */
  send(engines) {
    const epochs = readCount(this.epochs);
    const wrong = [["epochs", epochs, this.epochs], ["engines", engines, this.engines]].find(([, one]) => Number.isNaN(one));
    if (wrong) return this.status.show(`${wrong[0]} is a whole number from 1, not "${/** @type {HTMLInputElement} */ (wrong[2]).value}"`, true);
    if (engines !== null && engines > this.all()) return this.status.show(`${formatCount(engines)} engines; there are ${formatCount(this.all())}`, true);
    this.status.follow(this.ask("promote", { number: this.number, epochs, per_trial: engines, changes: {} }));
  }
}

/** The number in a field: null if it is empty, NaN if it is not a whole number of at least 1. @param {HTMLInputElement} field @returns {number | null} */
function readCount(field) {
  if (field.value.trim() === "" && !field.validity?.badInput) return null;
  const value = Number(field.value);
  return Number.isInteger(value) && value >= 1 ? value : NaN;
}

// Parses and checks a parameter's typed value; the kernel checks it completely.

const NUMBER = /^[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const NAMED = /** @type {Record<string, any>} */ ({ True: true, False: false, None: null });

/** @param {Parameter} parameter @param {string} text @returns {Parsed} */
export function readValue({ name, kind, low, high, when, text: range }, text) {
  const typed = text.trim();
  if (typed === "") return when || kind === "fixed" ? { value: undefined } : { problem: `${name} is missing; it may be ${range}` };
  if (kind === "choice" || kind === "fixed") return { value: parseValue(typed) };
  if (!NUMBER.test(typed)) return { problem: `${name}: "${text}" is not a number` };
  const value = Number(typed.replaceAll("_", ""));
  if (!Number.isFinite(value)) return { problem: `${name}: ${text} is too large` };
  if (kind === "int" && !Number.isInteger(value)) return { problem: `${name}: ${formatNumber(value)} is not a whole number` };
  if (kind === "log" && value <= 0) return { problem: `${name}: ${formatNumber(value)} is not above 0` };
  const outside = value < (low ?? -Infinity) || value > (high ?? Infinity);
  return outside ? { value, note: `${name}=${formatNumber(value)} is outside of ${range}` } : { value };
}

/** A number, True, False, None, a list, or else a text. @param {string} typed */
export function parseValue(typed) {
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
 * The changed parameters of a new trial, or the first problem.
 * @param {{ parameter: Parameter, before: any, read: () => Parsed }[]} fields
 * @returns {{ changes: Record<string, any>, notes: string[] } | { problem: string }}
 */
export function readChanges(fields) {
  const changes = /** @type {Record<string, any>} */ ({});
  const notes = [];
  for (const { parameter, before, read: readField } of fields) {
    const read = readField();
    if ("problem" in read) return read;
    if (read.value === undefined || valueKey(read.value) === valueKey(before)) continue;
    changes[parameter.name] = read.value;
    if (read.note) notes.push(read.note);
  }
  return { changes, notes };
}
