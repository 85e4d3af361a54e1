// Makes elements. Text is always set as text, never as HTML.

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, string>} [attributes]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Sets a text only if it differs, which keeps the selection and does not disturb a screen reader.
 * @param {Node} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Adds or removes children of an element until it has `count`. @template {Element} E @param {E} element @param {number} count @param {(at: number) => Element} one */
export function setChildCount(element, count, one) {
  while (element.children.length > count) element.lastChild?.remove();
  while (element.children.length < count) element.append(one(element.children.length));
  return /** @type {HTMLElement[]} */ ([...element.children]);
}

/** Writes pairs of texts. @param {Element} element @param {[string, string][]} pairs @param {() => Element} one with a child for each text */
export function setPairs(element, pairs, one) {
  setChildCount(element, pairs.length, one).forEach((child, i) => pairs[i].forEach((text, at) => setText(child.children[at], text)));
}

/** Short texts beside one another, each in an element of its own. @param {HTMLElement} element @param {string[]} texts */
export function setTexts(element, texts) {
  while (element.children.length > texts.length) element.lastChild?.remove();
  texts.forEach((text, i) => setText(element.children[i] ?? element.appendChild(make("span")), text));
}
