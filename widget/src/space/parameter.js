// One parameter: its name, its kind, its range or values, and its condition.
import { make, setText } from "../dom/elements.js";
import { button, enable, field, labelled, mark, select, setOptions } from "./fields.js";
import { checkboxValues, plural, toggleValue } from "./state.js";

/** @typedef {import("./state.js").Row} Row */
/** @typedef {import("./editor.js").EditQueue} EditQueue */
/** @typedef {"name" | "low" | "high" | "step" | "points" | "values" | "value"} Name */
/** @typedef {import("./state.js").Condition} Condition */
/** @typedef {{ first: number, last: number, valueAt: (position: number) => number, positionOf: (value: number) => number }} Scale */

const RANGES = ["uniform", "log", "int", "log int"];

export class ParameterRow {
  /** @param {string} view unique in the page @param {number} id @param {EditQueue} edits */
  constructor(view, id, edits) {
    this.id = id;
    this.edits = edits;
    this.held = ""; // the slider that the pointer drags
    this.kind = "";
    this.chipsShown = "";
    const typed = (/** @type {Name} */ name) => (/** @type {string} */ value) => edits.sendLatest(`${id}.${name}`, { what: "field", id, field: name, value });
    const number = { inputmode: "decimal" };
    this.fields = {
      name: field({ class: "nbe-field nbe-name", placeholder: "name" }, typed("name")),
      low: field({ ...number, "aria-label": "From" }, typed("low")),
      high: field({ ...number, "aria-label": "To" }, typed("high")),
      step: field({ ...number, placeholder: "1" }, typed("step")),
      points: field({ ...number }, typed("points")),
      values: field({ placeholder: "32, 64, 128 or 'sgd', 'adam'" }, typed("values")),
      value: field({ placeholder: "5 or 'adam'" }, typed("value")),
    };
    this.sliders = { low: this.slider("low", "From"), high: this.slider("high", "To") };
    this.kinds = select(`${id}.kind`, (value) => edits.sendLatest(`${id}.kind`, { what: "kind", id, value }));
    this.up = button("↑", "", () => edits.sendNow({ what: "move", id, by: -1 }));
    this.down = button("↓", "", () => edits.sendNow({ what: "move", id, by: 1 }));
    this.drop = button("✕", "", () => edits.sendNow({ what: "remove", id }));
    this.legend = make("legend", { class: "nbd-spoken" });
    this.steps = labelled("Step", this.fields.step, "nbe-short");
    this.points = labelled("Grid points", this.fields.points, "nbe-short");
    this.range = make("div", { class: "nbe-range" }, this.end("From", "low"), this.end("To", "high"));
    this.values = labelled("Values", this.fields.values, "nbe-wide");
    this.value = labelled("Value", this.fields.value, "nbe-wide");
    this.chips = make("ul", { class: "nbe-chips", "aria-label": "Read as" });
    this.conditions = new Conditions(id, edits);
    this.problem = make("div", { class: "nbe-problem", id: `${view}-${id}-problem`, role: "status" });
    this.element = make("fieldset", { class: "nbe-row" }, this.legend,
      make("div", { class: "nbe-head" }, labelled("Name", this.fields.name), labelled("Distribution", this.kinds),
        make("div", { class: "nbe-buttons" }, this.up, this.down, this.drop)),
      this.range, this.values, this.value,
      make("div", { class: "nbe-foot" }, this.steps, this.points, this.chips, this.conditions.element), this.problem);
  }

  /** @param {"low" | "high"} name @param {string} word */
  slider(name, word) {
    const slider = make("input", { type: "range", class: "nbe-slider", step: "1", "aria-label": `${word}, slider` });
    slider.addEventListener("pointerdown", () => (this.held = name));
    for (const kind of ["pointerup", "pointercancel", "blur"]) slider.addEventListener(kind, () => (this.held = ""));
    slider.addEventListener("input", () => {
      const text = String(this.scale().valueAt(Number(slider.value)));
      this.fields[name].value = text;
      slider.setAttribute("aria-valuetext", text);
      this.edits.sendLatest(`${this.id}.${name}`, { what: "field", id: this.id, field: name, value: text });
    });
    return slider;
  }

  /** @param {string} word @param {"low" | "high"} name */
  end(word, name) {
    return make("div", { class: "nbe-end" }, make("span", { class: "nbe-word", "aria-hidden": "true" }, word), this.sliders[name], this.fields[name]);
  }

  scale() {
    if (!this.held || !this.kept) this.kept = sliderScale(this.kind, parseNumber(this.fields.low.value), parseNumber(this.fields.high.value));
    return this.kept;
  }

