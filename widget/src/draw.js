// Draws the lines of one chart on a canvas, given where a value lies on it.
import { COLOURED, replicaColour } from "./theme.js";

/** @typedef {import("./lines.js").Line} Line */
/** @typedef {import("./theme.js").Colours} Colours */
/** @typedef {{ x: (v: number) => number, y: (v: number) => number, left: number, top: number, width: number, height: number, ratio: number }} Plot */

const FEW = 40; // points below which each gets a marker
const APART = 48; // CSS pixels between the marks of a chosen line

/**
 * @param {CanvasRenderingContext2D} canvas
 * @param {Plot} plot
 * @param {Line[]} lines
 * @param {Colours} colours
 */
export function drawLines(canvas, plot, lines, colours) {
  const replicas = Math.max(1, lines.filter((line) => line.kind === "points").length);
  const few = replicas <= COLOURED;
  const chosen = lines.find((line) => line.kind === "chosen");
  canvas.save();
  canvas.beginPath();
  canvas.rect(plot.left, plot.top, plot.width, plot.height);
  canvas.clip();
  canvas.lineJoin = "round";
  for (const line of lines) {
    const { kind } = line;
    const isChosen = kind === "chosen" || (kind === "points" && line.replica === chosen?.replica);
    canvas.globalAlpha = kind === "points" ? pale(replicas, isChosen) : kind === "trend" && !few ? fan(replicas) : 1;
    canvas.lineWidth = plot.ratio * { points: 1, trend: few ? 1.25 : 1, train: 2.5, validation: 2, chosen: 2 }[kind];
    canvas.setLineDash(kind === "validation" ? [6 * plot.ratio, 4 * plot.ratio] : []);
    canvas.strokeStyle =
      kind === "validation" ? colours.second
      : kind === "train" ? colours.accent
      : isChosen ? (few ? replicaColour(colours, line.replica, replicas) : colours.ink)
      : kind === "trend" ? replicaColour(colours, line.replica, replicas)
      : replicas === 1 ? colours.accent
      : colours.fan;
    stroke(canvas, plot, line);
    if (kind === "validation") markers(canvas, plot, line, colours);
    if (kind === "chosen") diamonds(canvas, plot, line);
    canvas.globalAlpha = 1;
    if (kind === "train" || kind === "validation" || kind === "chosen") crosses(canvas, plot, line, colours);
  }
  canvas.restore();
}

/** How opaque points are: all together never more than a shade. @param {number} replicas @param {boolean} chosen */
function pale(replicas, chosen) {
  return chosen || replicas === 1 ? 0.17 : Math.max(0.02, 0.28 / replicas);
}

/** How opaque one of many trends is. @param {number} replicas */
function fan(replicas) {
  return Math.max(0.15, 6 / replicas);
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line */
function stroke(canvas, plot, { xs, ys }) {
  canvas.beginPath();
  let pen = false;
  for (let i = 0; i < xs.length; i++) {
    const y = plot.y(ys[i]);
    if (!Number.isFinite(y)) {
      pen = false; // a gap, where the value is not a number
    } else if (pen) {
      canvas.lineTo(plot.x(xs[i]), y);
    } else {
      canvas.moveTo(plot.x(xs[i]), y);
      // A point with a gap on both sides would not be seen.
      if (!Number.isFinite(plot.y(ys[i + 1]))) canvas.lineTo(plot.x(xs[i]) + 1, y);
      pen = true;
    }
  }
  canvas.stroke();
}

/** @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line @param {Colours} colours */
function markers(canvas, plot, { xs, ys }, colours) {
  if (xs.length > FEW) return;
  canvas.setLineDash([]);
  canvas.fillStyle = colours.surface;
  for (let i = 0; i < xs.length; i++) {
    const y = plot.y(ys[i]);
    if (!Number.isFinite(y)) continue;
    canvas.beginPath();
    canvas.arc(plot.x(xs[i]), y, 3 * plot.ratio, 0, 2 * Math.PI);
    canvas.fill();
    canvas.stroke();
  }
}

/** A mark here and there, so that a line is told from others without its colour.
 * @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line */
function diamonds(canvas, plot, { xs, ys }) {
  const r = 4 * plot.ratio;
  let last = -Infinity;
  canvas.fillStyle = canvas.strokeStyle;
  canvas.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const [x, y] = [plot.x(xs[i]), plot.y(ys[i])];
    if (!Number.isFinite(y) || x < plot.left || x - last < APART * plot.ratio) continue;
    last = x;
    canvas.moveTo(x, y - r);
    canvas.lineTo(x + r, y);
    canvas.lineTo(x, y + r);
    canvas.lineTo(x - r, y);
    canvas.closePath();
  }
  canvas.fill();
}

/** A cross at the upper edge for every value that is not finite.
 * @param {CanvasRenderingContext2D} canvas @param {Plot} plot @param {Line} line @param {Colours} colours */
function crosses(canvas, plot, { xs, ys }, colours) {
  const r = 3.5 * plot.ratio;
  const y = plot.top + r + 2 * plot.ratio;
  let last = -Infinity;
  canvas.setLineDash([]);
  canvas.lineWidth = 1.5 * plot.ratio;
  canvas.strokeStyle = colours.bad;
  canvas.beginPath();
  for (let i = 0; i < xs.length; i++) {
    const x = plot.x(xs[i]);
    if (Number.isFinite(ys[i]) || x - last < 4 * r) continue;
    last = x;
    canvas.moveTo(x - r, y - r);
    canvas.lineTo(x + r, y + r);
    canvas.moveTo(x - r, y + r);
    canvas.lineTo(x + r, y - r);
  }
  canvas.stroke();
}
