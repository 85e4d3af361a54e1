// Colours, read from the page so that the canvas follows the theme.

/** @typedef {Record<typeof NAMES[number], string> & { replicas: string[] }} Colours */

const NAMES = /** @type {const} */ (["ink", "muted", "grid", "accent", "second", "good", "bad", "surface", "fan"]);

/** How many replicas have a colour of their own; more share one. */
export const COLOURED = 8;

/** @param {Element} root @returns {Colours} */
export function readColours(root) {
  const style = getComputedStyle(root);
  const read = (/** @type {string} */ name) => style.getPropertyValue(`--nbd-${name}`).trim() || "gray";
  const colours = Object.fromEntries(NAMES.map((name) => [name, read(name)]));
  const replicas = Array.from({ length: COLOURED }, (_, i) => read(`r${i}`));
  return /** @type {Colours} */ ({ ...colours, replicas });
}

/** @param {Colours} colours @param {number} replica @param {number} count */
export function replicaColour(colours, replica, count) {
  return count <= COLOURED ? colours.replicas[replica % COLOURED] : colours.fan;
}
