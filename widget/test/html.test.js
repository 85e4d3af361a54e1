import { expect, test } from "vitest";

test("no module sets HTML or evaluates text", () => {
  // @ts-expect-error Vite reads the files when it builds
  const sources = /** @type {Record<string, string>} */ (import.meta.glob("../src/**/*.js", { query: "?raw", import: "default", eager: true }));
  expect(Object.keys(sources).length).toBeGreaterThan(45);
  for (const [file, text] of Object.entries(sources)) {
    expect(text, file).not.toMatch(/innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|eval\(/);
  }
});
