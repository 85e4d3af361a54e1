// Buttons: one that keeps the focus while it is disabled, one that opens a panel, one that asks for confirmation.
import { make } from "./elements.js";

/** @param {string} text @param {string} title @param {() => void} act */
export function button(text, title, act) {
  const made = make("button", { class: "nbd-button", type: "button", title }, text);
  made.addEventListener("click", () => {
    if (made.getAttribute("aria-disabled") !== "true") act();
  });
  return made;
}

/** @param {HTMLElement} element @param {boolean} on @param {string} [why] the title while it is off */
export function enable(element, on, why) {
  element.dataset.title ??= element.title;
  element.title = (!on && why) || element.dataset.title;
  if (on) element.removeAttribute("aria-disabled");
  else element.setAttribute("aria-disabled", "true");
}

/** A button that opens and closes something. @param {string} text @param {string} title @param {HTMLElement} what with an id @param {(open: boolean) => void} [onChange] */
export function disclosureButton(text, title, what, onChange = () => {}) {
  const made = button(text, title, () => setOpen(Boolean(what.hidden)));
  const setOpen = (/** @type {boolean} */ open) => {
    what.hidden = !open;
    made.setAttribute("aria-expanded", String(open));
    onChange(open);
    if (open) /** @type {HTMLElement | null} */ (what.querySelector("input, textarea, select"))?.focus();
    else if (what.contains(document.activeElement)) made.focus();
  };
  made.setAttribute("aria-controls", what.id);
  made.setAttribute("aria-expanded", "false");
  what.hidden = true;
  what.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || what.hidden) return;
    setOpen(false);
    made.focus();
    event.stopPropagation();
  });
  return Object.assign(made, { setOpen });
}

/** A button that asks for confirmation, for actions that cannot be undone; `button` is the one that asks. @param {string} text @param {string} title @param {string} question @param {string} yes @param {() => void} act */
export function confirmButton(text, title, question, yes, act) {
  const ask = (/** @type {boolean} */ open) => {
    confirmation.hidden = !open;
    first.hidden = open;
    (open ? no : first).focus();
  };
  const first = button(text, title, () => ask(true));
  const go = button(yes, title, () => {
    ask(false);
    act();
  });
  const no = button("No", "Cancel", () => ask(false));
  go.classList.add("nbd-grave");
  const confirmation = make("span", { class: "nbd-sure", role: "group", "aria-label": question }, question, go, no);
  confirmation.hidden = true;
  confirmation.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    ask(false);
    event.stopPropagation();
  });
  return Object.assign(make("span", { class: "nbd-twice" }, first, confirmation), { button: first });
}
