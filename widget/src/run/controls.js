// What can be done with a run: pause, checkpoint, stop, learning rate. Each is asked of the kernel, and
// shown as asked until the run's progress shows that it was done.
import { make, setText } from "../dom/elements.js";
import { RateField, sameRate } from "./learning-rate.js";

/** @typedef {"pause" | "resume" | "stop" | "checkpoint" | "set"} Kind */
/** @typedef {{ kind: Kind, value: number | null, since: number, before: string }} Asked */

export class Actions {
  /** @param {string} name unique in the page @param {(kind: Kind, value: number | null) => void} send */
  constructor(name, send) {
    this.send = send;
    /** @type {Map<Kind, Asked>} */
    this.asked = new Map();
    /** @type {Record<string, any>} */
    this.progress = {};
    /** @type {string[]} */
    this.kinds = [];
    this.turn = button("Pause", "Wait between two steps; nothing is lost", () => this.ask(this.progress.state === "paused" ? "resume" : "pause"));
    this.checkpoint = button("Checkpoint", "Save all parameters now, while training goes on", () => this.ask("checkpoint"));
    this.stop = button("Stop", "End the run; what it has trained is kept", () => this.ask("stop"));
    this.element = make("div", { class: "nbd-actions", role: "group", "aria-label": "Run control" }, this.turn, this.checkpoint, this.stop);
    this.rate = new RateField(name, (rate) => this.ask("set", rate));
  }

  /** @param {Kind} kind @param {number | null} [value] */
  ask(kind, value = null) {
    if (kind === "set" ? false : this.asked.has(kind)) return;
    this.asked.set(kind, ask(kind, value, this.progress, performance.now()));
    this.send(kind, value);
    setTimeout(() => this.show(this.progress, this.kinds), LONGEST + 100); // whatever became of it
    this.write();
  }

  /**
   * @param {Record<string, any>} progress
   * @param {string[]} kinds that somebody acts on now
   */
  show(progress, kinds) {
    this.progress = progress;
    this.kinds = kinds;
    const now = performance.now();
    for (const [kind, asked] of this.asked) if (!kinds.includes(kind) || settled(asked, progress, now)) this.asked.delete(kind);
    this.write();
  }

  write() {
    const { state, step, learning_rate: rate } = this.progress;
    const trains = step !== null && step !== undefined; // a plain cell can only be stopped
    const can = (/** @type {Kind} */ kind) => this.kinds.includes(kind) && (trains || kind === "stop");
    const paused = state === "paused";
    const turning = this.asked.has("pause") ? "Pausing…" : this.asked.has("resume") ? "Resuming…" : "";
    this.turn.hidden = !can(paused ? "resume" : "pause");
    this.checkpoint.hidden = !can("checkpoint");
    this.stop.hidden = !can("stop");
    this.element.hidden = [this.turn, this.checkpoint, this.stop].every((one) => one.hidden);
    const stopping = this.asked.has("stop") || state === "stopping";
    label(this.stop, stopping ? "Stopping…" : "Stop", stopping);
    label(this.turn, turning || (paused ? "Resume" : "Pause"), turning !== "" || stopping);
    label(this.checkpoint, this.asked.has("checkpoint") ? "Saving…" : "Checkpoint", this.asked.has("checkpoint") || stopping);
    const wanted = this.asked.get("set")?.value ?? null;
    this.rate.show(typeof rate === "number" ? rate : null, wanted, can("set") && !stopping);
  }
}

/** @param {string} text @param {string} title @param {() => void} act */
function button(text, title, act) {
  const made = make("button", { class: "nbd-button", type: "button", title }, text);
  made.addEventListener("click", () => {
    if (made.getAttribute("aria-disabled") !== "true") act();
  });
  return made;
}

/** What is being done cannot be asked again; the button keeps the focus. @param {HTMLElement} element @param {string} text @param {boolean} busy */
function label(element, text, busy) {
  setText(element, text);
  if (busy) element.setAttribute("aria-disabled", "true");
  else element.removeAttribute("aria-disabled");
}

// What was asked of the kernel and has not come to pass. Pure: it is told the time and sends nothing.

export const LONGEST = 15_000; // milliseconds after which something may be asked again, whatever became of it

/**
 * @param {Kind} kind
 * @param {number | null} value
 * @param {Record<string, any>} progress as it is now
 * @param {number} now milliseconds
 * @returns {Asked}
 */
export function ask(kind, value, progress, now) {
  return { kind, value, since: now, before: marks(kind, progress) };
}

/**
 * Whether the run's progress shows what was asked for, or says why not; or nobody will any more.
 * @param {Asked} asked
 * @param {Record<string, any>} progress
 * @param {number} now milliseconds
 */
export function settled({ kind, value, since, before }, progress, now) {
  if (now - since > LONGEST || marks(kind, progress) !== before) return true;
  if (kind === "pause") return progress.state === "paused";
  if (kind === "resume") return progress.state !== "paused";
  return kind === "set" && typeof progress.learning_rate === "number" && sameRate(progress.learning_rate, value ?? NaN);
}

/** What changes in the progress when something of this kind was done or failed. @param {Kind} kind @param {Record<string, any>} progress */
function marks(kind, { checkpoint, problem }) {
  return JSON.stringify([problem?.kind === kind ? problem.number : null, kind === "checkpoint" ? checkpoint ?? null : null]);
}
