// The input pipeline: which stage of the dataset is the bottleneck, a table of all stages, and what to do.
import { make, setText } from "../dom/elements.js";

/** @typedef {{ task: string, verdict: string, advice: string[], rows: Record<string, string>[] }} InputPipeline */

export class InputSection {
  constructor() {
    this.title = make("span");
    this.head = make("tr");
    this.body = make("tbody");
    this.advice = make("ul");
    this.element = make("details", { class: "nbd-section nbd-input" }, make("summary", {}, make("b", {}, "Input"), this.title),
      make("div", { class: "nbd-input-body" },
        make("div", { class: "nbd-scroll", tabindex: "0", role: "group", "aria-label": "Input pipeline" },
          make("table", {}, make("thead", {}, this.head), this.body)), this.advice));
    this.element.hidden = true;
    this.shown = "";
  }

  /** @param {unknown} found @param {number} replicas */
  show(found, replicas) {
    const input = inputOf(found);
    const shown = JSON.stringify([input, replicas]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.element.hidden = input === null;
    if (input === null) return;
    setText(this.title, (replicas > 1 ? `${input.task}: ` : "") + input.verdict);
    const columns = Object.keys(input.rows[0] ?? {});
    this.head.replaceChildren(...columns.map((name) => make("th", { scope: "col" }, name)));
    this.body.replaceChildren(...input.rows.map((row) => {
      const [stage, ...values] = columns.map((name) => row[name] ?? "");
      const line = make("tr", {}, make("th", { scope: "row" }, stage), ...values.map((value) => make("td", {}, value)));
      line.classList.toggle("nbd-slowest", stage.startsWith("▶"));
      return line;
    }));
    this.advice.replaceChildren(...input.advice.map((text) => make("li", {}, text)));
  }
}

/** Checks what the kernel or a saved notebook says. @param {any} found @returns {InputPipeline | null} */
function inputOf(found) {
  if (!found || typeof found !== "object" || typeof found.verdict !== "string" || !Array.isArray(found.rows)) return null;
  const advice = (Array.isArray(found.advice) ? found.advice : []).slice(0, 10).map(String);
  const rows = found.rows.slice(0, 60).filter((/** @type {unknown} */ row) => row && typeof row === "object")
    .map((/** @type {object} */ row) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, String(value)])));
  return { task: String(found.task ?? ""), verdict: found.verdict, advice, rows };
}