  /** @param {Row} row @param {import("./state.js").State} state */
  show(row, state) {
    const { rows } = state;
    for (const name of /** @type {Name[]} */ (Object.keys(this.fields))) {
      if (!this.edits.isPending(`${this.id}.${name}`) && this.fields[name].value !== row[name]) this.fields[name].value = row[name];
    }
    if (!this.edits.isPending(`${this.id}.kind`)) setOptions(this.kinds, state.kinds, row.kind);
    this.kind = row.kind;
    const ranges = RANGES.includes(row.kind);
    this.range.hidden = !ranges;
    this.steps.hidden = row.kind !== "int";
    this.points.hidden = !ranges || (state.sampler !== "grid" && row.points === "" && !this.edits.isPending(`${this.id}.points`));
    this.values.hidden = row.kind !== "choice";
    this.value.hidden = row.kind !== "fixed";
    if (ranges) this.showSliders();
    this.showChips(row);
    this.conditions.show(row, rows);
    this.showNames(row, rows);
    this.showProblem(row.problem);
  }

  showSliders() {
    const scale = this.scale();
    for (const name of /** @type {("low" | "high")[]} */ (["low", "high"])) {
      const slider = this.sliders[name];
      const value = parseNumber(this.fields[name].value);
      slider.min = String(scale.first);
      slider.max = String(scale.last);
      if (Number.isFinite(value) && this.held !== name) slider.value = String(scale.positionOf(value));
      slider.setAttribute("aria-valuetext", this.fields[name].value || "nothing");
    }
  }

  /** @param {Row} row */
  showChips(row) {
    const more = row.count - row.read.length;
    const shown = JSON.stringify([row.read, more]);
    for (const input of [this.fields.values, this.fields.value]) input.readOnly = row.too_long;
    this.chips.hidden = !row.read.length || RANGES.includes(row.kind);
    if (shown === this.chipsShown) return;
    this.chipsShown = shown;
    const chips = row.read.map(([text, kind]) => make("li", {}, make("code", {}, text), make("span", {}, kind)));
    if (more > 0) chips.push(make("li", { class: "nbe-rest" }, `and ${plural(more, "more value")}${row.too_long ? "; change them in Python" : ""}`));
    this.chips.replaceChildren(...chips);
  }

  /** @param {Row} row @param {Row[]} rows */
  showNames(row, rows) {
    const name = row.name || "unnamed";
    const position = rows.indexOf(row);
    setText(this.legend, `Parameter ${name}`);
    const buttons = /** @type {[HTMLButtonElement, string, boolean][]} */ ([
      [this.up, `Move ${name} up`, position > 0], [this.down, `Move ${name} down`, position < rows.length - 1], [this.drop, `Remove ${name}`, true],
    ]);
    for (const [one, spoken, on] of buttons) {
      one.setAttribute("aria-label", spoken);
      one.title = spoken;
      enable(one, on);
    }
  }

  /** @param {Row["problem"]} problem */
  showProblem(problem) {
    const at = problem?.at ?? "";
    this.element.classList.toggle("nbe-wrong", problem !== null);
    setText(this.problem, problem?.text ?? "");
    const { name, points, ...rest } = this.fields;
    mark(name, at === "name", this.problem.id);
    mark(points, at === "points", this.problem.id);
    for (const one of Object.values(rest)) mark(one, at === "range", this.problem.id);
    this.conditions.mark(at === "when", this.problem.id);
  }
}

// The conditions of a parameter, such as "only when opt is sgd".

const ALWAYS = "";

export class Conditions {
  /** @param {number} id of the parameter @param {import("./editor.js").EditQueue} edits */
  constructor(id, edits) {
    this.id = id;
    this.edits = edits;
    /** @type {ConditionField[]} */
    this.lines = [];
    this.element = make("div", { class: "nbe-when" });
  }

