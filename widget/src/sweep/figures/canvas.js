// A canvas in the pixels of the device, cleared and ready to be drawn on in CSS pixels.

/** @param {HTMLCanvasElement} surface @param {number} width @param {number} height CSS pixels @returns {CanvasRenderingContext2D | null} */
export function resizeCanvas(surface, width, height) {
  const canvas = surface.getContext("2d");
  if (!canvas) return null;
  const ratio = pixelRatio();
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (surface.width !== across) surface.width = across;
  if (surface.height !== down) surface.height = down;
  surface.style.width = `${width}px`;
  surface.style.height = `${height}px`;
  canvas.setTransform(1, 0, 0, 1, 0, 0);
  canvas.clearRect(0, 0, across, down);
  canvas.setTransform(ratio, 0, 0, ratio, 0, 0);
  canvas.globalAlpha = 1;
  canvas.setLineDash([]);
  return canvas;
}

export function pixelRatio() {
  return globalThis.devicePixelRatio || 1;
}

/** Text cut with "…" so that it fits. @param {CanvasRenderingContext2D} canvas @param {string} text @param {number} width CSS pixels */
export function truncateText(canvas, text, width) {
  if (canvas.measureText(text).width <= width) return text;
  let length = Math.min(text.length - 1, Math.ceil((text.length * width) / canvas.measureText(text).width));
  while (length > 0 && canvas.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

// An offscreen layer for content that changes rarely: it is drawn in parts with a time limit per frame, and copied under
// the content that changes often. While a new layer is drawn, the previous one is shown if it has the same geometry.

const BUDGET = 4; // milliseconds per frame
const CHUNK = 50; // items between two checks of the time

export class Layer {
  /** @param {number} most items a frame: a canvas may put its work off until after the clock was looked at */
  constructor(most) {
    this.most = most;
    this.shown = newSurface();
    this.made = newSurface();
    /** @type {number[]} */
    this.items = [];
    this.done = 0;
    this.geometry = this.key = "";
    this.partial = true; // no complete layer to show
  }

  /**
   * Starts a new layer if the content has changed, but only after the previous one is complete: otherwise none would be.
   * @param {string} geometry another where what was drawn lies elsewhere now @param {string} key
   * @param {import("./figure.js").Drawing} page @param {() => number[]} list of what is to be drawn
   * @returns {boolean} whether it has begun
   */
  begin(geometry, key, { width, height, ratio }, list) {
    const moved = geometry !== this.geometry;
    if (!moved && (key === this.key || !this.isComplete())) return false;
    [this.geometry, this.key] = [geometry, key];
    this.partial ||= moved;
    const { surface, canvas } = this.made;
    surface.width = Math.round(width * ratio); // this clears the canvas
    surface.height = Math.round(height * ratio);
    canvas?.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.items = list();
    this.done = 0;
    if (this.isComplete()) this.finish();
    return true;
  }

  /** Adds items to draw on the layer. @param {number[]} items */
  add(items) {
    if (items.length === 0) return;
    if (this.isComplete()) {
      [this.items, this.done] = [[], 0];
      if (!this.partial) [this.shown, this.made, this.partial] = [this.made, this.shown, true];
    }
    for (const item of items) this.items.push(item);
  }

  isComplete() {
    return this.done >= this.items.length;
  }

  /** Draws items until the time limit. @param {(canvas: CanvasRenderingContext2D, items: number[]) => void} draw */
  work(draw) {
    if (this.isComplete()) return;
    const end = performance.now() + BUDGET;
    const most = Math.min(this.items.length, this.done + this.most);
    while (this.made.canvas && this.done < most && performance.now() < end) {
      const to = Math.min(most, this.done + CHUNK);
      draw(this.made.canvas, this.items.slice(this.done, to));
      this.done = to;
    }
    if (this.isComplete()) this.finish();
  }

  finish() {
    [this.shown, this.made, this.partial] = [this.made, this.shown, false];
  }

  /** Gives all that was drawn one colour: many overlapping faint lines would change it by rounding.
   * @param {CanvasRenderingContext2D} canvas @param {import("./figure.js").Drawing} page @param {string} color */
  tint(canvas, page, color) {
    canvas.globalCompositeOperation = "source-in";
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, page.width, page.height);
    canvas.globalCompositeOperation = "source-over";
  }

  /** @param {import("./figure.js").Drawing} page */
  drawOnto({ canvas, width, height }) {
    const { surface } = this.partial ? this.made : this.shown;
    if (surface.width > 0 && surface.height > 0) canvas.drawImage(surface, 0, 0, width, height);
  }
}

/** In place of a layer where a figure is drawn once, for a file: draws everything onto the page itself. */
export class DirectLayer {
  /** @param {import("./figure.js").Drawing} page */
  constructor({ canvas }) {
    this.canvas = canvas;
    /** @type {number[]} */
    this.items = [];
    this.geometry = this.key = "";
  }

  /** @param {string} geometry @param {string} key @param {import("./figure.js").Drawing} _ @param {() => number[]} list */
  begin(geometry, key, _, list) {
    Object.assign(this, { geometry, key, items: list() });
    return true;
  }

  add() {}

  isComplete() {
    return this.items.length === 0;
  }

  /** @param {(canvas: CanvasRenderingContext2D, items: number[]) => void} draw */
  work(draw) {
    draw(this.canvas, this.items);
    this.items = [];
  }

  tint() {}

  drawOnto() {}
}

function newSurface() {
  const surface = document.createElement("canvas");
  return { surface, canvas: surface.getContext("2d") };
}
