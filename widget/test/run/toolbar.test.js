// @vitest-environment happy-dom
import { beforeEach, expect, test } from "vitest";
import { ChartPicker, matching } from "../../src/run/toolbar.js";

const HOSTILE = "<img src=x onerror=alert(1)>";
/** @type {string[][]} */
let chosen = [];

/** @param {string[]} titles @param {string[]} drawn */
function picker(titles, drawn, count = titles.length) {
  const made = new ChartPicker("v", (wanted) => chosen.push(wanted));
  document.body.replaceChildren(made.element);
  made.show({ titles, count, most: 3 }, drawn);
  return made;
}

/** @param {ChartPicker} made @returns {HTMLInputElement[]} */
const boxes = (made) => [...made.list.querySelectorAll("input")];

beforeEach(() => {
  chosen = [];
});

test("exists only if there are more charts than are drawn", () => {
  expect(picker(["loss"], ["loss"]).element.hidden).toBe(true);
  expect(picker(["loss", "mae"], ["loss"]).element.hidden).toBe(false);
});

test("a tick adds a chart, another removes it", () => {
  const made = picker(["loss", "mae", "rmse"], ["loss", "mae"]);
  made.button.click();
  expect(made.button.getAttribute("aria-expanded")).toBe("true");
  boxes(made)[2].click();
  made.show(made.available, ["loss", "mae", "rmse"]);
  boxes(made)[0].click();
  expect(chosen).toEqual([["loss", "mae", "rmse"], ["mae", "rmse"]]);
});

test("at least one and at most all drawable charts are chosen", () => {
  const made = picker(["a", "b", "c", "d"], ["a", "b", "c"]);
  made.open(true);
  expect(boxes(made).map((box) => box.disabled)).toEqual([false, false, false, true]);
  expect(made.note.textContent).toBe("3 at most");
  made.show(made.available, ["a"]);
  boxes(made)[0].click();
  expect(chosen).toEqual([]);
  expect(boxes(made)[0].checked).toBe(true);
});

test("the filter lists what matches; Enter takes the only one, or a name that is not listed", () => {
  const made = picker(["loss", "layer 1 norm", "layer 2 norm"], ["loss"], 10_000);
  made.open(true);
  expect(made.note.textContent).toContain("3 of 10,000 listed");
  made.filter.value = "LAYER 2";
  made.filter.dispatchEvent(new Event("input"));
  expect(made.list.textContent).toBe("layer 2 norm");
  const enter = () => made.filter.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
  enter();
  made.filter.value = "layer 777 norm";
  enter();
  expect(chosen).toEqual([["loss", "layer 2 norm"], ["loss", "layer 777 norm"]]);
});

test("Escape folds it", () => {
  const made = picker(["loss", "mae"], ["loss"]);
  made.open(true);
  made.filter.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  expect(made.panel.hidden).toBe(true);
});

test("titles are text", () => {
  const made = picker([HOSTILE, "loss"], ["loss"]);
  made.open(true);
  expect(made.list.textContent).toContain(HOSTILE);
  expect(made.list.querySelector("img")).toBeNull();
});

test("matching", () => expect(matching(["Loss", "val", "gloss"], "LOSS")).toEqual(["Loss", "gloss"]));
