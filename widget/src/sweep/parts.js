// Small things that several parts of the page do.
import { make, setText } from "../dom.js";

/** @param {number} value @param {number} low @param {number} high */
export function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

/** Gives an element so many children. @template {Element} E @param {E} element @param {number} count @param {(at: number) => Element} one */
export function fill(element, count, one) {
  while (element.children.length > count) element.lastChild?.remove();
  while (element.children.length < count) element.append(one(element.children.length));
  return /** @type {HTMLElement[]} */ ([...element.children]);
}

/** Writes pairs of texts. @param {Element} element @param {[string, string][]} pairs @param {() => Element} one with a child for each text */
export function fillPairs(element, pairs, one) {
  fill(element, pairs.length, one).forEach((child, i) => pairs[i].forEach((text, at) => setText(child.children[at], text)));
}

/** What stands beside the pointer. @param {string} label @param {string} value */
export function fact(label, value) {
  return { label: label || value, value: label && value, tone: "transparent", kind: "fact", where: "" };
}

/** Whether a key is pressed together with another. @param {KeyboardEvent} event */
export function isHeld({ ctrlKey, metaKey, altKey }) {
  return ctrlKey || metaKey || altKey;
}

/** The notebook has uses for the same keys. @param {Event} event */
export function taken(event) {
  event.preventDefault();
  event.stopPropagation();
}

/** A figure's caption with its keys. @param {string} text @param {string} [kind] */
export function key(text, kind = "") {
  return make("span", { class: `nbd-key ${kind}` }, make("i"), make("span", {}, text));
}
