// @vitest-environment happy-dom
import { afterEach, expect, test, vi } from "vitest";
import { fillNextCell } from "../../src/sweep/cell.js";

// What it does in a notebook is tested in one: tests/browser/test_browser_sweep_cell.py.

/** @param {() => Promise<void>} writeText */
function withClipboard(writeText) {
  vi.stubGlobal("navigator", { clipboard: { writeText } });
}

afterEach(() => vi.unstubAllGlobals());

test("outside a notebook the text is copied", async () => {
  /** @type {string[]} */
  const copied = [];
  withClipboard(/** @type {any} */ (async (/** @type {string} */ text) => copied.push(text)));
  expect(await fillNextCell(document.createElement("div"), "lr = 1\n")).toBe("copied");
  expect(copied).toEqual(["lr = 1\n"]);
});

test("a refused copy is reported", async () => {
  withClipboard(() => Promise.reject(new Error("not allowed")));
  expect(await fillNextCell(document.createElement("div"), "lr = 1\n")).toBe("failed");
  expect(document.querySelector("textarea")).toBeNull();
});
