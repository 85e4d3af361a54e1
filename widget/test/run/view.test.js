// @vitest-environment happy-dom
import { beforeEach, describe, expect, test } from "vitest";
import { RunView } from "../../src/run/view.js";

const HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>";
const TASKS = ["/job:worker/task:0", HOSTILE];
/** @type {[string, Record<string, unknown> | undefined][]} */
let sent = [];

/** @param {Record<string, unknown>} [head] @param {Record<string, unknown>} [progress] */
function shown(head = {}, progress = {}) {
  const view = new RunView("v", (kind, more) => sent.push([kind, more]));
  document.body.replaceChildren(view.element);
  const plan = { title: HOSTILE, train: 0, validation: null };
  view.apply(/** @type {any} */ ({
    kind: "frame", snapshot: true, replaced: [],
    head: { title: HOSTILE, run: `${HOSTILE} 1`, tasks: TASKS, total: 10, charts: [plan], series: [HOSTILE], controls: ["pause", "stop", "set"], ...head },
    progress: {
      state: HOSTILE, step: 3, unit: HOSTILE, note: HOSTILE, learning_rate: 0.1, problem: { kind: "set", number: 1, text: HOSTILE },
      checkpoint: { number: 1, step: 3, path: HOSTILE, error: HOSTILE }, per_replica: { 0: { state: HOSTILE, step: 1, spent: { [HOSTILE]: 1 } } }, ...progress,
    },
    output: [{ task: HOSTILE, text: `${HOSTILE}\n`, open: HOSTILE, cut: 0 }],
    available: { titles: [HOSTILE, "other"], count: 2, most: 6 },
  }), [{ replica: 0, series: 0, steps: [1], values: [0.5] }]);
  view.draw();
  return view;
}

beforeEach(() => {
  sent = [];
});

test("the name of a run is shown as text", () => {
  const view = shown();
  view.picker.open(true);
  view.table.element.open = true;
  view.table.show(view.head.charts);
  view.charts[0].write();
  expect(view.element.querySelectorAll("img, script, b img")).toHaveLength(0);
  for (const part of [".nbd-title", ".nbd-run", ".nbd-note", ".nbd-problem", ".nbd-saved", ".nbd-chart-title", ".nbd-choices", ".nbd-data", ".nbd-tabs", ".nbd-state"]) {
    expect(view.element.querySelector(part)?.textContent, part).toContain(HOSTILE);
  }
});

test("the devices of a run, and a GPU that it does not use", () => {
  const view = shown({}, { state: "running", trained_on: "2 workers on CPU (8 cores)", warning: "worker 0 has a GPU" });
  expect(view.element.querySelector(".nbd-devices")?.textContent).toBe("trains on 2 workers on CPU (8 cores)");
  expect(view.element.querySelector(".nbd-warning")?.textContent).toBe("⚠ worker 0 has a GPU");
  view.apply(/** @type {any} */ ({ kind: "frame", snapshot: false, replaced: [], progress: { ...view.progress, state: "finished" }, gpus: [{ replica: 0, problem: "x" }] }), []);
  view.draw();
  expect(view.element.querySelector(".nbd-devices")?.textContent).toBe("trained on 2 workers on CPU (8 cores)");
  expect(view.gpus.element.hidden).toBe(false);
});

