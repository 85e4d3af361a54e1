// @vitest-environment happy-dom
import { beforeEach, expect, test, vi } from "vitest";
import { Editor } from "../../src/space/editor.js";

/** @typedef {import("../../src/space/state.js").State} State */
/** @typedef {import("../../src/space/state.js").Row} Row */

const HOSTILE = "<img src=x onerror=alert(1)>";
const KINDS = /** @type {[string, string][]} */ ([["uniform", "uniform"], ["log", "log-uniform"], ["int", "integer"], ["log int", "log-integer"], ["choice", "choice"], ["fixed", "fixed"]]);
/** @type {any[]} */
let sent = [];

/** @param {number} id @param {string} name @param {Partial<Row>} [more] @returns {Row} */
const row = (id, name, more = {}) => ({
  id, name, kind: "log", low: "0.001", high: "0.1", step: "", points: "", values: "", value: "", too_long: false, count: 0, read: [],
  when: [], problem: null, ...more,
});
const opt = row(1, "opt", { kind: "choice", values: "'sgd', 'adam'", count: 2, read: [["'sgd'", "text"], ["'adam'", "text"]] });

/** @param {Row[]} rows @param {Partial<State>} [more] @returns {State} */
const state = (rows, more = {}) => ({
  kind: "state", applied: {}, kinds: KINDS, rows, general: "", sampler: "random", samplers: ["random", "grid"], pruner: "none",
  pruners: ["none", "asha"], trials: "12", count: 12, points: null, trials_problem: "", text: "lr=log(0.001, 0.1)", too_long: false,
  valid: true, startable: true, starting: false, result: null, ...more,
});

/** @param {Row[]} rows @param {Partial<State>} [more] */
function shown(rows, more) {
  const editor = new Editor("v", (kind, content = {}) => sent.push({ kind, ...content }));
  document.body.replaceChildren(editor.element);
  editor.apply(state(rows, more));
  return editor;
}

/** @param {Editor} editor @param {number} id */
function part(editor, id) {
  const found = editor.rows.get(id);
  if (!found) throw new Error(`no row ${id}`);
  return found;
}

/** @param {HTMLInputElement | HTMLSelectElement} input @param {string} value */
function type(input, value, kind = "input") {
  input.value = value;
  input.dispatchEvent(new Event(kind, { bubbles: true }));
}

beforeEach(() => {
  sent = [];
});

test("a slider writes its value into the field and sends it", () => {
  const editor = shown([row(0, "lr")]);
  const { sliders, fields } = part(editor, 0);
  type(sliders.low, String(Number(sliders.low.value) - 1));
  expect(fields.low.value).toBe("0.0005");
  expect(sliders.low.getAttribute("aria-valuetext")).toBe("0.0005");
  expect(sent).toEqual([{ kind: "edit", number: 1, change: { what: "field", id: 0, field: "low", value: "0.0005" } }]);
});

test("a typed text stays until the kernel has applied it, and edits of another page are shown", () => {
  const editor = shown([row(0, "lr")]);
  const { name, high } = part(editor, 0).fields;
  type(name, "rate");
  editor.apply(state([row(0, "lr", { high: "1" })]));
  expect([name.value, high.value]).toEqual(["rate", "1"]);
  editor.apply(state([row(0, "rate")], { applied: { v: 1 } }));
  editor.apply(state([row(0, "other")], { applied: { v: 1, w: 3 } }));
  expect(name.value).toBe("other");
});

test("each kind has its own fields", () => {
  const editor = shown([row(0, "lr"), opt, row(2, "n", { kind: "int", low: "1", high: "9" }), row(3, "e", { kind: "fixed", value: "5" })]);
  const visible = (/** @type {number} */ id) => {
    const { range, steps, points, values, value, chips } = part(editor, id);
    return Object.entries({ range, steps, points, values, value, chips }).filter(([, one]) => !one.hidden).map(([name]) => name);
  };
  expect([0, 1, 2, 3].map(visible)).toEqual([["range"], ["values", "chips"], ["range", "steps"], ["value"]]);
  editor.apply(state([row(0, "lr")], { sampler: "grid" }));
  expect(visible(0)).toEqual(["range", "points"]);
});

test("a condition is chosen and ticked", () => {
  const editor = shown([opt, row(2, "momentum")]);
  const [line] = part(editor, 2).conditions.lines;
  expect([...line.on.options].map((one) => one.text)).toEqual(["(always)", "opt"]);
  type(line.on, "1", "change");
  expect(sent.pop().change).toEqual({ what: "condition", id: 2, at: 0, on: 1 });
  editor.apply(state([opt, row(2, "momentum", { when: [{ on: 1, name: "opt", values: "'sgd'", read: ["'sgd'"] }] })], { applied: { v: 1 } }));
  const boxes = [...line.boxes.querySelectorAll("input")];
  expect(boxes.map((box) => box.checked)).toEqual([true, false]);
  expect(line.typed.hidden).toBe(true);
  boxes[1].click();
  expect(sent.pop().change.values).toBe("'sgd', 'adam'");
  type(line.on, "", "change");
  expect(sent.pop().change).toEqual({ what: "condition", id: 2, at: 0, on: null });
});

