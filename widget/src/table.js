// The charts as a table, for those who do not see them, and for exact values.
import { make } from "./dom.js";
import { formatCount, formatValue } from "./format.js";
import { lineLabel, linesOf } from "./lines.js";
import { extent, valuesWithin } from "./smooth.js";

const HEADINGS = (/** @type {string} */ one) => ["curve", "latest", `at ${one}`, "lowest", "highest", "points"];

export class Table {
  /** @param {import("./chart.js").Shared} shared */
  constructor(shared) {
    this.shared = shared;
    this.body = make("tbody");
    this.head = make("tr");
    this.element = make("details", { class: "nbd-data", id: shared.table }, make("summary", {}, "Data table"),
      make("div", { class: "nbd-scroll", tabindex: "0", role: "group", "aria-label": "Data table" },
        make("table", {}, make("caption", {}, "The curves of the charts above"), make("thead", {}, this.head), this.body)));
    this.unit = "";
  }

  /** Writes the table, if it is unfolded. @param {import("./lines.js").Plan[]} plans */
  show(plans) {
    if (!this.element.open) return;
    if (this.unit !== this.shared.unit.one) {
      this.unit = this.shared.unit.one;
      this.head.replaceChildren(...HEADINGS(this.unit).map((text) => make("th", { scope: "col" }, text)));
    }
    const options = { ...this.shared.options, byTime: false, smoothing: 0, chosen: null };
    this.body.replaceChildren(...plans.flatMap((plan) =>
      linesOf(this.shared.curves, plan, options).filter(({ kind }) => kind !== "trend").map((line) => {
        const range = extent([valuesWithin(line, [-Infinity, Infinity])]);
        const last = line.ys.length - 1;
        return make("tr", {}, make("th", { scope: "row" }, `${plan.title}, ${lineLabel(line, this.shared.labels)}`),
          ...[formatValue(line.ys[last]), formatCount(line.steps[last]), formatValue(range?.[0]),
            formatValue(range?.[1]), formatCount(line.ys.length)].map((text) => make("td", {}, text)));
      })));
  }
}
