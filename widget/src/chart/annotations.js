// Marks of steering and faults on a run's curves: a vertical line, a sign at its top, and text below the charts.
import { CLOCK, MEAN } from "../comm/frames.js";
import { make, setText } from "../dom/elements.js";
import { formatCount } from "../text/format.js";
import { secondsAt } from "./curves.js";

/** @typedef {{ step: number, kind: string, text: string }} Mark */

const SIGNS = /** @type {Record<string, string>} */ ({ rate: "◆", pause: "■", checkpoint: "▼", lost: "✕" });
const NEAR = 6; // CSS pixels beside a line within which the cursor is on it

/** The positions of marks on the x axis. @param {Mark[]} marks @param {import("./curves.js").Curves} curves @param {boolean} byTime */
export function placed(marks, curves, byTime) {
  const clock = byTime ? curves.get(MEAN, CLOCK) : undefined;
  const steps = marks.map(({ step }) => step);
  return clock ? secondsAt(steps, clock) : steps;
}

/**
 * @param {CanvasRenderingContext2D} canvas
 * @param {import("./chart.js").Plot} plot
 * @param {Mark[]} marks
 * @param {number[]} xs
 * @param {import("../dom/theme.js").Colours} colours
 */
export function drawMarks(canvas, plot, marks, xs, colours) {
  canvas.save();
  canvas.lineWidth = plot.ratio;
  canvas.strokeStyle = canvas.fillStyle = colours.muted;
  canvas.setLineDash([plot.ratio, 3 * plot.ratio]);
  canvas.font = `${9 * plot.ratio}px sans-serif`;
  canvas.textAlign = "center";
  canvas.textBaseline = "top";
  marks.forEach(({ kind }, i) => {
    const x = Math.round(plot.x(xs[i])) + 0.5;
    if (!Number.isFinite(x) || x < plot.left || x > plot.left + plot.width) return;
    canvas.beginPath();
    canvas.moveTo(x, plot.top + 11 * plot.ratio);
    canvas.lineTo(x, plot.top + plot.height);
    canvas.stroke();
    canvas.fillText(SIGNS[kind] ?? "◆", x, plot.top);
  });
  canvas.restore();
}

/** The marks under the cursor. @param {Mark[]} marks @param {number[]} xs @param {number} at @param {number} perPixel of the x axis */
export function marksAt(marks, xs, at, perPixel) {
  return marks.filter((_, i) => Math.abs(xs[i] - at) <= NEAR * perPixel);
}

/** The list of marks below the charts, with their signs. */
export class MarkList {
  constructor() {
    this.element = make("ul", { class: "nbd-marks", "aria-label": "Events on the curves" });
    this.element.hidden = true;
  }

  /** @param {Mark[]} marks @param {string} one step, as it is called */
  show(marks, one) {
    const { element } = this;
    element.hidden = marks.length === 0;
    while (element.children.length > marks.length) element.lastChild?.remove();
    marks.forEach(({ step, kind, text }, i) => {
      const item = element.children[i] ?? element.appendChild(make("li", {}, make("i", { "aria-hidden": "true" }), make("span")));
      setText(item.children[0], SIGNS[kind] ?? "◆");
      setText(item.children[1], `${one} ${formatCount(step)}: ${text}`);
    });
  }
}
