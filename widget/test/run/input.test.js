// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { InputSection } from "../../src/run/input.js";

const SLOW = {
  task: "worker 1", verdict: "map(f) is the bottleneck: busy 96% of the time", advice: ["give map(f) workers=2"],
  rows: [{ stage: "csv", "elements/s": "40", busy: "1.0%" }, { stage: "▶ map(f)", "elements/s": "40", busy: "96%" }],
};

describe("the input pipeline", () => {
  test("names the bottleneck, marks its row and gives advice", () => {
    const section = new InputSection();
    section.show(SLOW, 2);
    expect(section.element.querySelector("summary")?.textContent).toBe(`Inputworker 1: ${SLOW.verdict}`);
    expect([...section.element.querySelectorAll("th[scope=col]")].map((node) => node.textContent)).toEqual(["stage", "elements/s", "busy"]);
    expect(section.element.querySelector(".nbd-slowest")?.textContent).toBe("▶ map(f)4096%");
    expect(section.element.querySelector("li")?.textContent).toBe("give map(f) workers=2");
    section.show(SLOW, 1);
    expect(section.element.querySelector("summary")?.textContent).toBe(`Input${SLOW.verdict}`);
  });

  test("is hidden without data, and text is text", () => {
    const section = new InputSection();
    for (const nothing of [null, undefined, 3, {}, { verdict: "a" }, { verdict: 1, rows: [] }]) {
      section.show(nothing, 1);
      expect(section.element.hidden).toBe(true);
    }
    section.show({ ...SLOW, rows: [{ stage: "<img src=x>" }, null, 4] }, 1);
    expect(section.element.hidden).toBe(false);
    expect(section.element.querySelector("img")).toBeNull();
  });
});
