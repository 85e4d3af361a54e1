// The learning rate in force: a slider over four decades and a field for any rate.
import { make, setText } from "../dom/elements.js";

export class LearningRateControl {
  /** @param {string} name unique in the page @param {(rate: number) => void} send */
  constructor(name, send) {
    this.send = send;
    /** @type {number | null} */
    this.first = null; // the first rate seen, in the slider's middle
    /** @type {number | null} */
    this.shown = null; // the last rate of the kernel in the field
    this.edited = false; // the user has edited the field and not sent it
    this.keyHeld = false;
    this.slider = make("input", {
      type: "range", min: String(-DECADES), max: String(DECADES), step: "0.05", class: "nbd-rate-slider",
      "aria-label": "Learning rate", title: "Learning rate: applied when you release the slider",
    });
    this.field = make("input", {
      type: "number", min: "0", step: "any", class: "nbd-rate-field", "aria-label": "Learning rate value",
      "aria-describedby": `${name}-rate-word`, autocomplete: "off", title: "Learning rate: press Enter to apply",
    });
    this.status = make("span", { class: "nbd-rate-word", id: `${name}-rate-word`, role: "status" });
    this.element = make("div", { class: "nbd-rate", role: "group", "aria-label": "Learning rate" },
      this.status, make("span", { class: "nbd-rate-name", "aria-hidden": "true" }, "learning rate"), this.slider, this.field);
    this.element.hidden = true;
    this.listen();
  }

  listen() {
    const { slider, field } = this;
    slider.addEventListener("input", () => {
      this.edited = true;
      field.value = rateText(this.sliderRate());
      this.showStatus("");
      this.updateValueText();
    });
    // Arrow keys move the slider; releasing the key sends the rate.
    slider.addEventListener("keydown", () => (this.keyHeld = true));
    const release = () => {
      this.keyHeld = false;
      if (this.edited) this.commit(this.sliderRate());
    };
    slider.addEventListener("keyup", release);
    slider.addEventListener("blur", release);
    slider.addEventListener("change", () => this.keyHeld || release());

    field.addEventListener("input", () => {
      this.edited = true;
      this.showStatus("");
    });
    field.addEventListener("change", () => this.submitField());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.submitField();
      else if (event.key === "Escape") this.restore();
      else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.stepRate(event.key === "ArrowUp");
      else return;
      event.preventDefault();
    });
  }

  sliderRate() {
    return rateAtPosition(Number(this.slider.value), this.first ?? 1);
  }

  /** Sends the text of the field, if it was edited and is a rate. */
  submitField() {
    if (!this.edited) return;
    const read = readRate(this.field.value);
    if ("problem" in read) this.showStatus(read.problem, true);
    else this.commit(read.rate);
  }

  /** Sets the field to the next round rate; Enter sends it. @param {boolean} up */
  stepRate(up) {
    const read = readRate(this.field.value);
    if ("problem" in read) return;
    this.edited = true;
    this.field.value = rateText(nextRate(read.rate, up));
    this.showStatus("");
  }

  /** @param {number} rate */
  commit(rate) {
    this.edited = false;
    if (this.shown !== null && sameRate(rate, this.shown)) this.restore();
    else this.send(rate);
  }

  restore() {
    this.edited = false;
    if (this.shown !== null) this.write(this.shown);
    this.showStatus("");
  }

  /** @param {string} status @param {boolean} [wrong] */
  showStatus(status, wrong = false) {
    setText(this.status, status);
    this.status.classList.toggle("nbd-wrong", wrong);
    this.field.toggleAttribute("data-wrong", wrong);
    if (wrong) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
  }

  /** @param {number} rate */
  write(rate) {
    this.shown = rate;
    this.field.value = rateText(rate);
    this.slider.value = String(sliderPosition(rate, this.first ?? 1));
    this.updateValueText();
  }

  updateValueText() {
    this.slider.setAttribute("aria-valuetext", this.field.value);
  }

  /**
   * @param {number | null} rate in force; null if there is none to set
   * @param {number | null} wanted requested and not yet in force
   * @param {boolean} able whether it can be set now
   */
  show(rate, wanted, able) {
    this.element.hidden = rate === null;
    if (rate === null) return;
    if (this.first === null && rate > 0) this.first = rate;
    this.slider.hidden = !able || this.first === null;
    this.field.disabled = !able;
    const shown = wanted ?? rate;
    if (!this.edited && !this.keyHeld && (this.shown === null || !sameRate(shown, this.shown) || this.field.value === "")) this.write(shown);
    const wrong = this.status.classList.contains("nbd-wrong");
    if (wanted !== null) this.showStatus("pending");
    else if (!wrong || !able) this.showStatus("");
    this.element.title = `in force: ${Number(rate.toPrecision(7))}`;
  }
}

// Conversion of learning rates between a slider's position, a field's text and a number.

/** Decades that the slider reaches to either side of the first rate seen. */
export const DECADES = 2;

/** The rate at a position of the slider, to two digits. @param {number} position in decades @param {number} first */
export function rateAtPosition(position, first) {
  return position === 0 ? first : Number((first * 10 ** position).toPrecision(2));
}

/** The slider's position for a rate, clamped to its range. @param {number} rate @param {number} first */
export function sliderPosition(rate, first) {
  if (!(rate > 0)) return -DECADES;
  return Math.max(-DECADES, Math.min(DECADES, Math.log10(rate / first)));
}

/** Formats a rate to six digits, or to three if that is too long, without trailing zeros. @param {number} rate */
export function rateText(rate) {
  const text = String(Number(rate.toPrecision(6)));
  return text.length <= 8 ? text : String(Number(rate.toPrecision(3)));
}

/**
 * Parses a typed rate; returns the rate or the problem.
 * @param {string} text
 * @returns {{ rate: number } | { problem: string }}
 */
export function readRate(text) {
  const rate = text.trim() === "" ? NaN : Number(text);
  if (!Number.isFinite(rate)) return { problem: "not a number" };
  if (rate < 0) return { problem: "must be at least 0" };
  return { rate };
}

/** The next round rate, as arrow keys go: 1, 2, 5, 10. @param {number} rate @param {boolean} up @returns {number} */
export function nextRate(rate, up) {
  if (!(rate > 0)) return 0;
  const power = Math.floor(Math.log10(rate));
  const round = [-1, 0, 1].flatMap((more) => [1, 2, 5].map((digit) => Number(`${digit}e${power + more}`)));
  const near = rate * 1e-9;
  const found = up ? round.find((r) => r > rate + near) : round.findLast((r) => r < rate - near);
  return found ?? rate;
}

/** Whether two rates are equal up to a relative difference of 1e-6, since one may be in single precision. @param {number} a @param {number} b */
export function sameRate(a, b) {
  return Math.abs(a - b) <= 1e-6 * Math.max(Math.abs(a), Math.abs(b));
}
