// @vitest-environment happy-dom
import { afterAll, beforeAll, beforeEach, expect, test, vi } from "vitest";
import { Layer } from "../../src/sweep/figures/canvas.js";

/** @typedef {import("../../src/sweep/figures/figure.js").Drawing} Page */

/** @type {HTMLCanvasElement[]} */
let drawOnto = [];
/** @type {Page} */
let page;
/** @type {number[]} */
let drawn = [];
const MANY = Array.from({ length: 250 }, (_, i) => i);

beforeAll(() => {
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(/** @type {any} */ ({ setTransform: () => null }));
});

afterAll(() => vi.restoreAllMocks());

beforeEach(() => {
  [drawOnto, drawn] = [[], []];
  const canvas = { drawImage: (/** @type {HTMLCanvasElement} */ surface) => drawOnto.push(surface) };
  page = /** @type {any} */ ({ canvas, width: 10, height: 10, ratio: 1 });
});

/** @param {Layer} layer */
function frame(layer) {
  layer.work((_, items) => drawn.push(...items));
  layer.drawOnto(page);
  return drawOnto[drawOnto.length - 1];
}

test("a frame draws within its budget, and the last frame completes the layer", () => {
  const layer = new Layer(100);
  expect(layer.begin("here", "a", page, () => MANY)).toBe(true);
  for (const count of [100, 200, 250]) {
    frame(layer);
    expect(drawn.length).toBeLessThanOrEqual(count);
  }
  while (!layer.isComplete()) frame(layer);
  expect(drawn).toEqual(MANY);
});

test("the previous complete layer is shown until the next is complete, unless the geometry differs", () => {
  const layer = new Layer(100);
  layer.begin("here", "a", page, () => [1]);
  const first = frame(layer);
  layer.begin("here", "b", page, () => MANY);
  expect(frame(layer)).toBe(first);
  expect(layer.begin("here", "c", page, () => [2])).toBe(false); // b would never be whole
  while (!layer.isComplete()) frame(layer);
  layer.drawOnto(page);
  expect(drawOnto[drawOnto.length - 1]).not.toBe(first);
  expect(layer.begin("here", "c", page, () => [2])).toBe(true);
  expect(layer.begin("there", "c", page, () => MANY)).toBe(true);
  expect(frame(layer)).toBe(layer.made.surface);
});

test("items can be added to a layer", () => {
  const layer = new Layer(100);
  layer.begin("here", "a", page, () => [1]);
  const first = frame(layer);
  drawn = [];
  layer.add([2, 3]);
  expect(frame(layer)).toBe(first);
  expect(drawn).toEqual([2, 3]);
});
