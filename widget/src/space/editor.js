// The space editor: draws the kernel's state and sends the user's edits.
import { make, setText } from "../dom/elements.js";
import { button, enable, field, labelled, mark, select, setOptions } from "./fields.js";
import { ParameterRow } from "./parameter.js";
import { describeCount, plural, startProblem } from "./state.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {Record<string, unknown> & { what: string }} Change */

const PATIENCE = 1500; // milliseconds after which the page shows that it waits

export class Editor {
  /** @param {string} view unique in the page @param {(kind: string, more?: Record<string, unknown>) => void} send */
  constructor(view, send) {
    this.view = view;
    this.send = send;
    /** @type {State | null} */
    this.state = null;
    /** @type {Map<number, ParameterRow>} */
    this.rows = new Map();
    this.adding = 0; // the edit that added a parameter, whose name is typed next
    this.lost = false;
    this.edits = new EditQueue((number, change) => {
      this.send("edit", { number, change });
      this.wait();
    });
    this.list = make("div", { class: "nbe-rows" });
    this.general = make("div", { class: "nbe-general", role: "status" });
    this.add = button("Add a parameter", "", () => (this.adding = this.edits.sendNow({ what: "add" })));
    this.sampler = select("sampler", (value) => this.edits.sendLatest("sampler", { what: "sampler", value }));
    this.pruner = select("pruner", (value) => this.edits.sendLatest("pruner", { what: "pruner", value }));
    this.trials = field({ class: "nbe-field nbe-short", inputmode: "numeric" }, (value) => this.edits.sendLatest("trials", { what: "trials", value }));
    this.count = make("div", { class: "nbe-count", role: "status", id: `${view}-count` });
    this.sweep = make("fieldset", { class: "nbe-sweep" }, make("legend", {}, "Trials"),
      make("div", { class: "nbe-head" }, labelled("Sampler", this.sampler), labelled("Pruner", this.pruner), labelled("How many", this.trials)), this.count);
    this.text = make("pre", { class: "nbe-text", tabindex: "0", role: "region", "aria-label": "The space in the syntax of %%sweep" });
    this.copy = button("Copy", "Copy the space", () => this.copyText());
    this.copied = make("span", { class: "nbe-copied", role: "status" });
    this.editableText = make("div", { class: "nbe-as-text" }, this.text, make("div", { class: "nbe-copying" }, this.copy, this.copied));
    this.start = button("Start", "", () => this.press());
    this.start.classList.add("nbe-start");
    this.why = make("span", { class: "nbe-why", id: `${view}-why` });
    this.start.setAttribute("aria-describedby", this.why.id);
    this.starting = make("div", { class: "nbe-starting" }, this.start, this.why);
    this.waiting = make("div", { class: "nbe-waiting", role: "status" });
    this.succeeded = make("div", { class: "nbe-result", role: "status" });
    this.failed = make("div", { class: "nbe-result nbe-problem", role: "alert" });
    this.element = make("section", { class: "nbdist-space", "aria-label": "Space editor" },
      make("div", { class: "nbd-title" }, "Space"), this.list, this.general, make("div", {}, this.add), this.sweep, this.editableText,
      this.starting, this.waiting, this.succeeded, this.failed);
  }

  /** @param {State} state */
  apply(state) {
    this.state = state;
    const applied = state.applied[this.view] ?? 0;
    this.edits.acknowledge(applied);
    if (applied >= this.edits.number) this.stopWaiting();
    this.showRows(state);
    setText(this.general, state.general);
    this.general.classList.toggle("nbe-problem", state.rows.length > 0);
    if (!this.edits.isPending("sampler")) setOptions(this.sampler, state.samplers.map((one) => [one, one]), state.sampler);
    if (!this.edits.isPending("pruner")) setOptions(this.pruner, state.pruners.map((one) => [one, one]), state.pruner);
    if (!this.edits.isPending("trials") && this.trials.value !== state.trials) this.trials.value = state.trials;
    this.trials.placeholder = state.sampler === "grid" ? "all" : "";
    setText(this.count, describeCount(state));
    this.count.classList.toggle("nbe-problem", state.trials_problem !== "");
    mark(this.trials, state.trials_problem !== "", this.count.id);
    setText(this.text, state.text ?? (state.too_long ? "(longer than %%sweep takes: use editor.space)" : "(not valid yet)"));
    enable(this.copy, state.text !== null);
    this.showStart(state);
  }