describe("a run", () => {
  beforeEach(() => localStorage.clear());

  test("keeps its view settings at its end and after a reload", () => {
    const view = shown({ run: "r-1" });
    view.toolbar.log.click();
    view.toolbar.slider.value = "0.5";
    view.toolbar.slider.dispatchEvent(new Event("input", { bubbles: true }));
    view.replicas.cards.get(0)?.click();
    view.table.element.open = true;
    view.keepSettings();
    const again = shown({ run: "r-1" });
    expect(again.shared.options).toEqual({ byTime: false, log: true, smoothing: 0.5, chosen: 0 });
    expect(again.toolbar.log.getAttribute("aria-pressed")).toBe("true");
    expect(again.toolbar.slider.value).toBe("0.5");
    expect(again.replicas.cards.get(0)?.getAttribute("aria-pressed")).toBe("true");
    expect(again.table.element.open).toBe(true);
    expect(shown({ run: "r-2" }).shared.options.log).toBe(false);
  });

  test("uses the default settings if the stored ones are damaged", () => {
    for (const kept of ["{", "[]", JSON.stringify({ "r-1": { log: 7, smoothing: 2, chosen: "x" } }), JSON.stringify({ "r-1": null })]) {
      localStorage.setItem("nbdist-looks", kept);
      expect(shown({ run: "r-1" }).shared.options).toEqual({ byTime: false, log: false, smoothing: 0, chosen: null });
    }
  });

  test("shows its marks as text, and only its output if it does not train", () => {
    const view = shown();
    const marks = [{ step: 1200, kind: "rate", text: HOSTILE }, { step: 1300, kind: "lost", text: "worker 1 lost" }];
    view.apply(/** @type {any} */ ({ kind: "frame", snapshot: false, replaced: [], marks }), []);
    view.draw();
    expect([...view.annotations.element.children].map(({ textContent }) => textContent)).toEqual([`◆step 1,200: ${HOSTILE}`, "✕step 1,300: worker 1 lost"].map((text) => text.replace("step", view.shared.unit.one)));
    expect(view.header.element.classList.contains("nbd-plain")).toBe(false);
    const plain = shown({ charts: [], total: null }, { step: null });
    expect(plain.header.element.classList.contains("nbd-plain")).toBe(true);
  });

  test("has the path of its checkpoint, and an empty bar if it stopped at an unknown step", () => {
    const view = shown({ total: null }, { state: "stopped", checkpoint: { number: 1, step: 1200, path: "/runs/a/step-1200", error: null } });
    expect(view.header.saved.textContent).toBe("checkpoint at step 1,200: /runs/a/step-1200Copy");
    expect(view.header.copy.hidden).toBe(false);
    expect(view.header.fill.style.width).toBe("0%");
    expect(shown({ total: 6 }, { state: "failed" }).header.fill.style.width).toBe("50%");
  });
});

describe("a command", () => {
  test("is sent to the kernel", () => {
    const view = shown({}, { state: "running" });
    view.header.controls.pause.click();
    view.header.controls.rate.commit(0.25);
    view.picker.toggleChart("other", true);
    expect(sent).toEqual([["pause", {}], ["set", { learning_rate: 0.25 }], ["charts", { titles: [HOSTILE, "other"] }]]);
  });

  test("is not sent after the end of the kernel, and the view says what to do", () => {
    const view = shown({ again: "to reconnect, run nb.attach('r')" }, { state: "running" });
    view.disconnect();
    view.draw();
    expect(view.header.state.textContent).toBe("disconnected");
    expect(view.header.note.textContent).toBe("to reconnect, run nb.attach('r')");
    expect(view.header.controls.element.hidden).toBe(true);
    expect(view.header.controls.rate.field.disabled).toBe(true);
    view.progress = { state: "finished" };
    view.disconnect();
    expect(view.progress.state).toBe("finished"); // its end is its end
  });
});

test("what is announced has no figures that change all the time", () => {
  const view = shown({}, { state: "running", note: "worker 1 is slow: 1.3x the others' step; worker 2 was lost" });
  const live = () => [...view.element.querySelectorAll("[role=status], [role=alert]")].map(({ textContent }) => textContent);
  const before = live();
  expect(before).toContain("worker 1 is slow; worker 2 was lost");
  view.progress = { ...view.progress, note: "worker 1 is slow: 1.4x the others' step; worker 2 was lost", step: 4, elapsed: 9 };
  view.draw();
  expect(view.header.note.textContent).toContain("1.4x");
  expect(live()).toEqual(before);
});

test("keys in the view do not reach the notebook, except global ones", () => {
  const view = shown();
  /** @type {string[]} */
  const reached = [];
  document.body.addEventListener("keydown", (event) => reached.push(event.key));
  for (const init of [{ key: "d" }, { key: "Enter", shiftKey: true }, { key: "s", ctrlKey: true }, { key: "ArrowDown" }, { key: "Escape" }]) {
    view.header.controls.stop.dispatchEvent(new KeyboardEvent("keydown", { ...init, bubbles: true }));
  }
  expect(reached).toEqual(["Enter", "s", "Escape"]);
});
