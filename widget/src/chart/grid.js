// The charts of one view beside and below one another.
import { make } from "../dom/elements.js";
import { readColours } from "../dom/theme.js";
import { Chart } from "./chart.js";

const GAP = 24; // CSS pixels between charts
const NARROWEST = 300; // CSS pixels of a chart beside another
const MOST_COLUMNS = 3;

export class ChartGrid {
  /** @param {import("./chart.js").Shared} shared */
  constructor(shared) {
    this.shared = shared;
    /** @type {Chart[]} */
    this.charts = [];
    this.width = 0;
    this.element = make("div", { class: "nbd-charts" });
  }

  /** Makes the charts of these plans, unless they are there. @param {import("./curves.js").ChartSpec[]} plans @returns {boolean} whether they were made */
  setPlans(plans) {
    if (JSON.stringify(plans) === JSON.stringify(this.charts.map(({ plan }) => plan))) return false;
    this.close();
    this.charts = plans.map((plan) => new Chart(plan, this.shared));
    this.element.replaceChildren(...this.charts.map(({ element }) => element));
    return true;
  }

  /** Draws the charts; returns whether there is room for them. */
  draw() {
    if (!this.charts.length) return false;
    // While JupyterLab changes its theme, elements have no width; no event reports the end of the change.
    const whole = (this.width = this.element.clientWidth || this.width);
    if (whole === 0) return false; // not laid out yet
    this.shared.colours = readColours(this.element);
    const columns = Math.max(1, Math.min(this.charts.length, MOST_COLUMNS, Math.floor((whole + GAP) / (NARROWEST + GAP))));
    const width = Math.floor((whole - GAP * (columns - 1)) / columns);
    this.element.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    for (const chart of this.charts) chart.draw(width);
    return true;
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}
