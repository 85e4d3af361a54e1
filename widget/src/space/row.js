// One parameter: its name, its kind, its range or values, and when it exists.
import { make, setText } from "../dom.js";
import { Conditions } from "./conditions.js";
import { button, enable, field, fill, labelled, mark, select } from "./parts.js";
import { numberIn, scaleOf } from "./scale.js";
import { plural } from "./state.js";

/** @typedef {import("./state.js").Row} Row */
/** @typedef {import("./edits.js").Edits} Edits */
/** @typedef {"name" | "low" | "high" | "step" | "points" | "values" | "value"} Name */

const RANGES = ["uniform", "log", "int", "log int"];

export class ParameterRow {
  /** @param {string} view unique in the page @param {number} id @param {Edits} edits */
  constructor(view, id, edits) {
    this.id = id;
    this.edits = edits;
    this.held = ""; // the slider that a pointer holds
    this.kind = "";
    this.chipsShown = "";
    const typed = (/** @type {Name} */ name) => (/** @type {string} */ value) => edits.type(`${id}.${name}`, { what: "field", id, field: name, value });
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
    this.kinds = select(`${id}.kind`, (value) => edits.type(`${id}.kind`, { what: "kind", id, value }));
    this.up = button("↑", "", () => edits.once({ what: "move", id, by: -1 }));
    this.down = button("↓", "", () => edits.once({ what: "move", id, by: 1 }));
    this.drop = button("✕", "", () => edits.once({ what: "remove", id }));
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
      this.edits.type(`${this.id}.${name}`, { what: "field", id: this.id, field: name, value: text });
    });
    return slider;
  }

  /** @param {string} word @param {"low" | "high"} name */
  end(word, name) {
    return make("div", { class: "nbe-end" }, make("span", { class: "nbe-word", "aria-hidden": "true" }, word), this.sliders[name], this.fields[name]);
  }

  scale() {
    if (!this.held || !this.kept) this.kept = scaleOf(this.kind, numberIn(this.fields.low.value), numberIn(this.fields.high.value));
    return this.kept;
  }

  /** @param {Row} row @param {import("./state.js").State} state */
  show(row, state) {
    const { rows } = state;
    for (const name of /** @type {Name[]} */ (Object.keys(this.fields))) {
      if (!this.edits.waits(`${this.id}.${name}`) && this.fields[name].value !== row[name]) this.fields[name].value = row[name];
    }
    if (!this.edits.waits(`${this.id}.kind`)) fill(this.kinds, state.kinds, row.kind);
    this.kind = row.kind;
    const ranges = RANGES.includes(row.kind);
    this.range.hidden = !ranges;
    this.steps.hidden = row.kind !== "int";
    this.points.hidden = !ranges || (state.sampler !== "grid" && row.points === "" && !this.edits.waits(`${this.id}.points`));
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
      const value = numberIn(this.fields[name].value);
      slider.min = String(scale.first);
      slider.max = String(scale.last);
      if (Number.isFinite(value) && this.held !== name) slider.value = String(scale.placeOf(value));
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
    const name = row.name || "without a name";
    const place = rows.indexOf(row);
    setText(this.legend, `Parameter ${name}`);
    const buttons = /** @type {[HTMLButtonElement, string, boolean][]} */ ([
      [this.up, `Move ${name} up`, place > 0], [this.down, `Move ${name} down`, place < rows.length - 1], [this.drop, `Remove ${name}`, true],
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
