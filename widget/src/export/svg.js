// A canvas that writes SVG: the figures draw on it as on the canvas of the page, so that both formats have the same content.
import { make } from "../dom/elements.js";

/** The properties that `save` keeps. */
const STYLE = /** @type {const} */ (["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline", "lineJoin", "dash"]);
const ANCHORS = /** @type {Record<string, string>} */ ({ center: "middle", right: "end", end: "end" });
const SHIFTS = /** @type {Record<string, string>} */ ({ middle: "0.35em", top: "0.8em", bottom: "-0.2em" }); // of the baseline, which every program that reads SVG knows
const FONT = /^(?:(\w+)\s+)?([\d.]+)px\s+(.*)$/;

/** The used part of `CanvasRenderingContext2D`. */
export class SvgCanvas {
  /** @param {number} width @param {number} height CSS pixels */
  constructor(width, height) {
    this.size = [width, height];
    /** @type {string[]} */
    this.parts = [];
    /** @type {string[]} */
    this.definitions = [];
    /** @type {{ style: object, groups: number }[]} */
    this.saved = [];
    this.groups = 0; // open since the last `save`
    this.path = "";
    /** @type {string | Gradient | Pattern} */
    this.fillStyle = "#000";
    /** @type {string | Gradient | Pattern} */
    this.strokeStyle = "#000";
    this.lineWidth = this.globalAlpha = 1;
    this.font = "10px sans-serif";
    this.textAlign = "start";
    this.textBaseline = "alphabetic";
    this.lineJoin = "miter";
    this.dash = "";
    this.ruler = make("canvas").getContext("2d");
  }

  save() {
    this.saved.push({ style: Object.fromEntries(STYLE.map((name) => [name, this[name]])), groups: this.groups });
    this.groups = 0;
  }

  restore() {
    const last = this.saved.pop();
    if (!last) return;
    this.parts.push("</g>".repeat(this.groups));
    Object.assign(this, last.style, { groups: last.groups });
  }

  /** @param {string} attributes of a group around what follows, until `restore` */
  group(attributes) {
    this.parts.push(`<g ${attributes}>`);
    this.groups++;
  }

  /** @param {number} x @param {number} y */
  translate(x, y) {
    this.group(`transform="translate(${round(x)} ${round(y)})"`);
  }

  clip() {
    this.group(`clip-path="${this.define("clipPath", "", `<path d="${this.path}"/>`)}"`);
  }

  /** @param {string} tag @param {string} attributes @param {string} content @returns {string} a reference */
  define(tag, attributes, content) {
    const id = `d${this.definitions.length}`;
    this.definitions.push(`<${tag} id="${id}" ${attributes}>${content}</${tag}>`);
    return `url(#${id})`;
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash.map(round).join(" ");
  }

  beginPath() {
    this.path = "";
  }

  closePath() {
    this.path += "Z";
  }

  /** @param {number} x @param {number} y */
  moveTo(x, y) {
    this.path += `M${round(x)} ${round(y)}`;
  }

  /** @param {number} x @param {number} y */
  lineTo(x, y) {
    this.path += `${this.path ? "L" : "M"}${round(x)} ${round(y)}`;
  }

  /** @param {...number} points */
  bezierCurveTo(...points) {
    this.path += `C${points.map(round).join(" ")}`;
  }

