// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { Output } from "../../src/run/output.js";
import { Header } from "../../src/run/header.js";
import { ReplicaCards } from "../../src/run/replicas.js";

const HOSTILE = "<img src=x onerror=alert(1)>";
const tasks = ["/job:worker/task:0", "/job:worker/task:1"];

describe("Output", () => {
  test("appends, rewrites the open line, and keeps the order of the tasks", () => {
    const output = new Output("v");
    output.add([{ task: tasks[1], text: "later\n", open: "", cut: 0 }], tasks);
    output.add([{ task: tasks[0], text: "one\n", open: "10%", cut: 0 }], tasks);
    output.add([{ task: tasks[0], text: "", open: "20%", cut: 0 }], tasks);
    output.add([{ task: tasks[0], text: "two\n", open: "", cut: 0 }], tasks);
    expect([...output.element.querySelectorAll(".nbd-task")].map((e) => e.textContent)).toEqual(["worker 0", "worker 1"]);
    expect(output.element.querySelector("pre")?.textContent).toBe("one\ntwo\n");
    expect(output.element.querySelector(".nbd-count")?.textContent).toBe("2 lines");
  });

  test("drops lines that change again, also in coloured text", () => {
    const output = new Output("v");
    const shown = () => output.element.querySelector("pre")?.textContent;
    output.add([{ task: tasks[0], text: "begun\n\x1b[32ma 1%\x1b[0m\nb", open: "", cut: 0 }], tasks);
    output.add([{ task: tasks[0], text: " 1%\nc\n", open: "", cut: 0 }], tasks);
    output.add([{ task: tasks[0], text: "", open: "a 2%\nb 2%\n", cut: 0, drop: 3 }], tasks);
    expect(shown()).toBe("begun\na 2%\nb 2%\n");
    expect(output.element.querySelector(".nbd-count")?.textContent).toBe("3 lines");
    output.add([{ task: tasks[0], text: "a 3%\n\x1b[31mred\x1b[0m\n", open: "", cut: 0 }], tasks);
    expect(shown()).toBe("begun\na 3%\nred\n");
    output.add([{ task: tasks[0], text: "x\n", open: "", cut: 0, drop: 99 }], tasks);
    expect(shown()).toBe("x\n");
  });

  test("is text, also if it looks like HTML", () => {
    const output = new Output("v");
    output.add([{ task: HOSTILE, text: HOSTILE, open: HOSTILE, cut: 7 }], [HOSTILE]);
    expect(output.element.querySelector("img")).toBeNull();
    expect(output.element.textContent).toContain(HOSTILE);
    expect(output.element.textContent).toContain("7 characters cut");
  });

  test("keeps a bounded amount", () => {
    const output = new Output("v");
    for (let i = 0; i < 100; i++) output.add([{ task: tasks[0], text: "x".repeat(9_999) + "\n", open: "", cut: 0 }], tasks);
    expect(output.element.querySelector("pre")?.textContent?.length).toBeLessThanOrEqual(200_000);
  });

  test("is replaced by a snapshot", () => {
    const output = new Output("v");
    output.add([{ task: tasks[0], text: "one\n", open: "", cut: 0 }], tasks);
    output.clear();
    output.add([{ task: tasks[0], text: "one\n", open: "", cut: 0 }], tasks);
    expect(output.element.querySelector("pre")?.textContent).toBe("one\n");
  });
});

describe("Header", () => {
  test("shows state, progress and facts", () => {
    const header = new Header("v", () => {});
    header.show({ title: "digits", total: 200, controls: ["stop"] }, { state: "running", step: 50, steps_per_second: 12.34, seconds_left: 12 });
    expect(header.bar.getAttribute("aria-valuenow")).toBe("25");
    expect(header.facts.textContent).toBe("50 / 200steps12.3steps/s12 sleft");
    expect(header.controls.element.hidden).toBe(false);
    header.show({ title: "digits", total: 200, controls: ["stop"] }, { state: "finished", step: 200 });
    expect(header.controls.element.hidden).toBe(true);
  });

  test("names the time of training, which has the rate of a run that is over", () => {
    const header = new Header("v", () => {});
    header.show({ title: "digits", total: 92 }, { state: "finished", step: 92, steps_per_second: 370, unit: "updates", training_seconds: 0.25, elapsed: 26.5 });
    expect(header.facts.textContent).toBe("92 / 92updates370updates/s0.3 sof training27 selapsed");
  });

  test("shows no speed while a run is paused", () => {
    const header = new Header("v", () => {});
    header.show({ title: "digits", total: 200 }, { state: "paused", step: 50, steps_per_second: 12, examples_per_second: 9, seconds_left: 12, elapsed: 3 });
    expect(header.facts.textContent).toBe("50 / 200steps3.0 selapsed");
  });

  test("a run without steps has no bar", () => {
    const header = new Header("v", () => {});
    header.show({ title: HOSTILE }, { state: HOSTILE, note: HOSTILE });
    expect(header.bar.hidden).toBe(true);
    expect(header.element.querySelector("img")).toBeNull();
  });
});

