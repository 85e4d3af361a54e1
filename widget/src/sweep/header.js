// The sweep's name, state, progress and best trial, and the commands on the sweep.
import { button, confirmButton, disclosureButton, enable } from "../dom/buttons.js";
import { make, setPairs, setText } from "../dom/elements.js";
import { formatCount, formatDuration, formatShort, formatValue } from "../text/format.js";
import { CommandStatus } from "./commands.js";
import { formatParameters } from "./format.js";
import { FINAL_STATES, STATES } from "./states.js";

const GLYPHS = /** @type {Record<string, string>} */ ({ running: "●", paused: "❚❚", done: "✓", stopped: "■", failed: "✕", disconnected: "○", lost: "○", damaged: "✕" });
const SEGMENTS = ["finished", "pruned", "stopped", "failed", "running"]; // of the bar; the rest are waiting trials
const MOST = 1_000_000; // trials to add by one command

export class Header {
  /** @param {import("./model.js").SweepModel} model @param {string} name unique in the page @param {import("./commands.js").SendCommand} ask */
  constructor(model, name, ask) {
    this.model = model;
    this.status = new CommandStatus();
    this.title = make("span", { class: "nbd-title", role: "heading", "aria-level": "3" });
    this.id = make("span", { class: "nbd-run", title: "The sweep's id" });
    this.glyph = make("span", { "aria-hidden": "true" });
    this.state = make("span");
    this.chip = make("span", { class: "nbd-chip", role: "status" }, this.glyph, this.state);
    const command = (/** @type {string} */ kind, more = {}) => this.status.follow(ask(kind, more));
    this.edit = new SpaceForm(name, ask, () => this.editing.setOpen(false));
    this.editing = disclosureButton("Edit the space", "Change the search space of new trials", this.edit.element);
    this.pause = button("Pause", "Running trials continue; no new trial starts", () => command(this.model.status?.state === "paused" ? "resume" : "pause"));
    this.number = make("input", { class: "nbs-number", type: "number", min: "1", max: String(MOST), step: "1", value: "10", "aria-label": "Trials to add" });
    this.add = button("Add trials", "Add this many trials to the sweep", () => {
      const trials = Number(this.number.value);
      if (Number.isInteger(trials) && trials >= 1 && trials <= MOST) command("add", { trials });
      else this.status.show(`"${this.number.value}" is not a number of trials; enter 1 to ${formatCount(MOST)}`, true);
    });
    this.number.addEventListener("keydown", (event) => event.key === "Enter" && this.add.click());
    this.end = confirmButton("Stop sweep", "Stop all running trials; results and checkpoints are kept", "Stop the sweep?", "Stop it", () => command("close"));
    this.actions = make("div", { class: "nbs-actions", role: "group", "aria-label": "Sweep control" },
      this.pause, make("span", { class: "nbs-adder" }, this.number, this.add), this.editing, this.end);
    this.segments = SEGMENTS.map((state) => make("i", { "data-state": state }));
    this.bar = make("div", { class: "nbs-bar", role: "progressbar", "aria-label": "Trials done", "aria-valuemin": "0" }, ...this.segments);
    this.facts = make("div", { class: "nbd-facts" });
    this.counts = make("div", { class: "nbs-counts", role: "group", "aria-label": "Trials by state" });
    this.best = make("button", { class: "nbs-best", type: "button", title: "Choose the best trial" }, make("span", {}, "best"), make("b"), make("span"), make("code"));
    this.best.addEventListener("click", () => model.choose(model.status?.best ?? -1));
    this.trouble = make("div", { class: "nbs-trouble", role: "alert" });
    this.element = make("div", { class: "nbd-header" },
      make("div", { class: "nbd-headline" }, make("div", { class: "nbd-names" }, this.title, this.id), this.chip, make("span", { class: "nbd-space" }), this.actions),
      this.status.element, this.edit.element, this.bar, make("div", { class: "nbs-figures" }, this.facts, this.counts), this.best, this.trouble);
  }

