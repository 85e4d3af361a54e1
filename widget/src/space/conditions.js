// When a parameter exists: "only when opt is sgd", and further conditions.
import { make } from "../dom.js";
import { field, fill, labelled, mark, select } from "./parts.js";
import { tickable, ticked } from "./state.js";

/** @typedef {import("./state.js").Row} Row */
/** @typedef {import("./state.js").Condition} Condition */

const ALWAYS = "";

export class Conditions {
  /** @param {number} id of the parameter @param {import("./edits.js").Edits} edits */
  constructor(id, edits) {
    this.id = id;
    this.edits = edits;
    /** @type {Line[]} */
    this.lines = [];
    this.element = make("div", { class: "nbe-when" });
  }

  /** @param {Row} row @param {Row[]} rows */
  show(row, rows) {
    const others = rows.filter((one) => one.id !== row.id);
    const wanted = others.length || row.when.length ? row.when.length + 1 : 0;
    while (this.lines.length > wanted) this.lines.pop()?.element.remove();
    while (this.lines.length < wanted) {
      const line = new Line(this.id, this.lines.length, this.edits);
      this.lines.push(line);
      this.element.append(line.element);
    }
    for (const [at, line] of this.lines.entries()) line.show(row.when[at] ?? null, others);
    this.element.hidden = !wanted;
  }

  /** @param {boolean} wrong @param {string} described */
  mark(wrong, described) {
    for (const line of this.lines) {
      mark(line.on, wrong && line.condition !== null, described);
      mark(line.typed, wrong && line.condition !== null, described);
    }
  }
}

class Line {
  /** @param {number} id @param {number} at @param {import("./edits.js").Edits} edits */
  constructor(id, at, edits) {
    this.id = id;
    this.at = at;
    this.edits = edits;
    /** @type {Condition | null} */
    this.condition = null;
    this.key = `${id}.when${at}`;
    this.shown = "[]"; // the values that have a box
    this.on = select(this.key, (value) => this.choose(value));
    this.typed = field({ "aria-label": "is one of", placeholder: "values" }, (values) => this.send(values));
    this.boxes = make("span", { class: "nbe-boxes", role: "group", "aria-label": "is one of" });
    this.is = make("span", { class: "nbe-word", "aria-hidden": "true" }, "is");
    this.element = make("div", { class: "nbe-condition" }, labelled(at ? "and when" : "Only when", this.on), this.is, this.boxes, this.typed);
  }

  /** @param {string} value */
  choose(value) {
    if (value === ALWAYS) {
      this.edits.once({ what: "condition", id: this.id, at: this.at, on: null });
      return;
    }
    const on = value.startsWith("name:") ? value.slice(5) : Number(value);
    this.edits.once({ what: "condition", id: this.id, at: this.at, on }); // the kernel takes its first value
  }

  /** @param {string} values */
  send(values) {
    if (this.condition) this.edits.type(this.key, { what: "condition", id: this.id, at: this.at, on: this.condition.on, values });
  }

  /** @param {Condition | null} condition @param {Row[]} others */
  show(condition, others) {
    this.condition = condition;
    const options = /** @type {[string, string][]} */ ([[ALWAYS, condition || this.at ? "(no condition)" : "(always)"], ...others.map((one) => [String(one.id), one.name || "without a name"])]);
    const gone = condition && typeof condition.on === "string";
    if (gone) options.push([`name:${condition.on}`, `${condition.on} (not there)`]);
    fill(this.on, options, condition ? (gone ? `name:${condition.on}` : String(condition.on)) : ALWAYS);
    const values = condition ? tickable(others.find((one) => one.id === condition.on)) : null;
    this.is.hidden = !condition;
    this.boxes.hidden = !values;
    this.typed.hidden = !condition || Boolean(values);
    if (condition && !values && !this.edits.waits(this.key) && this.typed.value !== condition.values) this.typed.value = condition.values;
    if (values) this.tick(values, condition?.read ?? []);
  }

  /** @param {string[]} values @param {string[]} on */
  tick(values, on) {
    const shown = JSON.stringify(values);
    if (shown !== this.shown) {
      this.shown = shown;
      this.boxes.replaceChildren(...values.map((value) => this.box(value)));
    }
    if (this.edits.waits(this.key)) return;
    for (const box of this.boxes.querySelectorAll("input")) box.checked = on.includes(box.value);
  }

  /** @param {string} value */
  box(value) {
    const box = make("input", { type: "checkbox", value });
    box.addEventListener("change", () => {
      const all = [...this.boxes.querySelectorAll("input")];
      const had = all.filter((one) => one.checked).map((one) => one.value);
      this.send(ticked(all.map((one) => one.value), had, value, box.checked));
    });
    return make("label", { class: "nbe-box" }, box, make("code", {}, value));
  }
}
