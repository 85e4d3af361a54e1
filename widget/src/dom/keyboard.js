// Keys pressed in a view are the view's, not the notebook's: there "d d" would delete the cell.

/** @param {HTMLElement} element a view @returns {() => void} unsubscribes */
export function captureKeys(element) {
  const onKey = (/** @type {KeyboardEvent} */ event) => suppressShortcuts(event, element);
  element.addEventListener("keydown", stopKey);
  addEventListener("keydown", onKey, true);
  return () => removeEventListener("keydown", onKey, true);
}

/** Whether a key is handled here and must not reach the notebook. @param {KeyboardEvent} event */
function isViewKey(event) {
  const held = event.ctrlKey || event.metaKey || event.altKey;
  return !held && event.key !== "Escape" && !(event.shiftKey && event.key === "Enter");
}

/** JupyterLab's handlers run after the view's. @param {KeyboardEvent} event */
function stopKey(event) {
  if (isViewKey(event)) event.stopPropagation();
}

/** Notebook 7's handlers run before the view's and take a slider's arrows, unless the target has this attribute. @param {KeyboardEvent} event @param {HTMLElement} element */
function suppressShortcuts(event, element) {
  const { target } = event;
  if (!(target instanceof Element) || !element.contains(target)) return;
  if (isViewKey(event)) target.setAttribute("data-lm-suppress-shortcuts", "true");
  else target.removeAttribute("data-lm-suppress-shortcuts");
}

/** Whether a key is pressed together with another. @param {KeyboardEvent} event */
export function hasModifier({ ctrlKey, metaKey, altKey }) {
  return ctrlKey || metaKey || altKey;
}

/** Keeps an event from the notebook, which binds the same keys. @param {Event} event */
export function consume(event) {
  event.preventDefault();
  event.stopPropagation();
}
