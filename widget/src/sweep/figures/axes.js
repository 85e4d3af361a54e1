// Scales of values and times on a figure's canvas, and their axes.
// d3-axis is not used: it makes SVG elements, and the figures are canvases of 10,000 trials and more.
import { linearTicks, logTicks } from "../../chart/ticks.js";
import { scaleLinear, scaleLog } from "d3-scale";
import { formatTick } from "../../text/format.js";
import { FINAL_STATES } from "../states.js";

/** @typedef {import("./figure.js").Drawing} Drawing */
/** @typedef {{ left: number, top: number, width: number, height: number }} Area CSS pixels */
/** @typedef {import("d3-scale").ScaleContinuousNumeric<number, number, number>} Scale linear or logarithmic; NaN for what is not on it */

const DECADES = 2; // range from which an axis is logarithmic
const ROOM = 0.06; // margin above and below, as a share of the range
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const FRACTIONS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/**
 * The scale for most of the values without outliers, and for all values that must be visible.
 * @param {number[]} values finite ones @param {number[]} must be seen
 * @returns {Scale}
 */
export function robustScale(values, must = []) {
  const sorted = Float64Array.from(values).sort();
  const seen = must.filter(Number.isFinite);
  if (sorted.length === 0 && seen.length === 0) return makeScale(0, 1, false);
  const least = Math.min(sorted[0] ?? Infinity, ...seen);
  const most = Math.max(sorted[sorted.length - 1] ?? -Infinity, ...seen);
  const log = least > 0 && Math.log10(most / least) > DECADES;
  const place = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  const [first, third] = [place(sorted[sorted.length >> 2] ?? least), place(sorted[(sorted.length * 3) >> 2] ?? most)];
  const reach = 3 * (third - first); // from the middle half of the values; values further away are outliers
  let low = reach > 0 ? Math.max(place(least), first - reach) : place(least);
  let high = reach > 0 ? Math.min(place(most), third + reach) : place(most);
  for (const value of seen) [low, high] = [Math.min(low, place(value)), Math.max(high, place(value))];
  const room = ROOM * (high - low) || Math.abs(high) * 0.1 || 0.5;
  const end = (/** @type {number} */ at) => (log ? Math.min(Number.MAX_VALUE, Math.max(Number.MIN_VALUE, 10 ** at)) : at);
  return makeScale(end(low - room), end(high + room), log);
}

/** A scale from 0 at the lower end to 1 at the upper. @param {number} low @param {number} high @param {boolean} log @returns {Scale} */
export function makeScale(low, high, log) {
  return (log ? scaleLog() : scaleLinear()).domain([low, high]).unknown(NaN);
}

/** @param {Scale} scale */
export function isLog(scale) {
  return "base" in scale;
}

/** The ends of a scale; of a logarithmic one their logarithms. @param {Scale} scale @returns {number[]} */
function endsOf(scale) {
  return isLog(scale) ? scale.domain().map(Math.log10) : scale.domain();
}

/** @param {Scale} scale @param {number} value */
export function isOutside(scale, value) {
  const [low, high] = scale.domain();
  return value < low || value > high;
}

/** The previous scale if the new one differs little from it, so that the marks need not be redrawn. @param {Scale} was @param {Scale} now */
export function settled(was, now) {
  const [[low, high], [wasLow, wasHigh]] = [endsOf(now), endsOf(was)];
  const slack = 0.15 * (high - low);
  const narrower = low >= wasLow && high <= wasHigh; // the previous scale still shows everything
  const near = narrower && low - wasLow <= slack && wasHigh - high <= slack;
  return isLog(was) === isLog(now) && near ? was : now;
}

/** @param {Scale} scale @param {number} most @returns {number[]} values */
export function valueTicks(scale, most) {
  const [low, high] = endsOf(scale);
  if (isLog(scale)) return logTicks(low, high, most).map((power) => 10 ** power);
  const rough = (high - low) / Math.max(1, most);
  const unit = 10 ** Math.floor(Math.log10(rough));
  return linearTicks(low, high, ([1, 2, 2.5, 5].find((step) => step * unit >= rough) ?? 10) * unit);
}

