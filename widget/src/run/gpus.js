// The GPUs of the replicas over time: a row for each, with a small curve and a value for each figure.
import { make, setText } from "../dom/elements.js";
import { COLOURED } from "../dom/theme.js";
import { formatDuration } from "../text/format.js";

/** @typedef {{ seconds: number[], values: number[], mean: number }} FigureCurve */
/** @typedef {{ replica: number, model: string, id: string, total: number | null, problem: string, figures: Map<string, FigureCurve> }} Gpu */

const GIGABYTE = 2 ** 30;
const [WIDTH, HEIGHT] = [100, 26]; // of a curve's box, which is stretched to its place
const MOST_GPUS = 64;
const MOST_POINTS = 10_000; // of a curve

/** The figures of a GPU; of a run that has ended, `summary` says which value stands for all of it. */
const FIGURES = /** @type {Record<string, { summary: "mean" | "peak", range: (gpu: Gpu, highest: number) => number, text: (value: number, gpu: Gpu) => string }>} */ ({
  use: { summary: "mean", range: () => 100, text: (value) => `${Math.round(value)}%` },
  memory: { summary: "peak", range: ({ total }, highest) => total ?? highest, text: (value, { total }) => `${gigabytes(value)}${total ? ` / ${gigabytes(total)}` : ""} GB` },
  power: { summary: "mean", range: (_, highest) => 1.15 * highest, text: (value) => `${Math.round(value)} W` },
  temperature: { summary: "peak", range: (_, highest) => Math.max(100, highest), text: (value) => `${Math.round(value)} °C` },
});

export class GpuSection {
  constructor() {
    this.span = make("span", { class: "nbd-gpus-span" });
    this.rows = make("div", { class: "nbd-gpus-rows", role: "list" });
    this.element = make("div", { class: "nbd-gpus", role: "group", "aria-label": "GPUs" },
      make("div", { class: "nbd-gpus-head" }, make("span", { class: "nbd-chart-title" }, "GPU"), this.span), this.rows);
    this.element.hidden = true;
    /** @type {unknown} */
    this.shown = null;
    this.key = "";
  }

  /** Draws what has changed. @param {unknown} gpus as Python sends them (nbdist/ui/gpus.py) @param {string[]} labels of the replicas @param {boolean} over whether the run has ended @param {number} replicas */
  show(gpus, labels, over, replicas) {
    const key = JSON.stringify([labels, over, replicas]);
    if (gpus === this.shown && key === this.key) return;
    [this.shown, this.key] = [gpus, key];
    const all = readGpus(gpus);
    this.element.hidden = all.length === 0;
    const names = Object.keys(FIGURES).filter((name) => all.some(({ figures }) => figures.has(name)));
    const last = Math.max(0, ...all.flatMap(({ figures }) => [...figures.values()].map(({ seconds }) => seconds[seconds.length - 1])));
    setText(this.span, last > 0 ? `over ${formatDuration(last)}` : "");
    this.rows.classList.toggle("nbd-many", all.length > COLOURED);
    this.rows.style.setProperty("--figures", String(Math.max(1, names.length)));
    this.rows.replaceChildren(...all.map((gpu) => row(gpu, labels[gpu.replica] ?? `replica ${gpu.replica}`, names, last, over, replicas)));
  }
}

/** @param {Gpu} gpu @param {string} label @param {string[]} names of the figures @param {number} last second @param {boolean} over @param {number} replicas */
function row(gpu, label, names, last, over, replicas) {
  const tone = replicas === 1 ? "nbd-alone" : replicas <= COLOURED ? `nbd-r${gpu.replica}` : "";
  const about = [gpu.model, gpu.id].filter(Boolean).join(" ");
  const name = make("div", { class: "nbd-gpu-name", title: about }, make("i", { class: "nbd-swatch", "aria-hidden": "true" }),
    make("span", { class: "nbd-name" }, label), make("span", { class: "nbd-gpu-model" }, gpu.model || shortId(gpu.id)));
  const cells = gpu.problem ? [make("div", { class: "nbd-gpu-problem" }, `not measured: ${gpu.problem}`)]
    : names.map((one) => cell(gpu, one, label, last, over));
  return make("div", { class: `nbd-gpu ${tone}`, role: "listitem" }, name, ...cells);
}

