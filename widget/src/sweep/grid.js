// The whole page of a sweep: puts the views together and redraws what changed, at most once a screen frame.
import { make } from "../dom.js";
import { takeKeys } from "../keys.js";
import { Asks } from "./asks.js";
import { Header, OVER } from "./header.js";
import { Model } from "./model.js";

/** @typedef {{ element: HTMLElement, draw: () => void, destroy: () => void }} View */

export class Grid {
  /** @param {string} name unique in the page @param {(kind: string, more?: Record<string, unknown>) => void} say */
  constructor(name, say) {
    this.model = new Model();
    this.asks = new Asks(say);
    this.pending = 0;
    this.header = new Header(this.model, name, (kind, more) => this.asks.ask(kind, more));
    this.element = make("section", { class: "nbdist-sweep", "aria-label": "Sweep" }, this.header.element);
    this.giveKeysBack = takeKeys(this.element);
    this.off = this.model.on(["data", "chosen", "hovered", "brushed"], () => this.redraw());
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    this.header.draw();
  }

  /** The kernel is gone; what was drawn stays. */
  disconnect() {
    const { status, head } = this.model;
    this.asks.giveUp("the kernel is gone");
    if (!status || OVER.includes(status.state)) return;
    this.model.status = { ...status, state: "disconnected", trouble: head?.again || "the kernel is gone" };
    this.redraw();
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.off();
    this.giveKeysBack();
  }
}
