// A colour for a value: its lightness differs more from the page the better the value is, in perceptually equal steps.
// d3-scale-chromatic is not used: its ramps suit one background each (the best value of viridis is hardly visible on a
// white page), and they have no text colour that is legible on every shade.
import { clamp } from "./scales.js";

/** @typedef {{ css: string[], ink: string[] }} Colormap from the worst to the best, and what is legible on each */

const SHADES = 64;
// Lightness, chroma and hue in OKLCH at the ends, along hues from yellow over green and blue to violet.
const PALE = { l: 0.94, c: 0.07, h: 105 };
const DEEP = { l: 0.3, c: 0.14, h: 290 };
const DIM = { l: 0.3, c: 0.09, h: 290 };
const BRIGHT = { l: 0.92, c: 0.17, h: 105 };
const MIDDLE = 0.045; // additional chroma in the middle of the ramp

/** @param {boolean} dark whether the page is @returns {Colormap} */
export function colormapFor(dark) {
  const [worst, best] = dark ? [DIM, BRIGHT] : [PALE, DEEP];
  const shades = Array.from({ length: SHADES }, (_, i) => {
    const t = i / (SHADES - 1);
    const mix = (/** @type {number} */ a, /** @type {number} */ b) => a + (b - a) * t;
    return { l: mix(worst.l, best.l), c: mix(worst.c, best.c) + MIDDLE * 4 * t * (1 - t) * (dark ? 0.6 : 1), h: mix(worst.h, best.h) };
  });
  return { css: shades.map(({ l, c, h }) => css(oklch(l, c, h))), ink: shades.map(({ l }) => (l > 0.62 ? "#101014" : "#ffffff")) };
}

/** The shade of a share: 0 for the worst, 1 for the best. @param {number} share */
export function shadeIndex(share) {
  return clamp(Math.round(share * (SHADES - 1)), 0, SHADES - 1);
}

/**
 * Red, green and blue from 0 to 1. After Björn Ottosson, "A perceptual color space for image processing" (2020).
 * @param {number} lightness @param {number} chroma @param {number} hue degrees
 * @returns {[number, number, number]}
 */
export function oklch(lightness, chroma, hue) {
  const [a, b] = [chroma * Math.cos((hue * Math.PI) / 180), chroma * Math.sin((hue * Math.PI) / 180)];
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    gamma(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    gamma(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    gamma(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

/** @param {number} linear */
function gamma(linear) {
  const value = clamp(linear, 0, 1);
  return value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055;
}

/** @param {[number, number, number]} rgb */
function css(rgb) {
  return `rgb(${rgb.map((one) => Math.round(255 * one)).join(" ")})`;
}