/** @param {Gpu} gpu @param {string} name @param {string} label @param {number} last @param {boolean} over */
function cell(gpu, name, label, last, over) {
  const curve = gpu.figures.get(name);
  const element = make("div", { class: "nbd-gpu-figure", "data-figure": name });
  if (!curve) return element; // this GPU has no such figure, and others do
  const { summary, range, text } = FIGURES[name];
  const highest = Math.max(...curve.values);
  const latest = curve.values[curve.values.length - 1];
  const short = { ...gpu, total: null }; // with the word for the value there is no room for the total
  const shown = over ? text(summary === "mean" ? curve.mean : highest, short) : text(latest, gpu);
  const described = `GPU ${name} of ${label}: ${over ? `${summary} ${shown}` : shown}, from ${text(Math.min(...curve.values), gpu)} to ${text(highest, gpu)}`;
  element.append(
    make("div", { class: "nbd-gpu-value" }, make("span", {}, over ? `${name}, ${summary}` : name), make("b", {}, shown)),
    drawCurve(curve, range(gpu, highest) || 1, last, described));
  return element;
}

/** @param {FigureCurve} curve @param {number} top the value at the upper edge @param {number} last second at the right edge @param {string} described */
function drawCurve({ seconds, values }, top, last, described) {
  const points = values.map((value, i) => `${tenth(last > 0 ? (WIDTH * seconds[i]) / last : 0)} ${tenth(HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, Math.max(0, value / top)))}`);
  if (points.length === 1) points.push(`${WIDTH} ${points[0].split(" ")[1]}`); // a single sample is a level
  const line = `M${points.join("L")}`;
  const [first, end] = [points[0].split(" ")[0], points[points.length - 1].split(" ")[0]];
  const drawing = svg("svg", { class: "nbd-gpu-curve", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": described });
  const title = svg("title", {});
  title.textContent = described;
  drawing.append(title, svg("path", { class: "nbd-gpu-area", d: `${line}L${end} ${HEIGHT}L${first} ${HEIGHT}Z` }), svg("path", { class: "nbd-gpu-line", d: line }));
  return drawing;
}

/** @param {string} tag @param {Record<string, string>} attributes */
function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** The GPUs in data of Python or of a saved notebook; invalid parts are left out. @param {unknown} value @returns {Gpu[]} */
export function readGpus(value) {
  return (Array.isArray(value) ? value : []).slice(0, MOST_GPUS).flatMap((/** @type {any} */ entry) => {
    const replica = entry?.replica;
    if (!Number.isSafeInteger(replica) || replica < 0) return [];
    /** @type {Map<string, FigureCurve>} */
    const figures = new Map();
    for (const name of Object.keys(FIGURES)) {
      const [seconds, values] = [numbers(entry[name]?.seconds), numbers(entry[name]?.values)];
      const mean = Number(entry[name]?.mean);
      if (seconds.length && seconds.length === values.length) figures.set(name, { seconds, values, mean: Number.isFinite(mean) ? mean : values[values.length - 1] });
    }
    const total = Number.isFinite(entry.total) && entry.total > 0 ? entry.total : null;
    return [{ replica, model: text(entry.model), id: text(entry.id), problem: text(entry.problem), total, figures }];
  });
}

/** Finite numbers separated by spaces; none if any is not finite. @param {unknown} value @returns {number[]} */
function numbers(value) {
  const found = typeof value === "string" ? value.split(" ", MOST_POINTS).filter(Boolean).map(Number) : [];
  return found.every(Number.isFinite) ? found : [];
}

/** @param {unknown} value */
function text(value) {
  return typeof value === "string" ? value.slice(0, 200) : "";
}

/** @param {number} value */
function gigabytes(value) {
  const size = value / GIGABYTE;
  return size >= 10 ? String(Math.round(size)) : size.toFixed(1);
}

/** @param {string} id */
function shortId(id) {
  return id.length > 9 ? `${id.slice(0, 8)}…` : id;
}

/** @param {number} value */
function tenth(value) {
  return Math.round(10 * value) / 10;
}
