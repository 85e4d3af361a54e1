// Connects a page to its kernel: applies frames, requests lost ones and reports the page's visibility.
import { decodeFrame } from "./frames.js";

/** @typedef {{ sequence: number, incomplete: boolean, requestedAt: number, receivedAt: number }} FrameSequence */
/** @typedef {(kind: string, more?: object) => void} Send */
/** @typedef {"ack" | "snapshot" | null} Reply the reply to a message */
/**
 * A connected page: redraw is called when it must be drawn again, disconnect when the kernel has ended.
 * @typedef {{ element: HTMLElement, disconnect: () => void, redraw: () => void, close: () => void, over: () => boolean }} Page
 */

const RETRY_SNAPSHOT = 500; // milliseconds between two requests for the same snapshot
const SILENCE = 2000; // milliseconds without a frame after which the page requests a snapshot

/** @param {number} now milliseconds @returns {FrameSequence} */
export function newFrameSequence(now) {
  return { sequence: 0, incomplete: true, requestedAt: now, receivedAt: now };
}

/**
 * Applies a frame if it is the next one; returns the reply to the kernel.
 * @template {{ snapshot: boolean }} M
 * @param {FrameSequence} link
 * @param {M} message
 * @param {DataView} bytes
 * @param {number} now milliseconds
 * @param {(message: M, segments: import("./frames.js").CurveSegment[]) => void} apply
 * @returns {"ack" | "snapshot" | null}
 */
export function applyFrame(link, message, bytes, now, apply) {
  const { sequence, segments } = decodeFrame(bytes);
  const verdict = receive(link, sequence, message.snapshot, now);
  if (verdict === "apply") apply(message, segments);
  return verdict === "apply" ? "ack" : verdict === "ask" ? "snapshot" : null;
}

/** The last frame that the page has applied; 0 if one is missing. @param {FrameSequence} link */
export function lastApplied(link) {
  return link.incomplete ? 0 : link.sequence;
}

/**
 * Decides what to do with a frame: "apply" it, "ask" for a snapshot because an earlier frame was lost, or "skip"
 * it because a snapshot was requested.
 * @param {FrameSequence} link
 * @param {number} sequence
 * @param {boolean} snapshot
 * @param {number} now milliseconds
 * @returns {"apply" | "ask" | "skip"}
 */
export function receive(link, sequence, snapshot, now) {
  link.receivedAt = now;
  if (snapshot || (!link.incomplete && sequence === link.sequence + 1)) {
    link.sequence = sequence;
    link.incomplete = false;
    return "apply";
  }
  if (!link.incomplete && sequence <= link.sequence) return "skip"; // sent for another view of the same run
  if (link.incomplete && now - link.requestedAt < RETRY_SNAPSHOT) return "skip";
  link.incomplete = true;
  link.requestedAt = now;
  return "ask";
}

/**
 * Whether to request a snapshot now: neither a frame nor a requested snapshot has arrived for 2 s.
 * @param {FrameSequence} link
 * @param {number} now milliseconds
 */
export function isSilent(link, now) {
  if (now - Math.max(link.receivedAt, link.requestedAt) < SILENCE) return false;
  link.requestedAt = now;
  return true;
}

// Connects a page: reports its visibility, requests lost frames, and detects the end of the kernel.

const POLL = 1000; // milliseconds between checks whether the kernel is silent

/**
 * Shows a page in `el`; returns a function that removes it.
 * @template {Page} P
 * @param {import("@anywidget/types").RenderProps<any>} props
 * @param {(name: string, send: Send) => P} make
 * @param {(page: P, link: FrameSequence, message: any, buffers: DataView[]) => Reply} receiveMessage
 */
export function connect({ model, el }, make, receiveMessage) {
  const name = `nbdist-${Math.random().toString(36).slice(2)}`;
  const link = newFrameSequence(performance.now());
  let onScreen = false;
  const visible = () => onScreen && !document.hidden;
  /** @type {Send} */
  const send = (kind, more = {}) => {
    try {
      model.send({ kind, view: name, visible: visible(), sequence: lastApplied(link), ...more });
    } catch {
      page.disconnect(); // the kernel restarted or ended, and closed the channel
    }
  };

  const page = make(name, send);
  el.append(page.element);

  const onMessage = (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
    const answer = receiveMessage(page, link, message, buffers);
    if (answer === "snapshot") send("snapshot");
    // A frame is acknowledged when it is drawn, so that a busy page gets fewer frames.
    else if (answer === "ack" && visible()) requestAnimationFrame(() => send("ack"));
  };
  model.on("msg:custom", onMessage);

  const seen = new IntersectionObserver((entries) => {
    const now = entries[entries.length - 1].isIntersecting;
    if (now === onScreen) return;
    onScreen = now;
    send("visible");
    page.redraw(); // data may have changed while it was hidden
  });
  seen.observe(page.element);
  let inUse = false; // so that the kernel does not replace the view: a field has the focus, or an open form has what was typed
  let draft = false; // whether something was typed into a form and not sent
  const onUse = (/** @type {Event} */ { type, target }) => {
    const focused = type === "focusin" ? target : type === "focusout" ? null : document.activeElement;
    const isTyping = focused instanceof Element && page.element.contains(focused) && focused.matches("input, textarea, select");
    if (target instanceof Element && target.closest("form")) draft = type === "input" || (draft && !(type === "click" && target.closest("button")));
    draft &&= [...page.element.querySelectorAll("form")].some((form) => !form.closest("[hidden]"));
    const now = isTyping || draft;
    // While another window has the focus, what is typed here stays in use.
    if (now !== inUse && (now || document.hasFocus())) send("focus", { focused: (inUse = now) });
  };
  for (const type of ["focusin", "focusout", "click", "input"]) page.element.addEventListener(type, onUse);
  const onVisibility = () => send("visible");
  document.addEventListener("visibilitychange", onVisibility);
  const resized = new ResizeObserver(() => page.redraw());
  resized.observe(page.element);
  const themed = new MutationObserver(() => page.redraw());
  themed.observe(document.body, { attributes: true, attributeFilter: ["class", "data-jp-theme-name", "data-jp-theme-light"] });
  const timer = setInterval(() => {
    if (visible() && !page.over() && isSilent(link, performance.now())) send("snapshot");
  }, POLL);
  send("ready");

  return () => {
    clearInterval(timer);
    for (const observer of [seen, resized, themed]) observer.disconnect();
    document.removeEventListener("visibilitychange", onVisibility);
    model.off("msg:custom", onMessage);
    send("closed");
    page.close();
    page.element.remove();
  };
}
