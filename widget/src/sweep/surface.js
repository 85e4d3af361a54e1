// A canvas in the pixels of the device, cleared and ready to be drawn on in CSS pixels.

/** @typedef {{ colours: import("../theme.js").Colours, ramp: import("./ramp.js").Ramp, font: string }} Look what all figures share */
/** @typedef {{ places: import("./places.js").Places, brush: import("./brush.js").Brush, look: Look, table: string }} Options `table` is the id of the table with the same data */

/** @param {HTMLCanvasElement} surface @param {number} width @param {number} height CSS pixels @returns {CanvasRenderingContext2D | null} */
export function fit(surface, width, height) {
  const canvas = surface.getContext("2d");
  if (!canvas) return null;
  const ratio = ratioNow();
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

export function ratioNow() {
  return globalThis.devicePixelRatio || 1;
}

/** Text cut with "…" so that it fits. @param {CanvasRenderingContext2D} canvas @param {string} text @param {number} width CSS pixels */
export function fitted(canvas, text, width) {
  if (canvas.measureText(text).width <= width) return text;
  let length = Math.min(text.length - 1, Math.ceil((text.length * width) / canvas.measureText(text).width));
  while (length > 0 && canvas.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}
