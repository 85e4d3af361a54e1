// A small box with the position and the exact values under the cursor, beside what it describes.
import { make, setText } from "../dom/elements.js";

/** @typedef {{ label: string, value: string, tone: string, kind: string, where: string }} Entry */
/** @typedef {{ xs: ArrayLike<number>, ys: ArrayLike<number> }} Outline a line in CSS pixels */
/** @typedef {{ x: number, y: number, width?: number, height?: number }} Place a point or a box in CSS pixels */

const ASIDE = 12; // CSS pixels between what the box describes and the box
const STAY = 30; // CSS pixels of line that the box may cover rather than move to another side
const BEYOND = 3; // cost of a CSS pixel beyond the room's upper or lower end, in CSS pixels of line: a figure may be lower than the box

export class Readout {
  constructor() {
    this.place = make("div", { class: "nbd-place" });
    this.list = make("div", {});
    // Hidden from screen readers: the chart's label has the same text.
    this.element = make("div", { class: "nbd-readout", "aria-hidden": "true" }, this.place, this.list);
    this.side = -1; // of what it describes, where it was last
    this.hide();
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {string} place @param {Entry[]} entries
   * @param {Place} at what the entries describe, in CSS pixels of the chart
   * @param {Outline[]} outlines lines that it should not cover
   */
  show(place, entries, at, outlines) {
    setText(this.place, place);
    while (this.list.children.length > entries.length) this.list.lastChild?.remove();
    entries.forEach((entry, i) => {
      const line = /** @type {HTMLElement} */ (this.list.children[i] ?? this.list.appendChild(make("div", {}, make("i"), make("span"), make("b"))));
      line.className = `nbd-key nbd-key-${entry.kind}`;
      line.style.setProperty("--tone", entry.tone);
      setText(line.children[1], entry.where ? `${entry.label}, ${entry.where}` : entry.label);
      setText(line.children[2], entry.value);
    });
    const { element } = this;
    if (element.hidden) this.side = -1;
    element.hidden = false;
    element.style.left = "0"; // where nothing narrows it
    const { clientWidth = 0, clientHeight = 0 } = element.parentElement ?? {};
    const size = { width: element.offsetWidth + 1, height: element.offsetHeight };
    const { x, y, side } = placeBox(size, { width: clientWidth, height: clientHeight }, at, outlines, this.side);
    this.side = side;
    element.style.left = `${x}px`;
    element.style.top = `${y}px`;
  }
}

/**
 * The place for a box beside a point: it does not cover the point and, as far as possible, lies within a room and covers no line.
 * @param {{ width: number, height: number }} size @param {{ width: number, height: number }} room @param {Place} at @param {Outline[]} outlines
 * @param {number} [side] where the box is, preferred while it is not much worse
 * @returns {{ x: number, y: number, side: number }}
 */
export function placeBox(size, room, { x, y, width = 0, height = 0 }, outlines, side = -1) {
  const within = (/** @type {number} */ start, /** @type {number} */ length, /** @type {number} */ all) => Math.max(0, Math.min(start, all - length));
  const across = [x + width + ASIDE, x - ASIDE - size.width];
  const down = [y + height + ASIDE, y - ASIDE - size.height, y + (height - size.height) / 2, 0, room.height - size.height];
  let best = { x: 0, y: 0, side: -1 };
  let least = Infinity;
  across.forEach((left, i) => down.forEach((top, j) => {
    const [boxX, boxY, here] = [within(left, size.width, room.width), j < 2 ? top : within(top, size.height, room.height), i * down.length + j];
    const box = { left: boxX - 4, top: boxY - 4, right: boxX + size.width + 4, bottom: boxY + size.height + 4 };
    const over = Math.max(0, Math.min(box.right, x + width + 1) - Math.max(box.left, x - 1)) * Math.max(0, Math.min(box.bottom, y + height + 1) - Math.max(box.top, y - 1));
    const away = Math.hypot(boxX + size.width / 2 - x - width / 2, boxY + size.height / 2 - y - height / 2);
    const beyond = Math.max(0, -boxY) + Math.max(0, boxY + size.height - room.height);
    let cost = 1000 * over + BEYOND * beyond + 0.1 * away - (here === side ? STAY : 0);
    for (const outline of outlines) if (cost < least) cost += lengthWithin(outline, box);
    if (cost < least) [best, least] = [{ x: boxX, y: boxY, side: here }, cost];
  }));
  return best;
}

/** The length of the part of a line that lies in a box. @param {Outline} outline @param {{ left: number, top: number, right: number, bottom: number }} box */
export function lengthWithin({ xs, ys }, { left, top, right, bottom }) {
  let sum = 0;
  for (let i = 1; i < xs.length; i++) {
    const [x, y, dx, dy] = [xs[i - 1], ys[i - 1], xs[i] - xs[i - 1], ys[i] - ys[i - 1]];
    let [from, to] = [0, 1]; // the shares of the segment between which it lies in the box (Liang and Barsky 1984)
    for (const [toEdge, step] of [[left - x, dx], [x - right, -dx], [top - y, dy], [y - bottom, -dy]]) {
      if (step > 0) from = Math.max(from, toEdge / step);
      else if (step < 0) to = Math.min(to, toEdge / step);
      else if (!(toEdge <= 0 && step === 0)) to = -1; // outside, or without a place
    }
    if (from < to) sum += (to - from) * Math.hypot(dx, dy);
  }
  return sum;
}

/** An entry of the readout without a line. @param {string} label @param {string} value */
export function plainEntry(label, value) {
  return { label: label || value, value: label && value, tone: "transparent", kind: "fact", where: "" };
}
