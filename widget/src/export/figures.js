// Saves figures as pictures (PNG, SVG) and as numbers (CSV). A figure draws itself on a canvas; the same drawing makes both
// pictures, on the page's own background, under its title and its keys.
import { button } from "../dom/buttons.js";
import { make } from "../dom/elements.js";
import { SvgCanvas } from "./svg.js";

/** @typedef {{ text: string, tone?: string, tones?: string[], dashed?: boolean }} Key a text with a line in its colour, a ramp of colours, or neither */
/** @typedef {(string | number | boolean | null | undefined)[][]} Rows the first has the headings */
/**
 * @typedef {object} Figure
 * @property {string} title
 * @property {number} width CSS pixels
 * @property {number} height
 * @property {Key[]} keys
 * @property {(canvas: CanvasRenderingContext2D) => void} paint from the origin on, in CSS pixels
 * @property {Rows} rows what it shows, in numbers
 */
/** @typedef {{ ink: string, surface: string }} Colours */
/**
 * @typedef {object} Source what a view can save
 * @property {() => string[]} titles of its figures
 * @property {(title: string) => Figure | null} figure null without anything to draw
 * @property {(figures: Figure[]) => Rows} rows of all of them
 * @property {() => string} name of the files
 * @property {() => Colours & { font: string }} theme
 */

const [LINE, GAP, SWATCH] = [18, 12, 18]; // CSS pixels of a line of keys, between figures, and of a key's line
const SHARPEST = 2; // device pixels of a PNG for each CSS pixel, at least
const ALL = ""; // figures

export class ExportBar {
  /** @param {Source} source @param {string} all the name of all figures together */
  constructor(source, all) {
    this.source = source;
    this.all = all;
    this.select = make("select", { "aria-label": "Figure to save" });
    const save = (/** @type {"png" | "svg" | "csv"} */ kind) => this.save(kind);
    this.element = make("div", { class: "nbd-export", role: "group", "aria-label": "Save figures" }, this.select,
      button("Save PNG", "Save the figure as it is drawn, in pixels", () => save("png")), button("Save SVG", "Save the figure as it is drawn, as lines and texts", () => save("svg")),
      button("Save CSV", "Save the numbers that the figure shows", () => save("csv")));
    this.listed = "";
  }

  /** Lists the figures. */
  draw() {
    const titles = this.source.titles();
    if (String(titles) === this.listed) return;
    this.listed = String(titles);
    const { value } = this.select;
    const option = (/** @type {string} */ text, /** @type {string} */ title) => make("option", { value: title }, text);
    this.select.replaceChildren(option(this.all, ALL), ...titles.map((title) => option(title, title)));
    this.select.value = titles.includes(value) ? value : ALL;
  }

  /** @param {"png" | "svg" | "csv"} kind */
  save(kind) {
    const { source, select: { value } } = this;
    const figures = (value === ALL ? source.titles() : [value]).flatMap((title) => source.figure(title) ?? []);
    const name = [source.name(), value].filter(Boolean).join("-");
    const theme = source.theme();
    if (kind === "csv") download(new Blob([asCsv(value === ALL ? source.rows(figures) : figures[0]?.rows ?? [])], { type: "text/csv" }), `${name}.csv`);
    else if (kind === "svg") download(new Blob([asSvg(figures, theme, name)], { type: "image/svg+xml" }), `${name}.svg`);
    else asPng(figures, theme).toBlob((blob) => blob && download(blob, `${name}.png`));
  }
}

/** @param {Figure[]} figures @param {Colours & { font: string }} theme */
function asPng(figures, theme) {
  const ratio = Math.max(SHARPEST, globalThis.devicePixelRatio || 1);
  const surface = make("canvas");
  const canvas = /** @type {CanvasRenderingContext2D} */ (surface.getContext("2d"));
  const { width, height, paint } = layOut(figures, theme, canvas);
  surface.width = Math.round(width * ratio);
  surface.height = Math.round(height * ratio);
  canvas.scale(ratio, ratio);
  paint(canvas);
  return surface;
}

/** @param {Figure[]} figures @param {Colours & { font: string }} theme @param {string} name */
export function asSvg(figures, theme, name) {
  const ruler = /** @type {any} */ (new SvgCanvas(1, 1));
  const { width, height, paint } = layOut(figures, theme, ruler);
  const canvas = new SvgCanvas(width, height);
  paint(/** @type {any} */ (canvas));
  return canvas.toString(name);
}

