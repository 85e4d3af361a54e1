// The commands on a run: pause, checkpoint, stop, learning rate. Each is sent to the kernel and shown as
// pending until the run's progress shows that it was carried out.
import { button, confirmButton } from "../dom/buttons.js";
import { make, setText } from "../dom/elements.js";
import { LearningRateControl, sameRate } from "./learning-rate.js";

/** @typedef {"pause" | "resume" | "stop" | "checkpoint" | "set"} CommandKind */
/** @typedef {{ kind: CommandKind, value: number | null, since: number, before: string }} PendingCommand */

export class RunControls {
  /** @param {string} name unique in the page @param {(kind: CommandKind, value: number | null) => void} send */
  constructor(name, send) {
    this.send = send;
    /** @type {Map<CommandKind, PendingCommand>} */
    this.pending = new Map();
    /** @type {Record<string, any>} */
    this.progress = {};
    /** @type {string[]} */
    this.kinds = [];
    this.pause = button("Pause", "Pause after the current step", () => this.ask(this.progress.state === "paused" ? "resume" : "pause"));
    this.checkpoint = button("Checkpoint", "Save a checkpoint now; training continues", () => this.ask("checkpoint"));
    this.end = confirmButton("Stop", "End the run and keep the trained parameters", "Stop the run?", "Stop it", () => this.ask("stop"));
    this.stop = this.end.button;
    this.element = make("div", { class: "nbd-actions", role: "group", "aria-label": "Run control" }, this.pause, this.checkpoint, this.end);
    this.rate = new LearningRateControl(name, (rate) => this.ask("set", rate));
  }

  /** @param {CommandKind} kind @param {number | null} [value] */
  ask(kind, value = null) {
    if (kind === "set" ? false : this.pending.has(kind)) return;
    this.pending.set(kind, ask(kind, value, this.progress, performance.now()));
    this.send(kind, value);
    setTimeout(() => this.show(this.progress, this.kinds), TIMEOUT + 100); // carried out or not
    this.write();
  }

  /**
   * @param {Record<string, any>} progress
   * @param {string[]} kinds of the commands that the run accepts now
   */
  show(progress, kinds) {
    this.progress = progress;
    this.kinds = kinds;
    const now = performance.now();
    for (const [kind, pending] of this.pending) if (!kinds.includes(kind) || isSettled(pending, progress, now)) this.pending.delete(kind);
    this.write();
  }

  write() {
    const { state, step, learning_rate: rate, in_session: inSession } = this.progress;
    const trains = step !== null && step !== undefined; // a plain cell can only be stopped
    const can = (/** @type {CommandKind} */ kind) => this.kinds.includes(kind) && (trains || kind === "stop");
    const paused = state === "paused";
    const turning = this.pending.has("pause") ? "Pausing…" : this.pending.has("resume") ? "Resuming…" : "";
    this.pause.hidden = !can(paused ? "resume" : "pause");
    this.checkpoint.hidden = !can("checkpoint") || inSession; // the hooks of a session save its checkpoints
    this.end.hidden = !can("stop");
    this.element.hidden = [this.pause, this.checkpoint, this.end].every((one) => one.hidden);
    const stopping = this.pending.has("stop") || state === "stopping";
    setLabel(this.stop, stopping ? "Stopping…" : "Stop", stopping);
    this.pause.title = paused ? "Continue with the next step" : "Pause after the current step";
    setLabel(this.pause, turning || (paused ? "Resume" : "Pause"), turning !== "" || stopping);
    setLabel(this.checkpoint, this.pending.has("checkpoint") ? "Saving…" : "Checkpoint", this.pending.has("checkpoint") || stopping);
    const wanted = this.pending.get("set")?.value ?? null;
    this.rate.show(typeof rate === "number" ? rate : null, wanted, can("set") && !stopping);
    this.keepFocus();
  }

  /** Gives the view the focus of a button that is hidden now: the page would get it, and lose the place. */
  keepFocus() {
    const active = document.activeElement;
    if (!active?.closest("[hidden]") || !this.element.contains(active)) return;
    const view = /** @type {HTMLElement | null} */ (this.element.closest("section"));
    if (!view) return;
    view.tabIndex = -1;
    view.focus({ preventScroll: true });
  }
}

/** Sets a button's text; a busy one ignores clicks but keeps the focus. @param {HTMLElement} element @param {string} text @param {boolean} busy */
function setLabel(element, text, busy) {
  setText(element, text);
  if (busy) element.setAttribute("aria-disabled", "true");
  else element.removeAttribute("aria-disabled");
}

// Commands that the run has not carried out yet. The caller passes the time.

export const TIMEOUT = 15_000; // milliseconds after which a command may be sent again, carried out or not

/**
 * @param {CommandKind} kind
 * @param {number | null} value
 * @param {Record<string, any>} progress as it is now
 * @param {number} now milliseconds
 * @returns {PendingCommand}
 */
export function ask(kind, value, progress, now) {
  return { kind, value, since: now, before: outcomeOf(kind, progress) };
}

/**
 * Whether the run's progress shows that a command was carried out or has failed, or it has timed out.
 * @param {PendingCommand} pending
 * @param {Record<string, any>} progress
 * @param {number} now milliseconds
 */
export function isSettled({ kind, value, since, before }, progress, now) {
  if (now - since > TIMEOUT || outcomeOf(kind, progress) !== before) return true;
  if (kind === "pause") return progress.state === "paused";
  if (kind === "resume") return progress.state !== "paused";
  return kind === "set" && typeof progress.learning_rate === "number" && sameRate(progress.learning_rate, value ?? NaN);
}

/** What changes in the progress when a command of this kind was carried out or failed. @param {CommandKind} kind @param {Record<string, any>} progress */
function outcomeOf(kind, { checkpoint, problem }) {
  return JSON.stringify([problem?.kind === kind ? problem.number : null, kind === "checkpoint" ? checkpoint ?? null : null]);
}
