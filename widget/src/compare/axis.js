// Chooses the x axis of a comparison: steps, epochs or time.
import { button, enable } from "../dom/buttons.js";
import { make } from "../dom/elements.js";

/** @typedef {"step" | "epoch" | "time"} By */

const AXES = /** @type {[By, string, string][]} */ ([
  ["step", "Step", "Steps on the x axis"],
  ["epoch", "Epoch", "Epochs on the x axis"],
  ["time", "Time", "Time since each run's first point on the x axis"],
]);

export class AxisSwitch {
  /** @param {(by: By) => void} choose */
  constructor(choose) {
    this.buttons = AXES.map(([by, text, title]) => button(text, title, () => choose(by)));
    this.element = make("div", { class: "nbd-switch", role: "group", "aria-label": "X axis" }, ...this.buttons);
  }

  /** @param {By} chosen @param {(by: By) => boolean} has whether a run has it on record */
  show(chosen, has) {
    AXES.forEach(([by], i) => {
      this.buttons[i].setAttribute("aria-pressed", String(by === chosen));
      enable(this.buttons[i], has(by), `No run has its ${by === "epoch" ? "epochs" : "times"} on record`);
    });
  }
}
