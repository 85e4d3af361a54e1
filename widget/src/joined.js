// Joins a page to its kernel: when it can be seen, what has gone lost, when the kernel has gone.
import { has, newLink, tooQuiet } from "./link.js";

const LOOK = 1000; // milliseconds between looks at whether the kernel has gone quiet

/** @typedef {(kind: string, more?: object) => void} Say */
/** @typedef {"ack" | "snapshot" | null} Answer what the kernel is told of a message */
/**
 * What is joined: it is told when it has to be drawn anew, and when the kernel has gone.
 * @typedef {{ element: HTMLElement, disconnect: () => void, redraw: () => void, close: () => void, over: () => boolean }} Page
 */

/**
 * Show a page in `el`; returns what takes it away.
 * @template {Page} P
 * @param {import("@anywidget/types").RenderProps<any>} props
 * @param {(name: string, say: Say) => P} make
 * @param {(page: P, link: import("./link.js").Link, message: any, buffers: DataView[]) => Answer} hear
 */
export function join({ model, el }, make, hear) {
  const name = `nbdist-${Math.random().toString(36).slice(2)}`;
  const link = newLink(performance.now());
  let onScreen = false;
  const visible = () => onScreen && !document.hidden;
  /** @type {Say} */
  const say = (kind, more = {}) => {
    try {
      model.send({ kind, view: name, visible: visible(), sequence: has(link), ...more });
    } catch {
      page.disconnect(); // the kernel restarted or ended, and its end of the line with it
    }
  };

  const page = make(name, say);
  el.append(page.element);

  const onMessage = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const answer = hear(page, link, message, buffers);
    if (answer === "snapshot") say("snapshot");
    // Acknowledged when it is drawn, so that a busy page gets fewer.
    else if (answer === "ack" && visible()) requestAnimationFrame(() => say("ack"));
  };
  model.on("msg:custom", onMessage);

  const seen = new IntersectionObserver((entries) => {
    const now = entries[entries.length - 1].isIntersecting;
    if (now === onScreen) return;
    onScreen = now;
    say("visible");
    page.redraw(); // what changed meanwhile
  });
  seen.observe(page.element);
  const onVisibility = () => say("visible");
  document.addEventListener("visibilitychange", onVisibility);
  const resized = new ResizeObserver(() => page.redraw());
  resized.observe(page.element);
  const themed = new MutationObserver(() => page.redraw());
  themed.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light"] });
  const timer = setInterval(() => {
    if (visible() && !page.over() && tooQuiet(link, performance.now())) say("snapshot");
  }, LOOK);
  say("ready");

  return () => {
    clearInterval(timer);
    for (const observer of [seen, resized, themed]) observer.disconnect();
    document.removeEventListener("visibilitychange", onVisibility);
    model.off("msg:custom", onMessage);
    say("gone");
    page.close();
    page.element.remove();
  };
}
