// The table of a comparison: what differs in the first column, then a column for each run; and their metrics.
import { RUN_GLYPHS } from "../chart/curves.js";
import { make } from "../dom/elements.js";

/** @typedef {import("./view.js").Row} Row */

export class DifferencesTable {
  /** @param {string} id of the element */
  constructor(id) {
    this.table = make("table", {});
    this.element = make("div", { class: "nbd-scroll nbd-differences", id, tabindex: "0", role: "group", "aria-label": "What differs, and metrics" }, this.table);
    this.shown = "";
  }

  /** @param {import("./view.js").Comparison} data @param {string[]} tones colours of the runs @param {Set<number>} hidden runs */
  show({ runs, differences, metrics }, tones, hidden) {
    const content = JSON.stringify([runs, differences, metrics, tones, [...hidden]]);
    if (content === this.shown) return;
    this.shown = content;
    const pale = (/** @type {HTMLElement} */ cell, /** @type {number} */ at) => (cell.classList.toggle("nbd-hidden-run", hidden.has(at)), cell);
    const heads = runs.map(({ id, name, status }, at) => {
      const cell = make("th", { scope: "col", title: `${id}, ${status}` }, make("i", { "aria-hidden": "true" }, RUN_GLYPHS[at % RUN_GLYPHS.length]), ` ${name}`);
      cell.style.setProperty("--tone", tones[at]);
      return pale(cell, at);
    });
    const line = (/** @type {Row} */ { name, texts, best }) => make("tr", {}, make("th", { scope: "row" }, name),
      ...runs.map((_, at) => pale(make("td", best.includes(at) ? { class: "nbd-best" } : {}, texts[at] ?? "", ...(best.includes(at) ? [make("span", { title: "the best of these runs" }, " ★")] : [])), at)));
    const part = (/** @type {string} */ title, /** @type {Row[]} */ rows, /** @type {string} */ none) => make("tbody", {},
      ...(title ? [make("tr", { class: "nbd-part" }, make("th", { scope: "rowgroup", colspan: String(runs.length + 1) }, title))] : []),
      ...(rows.length ? rows.map(line) : [make("tr", {}, make("td", { colspan: String(runs.length + 1) }, none))]));
    this.table.replaceChildren(make("caption", { class: "nbd-spoken" }, "What differs between the runs, and their last and best metrics"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "what differs"), ...heads)),
      part("", differences, "nothing: options, inputs, code, seed and versions are equal"),
      ...(metrics.length ? [part("metrics", metrics, "")] : []));
  }
}
