// Fields, lists to choose from and buttons, each with its label.
import { make } from "../dom/elements.js";

/** @param {string} text @param {Element} control @param {string} [kind] class of its own */
export function labelled(text, control, kind = "") {
  return make("label", { class: `nbe-label ${kind}`.trim() }, make("span", { class: "nbe-word" }, text), control);
}

/** @param {Record<string, string>} attributes @param {(text: string) => void} typed */
export function field(attributes, typed) {
  const input = make("input", { type: "text", class: "nbe-field", autocomplete: "off", spellcheck: "false", autocapitalize: "off", ...attributes });
  input.addEventListener("input", () => typed(input.value));
  return input;
}

/** @param {string} key @param {(value: string) => void} chosen */
export function select(key, chosen) {
  const element = make("select", { class: "nbe-select", "data-key": key });
  element.addEventListener("change", () => chosen(element.value));
  return element;
}

/** @param {HTMLSelectElement} element @param {[string, string][]} options values and words @param {string} value */
export function setOptions(element, options, value) {
  const now = [...element.options].map((one) => [one.value, one.text]);
  if (JSON.stringify(now) !== JSON.stringify(options)) {
    element.replaceChildren(...options.map(([one, text]) => make("option", { value: one }, text)));
  }
  if (element.value !== value) element.value = value;
}

/** @param {string} text @param {string} spoken @param {() => void} act */
export function button(text, spoken, act) {
  const element = make("button", { type: "button", class: "nbd-button", ...(spoken ? { "aria-label": spoken, title: spoken } : {}) }, text);
  element.addEventListener("click", () => {
    if (element.getAttribute("aria-disabled") !== "true") act();
  });
  return element;
}

/** Enables or disables a control; a disabled button keeps the focus. @param {Element} element @param {boolean} on */
export function enable(element, on) {
  if (on) element.removeAttribute("aria-disabled");
  else element.setAttribute("aria-disabled", "true");
}

/** @param {Element} element @param {boolean} wrong @param {string} described id of the element with the reason */
export function mark(element, wrong, described) {
  if (wrong) {
    element.setAttribute("aria-invalid", "true");
    element.setAttribute("aria-describedby", described);
  } else {
    element.removeAttribute("aria-invalid");
    element.removeAttribute("aria-describedby");
  }
}
