// The chosen trial: its parameters, results and output, and the commands on it.
import { button, disclosureButton, enable } from "../dom/buttons.js";
import { make, setPairs, setText } from "../dom/elements.js";
import { formatCount, formatDuration, formatExact } from "../text/format.js";
import { fillNextCell } from "./cell.js";
import { CommandStatus } from "./commands.js";
import { formatParameter, parametersOf } from "./format.js";
import { CloneForm, PromoteForm } from "./forms.js";
import { FINISHED, RUNNING, STATES } from "./states.js";

const OUTCOMES = { filled: "the next cell has its parameters", inserted: "a new cell below has its parameters", copied: "its parameters are on the clipboard: no cell could be filled", failed: "no cell could be filled: copy it from here" };
const NOTHING = "Choose a trial: click a line, a cell, a curve or a row.";

/** @param {import("./model.js").SweepModel} model @param {{ name: string, ask: import("./commands.js").SendCommand }} options */
export function makeTrialPanel(model, { name, ask }) {
  let [shown, shownState] = [-1, ""];
  const glyph = make("span", { class: "nbs-glyph", "aria-hidden": "true" });
  const title = make("span", { class: "nbd-chart-title", role: "heading", "aria-level": "4" });
  const word = make("span", { class: "nbs-state" });
  const closeButton = button("Close", "Clear the choice", () => model.choose(-1));
  const figure = make("div", { class: "nbs-value" }, make("b"), make("span"));
  const parameters = make("dl", { class: "nbs-list nbs-parameters" });
  const facts = make("dl", { class: "nbs-list nbs-facts" });
  const error = make("pre", { class: "nbs-error", tabindex: "0", "aria-label": "Error" });
  const status = new CommandStatus();
  const code = make("pre", { class: "nbs-code", tabindex: "0", "aria-label": "Its parameters as code" });
  const clone = new CloneForm(model, name, ask);
  const promote = new PromoteForm(model, name, ask);
  const command = (/** @type {string} */ kind) => status.follow(ask(kind, { number: model.chosen }));
  const stop = button("Stop", "Stop the trial and free its engine; results and checkpoints are kept", () => command("stop"));
  const retry = button("Retry", "Run the trial again with the same parameters and seed", () => command("retry"));
  const only = (/** @type {() => ReturnType<typeof disclosureButton>} */ other) => (/** @type {boolean} */ open) => open && other().setOpen(false);
  /** @type {ReturnType<typeof disclosureButton>} */
  const cloning = disclosureButton("Clone…", "Start a new trial with changed parameters", clone.element, only(() => promoting));
  /** @type {ReturnType<typeof disclosureButton>} */
  const promoting = disclosureButton("Promote…", "Train longer, or on more engines, from its checkpoint", promote.element, only(() => cloning));
  const fill = button("Insert parameters as cell", "Write its parameters into the next cell if that is empty, else into a new one", () => insertCell());
  const printed = make("pre", { class: "nbs-printed", tabindex: "0", "aria-label": "Output" });
  const again = button("Refresh", "Read the output printed so far", () => fetchOutput());
  const output = make("details", { class: "nbs-output" }, make("summary", {}, "Output"), again, printed);
  output.addEventListener("toggle", () => output.open && fetchOutput());
  const nothing = make("p", { class: "nbs-help" }, NOTHING);
  const body = make("div", { class: "nbs-panel-body" }, figure, parameters,
    make("div", { class: "nbs-actions", role: "group", "aria-label": "Trial control" }, fill, stop, retry, cloning, promoting),
    status.element, code, clone.element, promote.element, facts, error, output);
  const element = make("section", { class: "nbs-panel", "aria-label": "Chosen trial" },
    make("div", { class: "nbs-panel-head" }, glyph, title, word, closeButton), nothing, body);

  function draw() {
    const row = model.row(model.chosen);
    nothing.hidden = row >= 0;
    body.hidden = closeButton.hidden = row < 0;
    if (row < 0) {
      setText(title, "No trial chosen");
      setText(glyph, "");
      setText(word, "");
      shown = -1;
      return;
    }
    if (shown !== model.chosen) reset();
    const state = STATES[model.state[row]];
    setText(glyph, state.glyph);
    glyph.dataset.state = state.name;
    setText(title, `Trial ${model.chosen}`);
    const stopping = model.state[row] === RUNNING && model.stopping[row];
    setText(word, stopping ? `${state.name}, being ${stopping}` : state.name);
    if (shownState !== state.name && model.state[row] > RUNNING && !status.wrong) status.show(""); // the command has taken effect
    shownState = state.name;
    setText(figure.children[0], formatExactValue(model.value[row]));
    setText(figure.children[1], `${model.head?.metric ?? "value"}${model.status?.best === model.chosen ? ", the best so far" : ""}`);
    setPairs(parameters, parametersOf(model, row).map(([name, value]) => [name, formatParameter(value)]), pair);
    setPairs(facts, factsOf(row), pair);
    setText(error, model.error[row] ?? "");
    error.hidden = !model.error[row];
    enableActions(model.state[row]);
  }

  /** Clears the panel for another trial. */
  function reset() {
    shown = model.chosen;
    shownState = "";
    status.show("");
    cloning.setOpen(false);
    promoting.setOpen(false);
    setText(code, "");
    code.hidden = true;
    output.open = false;
    setText(printed, "");
    clone.show(shown);
    promote.show(shown);
  }

  /** @param {number} row @returns {[string, string][]} */
  function factsOf(row) {
    const { head, status } = model;
    const engine = (/** @type {number} */ rank) => head?.engines.find(([one]) => one === rank)?.[1].replace(/^\/job:([^/]+)\/.*task:/, "$1 ") ?? `engine ${rank}`;
    const end = Number.isNaN(model.ended[row]) ? status?.now ?? NaN : model.ended[row];
    const parent = model.parent[row];
    return /** @type {[string, string][]} */ ([
      ...[...model.metrics].filter(([, column]) => !Number.isNaN(column[row])).map(([name, column]) => [name, formatExactValue(column[row])]),
      ["step", formatCount(model.step[row])],
      ["duration", Number.isNaN(model.started[row]) ? "" : formatDuration(end - model.started[row])],
      ["started at", formatDuration(model.started[row])],
      ["attempts", model.attempt[row] > 1 ? formatCount(model.attempt[row]) : ""],
      ["on", model.ranks[row]?.map(engine).join(", ") ?? ""],
      ["clone of", parent >= 0 ? `trial ${parent}` : ""],
      ["promoted", model.promoted[row] ? "yes" : ""],
      ["seed", model.seed[row] ?? ""],
    ].filter(([, text]) => text && text !== "–"));
  }

  /** Enables the commands that apply to a state. @param {number} state */
  function enableActions(state) {
    const { status } = model;
    const over = status?.closed || status?.state === "disconnected";
    const why = status?.closed ? "The sweep was stopped" : "The kernel is not running";
    const set = (/** @type {HTMLElement} */ one, /** @type {boolean} */ can, /** @type {string} */ not) => enable(one, can && !over, over ? why : not);
    set(stop, state <= RUNNING, "The trial is not running");
    set(retry, state > FINISHED, state === FINISHED ? "The trial has finished; clone it to run its parameters again" : "Stop the trial before you retry it");
    set(cloning, true, "");
    set(promoting, state > RUNNING, "The trial has not ended");
    enable(fill, status?.state !== "disconnected");
    if (over) for (const one of [cloning, promoting]) one.setOpen(false);
  }

  async function insertCell() {
    const number = model.chosen;
    const answer = await status.follow(ask("cell", { number }));
    if (!answer.ok || number !== model.chosen) return;
    const text = answer.text ?? "";
    const outcome = await fillNextCell(element, text);
    if (number !== model.chosen) return;
    status.show(OUTCOMES[outcome], outcome === "failed");
    code.hidden = outcome !== "failed";
    setText(code, outcome === "failed" ? text : "");
  }

  async function fetchOutput() {
    const number = model.chosen;
    if (!printed.textContent) setText(printed, "…");
    const answer = await ask("output", { number });
    if (number === model.chosen) setText(printed, answer.ok ? answer.text || "No output." : answer.message);
  }

  return { element, draw, destroy: () => element.remove() };
}

/** @returns {Element} a name and a text in a list */
function pair() {
  return make("div", {}, make("dt"), make("dd"));
}

/** @param {number} value */
function formatExactValue(value) {
  return Number.isNaN(value) ? "–" : formatExact(Number(value.toPrecision(6)));
}
