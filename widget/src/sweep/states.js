// The states of a trial: each has a name, a colour of the theme and a glyph, which distinguishes it without its colour.

/** @typedef {import("../dom/theme.js").Colours} Colours */
/** @typedef {{ name: string, glyph: string, color: (theme: Colours) => string, trace: Trace }} State */
/**
 * Adds a glyph to a canvas's path; the caller fills it, or strokes it if `line` is true.
 * @typedef {{ line: boolean, path: (canvas: CanvasPath, x: number, y: number, r: number) => void }} Trace
 */

export const [WAITING, RUNNING, FINISHED, PRUNED, STOPPED, FAILED] = [0, 1, 2, 3, 4, 5];

/** In the order in which a state travels as a number. @type {State[]} */
export const STATES = [
  { name: "waiting", glyph: "○", color: (theme) => theme.muted, trace: { line: true, path: disc } },
  { name: "running", glyph: "▶", color: (theme) => theme.accent, trace: { line: false, path: triangle } },
  { name: "finished", glyph: "●", color: (theme) => theme.good, trace: { line: false, path: disc } },
  { name: "pruned", glyph: "◐", color: (theme) => theme.second, trace: { line: false, path: half } },
  { name: "stopped", glyph: "■", color: (theme) => theme.muted, trace: { line: false, path: square } },
  { name: "failed", glyph: "✕", color: (theme) => theme.bad, trace: { line: true, path: cross } },
];

/**
 * Draws the same glyph at many places as one path.
 * @param {CanvasRenderingContext2D} canvas
 * @param {number} state
 * @param {ArrayLike<number>} places x and y in turn, in canvas pixels
 * @param {number} r canvas pixels from the middle to the edge
 * @param {string} color
 */
export function drawGlyphs(canvas, state, places, r, color) {
  const { trace } = STATES[state];
  canvas.beginPath();
  for (let i = 0; i + 1 < places.length; i += 2) trace.path(canvas, places[i], places[i + 1], r);
  paint(canvas, trace.line, r, color);
  if (state !== PRUNED) return;
  // The half that is not filled has an outline.
  canvas.beginPath();
  for (let i = 0; i + 1 < places.length; i += 2) disc(canvas, places[i], places[i + 1], r);
  paint(canvas, true, r, color);
}

/** @param {CanvasRenderingContext2D} canvas @param {boolean} line @param {number} r @param {string} color */
function paint(canvas, line, r, color) {
  if (line) {
    canvas.setLineDash([]);
    canvas.lineWidth = Math.max(1, r * 0.42);
    canvas.strokeStyle = color;
    canvas.stroke();
  } else {
    canvas.fillStyle = color;
    canvas.fill();
  }
}

/** @param {CanvasPath} canvas @param {number} x @param {number} y @param {number} r */
function disc(canvas, x, y, r) {
  canvas.moveTo(x + r * 0.86, y);
  canvas.arc(x, y, r * 0.86, 0, 2 * Math.PI);
}

/** @param {CanvasPath} canvas @param {number} x @param {number} y @param {number} r */
function half(canvas, x, y, r) {
  canvas.moveTo(x, y - r * 0.86);
  canvas.arc(x, y, r * 0.86, -Math.PI / 2, Math.PI / 2, true);
}

/** @param {CanvasPath} canvas @param {number} x @param {number} y @param {number} r */
function triangle(canvas, x, y, r) {
  canvas.moveTo(x - r * 0.7, y - r * 0.9);
  canvas.lineTo(x + r, y);
  canvas.lineTo(x - r * 0.7, y + r * 0.9);
  canvas.closePath();
}

/** @param {CanvasPath} canvas @param {number} x @param {number} y @param {number} r */
function square(canvas, x, y, r) {
  canvas.rect(x - r * 0.76, y - r * 0.76, r * 1.52, r * 1.52);
}

/** @param {CanvasPath} canvas @param {number} x @param {number} y @param {number} r */
function cross(canvas, x, y, r) {
  canvas.moveTo(x - r * 0.76, y - r * 0.76);
  canvas.lineTo(x + r * 0.76, y + r * 0.76);
  canvas.moveTo(x - r * 0.76, y + r * 0.76);
  canvas.lineTo(x + r * 0.76, y - r * 0.76);
}
/** Final states: the view sets disconnected when the kernel has ended; lost and damaged are set by the Jupyter server. */
export const FINAL_STATES = ["finished", "stopped", "failed", "disconnected", "lost", "damaged"];