/** Figures below one another. @param {Figure[]} figures @param {Colours & { font: string }} theme @param {CanvasRenderingContext2D} ruler */
function layOut(figures, { ink, surface, font }, ruler) {
  const inner = Math.max(1, ...figures.map(({ width }) => width));
  let height = GAP;
  const placed = figures.map((figure) => {
    const top = height;
    const keys = placeKeys(figure, inner, font, ruler);
    const below = top + LINE * (1 + Math.max(0, ...keys.map(({ line }) => line))) + 4;
    height = below + figure.height + GAP;
    return { figure, top, below, keys };
  });
  const paint = (/** @type {CanvasRenderingContext2D} */ canvas) => {
    canvas.fillStyle = surface;
    canvas.fillRect(0, 0, inner + 2 * GAP, height);
    for (const { figure, top, below, keys } of placed) {
      canvas.textAlign = "left";
      canvas.textBaseline = "alphabetic";
      for (const { text, tone, tones, dashed, x, line, bold } of keys) {
        const [left, y] = [GAP + x, top + line * LINE + 13];
        canvas.setLineDash(dashed ? [4, 3] : []);
        if (tone) {
          [canvas.strokeStyle, canvas.lineWidth] = [tone, 2];
          canvas.beginPath();
          canvas.moveTo(left, y - 4);
          canvas.lineTo(left + SWATCH - 4, y - 4);
          canvas.stroke();
        }
        tones?.forEach((one, i) => {
          canvas.fillStyle = one;
          canvas.fillRect(left + (i * 4 * SWATCH) / tones.length, y - 9, (4 * SWATCH) / tones.length + 0.5, 9);
        });
        canvas.setLineDash([]);
        canvas.fillStyle = ink;
        canvas.font = `${bold ? "600 13px" : "12px"} ${font}`;
        canvas.fillText(text, left + swatch({ tone, tones, text }), y);
      }
      canvas.save();
      canvas.translate(GAP, below);
      figure.paint(canvas);
      canvas.restore();
    }
  };
  return { width: inner + 2 * GAP, height, paint };
}

/** @param {Key} key @returns {number} CSS pixels before its text */
function swatch({ tone, tones }) {
  return tones ? 4 * SWATCH + 6 : tone ? SWATCH : 0;
}

/** The title and the keys, in as many lines as they need. @param {Figure} figure @param {number} room @param {string} font @param {CanvasRenderingContext2D} ruler */
function placeKeys({ title, keys }, room, font, ruler) {
  let [x, line] = [0, 0];
  return [{ text: title, bold: true }, ...keys.map((key) => ({ ...key, bold: false }))].map((/** @type {Key & { bold: boolean }} */ key) => {
    ruler.font = `${key.bold ? "600 13px" : "12px"} ${font}`;
    const width = swatch(key) + ruler.measureText(key.text).width;
    if (x > 0 && x + width > room) [x, line] = [0, line + 1];
    const placed = { ...key, x, line };
    x += width + 14;
    return placed;
  });
}

/** The keys of a figure's caption: texts in elements, those of the class nbd-key with a line. @param {Element} caption @returns {Key[]} */
export function keysOf(caption) {
  return [...caption.children].flatMap((element) => {
    const one = /** @type {HTMLElement} */ (element);
    if (one.hidden || one.matches(".nbd-chart-title, .nbd-spoken, button, select, [role=group], .nbs-caption, .nbs-ramp-legend")) return [];
    if (!one.matches(".nbd-key")) return one.children.length ? keysOf(one) : one.textContent ? [{ text: one.textContent }] : [];
    const text = [...one.children].slice(1).map((part) => part.textContent).filter(Boolean).join(" ");
    const dashed = one.matches(".nbs-dashed, .nbd-key-validation, .nbd-key-run-validation");
    return [{ text, tone: one.style.getPropertyValue("--tone") || getComputedStyle(one).getPropertyValue("--tone").trim() || undefined, ...(dashed ? { dashed } : {}) }];
  });
}

/** @param {Rows} rows */
export function asCsv(rows) {
  return rows.map((row) => `${row.map((value) => field(value ?? "")).join(",")}\n`).join("");
}

/** A value as one field. A spreadsheet would take a text with such a start for a formula. @param {string | number | boolean} value */
function field(value) {
  if (typeof value === "number") return String(value);
  const text = String(value);
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Lets the browser save a file. @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.-]+/g, "-") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
