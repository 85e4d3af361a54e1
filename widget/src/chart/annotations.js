// Annotations of a run's curves (commands and faults): a vertical line, a glyph at its top, and text below the charts.
import { CLOCK, MEAN } from "../comm/frames.js";
import { make, setText } from "../dom/elements.js";
import { formatCount } from "../text/format.js";
import { secondsAt } from "./curves.js";

/** @typedef {{ step: number, kind: string, text: string }} Annotation */

const GLYPHS = /** @type {Record<string, string>} */ ({ rate: "◆", pause: "■", checkpoint: "▼", lost: "✕", restart: "▲" });
const NEAR = 6; // CSS pixels from a line within which the cursor hits it

/** The positions of marks on the x axis. @param {Annotation[]} annotations @param {import("./curves.js").Curves} curves @param {boolean} byTime */
export function annotationPositions(annotations, curves, byTime) {
  const clock = byTime ? curves.get(MEAN, CLOCK) : undefined;
  const steps = annotations.map(({ step }) => step);
  return clock ? secondsAt(steps, clock) : steps;
}

/**
 * @param {CanvasRenderingContext2D} canvas
 * @param {import("./chart.js").Plot} plot
 * @param {Annotation[]} annotations
 * @param {number[]} xs
 * @param {import("../dom/theme.js").Colours} colours
 */
export function drawAnnotations(canvas, plot, annotations, xs, colours) {
  canvas.save();
  canvas.lineWidth = plot.ratio;
  canvas.strokeStyle = canvas.fillStyle = colours.muted;
  canvas.setLineDash([plot.ratio, 3 * plot.ratio]);
  canvas.font = `${9 * plot.ratio}px sans-serif`;
  canvas.textAlign = "center";
  canvas.textBaseline = "top";
  annotations.forEach(({ kind }, i) => {
    const x = Math.round(plot.x(xs[i])) + 0.5;
    if (!Number.isFinite(x) || x < plot.left || x > plot.left + plot.width) return;
    canvas.beginPath();
    canvas.moveTo(x, plot.top + 11 * plot.ratio);
    canvas.lineTo(x, plot.top + plot.height);
    canvas.stroke();
    canvas.fillText(GLYPHS[kind] ?? "◆", x, plot.top);
  });
  canvas.restore();
}

/** The marks under the cursor. @param {Annotation[]} annotations @param {number[]} xs @param {number} at @param {number} perPixel of the x axis */
export function annotationsAt(annotations, xs, at, perPixel) {
  return annotations.filter((_, i) => Math.abs(xs[i] - at) <= NEAR * perPixel);
}

/** The list of marks below the charts, with their signs. */
export class AnnotationList {
  constructor() {
    this.element = make("ul", { class: "nbd-marks", "aria-label": "Events on the curves" });
    this.element.hidden = true;
  }

  /** @param {Annotation[]} annotations @param {string} one the word for a step */
  show(annotations, one) {
    const { element } = this;
    element.hidden = annotations.length === 0;
    while (element.children.length > annotations.length) element.lastChild?.remove();
    annotations.forEach(({ step, kind, text }, i) => {
      const item = element.children[i] ?? element.appendChild(make("li", {}, make("i", { "aria-hidden": "true" }), make("span")));
      setText(item.children[0], GLYPHS[kind] ?? "◆");
      setText(item.children[1], `${one} ${formatCount(step)}: ${text}`);
    });
  }
}
