// How the charts are shown: x axis, y axis, smoothing, zoom.
import { make } from "./dom.js";

export class Controls {
  /**
   * @param {import("./lines.js").Options} options changed in place
   * @param {() => void} changed
   * @param {() => void} reset shows all of x again
   * @param {HTMLElement} picking chooses charts
   */
  constructor(options, changed, reset, picking) {
    this.time = toggle("Wall time", "Wall time instead of steps on the x axis", (on) => {
      options.byTime = on;
      reset(); // what was zoomed to were steps
    });
    const log = (this.log = toggle("Log scale", "Logarithmic y axis", (on) => (options.log = on)));
    const slider = this.slider = make("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0", "aria-label": "Smoothing" });
    slider.addEventListener("input", () => (options.smoothing = Number(slider.value)));
    slider.title = "An exponential moving average over the lines, not their points";
    this.all = make("button", { class: "nbd-button", type: "button" }, "Show all");
    this.all.hidden = true;
    this.all.addEventListener("click", reset);
    this.element = make("div", { class: "nbd-controls", role: "toolbar", "aria-label": "Charts" },
      this.all, picking, this.time, log, make("label", {}, "Smoothing", slider));
    this.element.addEventListener("click", changed);
    this.element.addEventListener("input", changed);
  }

  /** Shows the options as they are now. @param {import("./lines.js").Options} options */
  show(options) {
    this.time.setAttribute("aria-pressed", String(options.byTime));
    this.log.setAttribute("aria-pressed", String(options.log));
    this.slider.value = String(options.smoothing);
  }
}

/** @param {string} text @param {string} title @param {(on: boolean) => void} set */
function toggle(text, title, set) {
  const button = make("button", { class: "nbd-button", type: "button", "aria-pressed": "false", title }, text);
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    set(on);
  });
  return button;
}
