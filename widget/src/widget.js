// The anywidget module: joins the view to the kernel, and says when it can be seen.
import { OVER } from "./header.js";
import { has, newLink, take, tooQuiet } from "./link.js";
import { View } from "./view.js";

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
      view.disconnect(); // the kernel restarted or ended, and its end of the line with it
    }
  };

  const view = new View(name, say);
  el.append(view.element);

  const onMessage = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    if (message.kind !== "frame") return;
    const answer = take(link, message, buffers[0], performance.now(), (_, runs) => view.apply(message, runs));
    if (answer === "snapshot") say("snapshot");
    // Acknowledged when it is drawn, so that a busy page gets fewer.
    else if (answer === "ack" && visible()) requestAnimationFrame(() => say("ack"));
  };
  model.on("msg:custom", onMessage);

  const seen = new IntersectionObserver((entries) => {
    const now = entries[entries.length - 1].isIntersecting;
    if (now !== onScreen) {
      onScreen = now;
      say("visible");
    }
  });
  seen.observe(view.element);
  const onVisibility = () => say("visible");
  document.addEventListener("visibilitychange", onVisibility);
  const resized = new ResizeObserver(() => view.redraw());
  resized.observe(view.element);
  const themed = new MutationObserver(() => view.redraw());
  themed.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-name"] });
  const timer = setInterval(() => {
    if (visible() && !OVER.includes(view.progress.state) && tooQuiet(link, performance.now())) say("snapshot");
  }, LOOK);
  say("ready");

  return () => {
    clearInterval(timer);
    for (const observer of [seen, resized, themed]) observer.disconnect();
    document.removeEventListener("visibilitychange", onVisibility);
    model.off("msg:custom", onMessage);
    say("gone");
    view.close();
    view.element.remove();
  };
}

export default { render };
