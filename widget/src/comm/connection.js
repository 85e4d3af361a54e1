// Connects a page to its kernel: which frames to apply, when to ask for a snapshot, and when the page is seen.
import { decodeFrame } from "./frames.js";

/** @typedef {{ sequence: number, behind: boolean, asked: number, heard: number }} Link */
/** @typedef {(kind: string, more?: object) => void} Say */
/** @typedef {"ack" | "snapshot" | null} Answer what the kernel is told of a message */
/**
 * What is joined: it is told when it has to be drawn anew, and when the kernel has gone.
 * @typedef {{ element: HTMLElement, disconnect: () => void, redraw: () => void, close: () => void, over: () => boolean }} Page
 */

const ASK_AGAIN = 500; // milliseconds between two requests for the same snapshot
const QUIET = 2000; // milliseconds without a frame after which the page asks whether it missed one

/** @param {number} now milliseconds @returns {Link} */
export function newLink(now) {
  return { sequence: 0, behind: true, asked: now, heard: now };
}

/**
 * A message with a frame arrived: applies it, if it is its turn; returns what the kernel is to be told.
 * @template {{ snapshot: boolean }} M
 * @param {Link} link
 * @param {M} message
 * @param {DataView} bytes
 * @param {number} now milliseconds
 * @param {(message: M, runs: import("./frames.js").Run[]) => void} apply
 * @returns {"ack" | "snapshot" | null}
 */
export function take(link, message, bytes, now, apply) {
  const { sequence, runs } = decodeFrame(bytes);
  const verdict = receive(link, sequence, message.snapshot, now);
  if (verdict === "apply") apply(message, runs);
  return verdict === "apply" ? "ack" : verdict === "ask" ? "snapshot" : null;
}

/** What the kernel is told that the page has: nothing, if something is missing. @param {Link} link */
export function has(link) {
  return link.behind ? 0 : link.sequence;
}

/**
 * A frame arrived. "apply" it; or "ask" for a snapshot because one before it was lost; or "skip" it because
 * the snapshot is on its way.
 * @param {Link} link
 * @param {number} sequence
 * @param {boolean} snapshot
 * @param {number} now milliseconds
 * @returns {"apply" | "ask" | "skip"}
 */
export function receive(link, sequence, snapshot, now) {
  link.heard = now;
  if (snapshot || (!link.behind && sequence === link.sequence + 1)) {
    link.sequence = sequence;
    link.behind = false;
    return "apply";
  }
  if (!link.behind && sequence <= link.sequence) return "skip"; // meant for another view of the same run
  if (link.behind && now - link.asked < ASK_AGAIN) return "skip";
  link.behind = true;
  link.asked = now;
  return "ask";
}

/**
 * Whether to ask now if frames were lost: nothing came for a while, or an asked-for snapshot did not.
 * @param {Link} link
 * @param {number} now milliseconds
 */
export function tooQuiet(link, now) {
  if (now - Math.max(link.heard, link.asked) < QUIET) return false;
  link.asked = now;
  return true;
}

// Joins a page to its kernel: when it can be seen, what has gone lost, when the kernel has gone.

const LOOK = 1000; // milliseconds between looks at whether the kernel has gone quiet

/**
 * Show a page in `el`; returns what takes it away.
 * @template {Page} P
 * @param {import("@anywidget/types").RenderProps<any>} props
 * @param {(name: string, say: Say) => P} make
 * @param {(page: P, link: Link, message: any, buffers: DataView[]) => Answer} hear
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