  /** @param {Row} row @param {Row[]} rows */
  show(row, rows) {
    const others = rows.filter((one) => one.id !== row.id);
    const wanted = others.length || row.when.length ? row.when.length + 1 : 0;
    while (this.lines.length > wanted) this.lines.pop()?.element.remove();
    while (this.lines.length < wanted) {
      const line = new ConditionField(this.id, this.lines.length, this.edits);
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

class ConditionField {
  /** @param {number} id @param {number} at @param {import("./editor.js").EditQueue} edits */
  constructor(id, at, edits) {
    this.id = id;
    this.at = at;
    this.edits = edits;
    /** @type {Condition | null} */
    this.condition = null;
    this.key = `${id}.when${at}`;
    this.shown = "[]"; // the values with a checkbox
    this.on = select(this.key, (value) => this.choose(value));
    this.typed = field({ "aria-label": "is one of", placeholder: "values" }, (values) => this.send(values));
    this.boxes = make("span", { class: "nbe-boxes", role: "group", "aria-label": "is one of" });
    this.is = make("span", { class: "nbe-word", "aria-hidden": "true" }, "is");
    this.element = make("div", { class: "nbe-condition" }, labelled(at ? "and when" : "Only when", this.on), this.is, this.boxes, this.typed);
  }

  /** @param {string} value */
  choose(value) {
    if (value === ALWAYS) {
      this.edits.sendNow({ what: "condition", id: this.id, at: this.at, on: null });
      return;
    }
    const on = value.startsWith("name:") ? value.slice(5) : Number(value);
    this.edits.sendNow({ what: "condition", id: this.id, at: this.at, on }); // the kernel selects the first value
  }

  /** @param {string} values */
  send(values) {
    if (this.condition) this.edits.sendLatest(this.key, { what: "condition", id: this.id, at: this.at, on: this.condition.on, values });
  }

  /** @param {Condition | null} condition @param {Row[]} others */
  show(condition, others) {
    this.condition = condition;
    const options = /** @type {[string, string][]} */ ([[ALWAYS, condition || this.at ? "(no condition)" : "(always)"], ...others.map((one) => [String(one.id), one.name || "unnamed"])]);
    const missing = condition && typeof condition.on === "string";
    if (missing) options.push([`name:${condition.on}`, `${condition.on} (missing)`]);
    setOptions(this.on, options, condition ? (missing ? `name:${condition.on}` : String(condition.on)) : ALWAYS);
    const values = condition ? checkboxValues(others.find((one) => one.id === condition.on)) : null;
    this.is.hidden = !condition;
    this.boxes.hidden = !values;
    this.typed.hidden = !condition || Boolean(values);
    if (condition && !values && !this.edits.isPending(this.key) && this.typed.value !== condition.values) this.typed.value = condition.values;
    if (values) this.tick(values, condition?.read ?? []);
  }

  /** @param {string[]} values @param {string[]} on */
  tick(values, on) {
    const shown = JSON.stringify(values);
    if (shown !== this.shown) {
      this.shown = shown;
      this.boxes.replaceChildren(...values.map((value) => this.box(value)));
    }
    if (this.edits.isPending(this.key)) return;
    for (const box of this.boxes.querySelectorAll("input")) box.checked = on.includes(box.value);
  }

  /** @param {string} value */
  box(value) {
    const box = make("input", { type: "checkbox", value });
    box.addEventListener("change", () => {
      const all = [...this.boxes.querySelectorAll("input")];
      const had = all.filter((one) => one.checked).map((one) => one.value);
      this.send(toggleValue(all.map((one) => one.value), had, value, box.checked));
    });
    return make("label", { class: "nbe-box" }, box, make("code", {}, value));
  }
}

// A range's slider: conversion between its positions, which are integers, and values.

const DECADES = { first: -9, last: 6 };
const DOUBLINGS = 20;
const STEPS = 100; // of a slider over floats

/**
 * The scale of the sliders of both ends of a range; it has room for the larger one.
 * @param {string} kind @param {number} low @param {number} high @returns {Scale}
 */
export function sliderScale(kind, low, high) {
  if (kind === "log") return roundNumbers(DECADES.first, DECADES.last);
  if (kind === "log int") return among(Array.from({ length: DOUBLINGS + 1 }, (_, position) => 2 ** position));
  const largest = Math.max(0, ...[low, high].filter(Number.isFinite).map(Math.abs));
  const negative = low < 0 || high < 0;
  // An integer scale ends above the larger value, so that it can grow; a float scale ends at a power of ten.
  const top = kind === "int" ? Math.max(8, 2 ** Math.ceil(Math.log2(largest + 1))) : Math.max(1, 10 ** Math.ceil(Math.log10(largest || 1) - 1e-9));
  const step = kind === "int" ? Math.max(1, top / 256) : top / STEPS;
  const last = Math.round(top / step);
  return {
    first: negative ? -last : 0,
    last,
    valueAt: (position) => Number((position * step).toPrecision(15)),
    positionOf: (value) => clamp(Math.round(value / step), negative ? -last : 0, last),
  };
}

/** 1, 2, 5, 10, ... @param {number} from decade @param {number} to decade */
function roundNumbers(from, to) {
  const values = [];
  for (let decade = from; decade < to; decade++) for (const digit of [1, 2, 5]) values.push(Number(`${digit}e${decade}`));
  return among([...values, Number(`1e${to}`)]);
}

/** @param {number[]} values rising, all positive @returns {Scale} */
function among(values) {
  const distance = (/** @type {number} */ position, /** @type {number} */ value) => Math.abs(Math.log(values[position] / value));
  return {
    first: 0,
    last: values.length - 1,
    valueAt: (position) => values[position],
    positionOf: (value) => {
      if (!(value > 0)) return 0;
      let nearest = 0;
      for (let position = 1; position < values.length; position++) if (distance(position, value) < distance(nearest, value)) nearest = position;
      return nearest;
    },
  };
}

/** The number in a field; NaN if it is not a number. @param {string} text */
export function parseNumber(text) {
  return text.trim() === "" ? NaN : Number(text);
}

/** @param {number} value @param {number} low @param {number} high */
function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