/** Ticks of a time axis at round times, in seconds. @param {number} from @param {number} to @param {number} most */
export function timeTicks(from, to, most) {
  const step = [...FRACTIONS, ...TIMES].find((each) => (to - from) / each <= most) ?? (to - from) / most;
  return linearTicks(from, to, step);
}

/** The end of a time axis: somewhat after now, so that it does not change in every frame, or the end of an ended sweep.
 * @param {number} was @param {number} now @param {string | undefined} state of the sweep @param {number} ahead */
export function timeEnd(was, now, state, ahead) {
  if (FINAL_STATES.includes(state ?? "")) return now || 1;
  return now > was || now < was / 2 ? now * ahead || 1 : was;
}

/** Formats seconds: 0.5 s, 30 s, 5 min, 1 h 30 min, 2 d. @param {number} seconds */
export function formatTime(seconds) {
  const whole = Math.round(seconds);
  if (Math.abs(seconds) < 60) return `${formatTick(Number(seconds.toFixed(3)))} s`.replace("-", "−");
  const parts = [[Math.floor(whole / 86400), "d"], [Math.floor(whole / 3600) % 24, "h"], [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  const nonzero = parts.filter(([count]) => count);
  return nonzero.slice(0, 2).map(([count, unit]) => `${count} ${unit}`).join(" ");
}

/** Draws the grid lines and labels of a value axis at the left. @param {Drawing} page @param {Area} area @param {Scale} scale */
export function drawYAxis({ canvas, theme, font }, area, scale) {
  canvas.font = font;
  canvas.textAlign = "right";
  canvas.textBaseline = "middle";
  const across = scale.copy().range([area.top + area.height, area.top]);
  for (const tick of valueTicks(scale, Math.max(2, Math.floor(area.height / 26)))) {
    const y = Math.round(across(tick)) + 0.5;
    canvas.fillStyle = theme.grid;
    canvas.fillRect(area.left, y - 0.5, area.width, 1);
    canvas.fillStyle = theme.muted;
    canvas.fillText(formatTick(Number(tick.toPrecision(12))), area.left - 6, y);
  }
}

/** Draws the grid lines and labels of the bottom axis. @param {Drawing} page @param {Area} area @param {{ at: number, text: string }[]} ticks @param {string} [unit] written at its end */
export function drawXAxis({ canvas, theme, font, width }, area, ticks, unit = "") {
  canvas.font = font;
  canvas.textBaseline = "top";
  const foot = area.top + area.height + 6;
  canvas.textAlign = "right";
  canvas.fillStyle = theme.muted;
  if (unit) canvas.fillText(unit, area.left + area.width, foot);
  let free = -Infinity;
  const end = area.left + area.width - (unit ? canvas.measureText(unit).width + 8 : 0);
  for (const { at, text } of ticks) {
    canvas.fillStyle = theme.grid;
    canvas.fillRect(Math.round(at), area.top, 1, area.height);
    const half = canvas.measureText(text).width / 2;
    const middle = Math.max(area.left + half - 4, Math.min(at, width - half - 1));
    if (middle - half < free || middle + half > Math.max(end, area.left) + (unit ? 0 : 20)) continue;
    canvas.textAlign = "center";
    canvas.fillStyle = theme.muted;
    canvas.fillText(text, middle, foot);
    free = middle + half + 10;
  }
}

/** @param {number} width @returns {number} of the page of a chart */
export function chartHeight(width) {
  return Math.max(190, Math.min(320, Math.round(width * 0.5)));
}

/** The part of a page in which a chart's marks lie. @param {Drawing} page @returns {Area} */
export function chartArea({ width, height }) {
  return { left: 48, top: 8, width: Math.max(40, width - 48 - 14), height: height - 8 - 26 };
}
