// Saves what the charts show: their curves as CSV, and the charts as one PNG on the page's own background.
import { lineLabel, linesOf } from "../chart/curves.js";

const TITLE = 28; // CSS pixels above each chart
const GAP = 12;

/**
 * The points of the drawn curves, without smoothing; a step in which several replicas have points is a row for each.
 * @param {import("../chart/curves.js").ChartSpec[]} plans
 * @param {import("../chart/chart.js").Shared} shared
 */
export function curvesAsCsv(plans, shared) {
  const options = { ...shared.options, byTime: false, smoothing: 0, chosen: null };
  const rows = plans.flatMap((plan) => linesOf(shared.curves, plan, options).flatMap((line) => {
    const names = [plan.title, lineLabel(line, shared.labels), line.kind].map(quoted).join(",");
    return line.steps.map((step, i) => `${names},${step},${line.ys[i]}`);
  }));
  return ["chart,curve,kind,step,value", ...rows, ""].join("\n");
}

/** A text as one field. A spreadsheet would take a text with such a start for a formula. @param {string} text */
function quoted(text) {
  const plain = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

/** Draws charts below one another. @param {import("../chart/chart.js").Chart[]} charts @param {{ ink: string, surface: string }} colours */
export function chartsAsCanvas(charts, { ink, surface }) {
  const drawn = charts.flatMap(({ plot, plan, legend }) => (plot ? [{ canvas: plot.ctx.canvas, title: plan.title, keys: keysOf(legend) }] : []));
  const ratio = globalThis.devicePixelRatio || 1;
  const [title, gap] = [TITLE * ratio, GAP * ratio];
  const whole = document.createElement("canvas");
  whole.width = Math.max(1, ...drawn.map(({ canvas }) => canvas.width)) + 2 * gap;
  whole.height = drawn.reduce((sum, { canvas }) => sum + canvas.height + title + gap, gap);
  const to = /** @type {CanvasRenderingContext2D} */ (whole.getContext("2d"));
  to.fillStyle = surface;
  to.fillRect(0, 0, whole.width, whole.height);
  to.fillStyle = ink;
  to.font = `600 ${13 * ratio}px sans-serif`;
  let y = gap;
  for (const one of drawn) {
    to.fillText(one.title, gap, y + 0.6 * title);
    let x = 2 * gap + to.measureText(one.title).width;
    for (const { tone, text } of one.keys) {
      to.fillStyle = tone;
      to.fillRect(x, y + 0.4 * title, 1.5 * gap, 2 * ratio);
      to.fillStyle = ink;
      to.fillText(text, x + 2 * gap, y + 0.6 * title);
      x += 3 * gap + to.measureText(text).width;
    }
    to.drawImage(one.canvas, gap, y + title);
    y += title + one.canvas.height + gap;
  }
  return whole;
}

/** The colour and the words of each line in a chart's legend. @param {HTMLElement} legend */
export function keysOf(legend) {
  return [...legend.children].map((key) => {
    const [, label, value] = key.children;
    return { tone: /** @type {HTMLElement} */ (key).style.getPropertyValue("--tone"), text: [label, value].map((part) => part?.textContent).filter(Boolean).join(" ") };
  });
}

/** Lets the browser save a file. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
