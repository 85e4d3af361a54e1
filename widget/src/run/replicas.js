// A card for each replica: its state, step, speed and staleness, and where its time goes. Choosing a card shows
// its line in the charts. The cards of a run on several hosts stand below the name of their host.
import { make, setText } from "../dom/elements.js";
import { COLOURED } from "../dom/theme.js";
import { formatCount, formatMoment, formatShort } from "../text/format.js";

/** @typedef {Record<string, any>} Status of a replica */

/** The parts of a step's time, and their labels on the page. */
const TIME_PARTS = /** @type {Record<string, string>} */ ({ data: "data", compute: "compute", exchange: "communication", wait: "idle" });
const COMPACT_FROM = 24; // number of replicas from which the cards are compact
/** States without a text: most replicas are in them, and the others stand out. */
const UNMARKED_STATES = ["running", "finished", "starting"];

export class ReplicaCards {
  /** @param {(replica: number | null) => void} choose */
  constructor(choose) {
    this.choose = choose;
    /** @type {number | null} */
    this.chosen = null;
    /** @type {Map<number, HTMLButtonElement>} */
    this.cards = new Map();
    /** @type {Map<string, HTMLElement>} */
    this.hosts = new Map();
    this.grid = make("div", { class: "nbd-strip" });
    this.grid.addEventListener("keydown", (event) => this.onKey(event));
    this.tabStop = 0; // the replica with the card that is the Tab stop
    this.key = make("div", { class: "nbd-parts", "aria-hidden": "true" }, make("span", {}, "step time:"),
      ...Object.entries(TIME_PARTS).map(([part, word]) => make("span", {}, make("i", { "data-part": part }), word))); // each bar has a text label
    this.element = make("div", { class: "nbd-replicas", role: "group", "aria-label": "Replicas" }, this.grid, this.key);
    this.element.hidden = true;
  }

  /** @param {Record<string, Status>} replicas @param {string[]} labels */
  show(replicas, labels) {
    const numbers = Object.keys(replicas).map(Number).sort((a, b) => a - b);
    this.element.hidden = numbers.length === 0;
    this.grid.classList.toggle("nbd-many", numbers.length > COLOURED);
    this.grid.classList.toggle("nbd-crowd", numbers.length > COMPACT_FROM);
    this.grid.classList.toggle("nbd-one", numbers.length === 1); // its line is the bold one
    for (const [number, card] of this.cards) {
      if (!(number in replicas)) {
        card.remove();
        this.cards.delete(number);
      }
    }
    const longest = Math.max(0, ...numbers.map((number) => totalTime(replicas[number].spent)));
    const here = this.cards.has(this.tabStop) ? this.tabStop : numbers[0];
    for (const number of numbers) {
      let card = this.cards.get(number);
      if (!card) {
        card = this.makeCard(number);
        this.cards.set(number, card);
      }
      this.place(card, number, numbers, replicas[number].host ?? null);
      card.tabIndex = numbers.length > COLOURED && number !== here ? -1 : 0;
      write(card, replicas[number], labels[number] ?? `replica ${number}`, longest);
    }
    for (const [host, group] of this.hosts) {
      group.style.setProperty("--nbd-cards", String(group.children.length - 1));
      if (group.children.length === 1) {
        group.remove();
        this.hosts.delete(host);
      }
    }
    this.grid.classList.toggle("nbd-hosts", this.hosts.size > 0);
    this.key.hidden = longest === 0;
  }

  /** Puts a card among those of its host, unless it is there. @param {HTMLElement} card @param {number} number @param {number[]} numbers @param {string | null} host */
  place(card, number, numbers, host) {
    let place = host === null ? this.grid : this.hosts.get(host);
    if (host !== null && !place) {
      place = make("div", { class: "nbd-host", role: "group", "aria-label": `host ${host}` }, make("div", { class: "nbd-host-name", title: host, "aria-hidden": "true" }, `host ${host}`));
      this.hosts.set(host, place);
      this.grid.append(place);
    }
    if (!place || card.parentElement === place) return;
    const after = numbers.find((other) => other > number && this.cards.get(other)?.parentElement === place);
    place.insertBefore(card, after === undefined ? null : this.cards.get(after) ?? null);
  }

