// A heat map over any two parameters: a cell's colour is its best value; its median, trials and states are written
// in it if they fit.
import { plainEntry, Readout } from "../../chart/readout.js";
import { make, setText } from "../../dom/elements.js";
import { consume, hasModifier } from "../../dom/keyboard.js";
import { keysOf } from "../../export/figures.js";
import { formatCount, formatValue } from "../../text/format.js";
import { formatNumber, plural } from "../format.js";
import { drawGlyphs, FAILED, PRUNED, RUNNING, STATES, STOPPED } from "../states.js";
import { aggregateCells, binIndices, binsOf, knownBins, replaceByKnown, widest } from "./bins.js";
import { resizeCanvas, truncateText } from "./canvas.js";
import { shadeIndex } from "./colormap.js";
import { METRIC } from "./positions.js";
import { clamp } from "./scales.js";

/** @typedef {import("./bins.js").Bin} Bin */
/** @typedef {import("./bins.js").Cell} Cell */
/** @typedef {{ left: number, top: number, width: number, height: number }} Area CSS pixels */
/** @typedef {{ x: number, y: number }} BinPosition a bin on each axis; -1 where it is on the axis itself */
/**
 * @typedef {object} Heatmap
 * @property {import("../model.js").SweepModel} model
 * @property {import("./figure.js").SharedOptions} options
 * @property {Area} area
 * @property {Bin[]} columns
 * @property {Bin[]} lines
 * @property {import("./bins.js").Cell[]} cells line by line
 * @property {[number, number] | null} brushedX places
 * @property {[number, number] | null} brushedY
 * @property {Record<"hovered" | "chosen" | "cursor", BinPosition | null>} marks
 * @property {{ x: string, y: string }} titles
 */

const HELP = "Click a cell to choose its best trial. Drag along an axis, or Shift and drag over cells, to brush. " +
  "Keys: arrows move from cell to cell, Enter chooses the best trial, B brushes the cell, Escape clears the brush.";
const [CELL_WIDTH, CELL_HEIGHT, MOST_HIGH] = [46, 50, 400]; // CSS pixels: width and height of a cell, height of all rows
const FOOT = 36; // CSS pixels of the axis below the cells
const MOST_BINS = 12;
const NAMED = 6; // trials of a cell that the readout names

