// How the charts are shown (x axis, y axis, smoothing, zoom), and which ones.
import { make, setText } from "../dom/elements.js";
import { formatCount } from "../text/format.js";

/** @typedef {{ titles: string[], count: number, most: number }} Available */

export class ChartToolbar {
  /**
   * @param {import("../chart/curves.js").Options} options changed in place
   * @param {() => void} changed
   * @param {() => void} reset shows all of x again
   * @param {HTMLElement} picking chooses charts
   * @param {HTMLElement} [axis] chooses the x axis; by default a button for wall time
   */
  constructor(options, changed, reset, picking, axis) {
    this.time = axis ?? toggle("Wall time", "Wall time instead of steps on the x axis", (on) => {
      options.byTime = on;
      reset(); // the zoomed range is in the other unit
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

  /** Shows the options as they are now. @param {import("../chart/curves.js").Options} options */
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

// The choice of the drawn charts, if there are more than are drawn: a list with a filter.

const LISTED = 200; // titles at most, as in Python

export class ChartPicker {
  /** @param {string} name unique in the page @param {(titles: string[]) => void} choose none: as it was at first */
  constructor(name, choose) {
    this.choose = choose;
    /** @type {Available} */
    this.available = { titles: [], count: 0, most: 0 };
    /** @type {string[]} */
    this.drawn = [];
    this.button = make("button", { class: "nbd-button", type: "button", "aria-expanded": "false", "aria-controls": `${name}-picker`, title: "Choose the drawn charts" }, "Charts");
    this.filter = make("input", { type: "search", class: "nbd-filter", "aria-label": "Filter charts", placeholder: "Filter", autocomplete: "off", spellcheck: "false" });
    this.list = make("ul", { class: "nbd-choices", "aria-label": "Charts" });
    this.note = make("div", { class: "nbd-picker-note", role: "status" });
    this.resetButton = make("button", { class: "nbd-button", type: "button" }, "Reset to default");
    this.resetButton.addEventListener("click", () => this.choose([]));
    this.panel = make("div", { class: "nbd-picker", id: `${name}-picker`, role: "group", "aria-label": "Choose charts" },
      make("div", { class: "nbd-picker-head" }, this.filter, this.resetButton), this.list, this.note);
    this.panel.hidden = true;
    this.element = make("div", { class: "nbd-picking" }, this.button, this.panel);
    this.element.hidden = true;
    this.button.addEventListener("click", () => this.open(Boolean(this.panel.hidden)));
    this.filter.addEventListener("input", () => this.write());
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.element.addEventListener("focusout", (event) => {
      const to = /** @type {Node | null} */ (event.relatedTarget);
      if (to && !this.element.contains(to)) this.open(false);
    });
    this.onPressOutside = (/** @type {Event} */ event) => {
      if (!event.composedPath().includes(this.element)) this.open(false);
    };
  }

  /** @param {boolean} open */
  open(open) {
    if (open !== Boolean(this.panel.hidden)) return;
    this.panel.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    if (open) {
      this.write();
      this.filter.focus();
      document.addEventListener("pointerdown", this.onPressOutside);
    } else document.removeEventListener("pointerdown", this.onPressOutside);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (event.key === "Escape" && !this.panel.hidden) {
      this.open(false);
      this.button.focus();
    } else if (event.key === "Enter" && event.target === this.filter) {
      const wanted = this.filter.value.trim();
      const found = matching(this.available.titles, wanted);
      // A name that is not in the list may exist: the kernel knows all of them.
      const title = found.includes(wanted) || found.length !== 1 ? wanted : found[0];
      if (title && !this.drawn.includes(title)) this.toggleChart(title, true);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {string} title @param {boolean} on */
  toggleChart(title, on) {
    const rest = this.drawn.filter((drawn) => drawn !== title);
    if (on && rest.length >= this.available.most) return;
    if (on || rest.length) this.choose(on ? [...rest, title] : rest);
    else this.write(); // at least one is always drawn
  }

  /** @param {Available} available @param {string[]} drawn titles */
  show(available, drawn) {
    this.element.hidden = available.count <= drawn.length;
    if (available === this.available && String(drawn) === String(this.drawn)) return;
    this.available = available;
    this.drawn = drawn;
    if (!this.panel.hidden) this.write();
  }

  write() {
    const { titles, count, most } = this.available;
    const found = matching([...new Set([...this.drawn, ...titles])], this.filter.value.trim());
    const full = this.drawn.length >= most;
    const held = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.title;
    this.list.replaceChildren(...found.slice(0, LISTED + most).map((title) => this.choice(title, full)));
    if (held !== undefined) {
      for (const box of this.list.querySelectorAll("input")) if (box.dataset.title === held) box.focus();
    }
    setText(this.note, [
      full ? `${most} at most` : "",
      found.length ? "" : "nothing listed matches",
      count > titles.length ? `${formatCount(titles.length)} of ${formatCount(count)} listed; Enter selects an exact name` : "",
    ].filter(Boolean).join("; "));
  }

  /** @param {string} title @param {boolean} full */
  choice(title, full) {
    const box = make("input", { type: "checkbox" });
    box.checked = this.drawn.includes(title);
    box.disabled = full && !box.checked;
    box.dataset.title = title;
    box.addEventListener("change", () => this.toggleChart(title, box.checked));
    return make("li", {}, make("label", {}, box, make("span", {}, title)));
  }
}

/** The titles that contain the text, in any case. @param {string[]} titles @param {string} text */
export function matching(titles, text) {
  const wanted = text.toLowerCase();
  return titles.filter((title) => title.toLowerCase().includes(wanted));
}
