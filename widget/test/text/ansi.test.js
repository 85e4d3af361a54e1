// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import cases from "../../../tests/terminal/ansi_cases.json";
import { coloured, spans } from "../../src/text/ansi.js";
import { Output } from "../../src/run/output.js";

const task = "/job:worker/task:0";

describe("terminal colours", () => {
  test.each(/** @type {[string, string[][]][]} */ (cases))("%j", (text, expected) => {
    expect(spans(text)).toEqual(expected);
  });

  test("are elements with classes, and text is only text", () => {
    const pre = document.createElement("pre");
    pre.append(...coloured("a \x1b[31m<img src=x onerror=alert(1)>\x1b[0m"));
    expect(pre.querySelector("img")).toBeNull();
    expect(pre.textContent).toBe("a <img src=x onerror=alert(1)>");
    expect(pre.querySelector("span")?.className).toBe("nbd-ansi nbd-ink-1");
  });

  test("are left out of a text that has too many", () => {
    expect(coloured("\x1b[31ma\x1b[32mb".repeat(2_001)).length).toBe(1);
  });

  test("are bounded in the output of a task, which keeps its text", () => {
    const output = new Output("v");
    for (let i = 0; i < 4; i++) output.add([{ task, text: "\x1b[31ma\x1b[32mb\x1b[0m".repeat(1_000) + "\n", open: "\x1b[34mopen\x1b[0m", cut: 0 }], [task]);
    const pre = /** @type {HTMLElement} */ (output.element.querySelector("pre"));
    expect(pre.textContent).toBe(("ab".repeat(1_000) + "\n").repeat(4) + "open");
    expect(pre.getElementsByClassName("nbd-ansi").length).toBe(4_001); // two of the four texts, and the open line
  });
});