/** @param {import("../model.js").SweepModel} model @param {import("./figure.js").SharedOptions} options @returns {import("../view.js").FigureView} */
export function makeHeatmap(model, options) {
  let axisChoices = ""; // of the parameters that can be chosen
  let xName = "";
  let yName = "";
  let computedFor = "";
  /** @type {Bin[]} */
  let columns = [];
  /** @type {Bin[]} */
  let lines = [];
  /** @type {Cell[]} */
  let cells = [];
  /** @type {Int16Array} */
  /** @type {number[][] | null} */
  let known = null; // the cells of all trials, where those here are a sample
  /** @type {Int16Array} */
  let xs = new Int16Array(0); // by row
  /** @type {Int16Array} */
  let ys = xs;
  /** @type {[number, number] | null} */
  let brushedX = null;
  /** @type {[number, number] | null} */
  let brushedY = null;
  /** @type {Uint8Array | null | undefined} */
  let mask = undefined; // that the cells were computed with
  /** @type {Area} */
  let area = { left: 0, top: 0, width: 0, height: 0 };
  let isOfAll = false; // whether the cells are those of all trials
  let cursor = { x: 0, y: 0 };
  /** @type {{ from: BinPosition, moved: boolean } | null} */
  let drag = null;
  const across = make("select", { "aria-label": "Across" });
  const down = make("select", { "aria-label": "Down" });
  for (const select of [across, down]) select.addEventListener("change", () => setAxes(across.value, down.value));
  const colormap = make("i", { class: "nbs-ramp" });
  const low = make("span");
  const high = make("span");
  const legend = make("span", { class: "nbs-ramp-legend" }, low, colormap, high);
  const surface = make("canvas", { "aria-hidden": "true" });
  const readout = new Readout();
  const spoken = make("span", { class: "nbd-spoken", role: "status" });
  const box = make("div", { class: "nbd-plot nbs-plot", tabindex: "0", role: "application", "aria-roledescription": "heat map", "aria-description": HELP, "aria-details": options.table }, surface, readout.element);
  const caption = make("figcaption", {}, make("span", { class: "nbs-caption" }, make("span", { class: "nbd-chart-title", title: HELP }, "Heat map"),
    make("span", { class: "nbs-choice" }, across, make("span", { "aria-hidden": "true" }, "×"), down)), legend);
  const element = make("figure", { class: "nbd-chart nbs-heat" }, caption, box, spoken);
  surface.addEventListener("pointerdown", press);
  surface.addEventListener("pointermove", move);
  surface.addEventListener("pointerup", release);
  surface.addEventListener("pointercancel", () => (drag = null));
  box.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("focus", draw);
  box.addEventListener("keydown", onKey);

  /** @param {string} x @param {string} y parameters */
  function setAxes(x, y) {
    xName = x;
    yName = y;
    cursor = { x: 0, y: 0 };
    draw();
  }

  function draw() {
    const width = box.clientWidth;
    updateAxisChoices();
    if (width === 0 || !xName) return;
    compute(width);
    const canvas = resizeCanvas(surface, width, area.top + area.height + FOOT);
    const cursorHere = box.matches(":focus-visible") ? cursor : null;
    if (canvas) paint(canvas, { hovered: cellOf(model.hovered), cursor: cursorHere });
    writeLegend();
    box.setAttribute("aria-label", `${axis("y").title} by ${axis("x").title}: ${describeCell(cellAt(cursor))}`);
  }

  /** @param {CanvasRenderingContext2D} canvas @param {{ hovered: BinPosition | null, cursor: BinPosition | null }} marks */
  function paint(canvas, marks) {
    const titles = { x: axis("x").title, y: axis("y").title };
    drawHeatmap(canvas, { model, options, area, columns, lines, cells, brushedX, brushedY, marks: { ...marks, chosen: cellOf(model.chosen) }, titles });
  }

  function exported() {
    draw();
    const width = box.clientWidth;
    if (width === 0 || !xName) return null;
    const ramp = legend.hidden ? [] : [{ text: low.textContent ?? "" }, { text: high.textContent ?? "", tones: shades() }];
    const states = STATES.map(({ name }) => name);
    const rows = cells.filter(({ count }) => count).map((cell) => [columns[cell.x].text, lines[cell.y].text, cell.count,
      ...(cell.number < 0 ? [undefined, undefined, undefined] : [cell.value, cell.number, cell.median]), ...cell.counts]);
    return {
      title: "Heat map", width, height: area.top + area.height + FOOT, keys: [...keysOf(caption), ...ramp],
      paint: (/** @type {CanvasRenderingContext2D} */ canvas) => paint(canvas, { hovered: null, cursor: null }),
      rows: [[axis("x").title, axis("y").title, "trials", "best", "best trial", "median", ...states], ...rows],
    };
  }

  /** The colours of the map, from the worst to the best. */
  function shades() {
    return Array.from({ length: 16 }, (_, i) => options.theme.colormap.css[shadeIndex(i / 15)]);
  }

  /** Updates the choice of parameters. */
  function updateAxisChoices() {
    const names = options.positions.names();
    if (names.join("\n") === axisChoices) return;
    axisChoices = names.join("\n");
    for (const select of [across, down]) select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    const [x, y] = widest(model.head?.parameters ?? []) ?? [names[0] ?? "", names[0] ?? ""];
    if (!names.includes(xName)) xName = x;
    if (!names.includes(yName)) yName = y;
    across.value = xName;
    down.value = yName;
  }

  /** @param {"x" | "y"} which */
  function axis(which) {
    return options.positions.axis(which === "x" ? xName : yName);
  }

  /** Computes bins and cells, if their inputs have changed. @param {number} width */
  function compute(width) {
    const { positions, brush } = options;
    const left = clamp(width * 0.2, 56, 104);
    const room = width - left - 6;
    const key = [positions.version, xName, yName, width].join("\n");
    const changed = key !== computedFor;
    if (changed) {
      computedFor = key;
      const enough = Math.ceil(1.3 * Math.sqrt(model.count)); // more bins are mostly empty
      const most = clamp(Math.min(enough, Math.floor(room / CELL_WIDTH)), 3, MOST_BINS);
      const pair = model.cells?.pairs.find(({ x, y }) => (x === xName && y === yName) || (x === yName && y === xName));
      const [across, upward] = [xName, yName].map((name) => (pair && model.cells ? knownBins(positions.axis(name), model.cells.bins[name]) : null));
      known = across && upward && pair ? (pair.x === xName ? pair.cells : pair.cells.map(([x, y, ...cell]) => [y, x, ...cell])) : null;
      columns = (known && across) ?? binsOf(axis("x"), model.parameters.get(xName) ?? [], most);
      xs = binIndices(axis("x").at, columns);
      const upwards = (known && upward) ?? binsOf(axis("y"), model.parameters.get(yName) ?? [], clamp(enough, 3, MOST_BINS - 3));
      ys = binIndices(axis("y").at, upwards).map((line) => (line < 0 ? line : upwards.length - 1 - line));
      lines = upwards.reverse();
    }
    area = { left, top: 20, width: room, height: clamp(lines.length * CELL_HEIGHT, 120, MOST_HIGH) };
    if (changed || mask !== model.brushed) {
      mask = model.brushed;
      cells = aggregateCells(model, xs, ys, columns.length, lines.length, mask);
      isOfAll = !model.sampled || Boolean(known && !mask);
      if (known && !mask) replaceByKnown(cells, columns.length, known, (upwards) => lines.length - 1 - upwards, model);
    }
    brushedX = brush.span(xName);
    brushedY = brush.span(yName);
    goTo(cursor.x, cursor.y);
  }

  /** Moves the cursor, but not beyond the last cell. @param {number} x @param {number} y */
  function goTo(x, y) {
    cursor = { x: clamp(x, 0, columns.length - 1), y: clamp(y, 0, lines.length - 1) };
  }

  /** @param {BinPosition | null} position @returns {Cell | undefined} */
  function cellAt(position) {
    return position && position.x >= 0 && position.y >= 0 ? cells[position.y * columns.length + position.x] : undefined;
  }

  /** The cell that a trial is in. @param {number} number @returns {BinPosition | null} */
  function cellOf(number) {
    const row = model.row(number);
    return row < 0 || row >= xs.length || xs[row] < 0 || ys[row] < 0 ? null : { x: xs[row], y: ys[row] };
  }

  function writeLegend() {
    const { positions } = options;
    const { scale, title } = positions.axis(METRIC);
    const { worst, best } = positions.colourDomain();
    const max = best > worst;
    legend.hidden = !cells.some((cell) => cell.number >= 0);
    setText(low, `${title} ${formatValue(scale.value(worst))}`);
    setText(high, formatValue(scale.value(best)));
    colormap.style.background = `linear-gradient(to right, ${shades().join(", ")})`;
    legend.title = `The colour of a cell is its best ${title}: the ${max ? "highest" : "lowest"} is best`;
  }

  /** @param {Cell} cell */
  function cellTitle({ x, y }) {
    return `${axis("x").title} ${columns[x].text}, ${axis("y").title} ${lines[y].text}`;
  }

  /** @param {Cell | undefined} cell */
  function describeCell(cell) {
    if (!cell) return "no trials yet";
    const parts = cell.count ? facts(cell).map(([name, value]) => `${name} ${value}`).join(", ") : model.brushed ? "no brushed trials" : "no trials";
    return `${cellTitle(cell)}: ${parts}`;
  }

  /** @param {Cell} cell @returns {[string, string][]} */
  function facts(cell) {
    const some = cell.rows.slice(0, NAMED).map((row) => model.number[row]).join(", ");
    const best = cell.number < 0 ? [] : [["best", `${formatValue(cell.value)} (trial ${cell.number})`], ["median", formatValue(cell.median)]];
    const named = cell.rows.length ? `${cell.count > cell.rows.length ? `, ${formatCount(cell.rows.length)} of them here` : ""}: ${some}${cell.rows.length > NAMED ? ", …" : ""}` : "";
    const states = cell.counts.map((count, state) => (count ? `${STATES[state].glyph} ${formatCount(count)} ${STATES[state].name}` : "")).filter(Boolean).join("  ");
    return /** @type {[string, string][]} */ ([...best, ["", `${plural(cell.count, "trial")}${named}`], ["", states]]);
  }

  /** @param {MouseEvent} event @returns {BinPosition} */
  function binUnder(event) {
    const { left, top } = surface.getBoundingClientRect();
    const [across, down] = [(event.clientX - left - area.left) / area.width, (event.clientY - top - area.top) / area.height];
    const bin = (/** @type {number} */ share, /** @type {number} */ count) => (share < 0 ? -1 : Math.min(count - 1, Math.floor(share * count)));
    // Past the lowest line is the axis across; left of the first column is the axis down.
    return { x: bin(across, columns.length), y: down > 1 ? -1 : bin(Math.max(0, down), lines.length) };
  }

  /** @param {PointerEvent} event */
  function press(event) {
    const from = binUnder(event);
    const onAxis = from.x < 0 || from.y < 0;
    if (event.button !== 0 || (!onAxis && !event.shiftKey)) return;
    drag = { from, moved: false };
    surface.setPointerCapture?.(event.pointerId);
    event.preventDefault();
    box.focus({ preventScroll: true });
  }

  /** @param {PointerEvent} event */
  function move(event) {
    const here = binUnder(event);
    if (drag) {
      const { from } = drag;
      drag.moved ||= here.x !== from.x || here.y !== from.y;
      if (drag.moved) brushFrom(from, { x: from.x < 0 ? -1 : Math.max(0, here.x), y: from.y < 0 ? -1 : Math.max(0, here.y) });
      return;
    }
    const cell = cellAt(here);
    surface.style.cursor = here.x < 0 || here.y < 0 ? "crosshair" : cell && cell.rows.length ? "pointer" : "";
    model.hover(cell && cell.best >= 0 ? model.number[cell.best] : -1);
    show(cell);
  }

  /** @param {PointerEvent} event */
  function release(event) {
    const here = binUnder(event);
    const was = drag;
    drag = null;
    if (was) {
      if (!was.moved) isBrushed(was.from) ? unbrush() : brushFrom(was.from, was.from);
    } else if (event.button === 0 && here.x >= 0 && here.y >= 0) {
      cursor = here;
      chooseBest(cellAt(here));
      draw();
    }
  }

  function leave() {
    readout.hide();
    model.hover(-1);
    draw();
  }

  /** @param {Cell | undefined} cell */
  function chooseBest(cell) {
    const row = cell ? (cell.best >= 0 ? cell.best : cell.rows[0]) : undefined;
    if (row !== undefined) model.choose(model.number[row]);
  }

  /** @param {Cell | undefined} cell */
  function show(cell) {
    if (!cell || cell.count === 0) return readout.hide();
    const [width, height] = [area.width / columns.length, area.height / lines.length];
    const at = { x: area.left + cell.x * width, y: area.top + cell.y * height, width, height };
    readout.show(cellTitle(cell), facts(cell).map(([label, value]) => plainEntry(label, value)), at, []);
  }

  /** Brushes the range between two bins, on the axes that both have. @param {BinPosition} from @param {BinPosition} to */
  function brushFrom(from, to) {
    const spans = /** @type {Record<string, [number, number] | null>} */ ({});
    if (from.x >= 0) spans[xName] = spanOf(columns, from.x, to.x);
    if (from.y >= 0 && yName !== xName) spans[yName] = spanOf(lines, from.y, to.y);
    options.brush.set(spans);
  }

  function unbrush() {
    options.brush.set({ [xName]: null, [yName]: null });
  }

  /** Whether exactly this bin of an axis is brushed. @param {BinPosition} position */
  function isBrushed({ x, y }) {
    const same = (/** @type {[number, number] | null | undefined} */ a, /** @type {[number, number] | null} */ b) => Boolean(a && b && Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) < 1e-3);
    return (x < 0 || same(brushedX, spanOf(columns, x, x))) && (y < 0 || same(brushedY, spanOf(lines, y, y)));
  }

  /** @param {KeyboardEvent} event */
  function onKey(event) {
    if (hasModifier(event)) return;
    const by = /** @type {Record<string, [number, number]>} */ ({ ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] })[event.key];
    if (by) goTo(cursor.x + by[0], cursor.y + by[1]);
    else if (event.key === "Enter" || event.key === " ") chooseBest(cellAt(cursor));
    else if (event.key === "b" || event.key === "B") isBrushed(cursor) ? unbrush() : brushFrom(cursor, cursor);
    else if (event.key === "Escape" && (brushedX || brushedY)) unbrush();
    else return;
    consume(event);
    const cell = cellAt(cursor);
    model.hover(cell && cell.best >= 0 ? model.number[cell.best] : -1);
    setText(spoken, describeCell(cell));
    show(cell);
    draw();
  }

  return { element, draw, exported, isOfAll: () => isOfAll, destroy: () => element.remove() };
}

