// Commands to the kernel: each has a request id, which its answer repeats.
import { make, setText } from "../dom/elements.js";

/** @typedef {{ ok: boolean, message: string, number?: number, text?: string }} Answer */
/** @typedef {(kind: string, more?: Record<string, unknown>) => Promise<Answer>} SendCommand */

const NO_KERNEL = "the kernel is not running";

export class CommandChannel {
  /** @param {((kind: string, more: Record<string, unknown>) => void) | null} send null where no kernel receives commands */
  constructor(send) {
    this.send = send;
    this.next = Math.floor(Math.random() * 2 ** 40); // every view of a sweep receives all answers, so the ids must differ
    /** @type {Map<number, (answer: Answer) => void>} */
    this.pending = new Map();
  }

  /** Sends by `send` from now on. @param {((kind: string, more: Record<string, unknown>) => void) | null} send */
  connect(send) {
    this.failAll();
    this.send = send;
  }

  /** Resolves with the kernel's answer. @type {SendCommand} */
  ask(kind, more = {}) {
    const { send } = this;
    if (!send) return Promise.resolve({ ok: false, message: NO_KERNEL });
    const request = this.next++;
    return new Promise((resolve) => {
      this.pending.set(request, resolve);
      send(kind, { ...more, request });
    });
  }

  /** @param {Record<string, any>} content of kind "answer" */
  receive({ request, ok, message, number, text }) {
    this.pending.get(request)?.({ ok: Boolean(ok), message: String(message ?? ""), number, text });
    this.pending.delete(request);
  }

  /** Fails all pending commands: the kernel has ended. */
  failAll() {
    for (const resolve of this.pending.values()) resolve({ ok: false, message: NO_KERNEL });
    this.pending.clear();
  }
}

const BUSY_AFTER = 1000; // milliseconds: the kernel answers immediately, unless it runs a cell
const WAITING = "waiting for the running cell; Pause, Resume and Stop in the sidebar act immediately";

/** Shows the state of a command and its answer. */
export class CommandStatus {
  constructor() {
    this.element = make("div", { class: "nbs-command-status", role: "status" });
    this.latest = 0;
    this.wrong = false;
  }

  /** @param {string} text @param {boolean} [wrong] */
  show(text, wrong = false) {
    this.latest++;
    this.wrong = wrong;
    setText(this.element, text);
    this.element.classList.toggle("nbd-wrong", wrong);
  }

  /** Shows a command's progress and its answer, unless a later text replaced them. @param {Promise<Answer>} promise @param {string} [first] @returns {Promise<Answer>} */
  async follow(promise, first = "sent…") {
    this.show(first);
    const turn = this.latest;
    const late = setTimeout(() => turn === this.latest && setText(this.element, WAITING), BUSY_AFTER);
    const answer = await promise;
    clearTimeout(late);
    if (turn === this.latest) this.show(answer.message || (answer.ok ? "done" : "refused"), !answer.ok);
    return answer;
  }
}