describe("Strip", () => {
  test("has a card for each replica, and removes those of ended replicas", () => {
    const strip = new ReplicaCards(() => {});
    strip.show({ 0: { state: "running", step: 1234 }, 10: { state: "lost" }, 2: {} }, ["worker 0"]);
    expect([...strip.element.querySelectorAll(".nbd-name")].map((e) => e.textContent)).toEqual(["worker 0", "replica 2", "replica 10"]);
    expect(strip.element.querySelector(".nbd-figures")?.textContent).toBe("step\u00a01,234");
    strip.show({ 0: {} }, []);
    expect(strip.cards.size).toBe(1);
  });

  test("shows a lost replica, and the number of gradients that were not applied", () => {
    const strip = new ReplicaCards(() => {});
    strip.show({ 0: { state: "running", step: 9, dropped: 1234, skipped: 2 }, 1: { state: "lost", step: 4, dropped: null } }, []);
    const [here, lost] = /** @type {HTMLElement[]} */ ([...strip.element.querySelectorAll(".nbd-card")]);
    expect(here.querySelector(".nbd-figures")?.textContent).toBe("step\u00a09 · 1,234\u00a0dropped · 2\u00a0left\u00a0out");
    expect(lost.dataset.state).toBe("lost");
    expect(lost.querySelector(".nbd-state")?.textContent).toBe("lost");
    expect(lost.querySelector(".nbd-figures")?.textContent).toBe("step\u00a04");
  });

  test("shows a replica that was replaced", () => {
    const strip = new ReplicaCards(() => {});
    strip.show({ 0: { state: "restarting", step: 4 }, 1: { state: "running", step: 9, restart: "replaced after 3.1 s, joined at step 4" } }, []);
    const [restarting, joined] = /** @type {HTMLElement[]} */ ([...strip.element.querySelectorAll(".nbd-card")]);
    expect(restarting.querySelector(".nbd-state")?.textContent).toBe("restarting");
    expect(joined.querySelector(".nbd-figures")?.textContent).toBe("step\u00a09 · replaced after 3.1 s, joined at step 4");
  });

  test("puts the cards of several hosts below their host", () => {
    const strip = new ReplicaCards(() => {});
    const groups = () => [...strip.grid.children].map((group) => [
      group.getAttribute("aria-label"), ...[...group.querySelectorAll(".nbd-name")].map((name) => name.textContent),
    ]);
    strip.show({ 0: { host: "a" }, 1: { host: "a" }, 2: { host: "b" }, 10: { host: "c" } }, []);
    expect(groups()).toEqual([["host a", "replica 0", "replica 1"], ["host b", "replica 2"], ["host c", "replica 10"]]);
    const card = strip.cards.get(10);
    strip.show({ 0: { host: "b" }, 1: { host: "a" }, 2: { host: "b" }, 10: { host: "a" } }, []); // c is lost
    expect(groups()).toEqual([["host a", "replica 1", "replica 10"], ["host b", "replica 0", "replica 2"]]);
    expect(strip.cards.get(10)).toBe(card);
    strip.show({ 0: { host: null }, 1: {} }, []);
    expect([...strip.grid.children]).toEqual([strip.cards.get(0), strip.cards.get(1)]);
    expect(strip.grid.classList.contains("nbd-hosts")).toBe(false);
  });

  test("shows the parts of a step's time", () => {
    const strip = new ReplicaCards(() => {});
    strip.show({ 0: { spent: { data: 1, compute: 6, exchange: 2, wait: 1 } }, 1: {} }, []);
    const [bar, none] = /** @type {HTMLElement[]} */ ([...strip.element.querySelectorAll(".nbd-spent")]);
    expect(bar.title).toBe("10 s a step: data 10%, compute 60%, communication 20%, idle 10%");
    expect(none.hidden).toBe(true);
    expect(strip.key.hidden).toBe(false);
    expect(strip.key.textContent).toBe("step time:datacomputecommunicationidle");
    strip.show({ 1: {} }, []);
    expect(strip.key.hidden).toBe(true);
  });

  test("chooses a replica, and clears the choice", () => {
    /** @type {(number | null)[]} */
    const chosen = [];
    const strip = new ReplicaCards((replica) => chosen.push(replica));
    strip.show({ 0: {}, 1: {} }, []);
    const card = /** @type {HTMLButtonElement} */ (strip.cards.get(1));
    card.click();
    expect(card.getAttribute("aria-pressed")).toBe("true");
    card.click();
    expect(chosen).toEqual([1, null]);
  });

  test("many cards are one Tab stop, and arrow keys move through them", () => {
    const strip = new ReplicaCards(() => {});
    document.body.replaceChildren(strip.element);
    const show = (/** @type {number} */ count) =>
      strip.show(Object.fromEntries(Array.from({ length: count }, (_, i) => [i, {}])), []);
    const stops = () => [...strip.cards].filter(([, card]) => card.tabIndex === 0).map(([number]) => number);
    show(3);
    expect(stops()).toEqual([0, 1, 2]);
    show(16);
    expect(stops()).toEqual([0]);
    strip.cards.get(0)?.focus();
    for (const key of ["ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft", "End"]) {
      strip.grid.dispatchEvent(new KeyboardEvent("keydown", { key }));
    }
    expect(document.activeElement).toBe(strip.cards.get(15));
    show(16);
    expect(stops()).toEqual([15]);
    show(10);
    expect(stops()).toEqual([0]);
  });
});