  /** Arrow keys go from card to card. @param {KeyboardEvent} event */
  onKey(event) {
    const cards = /** @type {HTMLElement[]} */ ([...this.grid.querySelectorAll(".nbd-card")]);
    const here = cards.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    /** The nearest card of the next line. @param {number} sign 1 for downwards, -1 for upwards */
    const line = (sign) => {
      const away = (/** @type {HTMLElement} */ card) => sign * (card.offsetTop - cards[here].offsetTop);
      const aside = (/** @type {HTMLElement} */ card) => Math.abs(card.offsetLeft - cards[here].offsetLeft);
      const beyond = cards.filter((card) => away(card) > 0).sort((a, b) => away(a) - away(b) || aside(a) - aside(b));
      return beyond.length ? cards.indexOf(beyond[0]) : -1;
    };
    const moves = /** @type {Record<string, () => number>} */ ({
      ArrowLeft: () => here - 1, ArrowRight: () => here + 1, ArrowUp: () => line(-1), ArrowDown: () => line(1), Home: () => 0, End: () => cards.length - 1,
    });
    if (here < 0 || !(event.key in moves)) return;
    cards[moves[event.key]()]?.focus();
    event.preventDefault();
  }

  /** @param {number} number */
  makeCard(number) {
    const card = make("button", { class: "nbd-card", type: "button", "aria-pressed": "false", title: "Show this replica's line" },
      make("i", { class: `nbd-swatch nbd-r${number % COLOURED}`, "aria-hidden": "true" }),
      make("span", { class: "nbd-name" }), make("span", { class: "nbd-state" }), make("span", { class: "nbd-figures" }),
      make("span", { class: "nbd-spent", role: "img" }));
    card.addEventListener("focus", () => {
      if (this.cards.size > COLOURED) for (const [n, other] of this.cards) other.tabIndex = n === number ? 0 : -1;
      this.tabStop = number;
    });
    card.addEventListener("click", () => {
      this.setChosen(this.chosen === number ? null : number);
      this.choose(this.chosen);
    });
    if (number === this.chosen) card.setAttribute("aria-pressed", "true");
    return card;
  }

  /** Shows which card is chosen. @param {number | null} number */
  setChosen(number) {
    this.chosen = number;
    for (const [n, other] of this.cards) other.setAttribute("aria-pressed", String(n === number));
  }
}

/** @param {HTMLElement} card @param {Status} status @param {string} label @param {number} longest step of all, in seconds */
function write(card, status, label, longest) {
  const [, name, state, figures, spent] = /** @type {HTMLElement[]} */ ([...card.children]);
  const word = String(status.state ?? "");
  setText(name, label);
  name.title = label;
  setText(state, word);
  state.classList.toggle("nbd-spoken", UNMARKED_STATES.includes(word));
  card.dataset.state = word;
  const parts = [
    ["step", status.step != null && `step ${formatCount(status.step)}`],
    ["rate", status.steps_per_second != null && word !== "paused" && `${formatShort(status.steps_per_second)}/s`],
    ["stale", status.staleness != null && `staleness ${formatShort(status.staleness)}`],
    ["dropped", status.dropped != null && `${formatCount(status.dropped)} dropped`],
    ["skipped", status.skipped != null && `${formatCount(status.skipped)} left out`],
    ["restart", status.restart != null && String(status.restart)],
  ].filter(([, text]) => text);
  while (figures.children.length > parts.length) figures.lastChild?.remove();
  parts.forEach(([kind, text], i) => {
    const part = /** @type {HTMLElement} */ (figures.children[i]) ?? figures.appendChild(make("span"));
    part.dataset.figure = String(kind);
    // Lines break between the parts only, and within the longest one.
    const shown = kind === "restart" ? String(text) : String(text).replaceAll(" ", "\u00a0");
    setText(part, shown + (i + 1 < parts.length ? " · " : ""));
  });
  writeSpent(spent, status.spent ?? {}, longest);
}

/** The parts of a step's time: a stacked bar with the length of the step.
 * @param {HTMLElement} bar @param {Record<string, number>} spent seconds of a step by part @param {number} longest */
function writeSpent(bar, spent, longest) {
  const parts = Object.entries(spent).filter(([, value]) => value > 0);
  const all = totalTime(spent);
  bar.hidden = parts.length === 0;
  while (bar.children.length > parts.length) bar.lastChild?.remove();
  parts.forEach(([name, value], i) => {
    const part = /** @type {HTMLElement} */ (bar.children[i]) ?? bar.appendChild(make("i"));
    part.dataset.part = name;
    part.style.width = `${(100 * value) / longest}%`;
  });
  const title = `${formatMoment(all)} a step: ${parts.map(([name, value]) => `${TIME_PARTS[name] ?? name} ${Math.round((100 * value) / all)}%`).join(", ")}`;
  if (bar.title === title) return;
  bar.title = title;
  bar.setAttribute("aria-label", title);
}

/** @param {Record<string, number> | undefined} spent */
function totalTime(spent) {
  return Object.values(spent ?? {}).reduce((sum, value) => sum + (value > 0 ? value : 0), 0);
}