test("a condition on a parameter that was removed keeps its name", () => {
  const editor = shown([row(2, "momentum", { when: [{ on: "opt", name: "opt", values: "'sgd'", read: ["'sgd'"] }] })]);
  const [line] = part(editor, 2).conditions.lines;
  expect(line.on.selectedOptions[0].text).toBe("opt (missing)");
  expect([line.typed.hidden, line.typed.value]).toEqual([false, "'sgd'"]);
});

test("a new parameter's name has the focus; a removed one passes the focus on", () => {
  const editor = shown([row(0, "a"), row(1, "b")]);
  editor.add.click();
  editor.apply(state([row(0, "a"), row(1, "b"), row(2, "p1")], { applied: { v: 1 } }));
  expect(document.activeElement).toBe(part(editor, 2).fields.name);
  part(editor, 0).drop.focus();
  part(editor, 0).drop.click();
  editor.apply(state([row(1, "b"), row(2, "p1")], { applied: { v: 2 } }));
  expect(document.activeElement).toBe(part(editor, 1).drop);
});

test("an empty space shows a hint, too many parameters show a problem", () => {
  const editor = shown([], { general: "the space is empty", valid: false });
  expect(editor.general.classList.contains("nbe-problem")).toBe(false);
  editor.apply(state([opt], { general: "too many", valid: false }));
  expect(editor.general.classList.contains("nbe-problem")).toBe(true);
});

test("rows that are moved keep the focus", () => {
  const editor = shown([row(0, "a"), row(1, "b")]);
  part(editor, 1).up.focus();
  part(editor, 1).up.click();
  editor.apply(state([row(1, "b"), row(0, "a")], { applied: { v: 1 } }));
  expect([...editor.list.children].map((one) => one.querySelector("legend")?.textContent)).toEqual(["Parameter b", "Parameter a"]);
  expect(document.activeElement).toBe(part(editor, 1).up);
  expect(part(editor, 1).up.getAttribute("aria-disabled")).toBe("true");
  part(editor, 1).up.click();
  expect(sent.length).toBe(1);
});

test("a problem is shown beside its parameter and disables Start", () => {
  const problem = { text: `${HOSTILE} is no name`, at: "name" };
  const editor = shown([row(0, HOSTILE, { problem })], { valid: false, text: null });
  const { fields, problem: words, element } = part(editor, 0);
  expect(words.textContent).toBe(problem.text);
  expect(fields.name.getAttribute("aria-describedby")).toBe(words.id);
  expect(fields.low.hasAttribute("aria-invalid")).toBe(false);
  expect(element.querySelector("img")).toBe(null);
  editor.start.click();
  editor.copy.click();
  expect(sent).toEqual([]);
  expect(editor.why.textContent).toBe("1 parameter has to be corrected first.");
});

test("Start sends queued edits, and shows its result", () => {
  const editor = shown([row(0, "lr")]);
  expect(editor.start.textContent).toBe("Start 12 trials");
  type(editor.trials, "1");
  type(editor.trials, "10");
  editor.start.click();
  expect(sent.map((one) => one.change?.value ?? one.kind)).toEqual(["1", "10", "start"]);
  editor.apply(state([row(0, "lr")], { starting: true }));
  expect([editor.start.textContent, editor.start.getAttribute("aria-disabled")]).toEqual(["Starting…", "true"]);
  editor.apply(state([row(0, "lr")], { result: { ok: false, text: HOSTILE } }));
  expect(editor.failed.textContent).toBe(HOSTILE);
  editor.apply(state([row(0, "lr")], { result: { ok: true, text: "Started." }, startable: false }));
  expect([editor.failed.textContent, editor.succeeded.textContent, editor.starting.hidden]).toEqual(["", "Started.", true]);
});

test("the page waits for a busy kernel, and reports the end of the kernel", () => {
  vi.useFakeTimers();
  const editor = shown([row(0, "lr")]);
  editor.add.click();
  vi.advanceTimersByTime(2000);
  expect(editor.waiting.textContent).toContain("busy");
  editor.apply(state([row(0, "lr")], { applied: { v: 1 } }));
  expect(editor.waiting.textContent).toBe("");
  editor.disconnect();
  expect(editor.waiting.textContent).toContain("run the editor's cell again");
  expect([...editor.element.querySelectorAll("fieldset")].every((one) => one.disabled)).toBe(true);
  editor.close();
  vi.useRealTimers();
});

test("a long list of values is read-only", () => {
  const read = Array.from({ length: 60 }, (_, i) => /** @type {[string, string]} */ ([String(i), "number"]));
  const editor = shown([row(0, "x", { kind: "choice", too_long: true, count: 10_000, read })]);
  const { fields, chips } = part(editor, 0);
  expect(fields.values.readOnly).toBe(true);
  expect(chips.lastElementChild?.textContent).toBe("and 9,940 more values; change them in Python");
});
