// The histograms and images of a run's summaries: ridges over steps, and the newest images.
import { make, setText } from "../dom/elements.js";
import { formatCount, formatValue } from "../text/format.js";

/** @typedef {{ step: number, low: number, high: number, counts: number[] }} Ridge */
/** @typedef {{ step: number, png: string }} Image */
/** @typedef {{ task: string, tag: string, ridges: Ridge[], images: Image[] }} Entry */

const [WIDTH, HEIGHT, RISE] = [240, 120, 34]; // of a drawing, and of the highest bucket above its line
const MOST_ENTRIES = 64;
const MOST_ITEMS = 64; // of an entry
const MOST_BUCKETS = 256;
const MOST_LETTERS = 2_000_000; // of an image, in base64
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

export class PictureSection {
  constructor() {
    this.figures = make("div", { class: "nbd-pictures-row" });
    this.element = make("div", { class: "nbd-pictures", role: "group", "aria-label": "Summaries" },
      make("div", { class: "nbd-chart-title" }, "Summaries"), this.figures);
    this.element.hidden = true;
    /** @type {unknown} */
    this.shown = null;
    /** @type {Map<string, { element: HTMLElement, content: string }>} */
    this.known = new Map();
  }

  /** Draws what has changed. @param {unknown} pictures as Python sends them (nbdist/ui/pictures.py) */
  show(pictures) {
    if (pictures === this.shown) return;
    this.shown = pictures;
    const entries = readPictures(pictures);
    this.element.hidden = entries.length === 0;
    const several = new Set(entries.map(({ task }) => task)).size > 1;
    const known = this.known;
    this.known = new Map();
    for (const entry of entries) {
      const content = JSON.stringify([entry, several]);
      const key = `${entry.task}\n${entry.tag}`;
      const before = known.get(key);
      this.known.set(key, before?.content === content ? before : { element: figure(entry, several), content });
    }
    this.figures.replaceChildren(...[...this.known.values()].map(({ element }) => element));
  }
}

/** @param {Entry} entry @param {boolean} several whether there are several tasks */
function figure(entry, several) {
  const { ridges, images } = entry;
  const last = ridges.length ? ridges[ridges.length - 1] : images[images.length - 1];
  const about = make("figcaption", {}, make("b", {}), make("span", {}));
  setText(about.children[0], entry.tag);
  const words = [...(several ? [entry.task] : []), `step ${formatCount(last.step)}`];
  setText(about.children[1], words.join(" · "));
  const content = ridges.length ? drawRidges(entry) : images.map(({ png }) =>
    make("img", { src: `data:image/png;base64,${png}`, alt: `${entry.tag}, ${words.join(", ")}` }));
  return make("figure", { class: ridges.length ? "nbd-histogram" : "nbd-image" }, about, ...content);
}

/** The histograms above one another, the newest in front, and the range of the values below. @param {Entry} entry */
function drawRidges({ tag, ridges }) {
  const [low, high] = [Math.min(...ridges.map((one) => one.low)), Math.max(...ridges.map((one) => one.high))];
  const most = Math.max(...ridges.flatMap(({ counts }) => counts)) || 1;
  const range = high - low || 1;
  const left = high > low ? low : low - 0.5;
  const gap = ridges.length > 1 ? (HEIGHT - RISE - 2) / (ridges.length - 1) : 0;
  const newest = ridges[ridges.length - 1];
  const described = `Histogram of ${tag} at step ${newest.step}: values from ${formatValue(newest.low)} to ${formatValue(newest.high)}`;
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": described });
  const title = svg("title", {});
  title.textContent = described;
  drawing.append(title);
  ridges.forEach((ridge, number) => {
    const base = ridges.length > 1 ? RISE + number * gap : HEIGHT - 2;
    const rise = ridges.length > 1 ? RISE : HEIGHT - 8;
    const [start, end] = ridge.high > ridge.low ? [ridge.low, ridge.high] : [left, left + range];
    const x = (/** @type {number} */ value) => tenth((WIDTH * (value - left)) / range);
    const width = (end - start) / ridge.counts.length;
    const points = ridge.counts.map((count, i) => `${x(start + width * (i + 0.5))} ${tenth(base - (rise * count) / most)}`);
    const line = `M${x(start)} ${tenth(base)}L${points.join("L")}L${x(end)} ${tenth(base)}`;
    drawing.append(svg("path", { class: "nbd-ridge", d: line, style: `--age: ${tenth((number + 1) / ridges.length)}` }));
  });
  const ends = make("div", { class: "nbd-ends" }, make("span", {}, formatValue(low)), make("span", {}, stepsOf(ridges)), make("span", {}, formatValue(high)));
  return [drawing, ends];
}

/** @param {Ridge[]} ridges */
function stepsOf(ridges) {
  return ridges.length > 1 ? `steps ${formatCount(ridges[0].step)} to ${formatCount(ridges[ridges.length - 1].step)}` : "";
}

/** The entries in data of Python or of a saved notebook; invalid parts are left out. @param {unknown} value @returns {Entry[]} */
export function readPictures(value) {
  return (Array.isArray(value) ? value : []).slice(0, MOST_ENTRIES).flatMap((/** @type {any} */ entry) => {
    const items = Array.isArray(entry?.items) ? entry.items.slice(-MOST_ITEMS) : [];
    const ridges = entry?.kind === "histogram" ? items.flatMap(ridge) : [];
    const images = entry?.kind === "image" ? items.flatMap(image) : [];
    if (ridges.length + images.length === 0) return [];
    return [{ task: text(entry.task), tag: text(entry.tag), ridges, images }];
  });
}

/** @param {any} item @returns {Ridge[]} */
function ridge(item) {
  const counts = typeof item?.counts === "string" ? item.counts.split(" ", MOST_BUCKETS).filter(Boolean).map(Number) : [];
  const fits = [item?.step, item?.low, item?.high, ...counts].every(Number.isFinite) && counts.every((/** @type {number} */ one) => one >= 0);
  return fits && counts.length > 0 && item.low <= item.high ? [{ step: item.step, low: item.low, high: item.high, counts }] : [];
}

/** @param {any} item @returns {Image[]} */
function image(item) {
  const fits = Number.isFinite(item?.step) && typeof item.png === "string" && item.png.length <= MOST_LETTERS && BASE64.test(item.png);
  return fits ? [{ step: item.step, png: item.png }] : [];
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value.slice(0, 200) : "";
}

/** @param {string} tag @param {Record<string, string>} attributes */
function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** @param {number} value */
function tenth(value) {
  return Math.round(10 * value) / 10;
}
