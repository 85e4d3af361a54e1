// A small box beside the cursor with its position and the exact values there.
import { make, setText } from "../dom/elements.js";

/** @typedef {{ label: string, value: string, tone: string, kind: string, where: string }} Entry */

const ASIDE = 12; // CSS pixels between the cursor and the box

export class Readout {
  constructor() {
    this.place = make("div", { class: "nbd-place" });
    this.list = make("div", {});
    // Hidden from screen readers: the chart's label has the same text.
    this.element = make("div", { class: "nbd-readout", "aria-hidden": "true" }, this.place, this.list);
    this.hide();
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {string} place @param {Entry[]} entries
   * @param {number} left of the cursor, in CSS pixels of the chart @param {number} width of the chart
   */
  show(place, entries, left, width) {
    setText(this.place, place);
    while (this.list.children.length > entries.length) this.list.lastChild?.remove();
    entries.forEach((entry, i) => {
      const line = /** @type {HTMLElement} */ (this.list.children[i] ?? this.list.appendChild(make("div", {}, make("i"), make("span"), make("b"))));
      line.className = `nbd-key nbd-key-${entry.kind}`;
      line.style.setProperty("--tone", entry.tone);
      setText(line.children[1], entry.where ? `${entry.label}, ${entry.where}` : entry.label);
      setText(line.children[2], entry.value);
    });
    this.element.hidden = false;
    const right = left > width / 2;
    this.element.style.left = right ? "auto" : `${left + ASIDE}px`;
    this.element.style.right = right ? `${width - left + ASIDE}px` : "auto";
  }
}

/** An entry of the readout without a line. @param {string} label @param {string} value */
export function plainEntry(label, value) {
  return { label: label || value, value: label && value, tone: "transparent", kind: "fact", where: "" };
}