const threeTasks = ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"];

/** @param {number} rank @param {string} text */
const news = (rank, text, cut = 0) => ({ task: threeTasks[rank], text, open: "", cut });

/** @param {Output} output */
const tabs = (output) => /** @type {HTMLButtonElement[]} */ ([...output.element.querySelectorAll("[role=tab]")]);

function tabbed() {
  const output = new Output("v");
  document.body.replaceChildren(output.element);
  output.setTabbed(true);
  output.add([news(2, "c\n"), news(0, "a\n"), news(1, "b\n")], threeTasks);
  return output;
}

describe("tabs of output", () => {
  test("are in the order of the tasks, with one of them open", () => {
    const output = tabbed();
    expect(tabs(output).map((tab) => tab.firstChild?.textContent)).toEqual(["worker 0", "worker 1", "worker 2"]);
    expect(tabs(output).filter((tab) => tab.getAttribute("aria-selected") === "true")).toHaveLength(1);
    for (const tab of tabs(output)) {
      const panel = document.getElementById(tab.getAttribute("aria-controls") ?? "");
      expect(panel?.getAttribute("aria-labelledby")).toBe(tab.id);
      expect(panel?.hidden).toBe(tab.getAttribute("aria-selected") !== "true");
    }
  });

  test("count the lines since they were last open", () => {
    const output = tabbed();
    tabs(output)[0].click();
    output.add([news(0, "x\ny\n"), news(1, "x\ny\n")], threeTasks);
    expect(tabs(output).map((tab) => tab.textContent)).toEqual(["worker 0", "worker 13new lines", "worker 2"]);
    tabs(output)[1].click();
    expect(tabs(output)[1].textContent).toBe("worker 1");
  });

  test("read lines are not counted again after a snapshot, also if text was cut", () => {
    const output = tabbed();
    tabs(output)[1].click(); // "b\n" was seen
    tabs(output)[0].click();
    output.clear();
    output.add([news(1, "b\nd\n")], threeTasks);
    expect(tabs(output)[1].textContent).toBe("worker 11new line");
    output.clear();
    output.add([news(1, "d\ne\n", 2)], threeTasks);
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
    output.add([news(1, "b\n"), news(0, "a\n")], threeTasks);
    expect(output.element.querySelectorAll("details")).toHaveLength(2);
    output.setTabbed(true);
    expect(output.element.querySelectorAll("details")).toHaveLength(0);
    expect([...output.element.querySelectorAll("pre")].map((pre) => pre.textContent)).toEqual(["a\n", "b\n"]);
    output.setTabbed(false);
    expect([...output.element.querySelectorAll("details pre")].map((pre) => pre.textContent)).toEqual(["a\n", "b\n"]);
  });
});