  draw() {
    const { head, status } = this.model;
    if (!head || !status) return;
    const { state, counts, wanted, trouble } = status;
    const over = FINAL_STATES.includes(state) || status.closed;
    setText(this.title, head.name);
    setText(this.id, head.id === head.name ? "" : head.id);
    setText(this.glyph, GLYPHS[state] ?? "●");
    setText(this.state, state);
    this.chip.dataset.state = state;
    setText(this.pause, state === "paused" ? "Resume" : "Pause");
    this.pause.dataset.title = state === "paused" ? "Start new trials again" : "Running trials continue; no new trial starts";
    this.actions.hidden = state === "disconnected" || status.closed;
    for (const one of [this.pause, this.end.button]) enable(one, !over, "The sweep has ended");
    if (this.actions.hidden) this.editing.setOpen(false);
    this.edit.show(head);
    const done = (counts.finished ?? 0) + (counts.pruned ?? 0) + (counts.stopped ?? 0) + (counts.failed ?? 0);
    const all = Math.max(wanted, done + (counts.running ?? 0), 1);
    this.segments.forEach((segment, i) => {
      segment.style.width = `${(100 * (counts[SEGMENTS[i]] ?? 0)) / all}%`;
      segment.hidden = !counts[SEGMENTS[i]]; // otherwise its gap would be visible
    });
    this.bar.setAttribute("aria-valuemax", String(all));
    this.bar.setAttribute("aria-valuenow", String(done));
    this.bar.setAttribute("aria-valuetext", `${formatCount(done)} of ${formatCount(wanted)} trials done`);
    const facts = /** @type {[string, string][]} */ ([[`${formatCount(done)} / ${formatCount(wanted)}`, "trials"]]);
    if (!over && status.trials_per_second !== null) facts.push([formatShort(status.trials_per_second), "trials/s"]);
    facts.push([formatDuration(status.now), "elapsed"]);
    if (!over && state !== "paused" && status.seconds_left !== null) facts.push([formatDuration(status.seconds_left), "left"]);
    if (head.per_trial > 1) facts.push([String(head.per_trial), "engines each"]);
    facts.push([head.pruner && head.pruner !== "none" ? `${head.sampler}, ${head.pruner}` : head.sampler, ""]);
    setPairs(this.facts, facts, () => make("span", {}, make("b"), make("span")));
    this.writeCounts(counts);
    this.writeBest();
    setText(this.trouble, trouble ?? "");
  }

  /** @param {Record<string, number>} counts */
  writeCounts(counts) {
    STATES.forEach(({ name, glyph }, i) => {
      const count = this.counts.children[i] ?? this.counts.appendChild(
        make("span", { class: "nbs-count", "data-state": name }, make("i", { "aria-hidden": "true" }, glyph), make("b"), make("span", {}, name)));
      setText(count.children[1], formatCount(counts[name] ?? 0));
      /** @type {HTMLElement} */ (count).hidden = !counts[name];
    });
  }

  writeBest() {
    const { model } = this;
    const row = model.row(model.status?.best ?? -1);
    this.best.hidden = row < 0;
    if (row < 0) return;
    setText(this.best.children[1], `${model.head?.metric} ${formatValue(model.best.at(-1)?.value ?? model.value[row])}`);
    setText(this.best.children[2], `trial ${model.number[row]}`);
    setText(this.best.children[3], formatParameters(model, row));
  }
}

// Edits the space of a sweep while it runs: one line for each parameter, in the syntax of %%sweep.

const OUTSIDE = [["finish", "let them finish"], ["stop", "stop them"]];

export class SpaceForm {
  /** @param {string} name unique in the page @param {import("./commands.js").SendCommand} ask @param {() => void} close */
  constructor(name, ask, close) {
    this.shown = ""; // the kernel's latest text
    this.status = new CommandStatus();
    this.field = make("textarea", { class: "nbs-space", id: `${name}-space`, spellcheck: "false", rows: "4", "aria-describedby": `${name}-space-help` });
    this.choices = OUTSIDE.map(([value]) => make("input", { type: "radio", name: `${name}-outside`, value }));
    this.choices[0].checked = true;
    const send = async () => {
      const space = this.field.value.split("\n").map((line) => line.trim()).filter(Boolean).join(" ");
      const outside = this.choices.find((one) => one.checked)?.value;
      const { ok } = await this.status.follow(ask("edit", { space, outside }));
      if (ok) this.shown = this.field.value; // the kernel's next text may replace it
    };
    this.element = make("form", { class: "nbs-form", id: `${name}-edit` },
      make("label", { for: `${name}-space` }, "Search space for new trials"), this.field,
      make("p", { class: "nbs-help", id: `${name}-space-help` }, "One parameter a line: lr=log(1e-4, 1e-1)  hidden=[32, 64]  layers=int(1, 4)  dropout=uniform(0, 0.5)"),
      make("fieldset", {}, make("legend", {}, "Running trials outside of it"),
        ...OUTSIDE.map(([, words], i) => make("label", {}, this.choices[i], words))),
      make("div", { class: "nbs-row" }, button("Change the space", "Sample new trials from this space", send), button("Close", "Close without a change", close), this.status.element));
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  /** Shows the space unless the user is editing it. @param {import("./model.js").Head} head */
  show(head) {
    const text = spaceLines(head.space, head.parameters.map(({ name }) => name));
    if (text === this.shown) return;
    if (this.field.value === this.shown || document.activeElement !== this.field) this.field.value = text;
    this.shown = text;
    this.field.rows = Math.min(12, Math.max(3, text.split("\n").length));
  }
}

/** A space with one parameter per line. @param {string} space @param {string[]} names in their order */
export function spaceLines(space, names) {
  let [text, at] = [space, 0];
  for (const name of names.slice(1)) {
    const found = text.indexOf(` ${name}=`, at);
    if (found < 0) continue;
    text = `${text.slice(0, found)}\n${text.slice(found + 1)}`;
    at = found + 1;
  }
  return text;
}
