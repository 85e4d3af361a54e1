// The learning rate in force: a slider over four decades and a field for any rate.
import { make, setText } from "./dom.js";
import { DECADES, nextRate, placeOf, rateAt, rateText, readRate, sameRate } from "./rate.js";

export class RateField {
  /** @param {string} name unique in the page @param {(rate: number) => void} send */
  constructor(name, send) {
    this.send = send;
    /** @type {number | null} */
    this.first = null; // the first rate seen, in the slider's middle
    /** @type {number | null} */
    this.shown = null; // the last one written into the field from outside
    this.edited = false; // by hand, and not yet sent
    this.keyHeld = false;
    this.slider = make("input", {
      type: "range", min: String(-DECADES), max: String(DECADES), step: "0.05", class: "nbd-rate-slider",
      "aria-label": "Learning rate", title: "Learning rate: acts when let go",
    });
    this.field = make("input", {
      type: "number", min: "0", step: "any", class: "nbd-rate-field", "aria-label": "Learning rate value",
      "aria-describedby": `${name}-rate-word`, autocomplete: "off", title: "Learning rate: acts with Enter",
    });
    this.word = make("span", { class: "nbd-rate-word", id: `${name}-rate-word`, role: "status" });
    this.element = make("div", { class: "nbd-rate", role: "group", "aria-label": "Learning rate" },
      this.word, make("span", { class: "nbd-rate-name", "aria-hidden": "true" }, "learning rate"), this.slider, this.field);
    this.element.hidden = true;
    this.listen();
  }

  listen() {
    const { slider, field } = this;
    slider.addEventListener("input", () => {
      this.edited = true;
      field.value = rateText(this.sliderRate());
      this.say("");
      this.name();
    });
    // Keys move it step by step: it is let go with the key.
    slider.addEventListener("keydown", () => (this.keyHeld = true));
    const letGo = () => {
      this.keyHeld = false;
      if (this.edited) this.commit(this.sliderRate());
    };
    slider.addEventListener("keyup", letGo);
    slider.addEventListener("blur", letGo);
    slider.addEventListener("change", () => this.keyHeld || letGo());

    field.addEventListener("input", () => {
      this.edited = true;
      this.say("");
    });
    field.addEventListener("change", () => this.take());
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.take();
      else if (event.key === "Escape") this.restore();
      else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.turn(event.key === "ArrowUp");
      else return;
      event.preventDefault();
    });
  }

  sliderRate() {
    return rateAt(Number(this.slider.value), this.first ?? 1);
  }

  /** Sends what stands in the field, if it was edited and is a rate. */
  take() {
    if (!this.edited) return;
    const read = readRate(this.field.value);
    if ("problem" in read) this.say(read.problem, true);
    else this.commit(read.rate);
  }

  /** To the next round rate, to be sent with Enter. @param {boolean} up */
  turn(up) {
    const read = readRate(this.field.value);
    if ("problem" in read) return;
    this.edited = true;
    this.field.value = rateText(nextRate(read.rate, up));
    this.say("");
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
    this.say("");
  }

  /** @param {string} word @param {boolean} [wrong] */
  say(word, wrong = false) {
    setText(this.word, word);
    this.word.classList.toggle("nbd-wrong", wrong);
    this.field.toggleAttribute("data-wrong", wrong);
    if (wrong) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
  }

  /** @param {number} rate */
  write(rate) {
    this.shown = rate;
    this.field.value = rateText(rate);
    this.slider.value = String(placeOf(rate, this.first ?? 1));
    this.name();
  }

  name() {
    this.slider.setAttribute("aria-valuetext", this.field.value);
  }

  /**
   * @param {number | null} rate in force; null if there is none to set
   * @param {number | null} wanted asked for and not yet in force
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
    const wrong = this.word.classList.contains("nbd-wrong");
    if (wanted !== null) this.say("pending");
    else if (!wrong || !able) this.say("");
    this.element.title = `in force: ${Number(rate.toPrecision(7))}`;
  }
}
