// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { Output } from "../src/output.js";

const tasks = ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"];

/** @param {number} rank @param {string} text */
const news = (rank, text, cut = 0) => ({ task: tasks[rank], text, open: "", cut });

/** @param {Output} output */
const tabs = (output) => /** @type {HTMLButtonElement[]} */ ([...output.element.querySelectorAll("[role=tab]")]);

function tabbed() {
  const output = new Output("v");
  document.body.replaceChildren(output.element);
  output.arrange(true);
  output.add([news(2, "c\n"), news(0, "a\n"), news(1, "b\n")], tasks);
  return output;
}

describe("tabs of output", () => {
  test("stand in the order of the tasks, one of them open", () => {
    const output = tabbed();
    expect(tabs(output).map((tab) => tab.firstChild?.textContent)).toEqual(["worker 0", "worker 1", "worker 2"]);
    expect(tabs(output).filter((tab) => tab.getAttribute("aria-selected") === "true")).toHaveLength(1);
    for (const tab of tabs(output)) {
      const panel = document.getElementById(tab.getAttribute("aria-controls") ?? "");
      expect(panel?.getAttribute("aria-labelledby")).toBe(tab.id);
      expect(panel?.hidden).toBe(tab.getAttribute("aria-selected") !== "true");
    }
  });

  test("count the lines since they were looked at", () => {
    const output = tabbed();
    tabs(output)[0].click();
    output.add([news(0, "x\ny\n"), news(1, "x\ny\n")], tasks);
    expect(tabs(output).map((tab) => tab.textContent)).toEqual(["worker 0", "worker 13new lines", "worker 2"]);
    tabs(output)[1].click();
    expect(tabs(output)[1].textContent).toBe("worker 1");
  });

  test("what was looked at is not new again after a start anew, whatever was cut", () => {
    const output = tabbed();
    tabs(output)[1].click(); // "b\n" was seen
    tabs(output)[0].click();
    output.clear();
    output.add([news(1, "b\nd\n")], tasks);
    expect(tabs(output)[1].textContent).toBe("worker 11new line");
    output.clear();
    output.add([news(1, "d\ne\n", 2)], tasks);
    expect(tabs(output)[1].textContent).toBe("worker 12new lines");
  });

  test("arrow keys move through them", () => {
    const output = tabbed();
    tabs(output)[0].click();
    const press = (/** @type {string} */ key) =>
      output.tabs.dispatchEvent(new KeyboardEvent("keydown", { key }));
    const open = () => tabs(output).findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const seen = ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "Home", "End"].map((key) => (press(key), open()));
    expect(seen).toEqual([1, 2, 0, 2, 0, 2]);
    expect(tabs(output).map((tab) => tab.tabIndex)).toEqual([-1, -1, 0]);
  });

  test("sections become tabs when there are curves, and keep their text", () => {
    const output = new Output("v");
    output.add([news(1, "b\n"), news(0, "a\n")], tasks);
    expect(output.element.querySelectorAll("details")).toHaveLength(2);
    output.arrange(true);
    expect(output.element.querySelectorAll("details")).toHaveLength(0);
    expect([...output.element.querySelectorAll("pre")].map((pre) => pre.textContent)).toEqual(["a\n", "b\n"]);
    output.arrange(false);
    expect([...output.element.querySelectorAll("details pre")].map((pre) => pre.textContent)).toEqual(["a\n", "b\n"]);
  });
});
