import { expect, test } from "vitest";
import { drawGlyphs, FAILED, FINISHED, PRUNED, RUNNING, STATES, STOPPED, WAITING } from "../../src/sweep/states.js";

test("each state has its index on the wire", () => {
  expect(STATES.map(({ name }) => name)).toEqual(["waiting", "running", "finished", "pruned", "stopped", "failed"]);
  expect([WAITING, RUNNING, FINISHED, PRUNED, STOPPED, FAILED]).toEqual([0, 1, 2, 3, 4, 5]);
});

test("each state has its own glyph", () => expect(new Set(STATES.map(({ glyph }) => glyph)).size).toBe(STATES.length));

test.each([[FINISHED, ["fill"]], [RUNNING, ["fill"]], [FAILED, ["stroke"]], [PRUNED, ["fill", "stroke"]]])("state %s of many trials is drawn as one path", (state, painted) => {
  /** @type {string[]} */
  const calls = [];
  const canvas = new Proxy({}, { get: (_, name) => () => calls.push(String(name)), set: () => true });
  drawGlyphs(/** @type {any} */ (canvas), state, [1, 2, 30, 40, 5, 6], 4, "red");
  expect(calls.filter((name) => name === "fill" || name === "stroke")).toEqual(painted);
});
