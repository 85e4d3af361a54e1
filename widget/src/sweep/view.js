// The whole page of a sweep: puts the views together and redraws what changed, at most once a screen frame.
import { button } from "../dom/buttons.js";
import { make, setText } from "../dom/elements.js";
import { takeKeys } from "../dom/keyboard.js";
import { readColours } from "../dom/theme.js";
import { formatCount } from "../text/format.js";
import { Asks } from "./commands.js";
import { makeBestLine } from "./figures/best.js";
import { Brush } from "./figures/brush.js";
import { rampFor } from "./figures/colormap.js";
import { makeSmallCurves } from "./figures/curves.js";
import { makeHeatmap } from "./figures/heatmap.js";
import { makeParallel } from "./figures/parallel.js";
import { Places } from "./figures/positions.js";
import { makeTimeline } from "./figures/timeline.js";
import { Header } from "./header.js";
import { Model } from "./model.js";
import { makePanel } from "./panel.js";
import { OVER } from "./states.js";
import { makeTable } from "./table.js";

/** @typedef {{ element: HTMLElement, draw: () => void, destroy: () => void }} View */

const RAMPS = { light: rampFor(false), dark: rampFor(true) };
const HIDDEN_FRAMES = 30; // in which a page without a width is looked at again: JupyterLab hides all while it changes its theme
const AROUND = "200px"; // what is so near is drawn before it is seen
const FONT_SIZE = 11; // CSS pixels, on canvases

export class Grid {
  /** @param {string} name unique in the page @param {((kind: string, more?: Record<string, unknown>) => void) | null} say null where nobody hears wishes */
  constructor(name, say) {
    this.model = new Model();
    this.asks = new Asks(say ?? (() => {}));
    this.pending = 0;
    this.looks = HIDDEN_FRAMES;
    const ask = this.asks.ask.bind(this.asks);
    const places = (this.places = new Places(this.model));
    const brush = (this.brush = new Brush(this.model, places));
    this.header = new Header(this.model, name, ask);
    this.element = make("section", { class: "nbdist-sweep", "aria-label": "Sweep" });
    /** @type {import("./figures/figure.js").Look} */
    this.look = { colours: readColours(this.element), ramp: RAMPS.light, font: `${FONT_SIZE}px sans-serif` };
    const options = { places, brush, look: this.look, table: `${name}-trials` };
    const [parallel, heatmap, best, curves, timeline, table] = [makeParallel(this.model, options), makeHeatmap(this.model, options),
      makeBestLine(this.model), makeSmallCurves(this.model), makeTimeline(this.model), makeTable(this.model, options)];
    const panel = makePanel(this.model, { name, ask });
    /** @type {View[]} */
    this.views = [parallel, heatmap, best, curves, timeline, table, panel];
    this.told = make("span", { role: "status" });
    this.clear = button("Show all", "Nothing is brushed any more", () => brush.clear());
    this.hint = make("span", {}, "Drag along an axis to brush"); // its line is always there: nothing moves under the pointer
    this.brushed = make("div", { class: "nbs-brushing" }, this.told, this.hint, this.clear);
    this.figures = make("div", { class: "nbs-figures-area", role: "group", "aria-label": "Figures" },
      make("div", { class: "nbs-wide" }, this.brushed, parallel.element), heatmap.element, curves.element, best.element, timeline.element);
    this.body = make("div", { class: "nbs-body" }, this.figures, panel.element, table.element);
    this.body.hidden = true;
    this.element.append(this.header.element, this.body);
    if (!say) for (const wishes of this.element.querySelectorAll(".nbs-actions, .nbs-output")) wishes.remove();
    /** @type {Set<Element>} */
    this.unseen = new Set(); // figures that are scrolled away are not drawn; table and panel are read without being seen
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.unseen[isIntersecting ? "delete" : "add"](target);
      if (entries.some(({ isIntersecting }) => isIntersecting)) this.redraw();
    }, { rootMargin: AROUND });
    for (const { element } of [parallel, heatmap, best, curves, timeline]) this.watch.observe(element);
    this.giveKeysBack = takeKeys(this.element);
    this.offs = [
      this.model.on("data", () => this.onData()),
      this.model.on(["chosen", "hovered", "brushed"], () => this.redraw()),
    ];
  }

  onData() {
    this.places.forget();
    if (this.brush.parts.size) this.brush.refresh();
    this.redraw();
  }

  redraw() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  draw() {
    if (!this.model.head) return;
    this.element.setAttribute("aria-label", `Sweep ${this.model.head.name}`);
    this.header.draw();
    this.body.hidden = false;
    this.readLook();
    const { brushed, brushedCount, count } = this.model;
    setText(this.told, brushed ? `${formatCount(brushedCount)} of ${formatCount(count)} trials: ${this.brush.words()}` : "");
    this.brushed.classList.toggle("nbs-idle", !brushed);
    this.clear.hidden = !brushed;
    this.hint.hidden = Boolean(brushed);
    for (const view of this.views) if (!this.unseen.has(view.element)) view.draw();
    if (this.element.clientWidth > 0) this.looks = HIDDEN_FRAMES;
    else if (this.looks-- > 0) this.redraw(); // nothing could be drawn, and nobody says when it can
  }

  /** The theme may have changed, and canvases do not follow it by themselves. */
  readLook() {
    const style = getComputedStyle(this.element);
    this.look.colours = readColours(this.element);
    this.look.font = `${FONT_SIZE}px ${style.fontFamily}`;
    this.look.ramp = isLight(style.color) ? RAMPS.dark : RAMPS.light; // light letters are on a dark page
  }

  /** The kernel is gone; what was drawn stays. */
  disconnect() {
    const { status, head } = this.model;
    this.asks.giveUp("the kernel is not running");
    if (!status || OVER.includes(status.state)) return;
    this.model.status = { ...status, state: "disconnected", trouble: head?.again || "the kernel is not running" };
    this.redraw();
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.watch.disconnect();
    for (const off of this.offs) off();
    for (const view of this.views) view.destroy();
    this.giveKeysBack();
  }
}

/** @param {string} color as a browser computes it */
function isLight(color) {
  const [red, green, blue] = (color.match(/[\d.]+/g) ?? ["0", "0", "0"]).map(Number);
  return 0.3 * red + 0.6 * green + 0.1 * blue > 128;
}
