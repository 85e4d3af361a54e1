// Draws a heat map's cells and axes on a canvas.
import { formatCount, formatValue } from "../format.js";
import { shadeOf } from "./ramp.js";
import { FAILED, PRUNED, RUNNING, STOPPED, drawGlyphs } from "./states.js";
import { fitted } from "./surface.js";
import { numberWords } from "./words.js";

/**
 * @typedef {object} Heatmap
 * @property {import("./model.js").Model} model
 * @property {import("./surface.js").Options} options
 * @property {import("./heatmap.js").Area} area
 * @property {Bin[]} columns
 * @property {Bin[]} lines
 * @property {import("./bins.js").Cell[]} cells line by line
 * @property {[number, number] | null} brushedX places
 * @property {[number, number] | null} brushedY
 * @property {Record<"hovered" | "chosen" | "cursor", import("./heatmap.js").Place | null>} marks
 * @property {{ x: string, y: string }} titles
 */
/** @typedef {import("./bins.js").Bin} Bin */

const GAP = 2; // CSS pixels between cells
const GLYPH = 11; // CSS pixels
const MARKED = [RUNNING, FAILED, PRUNED, STOPPED]; // finished trials are the ordinary case

/** @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat worked out */
export function drawHeat(canvas, heat) {
  const { area, columns, lines, cells, options, marks } = heat;
  const { colours } = options.look;
  const [wide, high] = [area.width / columns.length, area.height / lines.length];
  const box = (/** @type {import("./heatmap.js").Place} */ { x, y }) => [area.left + x * wide + GAP / 2, area.top + y * high + GAP / 2, wide - GAP, high - GAP];
  canvas.textBaseline = "middle";
  for (const cell of cells) drawCell(canvas, heat, cell, /** @type {[number, number, number, number]} */ (box(cell)));
  drawAxes(canvas, heat, wide, high);
  const outline = (/** @type {import("./heatmap.js").Place | null} */ place, /** @type {string} */ color, /** @type {number} */ width) => {
    if (!place) return;
    const [x, y, w, h] = box(place);
    canvas.strokeStyle = color;
    canvas.lineWidth = width;
    canvas.beginPath();
    canvas.roundRect(x, y, w, h, 3);
    canvas.stroke();
  };
  outline(marks.hovered, colours.muted, 1.5);
  outline(marks.chosen, colours.ink, 2.5);
  outline(marks.cursor, colours.accent, 2.5);
}

/**
 * @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat
 * @param {import("./bins.js").Cell} cell @param {[number, number, number, number]} box
 */
function drawCell(canvas, heat, cell, [x, y, w, h]) {
  const { model, options } = heat;
  const { colours, ramp, font } = options.look;
  const shade = cell.best < 0 ? -1 : shadeOf(options.places.goodness(cell.best));
  canvas.beginPath();
  canvas.roundRect(x, y, w, h, 3);
  canvas.fillStyle = shade < 0 ? colours.grid : ramp.css[shade];
  canvas.globalAlpha = shade < 0 && cell.rows.length === 0 ? 0.45 : 1;
  canvas.fill();
  canvas.globalAlpha = 1;
  if (cell.rows.length === 0) return;
  const ink = shade < 0 ? colours.ink : ramp.ink[shade];
  const [n, middle] = [cell.rows.length, x + w / 2];
  const numbers = h < 28 || shade < 0 ? [] : [model.value[cell.best]];
  if (numbers.length > 0 && h >= 46 && n > 1) numbers.push(cell.median);
  const lines = numbers.map((value, i) => (i ? "~" : "") + (w < 56 ? numberWords(Number(value.toPrecision(2))) : formatValue(value)));
  const step = 14;
  const top = y + h / 2 - (lines.length * step) / 2;
  canvas.fillStyle = ink;
  canvas.textAlign = "center";
  lines.forEach((text, i) => {
    canvas.font = i === 0 ? font.replace("11px", "600 12px") : font;
    canvas.fillText(fitted(canvas, text, w - 2), middle, top + i * step);
  });
  canvas.font = font;
  drawMarks(canvas, cell, middle, top + lines.length * step, w, ink);
}

/**
 * The number of trials, and glyphs of unfinished ones if they fit.
 * @param {CanvasRenderingContext2D} canvas @param {import("./bins.js").Cell} cell
 * @param {number} middle @param {number} y @param {number} w @param {string} ink
 */
function drawMarks(canvas, cell, middle, y, w, ink) {
  const count = formatCount(cell.rows.length);
  const wide = canvas.measureText(count).width;
  const marks = MARKED.filter((state) => cell.counts[state] > 0).slice(0, Math.max(0, Math.floor((w - wide - 8) / GLYPH)));
  const start = middle - (wide + marks.length * GLYPH) / 2;
  canvas.textAlign = "left";
  canvas.fillText(count, start, y);
  marks.forEach((state, i) => drawGlyphs(canvas, state, [start + wide + (i + 0.6) * GLYPH, y - 0.5], 3.5, ink));
}

/** @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat @param {number} wide @param {number} high */
function drawAxes(canvas, heat, wide, high) {
  const { area, columns, lines, options } = heat;
  const { colours, font } = options.look;
  canvas.font = font;
  canvas.fillStyle = colours.muted;
  const bottom = area.top + area.height;
  let free = 0; // from where on there is room for another name
  const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ most) => {
    const shown = fitted(canvas, text, most);
    const half = canvas.measureText(shown).width / 2;
    const at = Math.min(Math.max(x, area.left + half - 4), area.left + area.width - half + 2);
    if (at - half < free) return;
    canvas.fillText(shown, at, bottom + 10);
    free = at + half + 5;
  };
  canvas.textAlign = "center";
  columns.forEach((bin, i) => {
    // An edge's name stands at the edge, a value's in the middle.
    if (bin.start === null) return write(bin.text, area.left + (i + 0.5) * wide, wide - 2);
    write(bin.start, area.left + i * wide, Infinity);
    if (columns[i + 1]?.start == null) write(bin.text.split(" to ")[1], area.left + (i + 1) * wide, Infinity);
  });
  canvas.textAlign = "right";
  lines.forEach((bin, i) => {
    canvas.fillText(fitted(canvas, bin.start === null ? bin.text : bin.text.replace(" to ", "–"), area.left - 14), area.left - 8, area.top + (i + 0.5) * high);
  });
  canvas.fillStyle = colours.ink;
  canvas.textAlign = "center";
  canvas.fillText(fitted(canvas, heat.titles.x, area.width), area.left + area.width / 2, bottom + 28);
  canvas.textAlign = "left";
  canvas.fillText(fitted(canvas, heat.titles.y, area.width), 0, area.top - 12);
  drawBrushed(canvas, heat, wide, high);
}

/** A bar along each axis, as far as it is brushed. @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat @param {number} wide @param {number} high */
function drawBrushed(canvas, { area, columns, lines, brushedX, brushedY, options }, wide, high) {
  canvas.fillStyle = options.look.colours.accent;
  const each = (/** @type {Bin[]} */ bins, /** @type {[number, number] | null} */ span, /** @type {(i: number) => void} */ mark) =>
    span && bins.forEach(({ from, to }, i) => from < span[1] - 1e-6 && to > span[0] + 1e-6 && mark(i));
  each(columns, brushedX, (i) => canvas.fillRect(area.left + i * wide, area.top + area.height + 1, wide, 3));
  each(lines, brushedY, (i) => canvas.fillRect(area.left - 5, area.top + i * high, 3, high));
}

