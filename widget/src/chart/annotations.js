// Annotations of a run's curves (its events): a vertical line, a glyph at its top, and text below the charts.
import { CLOCK, MEAN } from "../comm/frames.js";
import { make, setText } from "../dom/elements.js";
import { formatCount } from "../text/format.js";
import { secondsAt } from "./curves.js";

/** @typedef {{ step: number, kind: string, text: string, epoch?: number | null, time?: number | null }} Annotation `time` in seconds since 1970 */

/** The glyph of each kind, the most important first. "restart": of outputs that were saved before "replaced" and "joined". */
const GLYPHS = /** @type {Record<string, string>} */ ({
  lost: "✕", replaced: "▲", restart: "▲", joined: "+", left: "-", rate: "◆", pause: "■", resume: "▶", checkpoint: "▼", schedule: "◇", state: "▽",
});
const ORDER = Object.keys(GLYPHS);
const NEAR = 6; // CSS pixels from a line within which the cursor hits it
const APART = 9; // CSS pixels between two lines; of those that are nearer one is drawn
const MOST_READ = 4; // texts beside the cursor

/** The positions of marks on the x axis. @param {Annotation[]} annotations @param {import("./curves.js").Curves} curves @param {boolean} byTime */
export function annotationPositions(annotations, curves, byTime) {
  const clock = byTime ? curves.get(MEAN, CLOCK) : undefined;
  const steps = annotations.map(({ step }) => step);
  if (!clock) return steps;
  const order = steps.map((_, i) => i).sort((a, b) => steps[a] - steps[b]); // events are in the order of time
  const seconds = secondsAt(order.map((i) => steps[i]), clock);
  /** @type {number[]} */
  const xs = [];
  order.forEach((i, place) => (xs[i] = seconds[place]));
  return xs;
}

/**
 * The marks that are drawn, with their places: of those that would stand on each other the most important one.
 * @param {Annotation[]} annotations @param {number[]} places in pixels @param {number} apart
 */
export function drawnAnnotations(annotations, places, apart) {
  /** @type {{ kind: string, place: number }[]} */
  const drawn = [];
  const rank = (/** @type {{ kind: string }} */ { kind }) => (ORDER.includes(kind) ? ORDER.indexOf(kind) : ORDER.length);
  const order = annotations.map((one, i) => ({ kind: one.kind, place: places[i] })).sort((a, b) => rank(a) - rank(b));
  for (const one of order) {
    if (Number.isFinite(one.place) && drawn.every(({ place }) => Math.abs(place - one.place) >= apart)) drawn.push(one);
  }
  return drawn.sort((a, b) => a.place - b.place);
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
  const places = xs.map((x) => Math.round(plot.x(x)) + 0.5);
  const within = places.map((x) => (x < plot.left || x > plot.left + plot.width ? NaN : x));
  for (const { kind, place } of drawnAnnotations(annotations, within, APART * plot.ratio)) {
    if (kind !== "state") { // regular ones: their signs are enough
      canvas.beginPath();
      canvas.moveTo(place, plot.top + 11 * plot.ratio);
      canvas.lineTo(place, plot.top + plot.height);
      canvas.stroke();
    }
    canvas.fillText(GLYPHS[kind] ?? "◆", place, plot.top);
  }
  canvas.restore();
}

/** The marks under the cursor. @param {Annotation[]} annotations @param {number[]} xs @param {number} at @param {number} perPixel of the x axis */
export function annotationsAt(annotations, xs, at, perPixel) {
  return annotations.filter((_, i) => Math.abs(xs[i] - at) <= NEAR * perPixel);
}

/** What marks say, in a line. @param {Annotation[]} found */
export function annotationText(found) {
  const texts = found.slice(0, MOST_READ).map(({ text }) => text);
  return (found.length > MOST_READ ? [...texts, `and ${formatCount(found.length - MOST_READ)} more`] : texts).join(", ");
}

/** The list of marks below the charts, with their signs; of states the last one. Each is a button that moves the cursor of the charts to it. */
export class AnnotationList {
  /** @param {(step: number) => void} go moves the cursor */
  constructor(go) {
    this.go = go;
    this.element = make("ul", { class: "nbd-marks", "aria-label": "Events on the curves" });
    this.element.hidden = true;
    /** @type {Annotation[]} */
    this.shown = [];
  }

  /** @param {Annotation[]} annotations @param {string} one the word for a step */
  show(annotations, one) {
    const { element } = this;
    const states = annotations.filter(({ kind }) => kind === "state");
    const last = states.length > 1 ? ` (the last of ${formatCount(states.length)})` : "";
    const shown = annotations.filter((mark) => mark.kind !== "state" || mark === states.at(-1));
    const grows = shown.length > this.shown.length && !element.matches(":hover, :focus-within");
    element.hidden = shown.length === 0;
    this.shown = shown;
    while (element.children.length > shown.length) element.lastChild?.remove();
    shown.forEach(({ step, kind, text, epoch, time }, i) => {
      const item = element.children[i] ?? element.appendChild(make("li", {}, this.button(i)));
      const [button] = item.children;
      const within = epoch ? `, epoch ${formatCount(epoch)}` : "";
      setText(button.children[0], GLYPHS[kind] ?? "◆");
      setText(button.children[1], `${one} ${formatCount(step)}${within}: ${text}${kind === "state" ? last : ""}`);
      const title = time ? new Date(1000 * time).toLocaleString() : "";
      if (button.getAttribute("title") !== title) button.setAttribute("title", title);
    });
    if (grows) element.scrollTop = element.scrollHeight; // the newest ones
  }

  /** @param {number} i */
  button(i) {
    const button = make("button", { type: "button", class: "nbd-mark" }, make("i", { "aria-hidden": "true" }), make("span"));
    button.addEventListener("click", () => this.go(this.shown[i].step));
    return button;
  }
}
