// Terminal colours: parses SGR codes (ECMA-48) into styled pieces of text. The same parser as nbdist/terminal/ansi.py:
// tests/terminal/ansi_cases.json tests both.
import { make } from "../dom/elements.js";

/** @typedef {Record<string, number | boolean>} Style  colours are 0 to 7: black, red, green, yellow, blue, magenta, cyan, white */

// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;
const SGR = /\x1b\[([0-9;:]{0,64})m/g;
const DEFAULT = -1; // the page's text colour
const MOST_SPANS = 4_000; // in one text; a text with more is shown without colours
const LEVELS = [0, 95, 135, 175, 215, 255]; // of the 6 x 6 x 6 colours in the 256

/** @type {Style} */
const PLAIN = { ink: DEFAULT, ground: DEFAULT, bold: false, dim: false, italic: false, underline: false, inverse: false, strike: false, stderr: false };

/** @type {Record<number, Style>} SGR number -> the fields that it sets */
const TABLE = {
  0: PLAIN, 1: { bold: true }, 2: { dim: true }, 3: { italic: true }, 4: { underline: true }, 7: { inverse: true },
  9: { strike: true }, 21: { underline: true }, 22: { bold: false, dim: false }, 23: { italic: false },
  24: { underline: false }, 27: { inverse: false }, 29: { strike: false }, 39: { ink: DEFAULT }, 49: { ground: DEFAULT },
  220: { stderr: true }, 221: { stderr: false }, // nbdist's own: between them stands what was printed to stderr
};
for (let tone = 0; tone < 8; tone++) {
  TABLE[30 + tone] = TABLE[90 + tone] = { ink: tone };
  TABLE[40 + tone] = TABLE[100 + tone] = { ground: tone };
}
/** @type {Record<number, string>} followed by 5 and one of 256 colours, or by 2 and red, green, blue */
const EXTENDED = { 38: "ink", 48: "ground" };

/** @param {Style} style @param {string} parameters of an SGR code @returns {Style} */
function after(style, parameters) {
  const groups = parameters.split(";").map((group) => group.split(":").map(Number));
  for (let at = 0; at < groups.length; at++) {
    const [first, ...rest] = groups[at];
    if (first in EXTENDED) {
      let colour = rest;
      if (!colour.length) {
        const kind = groups[++at]?.[0] ?? 0;
        const count = kind === 5 ? 1 : kind === 2 ? 3 : 0;
        colour = [kind, ...Array.from({ length: count }, (_, i) => groups[at + 1 + i]?.[0] ?? 0)];
        at += count;
      }
      const tone = nearest(colour);
      if (tone !== null) style = { ...style, [EXTENDED[first]]: tone };
    } else if (first === 0) style = { ...PLAIN, stderr: style.stderr };
    else if (first === 4 && rest[0] === 0) style = { ...style, underline: false };
    else if (first in TABLE) style = { ...style, ...TABLE[first] };
  }
  return style;
}

/** The tone of 0 to 7 for [5, index] or [2, ..., red, green, blue]; null for other forms. @param {number[]} colour */
function nearest(colour) {
  const [kind, index] = colour;
  let rgb;
  if (kind === 5 && colour.length === 2 && index < 256) {
    if (index < 16) return index % 8;
    const cube = index - 16;
    rgb = index < 232
      ? [LEVELS[Math.floor(cube / 36)], LEVELS[Math.floor(cube / 6) % 6], LEVELS[cube % 6]]
      : Array(3).fill(8 + 10 * (index - 232));
  } else if (kind === 2 && colour.length >= 4 && Math.max(...colour.slice(-3)) < 256) rgb = colour.slice(-3);
  else return null;
  const high = Math.max(...rgb), low = Math.min(...rgb);
  if (high - low < 48) return high < 160 ? 0 : 7;
  return rgb.reduce((sum, level, bit) => sum + (2 * level > high + low ? 1 << bit : 0), 0);
}

/** @param {string} text */
const plain = (text) => text.replace(ESCAPES, "").replace(CONTROLS, "");

/** The classes of a style; "" for the default. @param {Style} style */
function classes(style) {
  const names = [];
  if (style.ink !== DEFAULT) names.push(`nbd-ink-${style.ink}`);
  if (style.ground !== DEFAULT) names.push(`nbd-ground-${style.ground}`);
  for (const name of ["bold", "dim", "italic", "underline", "inverse", "strike", "stderr"]) if (style[name]) names.push(`nbd-${name}`);
  return names.join(" ");
}

/** Pieces of text with the classes of each; neighbours differ, and none is empty.
 * @param {string} text @returns {[string, string][]} */
export function spans(text) {
  /** @type {[string, string][]} */
  const found = [];
  let style = PLAIN;
  const parts = text.split(SGR); // text and parameters in turns
  for (let at = 0; at < parts.length; at += 2) {
    if (at) style = after(style, parts[at - 1]);
    const piece = plain(parts[at]);
    if (!piece) continue;
    const named = classes(style);
    const last = found.at(-1);
    if (last && last[0] === named) last[1] += piece;
    else found.push([named, piece]);
  }
  return found;
}

/** Text nodes, and elements with classes for styled text. @param {string} text @returns {Node[]} */
export function coloured(text) {
  if (!text.includes("\x1b")) return text ? [document.createTextNode(text)] : [];
  const all = spans(text);
  if (all.length > MOST_SPANS) return [document.createTextNode(all.map(([, piece]) => piece).join(""))];
  return all.map(([named, piece]) => (named ? make("span", { class: `nbd-ansi ${named}` }, piece) : document.createTextNode(piece)));
}
