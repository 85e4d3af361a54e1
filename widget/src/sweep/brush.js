// Which trials are brushed: those that lie within a part of every axis that has one. All views show the same.

/** @typedef {import("./scales.js").Part} Part */

export class Brush {
  /** @param {import("./model.js").Model} model @param {import("./places.js").Places} places */
  constructor(model, places) {
    this.model = model;
    this.places = places;
    /** @type {Map<string, Part>} */
    this.parts = new Map();
  }

  /** The brushed places of an axis, or null. @param {string} name @returns {[number, number] | null} */
  span(name) {
    const part = this.parts.get(name);
    return part ? this.places.axis(name).scale.span(part) : null;
  }

  /** @param {Record<string, [number, number] | null>} spans by axis; null takes its brush away */
  set(spans) {
    for (const [name, span] of Object.entries(spans)) {
      if (span && span[1] > span[0]) this.parts.set(name, this.places.axis(name).scale.part(...span));
      else this.parts.delete(name);
    }
    this.refresh();
  }

  clear() {
    this.parts.clear();
    this.refresh();
  }

  /** Says which rows are brushed, as trials or axes are now. */
  refresh() {
    if (this.parts.size === 0) return this.model.brush(null);
    const spans = [...this.parts.keys()].map((name) => ({ at: this.places.axis(name).at, span: /** @type {[number, number]} */ (this.span(name)) }));
    this.model.brush(maskOf(this.model.count, spans));
  }

  /** What is brushed, in words. */
  words() {
    return [...this.parts.keys()].map((name) => {
      const { title, scale } = this.places.axis(name);
      return `${title} ${scale.words(.../** @type {[number, number]} */ (this.span(name)))}`;
    }).join(", ");
  }
}

/** @param {number} count rows @param {{ at: Float32Array, span: [number, number] }[]} spans @returns {Uint8Array} 1 for rows within all of them */
export function maskOf(count, spans) {
  const mask = new Uint8Array(count).fill(1);
  for (const { at, span: [from, to] } of spans) {
    const [low, high] = [Math.fround(from), Math.fround(to)]; // as the places are
    for (let row = 0; row < count; row++) if (!(at[row] >= low && at[row] <= high)) mask[row] = 0;
  }
  return mask;
}