/** The range from one bin to another; null for the bin of trials without a value. @param {Bin[]} bins @param {number} a @param {number} b @returns {[number, number] | null} */
function spanOf(bins, a, b) {
  const some = bins.slice(Math.min(a, b), Math.max(a, b) + 1).filter(({ from }) => !Number.isNaN(from));
  return some.length ? [Math.min(...some.map(({ from }) => from)), Math.max(...some.map(({ to }) => to))] : null;
}

// Draws a heat map's cells and axes on a canvas.

const GAP = 2; // CSS pixels between cells
const GLYPH = 11; // CSS pixels
const MARKED = [RUNNING, FAILED, PRUNED, STOPPED]; // finished trials have no glyph

/** @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat worked out */
export function drawHeatmap(canvas, heat) {
  const { area, columns, lines, cells, options, marks } = heat;
  const { colours } = options.theme;
  const [wide, high] = [area.width / columns.length, area.height / lines.length];
  const box = (/** @type {BinPosition} */ { x, y }) => [area.left + x * wide + GAP / 2, area.top + y * high + GAP / 2, wide - GAP, high - GAP];
  canvas.textBaseline = "middle";
  for (const cell of cells) drawCell(canvas, heat, cell, /** @type {[number, number, number, number]} */ (box(cell)));
  drawAxes(canvas, heat, wide, high);
  const outline = (/** @type {BinPosition | null} */ position, /** @type {string} */ color, /** @type {number} */ width) => {
    if (!position) return;
    const [x, y, w, h] = box(position);
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
  const { options } = heat;
  const { colours, colormap, font } = options.theme;
  const shade = cell.number < 0 ? -1 : shadeIndex(options.positions.qualityAt(options.positions.axis(METRIC).scale.position(cell.value)));
  canvas.beginPath();
  canvas.roundRect(x, y, w, h, 3);
  canvas.fillStyle = shade < 0 ? colours.grid : colormap.css[shade];
  canvas.globalAlpha = shade < 0 && cell.count === 0 ? 0.45 : 1;
  canvas.fill();
  canvas.globalAlpha = 1;
  if (cell.count === 0) return;
  const ink = shade < 0 ? colours.ink : colormap.ink[shade];
  const [n, middle] = [cell.count, x + w / 2];
  const numbers = h < 28 || shade < 0 ? [] : [cell.value];
  if (numbers.length > 0 && h >= 46 && n > 1) numbers.push(cell.median);
  const lines = numbers.map((value, i) => (i ? "~" : "") + (w < 56 ? formatNumber(Number(value.toPrecision(2))) : formatValue(value)));
  const step = 14;
  const top = y + h / 2 - (lines.length * step) / 2;
  canvas.fillStyle = ink;
  canvas.textAlign = "center";
  lines.forEach((text, i) => {
    canvas.font = i === 0 ? font.replace("11px", "600 12px") : font;
    canvas.fillText(truncateText(canvas, text, w - 2), middle, top + i * step);
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
  const count = formatCount(cell.count);
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
  const { colours, font } = options.theme;
  canvas.font = font;
  canvas.fillStyle = colours.muted;
  const bottom = area.top + area.height;
  let free = 0; // the position after the last label
  const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ most) => {
    const shown = truncateText(canvas, text, most);
    const half = canvas.measureText(shown).width / 2;
    const at = Math.min(Math.max(x, area.left + half - 4), area.left + area.width - half + 2);
    if (at - half < free) return;
    canvas.fillText(shown, at, bottom + 10);
    free = at + half + 5;
  };
  canvas.textAlign = "center";
  columns.forEach((bin, i) => {
    // A label of an edge is at the edge, a label of a value is centred.
    if (bin.start === null) return write(bin.text, area.left + (i + 0.5) * wide, wide - 2);
    write(bin.start, area.left + i * wide, Infinity);
    if (columns[i + 1]?.start == null) write(bin.text.split(" to ")[1], area.left + (i + 1) * wide, Infinity);
  });
  canvas.textAlign = "right";
  lines.forEach((bin, i) => {
    canvas.fillText(truncateText(canvas, bin.start === null ? bin.text : bin.text.replace(" to ", "–"), area.left - 14), area.left - 8, area.top + (i + 0.5) * high);
  });
  canvas.fillStyle = colours.ink;
  canvas.textAlign = "center";
  canvas.fillText(truncateText(canvas, heat.titles.x, area.width), area.left + area.width / 2, bottom + 28);
  canvas.textAlign = "left";
  canvas.fillText(truncateText(canvas, heat.titles.y, area.width), 0, area.top - 12);
  drawBrushed(canvas, heat, wide, high);
}

/** Draws a bar along the brushed part of each axis. @param {CanvasRenderingContext2D} canvas @param {Heatmap} heat @param {number} wide @param {number} high */
function drawBrushed(canvas, { area, columns, lines, brushedX, brushedY, options }, wide, high) {
  canvas.fillStyle = options.theme.colours.accent;
  const each = (/** @type {Bin[]} */ bins, /** @type {[number, number] | null} */ span, /** @type {(i: number) => void} */ mark) =>
    span && bins.forEach(({ from, to }, i) => from < span[1] - 1e-6 && to > span[0] + 1e-6 && mark(i));
  each(columns, brushedX, (i) => canvas.fillRect(area.left + i * wide, area.top + area.height + 1, wide, 3));
  each(lines, brushedY, (i) => canvas.fillRect(area.left - 5, area.top + i * high, 3, high));
}