  /** @param {State} state */
  showRows(state) {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const removed = [...this.rows.values()].findIndex((row) => row.drop === focused);
    for (const [id, row] of this.rows) {
      if (state.rows.some((one) => one.id === id)) continue;
      row.element.remove();
      this.rows.delete(id);
    }
    for (const one of state.rows) {
      let row = this.rows.get(one.id);
      if (!row) {
        row = new ParameterRow(this.view, one.id, this.edits);
        this.rows.set(one.id, row);
        this.list.append(row.element);
        row.show(one, state);
        if (this.adding && (state.applied[this.view] ?? 0) >= this.adding) {
          this.adding = 0;
          row.fields.name.focus();
          row.fields.name.select();
        }
      } else row.show(one, state);
    }
    this.order(state.rows.map((one) => one.id), focused);
    if (removed >= 0 && !focused?.isConnected) {
      const next = [...this.rows.values()];
      (next[Math.min(removed, next.length - 1)]?.drop ?? this.add).focus();
    }
  }

  /** @param {number[]} ids @param {HTMLElement | null} focused */
  order(ids, focused) {
    if (ids.every((id, place) => this.list.children[place] === this.rows.get(id)?.element)) return;
    const rows = ids.map((id) => /** @type {[number, ParameterRow]} */ ([id, this.rows.get(id)]));
    this.rows = new Map(rows);
    this.list.append(...rows.map(([, row]) => row.element));
    if (focused?.isConnected && focused !== document.activeElement) focused.focus(); // an element that is moved loses the focus
  }

  /** @param {State} state */
  showStart(state) {
    this.starting.hidden = !state.startable;
    const why = startProblem(state);
    enable(this.start, why === "" && !state.starting && !this.lost);
    setText(this.start, state.starting ? "Starting…" : state.count !== null && !why ? `Start ${plural(state.count, "trial")}` : "Start");
    setText(this.why, state.starting ? "" : why);
    setText(this.succeeded, state.result?.ok ? state.result.text : "");
    setText(this.failed, state.result && !state.result.ok ? state.result.text : "");
  }

  press() {
    this.edits.flush();
    this.edits.number += 1;
    this.send("start", { number: this.edits.number });
    this.wait();
  }

  wait() {
    if (this.timer) return;
    this.timer = setTimeout(() => setText(this.waiting, "Waiting for the kernel, which is busy…"), PATIENCE);
  }

  stopWaiting() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (!this.lost) setText(this.waiting, "");
  }

  /** Disables the editor: the kernel has ended. */
  disconnect() {
    if (this.lost) return;
    this.lost = true;
    this.stopWaiting();
    this.edits.clear();
    setText(this.waiting, "The kernel is not running: run the editor's cell again.");
    for (const one of this.element.querySelectorAll("fieldset")) one.disabled = true;
    for (const one of [this.add, this.start]) enable(one, false);
  }

  async copyText() {
    const text = this.state?.text;
    if (!text) return;
    try {
      await navigator.clipboard.writeText(text);
      setText(this.copied, "copied");
    } catch {
      // Without HTTPS there is no clipboard: select the text, so that the keyboard can copy it.
      const selection = getSelection();
      selection?.selectAllChildren(this.text);
      setText(this.copied, "selected: press Ctrl+C");
    }
    clearTimeout(this.forgetting);
    this.forgetting = setTimeout(() => setText(this.copied, ""), 4000);
  }

  close() {
    clearTimeout(this.timer);
    clearTimeout(this.forgetting);
    this.element.remove();
  }
}

// Edits that the kernel has not answered: their fields keep the typed text.

export class EditQueue {
  /** @param {(number: number, change: Change) => void} send */
  constructor(send) {
    this.send = send;
    this.number = 0; // of the last one sent
    /** @type {Map<string, number>} */
    this.sent = new Map(); // field -> number of its last edit that the kernel has not applied
    /** @type {Map<string, Change>} */
    this.queued = new Map(); // field -> its next edit, sent when that one is applied
  }

  /** Sends an edit that is not of a field. @param {Change} change @returns {number} */
  sendNow(change) {
    this.flush();
    this.number += 1;
    this.send(this.number, change);
    return this.number;
  }

  /** Sends a field's text; while an edit of it is unanswered, only the latest text follows. @param {string} field @param {Change} change */
  sendLatest(field, change) {
    if (this.sent.has(field)) this.queued.set(field, change);
    else this.post(field, change);
  }

  /** @param {string} field @param {Change} change */
  post(field, change) {
    this.number += 1;
    this.sent.set(field, this.number);
    this.send(this.number, change);
  }

  /** Sends all queued edits. */
  flush() {
    const queued = [...this.queued];
    this.queued.clear();
    for (const [field, change] of queued) this.post(field, change);
  }

  /** The kernel has applied all edits up to a number. @param {number} number */
  acknowledge(number) {
    for (const [field, sent] of this.sent) {
      if (sent > number) continue;
      this.sent.delete(field);
      const next = this.queued.get(field);
      this.queued.delete(field);
      if (next) this.post(field, next);
    }
  }

  /** Whether an edit of a field is unanswered: the page then keeps its own text. @param {string} field */
  isPending(field) {
    return this.sent.has(field);
  }

  /** Drops all edits: the kernel has ended. */
  clear() {
    this.sent.clear();
    this.queued.clear();
  }
}
