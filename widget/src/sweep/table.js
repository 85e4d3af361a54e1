// All trials as a table: the data behind the figures, for screen readers and for exact values.
import { button, enable } from "../dom/buttons.js";
import { make, setChildCount, setText } from "../dom/elements.js";
import { formatCount, formatDuration, formatExact } from "../text/format.js";
import { formatParameter } from "./format.js";
import { STATES } from "./states.js";

/** @typedef {{ key: string, title: string, value: ((row: number) => any) | null, text: (row: number) => string }} Column without a value: by rank */

const SIZE = 40; // rows of a page
const CALM = 500; // milliseconds between updates
const MOST_COLUMNS = 40;

/** @param {import("./model.js").SweepModel} model @param {import("./figures/figure.js").SharedOptions} options */
export function makeTable(model, options) {
  let page = 0;
  let sort = "value";
  let down = false;
  let due = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later = undefined;
  let version = -1; // of the trials that it shows
  /** @type {Uint8Array | null | undefined} */
  let mask = undefined;
  /** @type {number[]} */
  let rows = [];
  let hovering = false; // rows keep their order while the pointer is over the table, so that a click hits the right one
  /** @type {Column[]} */
  let columns = [];
  const caption = make("caption", {});
  const head = make("tr");
  const body = make("tbody");
  const range = make("span", { class: "nbs-range", role: "status" });
  const back = button("Previous", "Previous page of trials", () => turn(-1));
  const on = button("Next", "Next page of trials", () => turn(1));
  const element = make("section", { class: "nbs-table", id: options.table, "aria-label": "Table of trials" },
    make("div", { class: "nbs-table-head" }, make("span", { class: "nbd-chart-title" }, "Trials"), range, back, on),
    make("div", { class: "nbd-scroll", tabindex: "0", role: "group", "aria-label": "Table of trials" },
      make("table", {}, caption, make("thead", {}, head), body)));
  body.addEventListener("click", onClick);
  body.addEventListener("keydown", onKey);
  body.addEventListener("pointerover", (event) => {
    hovering = true;
    model.hover(numberAt(event));
  });
  body.addEventListener("pointerleave", () => {
    model.hover(-1);
    hovering = false;
    write();
  });

  function draw() {
    const { positions } = options;
    if (mask !== model.brushed && (mask === undefined || version === positions.version)) return write(); // a change by the user: immediately
    if (version !== positions.version) {
      const wait = due - performance.now();
      clearTimeout(later);
      if (wait <= 0) return write();
      later = setTimeout(() => draw(), wait);
    }
    mark();
  }

  function write() {
    clearTimeout(later);
    due = performance.now() + CALM;
    if (mask !== model.brushed && Boolean(mask) !== Boolean(model.brushed)) page = 0;
    [version, mask] = [options.positions.version, model.brushed];
    columns = columnsNow();
    writeHead();
    const column = columns.find(({ key }) => key === sort);
    const sorted = sortedRows(options.positions.ranked(), model.brushed, column?.value ?? null, down);
    rows = hovering ? keepOrder(rows, sorted) : sorted;
    writeBody();
  }

  /** @returns {Column[]} */
  function columnsNow() {
    const seconds = (/** @type {number} */ row) => (Number.isNaN(model.ended[row]) ? model.status?.now ?? NaN : model.ended[row]) - model.started[row];
    const parameters = options.positions.names().map((name) => {
      const column = model.parameters.get(name) ?? [];
      return { key: `parameter ${name}`, title: name, value: (/** @type {number} */ row) => column[row], text: (/** @type {number} */ row) => formatParameter(column[row]) };
    });
    const metrics = [...model.metrics].map(([name, column]) =>
      ({ key: `metric ${name}`, title: name, value: (/** @type {number} */ row) => column[row], text: (/** @type {number} */ row) => formatExactValue(column[row]) }));
    /** @type {Column[]} */
    const columns = [
      { key: "number", title: "trial", value: (row) => model.number[row], text: (row) => String(model.number[row]) },
      { key: "state", title: "state", value: (row) => model.state[row], text: (row) => `${STATES[model.state[row]].glyph} ${STATES[model.state[row]].name}` },
      { key: "value", title: model.head?.metric ?? "value", value: null, text: (row) => formatExactValue(model.value[row]) },
      ...parameters,
      { key: "step", title: "step", value: (row) => model.step[row], text: (row) => formatCount(model.step[row]) },
      { key: "seconds", title: "time", value: seconds, text: (row) => formatDuration(seconds(row)) },
      ...metrics,
    ];
    return columns.slice(0, MOST_COLUMNS);
  }

  function writeHead() {
    setChildCount(head, columns.length, () => make("th", { scope: "col" }, make("button", { type: "button" }, make("span"), make("i", { "aria-hidden": "true" })))).forEach((cell, i) => {
      const { key, title } = columns[i];
      const order = /** @type {HTMLElement} */ (cell.firstChild);
      const sorted = key === sort;
      setText(order.children[0], title);
      const falls = down !== (key === "value" && model.head?.direction === "max");
      setText(order.children[1], sorted ? (falls ? " ↓" : " ↑") : "");
      if (sorted) cell.setAttribute("aria-sort", falls ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
      order.onclick = () => sortBy(key);
    });
  }

  /** @param {string} key of a column */
  function sortBy(key) {
    down = key === sort && !down;
    sort = key;
    page = 0;
    hovering = false;
    write();
  }

  function writeBody() {
    page = Math.max(0, Math.min(page, Math.ceil(rows.length / SIZE) - 1));
    const shown = rows.slice(page * SIZE, (page + 1) * SIZE);
    const focused = body.contains(document.activeElement) ? document.activeElement?.closest("tr")?.dataset.number : undefined;
    setChildCount(body, shown.length, () => make("tr")).forEach((line, i) => {
      const row = shown[i];
      setChildCount(line, columns.length, (at) => (at === 0 ? make("th", { scope: "row" }, make("button", { type: "button" })) : make("td")));
      columns.forEach(({ text }, at) => setText(at === 0 ? /** @type {Node} */ (line.children[0].firstChild) : line.children[at], text(row)));
      line.dataset.number = String(model.number[row]);
      line.dataset.state = STATES[model.state[row]].name;
      // The focus stays on its trial after a change of the order.
      if (line.dataset.number === focused && !line.contains(document.activeElement)) /** @type {HTMLElement} */ (line.children[0].firstChild).focus({ preventScroll: true });
    });
    const first = page * SIZE;
    const brushed = model.brushed ? " brushed" : "";
    setText(range, rows.length ? `${formatCount(first + 1)}–${formatCount(first + shown.length)} of ${formatCount(rows.length)}${brushed}` : model.brushed ? "none brushed" : "none yet");
    setText(caption, `${model.brushed ? "Brushed trials" : "All trials"}, ${columns.find(({ key }) => key === sort)?.title ?? ""} ${sort === "value" && !down ? "best first" : "in order"}`);
    enable(back, page > 0);
    enable(on, first + shown.length < rows.length);
    mark();
  }

  /** Marks the chosen row and the one under the pointer, and sets the Tab stop. */
  function mark() {
    const { chosen, hovered } = model;
    const lines = /** @type {HTMLElement[]} */ ([...body.children]);
    const tabbed = lines.find((line) => line.contains(document.activeElement)) ?? lines.find((line) => line.dataset.number === String(chosen)) ?? lines[0];
    for (const line of lines) {
      const number = Number(line.dataset.number);
      const choice = /** @type {HTMLElement} */ (line.children[0].firstChild);
      line.classList.toggle("nbs-hovered", number === hovered);
      if (choice.getAttribute("aria-pressed") !== String(number === chosen)) choice.setAttribute("aria-pressed", String(number === chosen));
      if (choice.tabIndex !== (line === tabbed ? 0 : -1)) choice.tabIndex = line === tabbed ? 0 : -1;
    }
  }

  /** @param {number} by pages */
  function turn(by) {
    page += by;
    writeBody();
  }

  /** @param {Event} event @returns {number} the trial of its row, or -1 */
  function numberAt(event) {
    const line = event.target instanceof Element ? event.target.closest("tr") : null;
    return Number(line?.dataset.number ?? -1);
  }

  /** @param {Event} event */
  function onClick(event) {
    const number = numberAt(event);
    if (number >= 0) model.choose(number);
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const lines = [...body.children];
    const here = lines.findIndex((line) => line.contains(document.activeElement));
    if (!by || here < 0) return;
    event.preventDefault();
    const there = lines[here + by];
    if (there) /** @type {HTMLElement} */ (there.children[0].firstChild).focus();
    else if (page + by >= 0 && (page + by) * SIZE < rows.length) {
      turn(by);
      /** @type {HTMLElement} */ ((by > 0 ? body.firstElementChild : body.lastElementChild)?.children[0].firstChild)?.focus();
    }
    mark();
  }

  function destroy() {
    clearTimeout(later);
    element.remove();
  }

  return { element, draw, destroy };
}

/** @param {number} value */
function formatExactValue(value) {
  return Number.isNaN(value) ? "–" : formatExact(Number(value.toPrecision(5)));
}

// The trials of a table and their order.

/** The trials as rows for a file, brushed ones only, the best first; the columns are those of `sweep.table()` in Python.
 * @param {import("./model.js").SweepModel} model @param {import("./figures/positions.js").TrialPositions} positions @returns {import("../export/figures.js").Rows} */
export function trialRows(model, positions) {
  const known = (/** @type {number} */ value) => (Number.isNaN(value) ? undefined : value);
  const [names, metrics] = [positions.names(), [...model.metrics]];
  const rows = sortedRows(positions.ranked(), model.brushed, null, false).map((row) => [
    model.number[row], model.stateOf(row), known(model.value[row]), known(model.step[row]), known(model.ended[row] - model.started[row]), known(model.attempt[row]),
    model.seed[row], model.parent[row] < 0 ? undefined : known(model.parent[row]), model.error[row],
    ...names.map((name) => asText(model.parameters.get(name)?.[row])), ...metrics.map(([, column]) => known(column[row])),
  ]);
  return [["trial", "state", "value", "step", "seconds", "attempts", "seed", "parent", "error", ...names, ...metrics.map(([name]) => name)], ...rows];
}

/** A parameter's value: an exact number, or as in the table. @param {any} value */
function asText(value) {
  return value === undefined || typeof value === "number" ? value : formatParameter(value);
}

/** Compares values: numbers before texts, missing values last in both directions.
 * @param {any} a @param {any} b @param {number} [sign] */
export function compareValues(a, b, sign = 1) {
  const missing = (/** @type {any} */ value) => value === undefined || value === null || Number.isNaN(value);
  if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
  if (typeof a !== typeof b) return sign * (typeof a < typeof b ? -1 : 1);
  if (typeof a === "object") return compareValues(JSON.stringify(a), JSON.stringify(b), sign);
  return a < b ? -sign : a > b ? sign : 0;
}

/**
 * @param {number[]} ranked rows, the best first
 * @param {Uint8Array | null} mask
 * @param {((row: number) => any) | null} value to sort by; null keeps the best first
 * @param {boolean} down whether the largest comes first
 * @returns {number[]}
 */
export function sortedRows(ranked, mask, value, down) {
  const rows = mask ? ranked.filter((row) => mask[row]) : [...ranked];
  if (!value) return down ? rows.reverse() : rows;
  const keys = new Map(rows.map((row) => [row, value(row)]));
  return rows.sort((a, b) => compareValues(keys.get(a), keys.get(b), down ? -1 : 1)); // of equal rows the better is first
}

/** The rows in their previous order, without removed ones, then the new ones. @param {number[]} rows @param {number[]} now */
export function keepOrder(rows, now) {
  const [known, there] = [new Set(rows), new Set(now)];
  return [...rows.filter((row) => there.has(row)), ...now.filter((row) => !known.has(row))];
}
