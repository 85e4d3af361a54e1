// The run's name, state and progress, and its commands.
import { make, setText } from "../dom/elements.js";
import { formatCount, formatDuration, formatShort } from "../text/format.js";
import { RunControls } from "./controls.js";

const GLYPHS = /** @type {Record<string, string>} */ ({
  starting: "◌", running: "●", paused: "❚❚", stopping: "◍", finished: "✓", stopped: "■", failed: "✕", disconnected: "○", lost: "○", damaged: "✕",
});
/** Final states: the view sets disconnected when the kernel has ended; lost and damaged are set by the Jupyter server. */
export const FINAL_STATES = ["finished", "stopped", "failed", "disconnected", "lost", "damaged"];

const SLOWNESS = /: [\d.,]+x the others' step/g;

export class Header {
  /** @param {string} name unique in the page @param {(kind: import("./controls.js").CommandKind, value: number | null) => void} act */
  constructor(name, act) {
    this.run = make("span", { class: "nbd-run", title: "The run's id" });
    this.title = make("span", { class: "nbd-title", role: "heading", "aria-level": "3" });
    this.glyph = make("span", { "aria-hidden": "true" });
    this.state = make("span");
    this.chip = make("span", { class: "nbd-chip", role: "status" }, this.glyph, this.state);
    this.controls = new RunControls(name, act);
    this.fill = make("div", { class: "nbd-fill" });
    this.bar = make("div", { class: "nbd-bar", role: "progressbar", "aria-label": "Progress", "aria-valuemin": "0", "aria-valuemax": "100" }, this.fill);
    this.facts = make("div", { class: "nbd-facts" });
    this.note = make("div", { class: "nbd-note" });
    this.said = make("span", { class: "nbd-spoken", role: "status" }); // the note without figures that change all the time
    this.problem = make("div", { class: "nbd-problem", role: "alert" });
    this.devices = make("div", { class: "nbd-devices" });
    this.warning = make("div", { class: "nbd-warning", role: "status" });
    this.savedWords = make("span");
    this.path = make("code", { class: "nbd-path" });
    this.copy = make("button", { class: "nbd-button nbd-copy", type: "button", title: "Copy the checkpoint's path" }, "Copy");
    this.copy.addEventListener("click", () => this.copyPath());
    this.saved = make("div", { class: "nbd-saved", role: "status" }, this.savedWords, this.path, this.copy);
    this.saved.hidden = true;
    this.element = make("div", { class: "nbd-header" },
      make("div", { class: "nbd-headline" }, make("div", { class: "nbd-names" }, this.title, this.run), this.chip,
        make("span", { class: "nbd-space" }), make("div", { class: "nbd-command" }, this.controls.element, this.controls.rate.element)),
      this.bar, this.facts, make("div", { class: "nbd-words" }, this.note, this.said, this.saved), this.devices, this.warning, this.problem);
  }

  /**
   * @param {{ title?: string, run?: string, total?: number | null, controls?: string[], charts?: unknown[] }} head
   * @param {Record<string, any>} progress
   */
  show(head, progress) {
    const state = String(progress.state ?? "starting");
    const over = FINAL_STATES.includes(state);
    const moving = !over && state !== "paused"; // a paused run has no remaining time
    const total = progress.total ?? head.total ?? null;
    const step = progress.step ?? null;
    const unit = String(progress.unit ?? "steps");
    setText(this.title, head.title ?? "");
    setText(this.run, head.run && head.run !== head.title ? head.run : "");
    setText(this.glyph, GLYPHS[state] ?? "●");
    setText(this.state, state);
    this.chip.dataset.state = state in GLYPHS ? state : "running";
    this.controls.show(progress, over ? [] : head.controls ?? []);
    this.bar.hidden = step === null && total === null;
    this.bar.dataset.state = this.chip.dataset.state;
    const share = total ? Math.min(1, (step ?? 0) / total) : state === "stopped" || state === "failed" ? 0 : null; // the progress is not known then
    this.bar.classList.toggle("nbd-unknown", share === null && !over);
    this.fill.style.width = `${100 * (share ?? 1)}%`;
    this.element.classList.toggle("nbd-plain", step === null && total === null && !head.charts?.length);
    if (share === null) this.bar.removeAttribute("aria-valuenow");
    else this.bar.setAttribute("aria-valuenow", String(Math.round(100 * share)));
    this.writeFacts(/** @type {[string, string][]} */ ([
      ["epoch", !progress.epoch ? null : progress.epochs ? `${formatCount(progress.epoch)} / ${formatCount(progress.epochs)}` : formatCount(progress.epoch)],
      [unit, step === null ? null : total ? `${formatCount(step)} / ${formatCount(total)}` : formatCount(step)],
      [`${unit}/s`, moving || over ? formatIfKnown(progress.steps_per_second, formatShort) : null],
      ["examples/s", moving || over ? formatIfKnown(progress.examples_per_second, formatShort) : null],
      ["of training", formatIfKnown(progress.training_seconds, formatDuration)],
      ["elapsed", formatIfKnown(progress.elapsed, formatDuration)],
      ["left", moving ? formatIfKnown(progress.seconds_left, formatDuration) : null],
    ].filter(([, value]) => value !== null)));
    setText(this.note, progress.note ? String(progress.note) : "");
    setText(this.said, this.note.textContent?.replaceAll(SLOWNESS, "") ?? "");
    setText(this.devices, progress.trained_on ? `${over && state !== "disconnected" ? "trained" : "trains"} on ${progress.trained_on}` : "");
    setText(this.warning, progress.warning ? `⚠ ${progress.warning}` : "");
    setText(this.problem, progress.problem?.text ? String(progress.problem.text) : "");
    this.writeCheckpoint(progress.checkpoint);
  }

  /** @param {{ step?: number, path?: string, error?: string | null } | null | undefined} checkpoint the latest */
  writeCheckpoint(checkpoint) {
    const error = checkpoint?.error;
    this.saved.classList.toggle("nbd-wrong", Boolean(error));
    const path = (!error && checkpoint?.path) || "";
    const at = checkpoint?.step == null ? "checkpoint" : `checkpoint at step ${formatCount(checkpoint.step)}`;
    setText(this.savedWords, error ? `checkpoint failed: ${error}` : checkpoint ? `${at}${path ? ": " : ""}` : "");
    setText(this.path, path);
    this.path.hidden = this.copy.hidden = path === "";
    this.saved.hidden = !checkpoint;
  }

  /** Puts the path into the clipboard, or selects it if the page has no access to the clipboard. */
  async copyPath() {
    try {
      await navigator.clipboard.writeText(this.path.textContent ?? "");
      setText(this.copy, "Copied");
      setTimeout(() => setText(this.copy, "Copy"), 2000);
    } catch {
      getSelection()?.selectAllChildren(this.path);
    }
  }

  /** @param {[string, string][]} facts name and value */
  writeFacts(facts) {
    while (this.facts.children.length > facts.length) this.facts.lastChild?.remove();
    facts.forEach(([name, value], i) => {
      const fact = this.facts.children[i] ?? this.facts.appendChild(make("span", {}, make("b"), make("span")));
      setText(fact.children[0], value);
      setText(fact.children[1], name);
    });
  }
}

/** @param {any} value @param {(value: number) => string} format */
function formatIfKnown(value, format) {
  return value === null || value === undefined ? null : format(Number(value));
}
