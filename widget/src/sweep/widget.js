// The anywidget module of a sweep: joins the page to the kernel, and says when it can be seen.
import { has, newLink, receive, tooQuiet } from "../link.js";
import { Grid } from "./grid.js";
import { OVER } from "./header.js";

const LOOK = 1000; // milliseconds between looks at whether the kernel has gone quiet

/** @type {import("@anywidget/types").Render} */
function render({ model, el }) {
  const name = `nbdist-${Math.random().toString(36).slice(2)}`;
  const link = newLink(performance.now());
  let onScreen = false;
  const visible = () => onScreen && !document.hidden;
  const say = (/** @type {string} */ kind, more = {}) => {
    try {
      model.send({ kind, view: name, visible: visible(), sequence: has(link), ...more });
    } catch {
      grid.disconnect(); // the kernel restarted or ended, and its end of the line with it
    }
  };

  const grid = new Grid(name, say);
  el.append(grid.element);

  const onMessage = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => {
    if (content.kind === "answer") grid.asks.hear(content);
    if (content.kind !== "sweep") return;
    const verdict = receive(link, content.sequence, content.snapshot, performance.now());
    if (verdict === "apply") grid.model.apply(content, buffers);
    if (verdict === "ask") say("snapshot");
    // Acknowledged when it is drawn, so that a busy page gets fewer.
    else if (verdict === "apply" && visible()) requestAnimationFrame(() => say("ack"));
  };
  model.on("msg:custom", onMessage);

  const seen = new IntersectionObserver((entries) => {
    const now = entries[entries.length - 1].isIntersecting;
    if (now === onScreen) return;
    onScreen = now;
    say("visible");
    grid.redraw(); // what changed meanwhile
  });
  seen.observe(grid.element);
  const onVisibility = () => say("visible");
  document.addEventListener("visibilitychange", onVisibility);
  const resized = new ResizeObserver(() => grid.redraw());
  resized.observe(grid.element);
  const themed = new MutationObserver(() => grid.redraw());
  themed.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light"] });
  const timer = setInterval(() => {
    if (visible() && !OVER.includes(grid.model.status?.state ?? "") && tooQuiet(link, performance.now())) say("snapshot");
  }, LOOK);
  say("ready");

  return () => {
    clearInterval(timer);
    for (const observer of [seen, resized, themed]) observer.disconnect();
    document.removeEventListener("visibilitychange", onVisibility);
    model.off("msg:custom", onMessage);
    say("gone");
    grid.destroy();
    grid.element.remove();
  };
}

export default { render };