  /** @param {number} x @param {number} y @param {number} r @param {number} from @param {number} to radians @param {boolean} [back] counterclockwise */
  arc(x, y, r, from, to, back = false) {
    const whole = 2 * Math.PI;
    const angle = Math.abs(to - from) >= whole ? whole : (((back ? from - to : to - from) % whole) + whole) % whole;
    this.lineTo(x + r * Math.cos(from), y + r * Math.sin(from));
    for (const part of [1, 2]) { // an arc of SVG cannot be a whole circle
      const end = from + ((back ? -1 : 1) * angle * part) / 2;
      this.path += `A${round(r)} ${round(r)} 0 0 ${back ? 0 : 1} ${round(x + r * Math.cos(end))} ${round(y + r * Math.sin(end))}`;
    }
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  rect(x, y, width, height) {
    this.path += `M${round(x)} ${round(y)}h${round(width)}v${round(height)}h${round(-width)}Z`;
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height @param {number} r */
  roundRect(x, y, width, height, r) {
    const corner = (/** @type {number} */ dx, /** @type {number} */ dy) => `a${round(r)} ${round(r)} 0 0 1 ${round(dx)} ${round(dy)}`;
    const [w, h] = [round(width - 2 * r), round(height - 2 * r)];
    this.path += `M${round(x + r)} ${round(y)}h${w}${corner(r, r)}v${h}${corner(-r, r)}h${-w}${corner(-r, -r)}v${-h}${corner(r, -r)}Z`;
  }

  fill() {
    if (this.path) this.parts.push(`<path d="${this.path}" ${this.paint("fill")}/>`);
  }

  stroke() {
    if (this.path) this.parts.push(`<path d="${this.path}" fill="none" ${this.paint("stroke")}${this.line()}/>`);
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  fillRect(x, y, width, height) {
    this.parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" ${this.paint("fill")}/>`);
  }

  /** @param {number} x @param {number} y @param {number} width @param {number} height */
  strokeRect(x, y, width, height) {
    this.parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(width)}" height="${round(height)}" fill="none" ${this.paint("stroke")}${this.line()}/>`);
  }

  /** @param {string} text @param {number} x @param {number} y @param {number} [most] CSS pixels of its width */
  fillText(text, x, y, most) {
    this.text(text, x, y, this.paint("fill"), most);
  }

  /** @param {string} text @param {number} x @param {number} y */
  strokeText(text, x, y) {
    this.text(text, x, y, `fill="none" ${this.paint("stroke")}${this.line()}`);
  }

  /** @param {string} text @param {number} x @param {number} y @param {string} paint @param {number} [most] */
  text(text, x, y, paint, most = Infinity) {
    const [, weight = "", size = "10", family = "sans-serif"] = FONT.exec(this.font) ?? [];
    const fitted = this.measureText(text).width > most ? ` textLength="${round(most)}" lengthAdjust="spacingAndGlyphs"` : "";
    this.parts.push(`<text x="${round(x)}" y="${round(y)}" dy="${SHIFTS[this.textBaseline] ?? "0"}" text-anchor="${ANCHORS[this.textAlign] ?? "start"}" ` +
      `font-family="${escaped(family)}" font-size="${size}"${weight ? ` font-weight="${weight}"` : ""}${fitted} ${paint}>${escaped(text)}</text>`);
  }

  /** @param {string} text */
  measureText(text) {
    if (!this.ruler) return { width: 6 * text.length };
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  /** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
  createLinearGradient(x1, y1, x2, y2) {
    return new Gradient(`gradientUnits="userSpaceOnUse" x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"`);
  }

  /** @param {HTMLCanvasElement} tile that is repeated */
  createPattern(tile) {
    return new Pattern(tile);
  }

  /** The attributes of a colour, a gradient or a pattern. @param {"fill" | "stroke"} kind */
  paint(kind) {
    const style = kind === "fill" ? this.fillStyle : this.strokeStyle;
    if (style instanceof Gradient) return `${kind}="${this.define("linearGradient", style.attributes, style.stops)}"`;
    if (style instanceof Pattern) return `${kind}="${this.define("pattern", style.attributes, style.content)}"`;
    const [colour, alpha] = opaque(style, this.ruler);
    const opacity = round(alpha * this.globalAlpha);
    return `${kind}="${escaped(colour)}"${opacity < 1 ? ` ${kind}-opacity="${opacity}"` : ""}`;
  }

  line() {
    const { lineWidth, lineJoin, dash } = this;
    return ` stroke-width="${round(lineWidth)}"${lineJoin === "round" ? ' stroke-linejoin="round"' : ""}${dash ? ` stroke-dasharray="${dash}"` : ""}`;
  }

  /** The file. @param {string} title */
  toString(title = "") {
    const [width, height] = this.size.map(round);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><title>${escaped(title)}</title>` +
      `<defs>${this.definitions.join("")}</defs>${this.parts.join("")}${"</g>".repeat(this.groups)}</svg>\n`;
  }
}

class Gradient {
  /** @param {string} attributes */
  constructor(attributes) {
    this.attributes = attributes;
    this.stops = "";
  }

  /** @param {number} offset @param {string} colour */
  addColorStop(offset, colour) {
    this.stops += `<stop offset="${round(offset)}" stop-color="${escaped(colour)}"/>`;
  }
}

class Pattern {
  /** @param {HTMLCanvasElement} tile */
  constructor(tile) {
    this.tile = tile;
    this.scale = 1;
  }

  /** @param {DOMMatrix} matrix */
  setTransform({ a }) {
    this.scale = a;
  }

  get size() {
    return `width="${round(this.tile.width * this.scale)}" height="${round(this.tile.height * this.scale)}"`;
  }

  get attributes() {
    return `patternUnits="userSpaceOnUse" ${this.size}`;
  }

  get content() {
    return `<image ${this.size} href="${this.tile.toDataURL()}"/>`;
  }
}

/** A number in a path. @param {number} value */
function round(value) {
  return Math.round(value * 100) / 100 || 0;
}

/** @param {string} text */
function escaped(text) {
  // XML has no other control characters.
  return String(text).replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (one) => `&#${one.charCodeAt(0)};`);
}

/** A colour without alpha, and its alpha: the page's colours may be mixed by functions that only browsers know.
 * @param {string} colour @param {CanvasRenderingContext2D | null} ruler @returns {[string, number]} */
export function opaque(colour, ruler) {
  let known = colour;
  if (ruler) {
    ruler.fillStyle = "#000";
    ruler.fillStyle = colour; // read back, it is #rrggbb, rgba(...) or color(srgb ...)
    known = String(ruler.fillStyle);
  }
  const numbers = (known.match(/-?\d*\.?\d+(?:e-?\d+)?/g) ?? []).map(Number);
  if (/^rgba?\(/.test(known)) return [`rgb(${numbers.slice(0, 3).map(Math.round).join(",")})`, numbers[3] ?? 1];
  if (/^color\(srgb /.test(known)) return [`rgb(${numbers.slice(0, 3).map((part) => Math.round(255 * part)).join(",")})`, numbers[3] ?? 1];
  return [known, 1];
}
