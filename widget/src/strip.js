// A card for each replica: its state, step, speed and staleness. Choosing one shows its line in the charts.
import { make, setText } from "./dom.js";
import { formatCount, formatShort } from "./format.js";
import { COLOURED } from "./theme.js";

const PARTS = ["data", "compute", "exchange", "wait"];

export class Strip {
  /** @param {(replica: number | null) => void} choose */
  constructor(choose) {
    this.choose = choose;
    /** @type {number | null} */
    this.chosen = null;
    /** @type {Map<number, HTMLButtonElement>} */
    this.cards = new Map();
    this.element = make("div", { class: "nbd-strip", role: "group", "aria-label": "Replicas" });
    this.element.hidden = true;
    this.key = make("div", { class: "nbd-parts", "aria-hidden": "true" }, "time of a step",
      ...PARTS.map((part) => make("span", {}, make("i", { "data-part": part }), part))); // each bar says it in words
    this.element.append(this.key);
  }

  /** @param {Record<string, Record<string, any>>} replicas @param {string[]} labels */
  show(replicas, labels) {
    const numbers = Object.keys(replicas).map(Number).sort((a, b) => a - b);
    this.element.hidden = numbers.length === 0;
    this.element.classList.toggle("nbd-many", numbers.length > COLOURED);
    this.element.classList.toggle("nbd-one", numbers.length === 1); // its line is the bold one
    for (const [number, card] of this.cards) {
      if (!numbers.includes(number)) {
        card.remove();
        this.cards.delete(number);
      }
    }
    for (const number of numbers) {
      let card = this.cards.get(number);
      if (!card) {
        card = this.makeCard(number);
        this.cards.set(number, card);
        this.key.before(card);
      }
      write(card, replicas[number], labels[number] ?? `replica ${number}`);
    }
    this.key.hidden = !numbers.some((number) => Object.values(replicas[number].spent ?? {}).some((seconds) => seconds > 0));
  }

  /** @param {number} number */
  makeCard(number) {
    const card = make("button", { class: "nbd-card", type: "button", "aria-pressed": "false", title: "Show this replica's line" },
      make("i", { class: `nbd-swatch nbd-r${number % COLOURED}`, "aria-hidden": "true" }),
      make("span", { class: "nbd-name" }), make("span", { class: "nbd-state" }), make("span", { class: "nbd-figures" }),
      make("span", { class: "nbd-spent", role: "img" }));
    card.addEventListener("click", () => {
      this.chosen = this.chosen === number ? null : number;
      for (const [n, other] of this.cards) other.setAttribute("aria-pressed", String(n === this.chosen));
      this.choose(this.chosen);
    });
    return card;
  }
}

/** @param {HTMLElement} card @param {Record<string, any>} status @param {string} label */
function write(card, status, label) {
  const [, name, state, figures, spent] = /** @type {HTMLElement[]} */ ([...card.children]);
  setText(name, label);
  setText(state, String(status.state ?? ""));
  card.dataset.state = String(status.state ?? "");
  const parts = [
    status.step != null && `step ${formatCount(status.step)}`,
    status.steps_per_second != null && `${formatShort(status.steps_per_second)}/s`,
    status.staleness != null && `stale ${formatShort(status.staleness)}`,
    status.dropped != null && `${formatCount(status.dropped)} dropped`,
    status.skipped != null && `${formatCount(status.skipped)} left out`,
  ];
  // Lines break between the parts only.
  setText(figures, parts.filter(Boolean).map((part) => String(part).replaceAll(" ", "\u00a0")).join(" · "));
  writeSpent(spent, status.spent ?? {});
}

/** Where a step's time went: a bar with a part for each. @param {HTMLElement} bar @param {Record<string, number>} spent */
function writeSpent(bar, spent) {
  const parts = Object.entries(spent).filter(([, value]) => value > 0);
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  bar.hidden = parts.length === 0;
  while (bar.children.length > parts.length) bar.lastChild?.remove();
  parts.forEach(([name, value], i) => {
    const part = /** @type {HTMLElement} */ (bar.children[i]) ?? bar.appendChild(make("i"));
    part.dataset.part = name;
    part.style.flexGrow = String(value / whole);
  });
  bar.title = parts.map(([name, value]) => `${name} ${Math.round((100 * value) / whole)}%`).join(", ");
  bar.setAttribute("aria-label", `time of a step: ${bar.title}`);
}
