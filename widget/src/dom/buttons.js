// Buttons that can be switched off and keep the focus, and those that ask once more.
import { make } from "./elements.js";

/** @param {string} text @param {string} title @param {() => void} act */
export function button(text, title, act) {
  const made = make("button", { class: "nbd-button", type: "button", title }, text);
  made.addEventListener("click", () => {
    if (made.getAttribute("aria-disabled") !== "true") act();
  });
  return made;
}

/** @param {HTMLElement} element @param {boolean} on @param {string} [why] not, as its title */
export function enable(element, on, why) {
  element.dataset.title ??= element.title;
  element.title = (!on && why) || element.dataset.title;
  if (on) element.removeAttribute("aria-disabled");
  else element.setAttribute("aria-disabled", "true");
}

/** A button that opens and closes something. @param {string} text @param {string} title @param {HTMLElement} what with an id @param {(open: boolean) => void} [told] */
export function opener(text, title, what, told = () => {}) {
  const made = button(text, title, () => turn(Boolean(what.hidden)));
  const turn = (/** @type {boolean} */ open) => {
    what.hidden = !open;
    made.setAttribute("aria-expanded", String(open));
    told(open);
    if (open) /** @type {HTMLElement | null} */ (what.querySelector("input, textarea, select"))?.focus();
    else if (what.contains(document.activeElement)) made.focus();
  };
  made.setAttribute("aria-controls", what.id);
  made.setAttribute("aria-expanded", "false");
  what.hidden = true;
  what.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || what.hidden) return;
    turn(false);
    made.focus();
    event.stopPropagation();
  });
  return Object.assign(made, { turn });
}

/** What cannot be taken back is asked once more. @param {string} text @param {string} title @param {string} question @param {string} yes @param {() => void} act */
export function sureButton(text, title, question, yes, act) {
  const ask = (/** @type {boolean} */ open) => {
    sure.hidden = !open;
    first.hidden = open;
    (open ? no : first).focus();
  };
  const first = button(text, title, () => ask(true));
  const go = button(yes, title, () => {
    ask(false);
    act();
  });
  const no = button("No", "Nothing happens", () => ask(false));
  go.classList.add("nbs-grave");
  const sure = make("span", { class: "nbs-sure", role: "group", "aria-label": question }, question, go, no);
  sure.hidden = true;
  sure.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    ask(false);
    event.stopPropagation();
  });
  return make("span", { class: "nbs-twice" }, first, sure);
}
