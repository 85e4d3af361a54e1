// @vitest-environment happy-dom
import { beforeEach, describe, expect, test } from "vitest";
import { RunControls } from "../../src/run/controls.js";
import { Header } from "../../src/run/header.js";

/** @type {[string, number | null][]} */
let sent = [];
const ALL = ["pause", "resume", "stop", "checkpoint", "set"];
const TRAINING = { state: "running", step: 5, learning_rate: 0.01 };

function actions() {
  const made = new RunControls("view", (kind, value) => sent.push([kind, value]));
  document.body.replaceChildren(made.element, made.rate.element);
  return made;
}

/** @param {HTMLElement} element @param {string} type @param {string} [key] */
const fire = (element, type, key) => element.dispatchEvent(key ? new KeyboardEvent(type, { key }) : new Event(type));

beforeEach(() => {
  sent = [];
});

describe("buttons", () => {
  test("that the end of a run hides leave the focus to the view", () => {
    const made = actions();
    const view = document.body.appendChild(document.createElement("section"));
    view.append(made.element);
    made.show(TRAINING, ALL);
    made.stop.focus();
    made.show(TRAINING, ALL);
    expect(document.activeElement).toBe(made.stop);
    made.show({ ...TRAINING, state: "stopped" }, []);
    expect(document.activeElement).toBe(view);
  });

  test("pause, then resume, are each sent once", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    made.pause.click();
    made.pause.click();
    expect(made.pause.textContent).toBe("Pausing…");
    made.show({ ...TRAINING, state: "paused" }, ALL);
    expect(made.pause.textContent).toBe("Resume");
    expect(made.pause.title).toBe("Continue with the next step");
    made.pause.click();
    expect(made.pause.getAttribute("aria-disabled")).toBe("true");
    made.show(TRAINING, ALL);
    expect(made.pause.textContent).toBe("Pause");
    expect(made.pause.hasAttribute("aria-disabled")).toBe(false);
    expect(sent).toEqual([["pause", null], ["resume", null]]);
  });

  test("stop asks first, and is sent once", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    const press = (/** @type {string} */ text) => [...made.end.querySelectorAll("button")].find((one) => one.textContent === text)?.click();
    press("Stop");
    expect(made.end.querySelector("[role=group]")?.getAttribute("aria-label")).toBe("Stop the run?");
    expect(document.activeElement?.textContent).toBe("No"); // Enter once more stops nothing
    press("No");
    expect([document.activeElement, sent]).toEqual([made.stop, []]);
    press("Stop");
    press("Stop it");
    press("Stopping…");
    expect([made.stop.textContent, made.stop.hidden, document.activeElement]).toEqual(["Stopping…", false, made.stop]);
    expect(sent).toEqual([["stop", null]]);
  });

  test("a checkpoint can be requested again when the last one is saved", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    made.checkpoint.click();
    expect(made.checkpoint.textContent).toBe("Saving…");
    made.show({ ...TRAINING, checkpoint: { number: 1, step: 9, path: "p", error: null } }, ALL);
    made.checkpoint.click();
    expect(sent).toEqual([["checkpoint", null], ["checkpoint", null]]);
  });

  test("a run that trains in a session can be paused, and its hooks save checkpoints", () => {
    const made = actions();
    made.show({ ...TRAINING, learning_rate: null, in_session: true }, ALL);
    expect(made.checkpoint.hidden).toBe(true);
    expect(made.pause.hidden).toBe(false);
    made.show(TRAINING, ALL);
    expect(made.checkpoint.hidden).toBe(false);
  });

  test("a plain cell can only be stopped, and an ended run not at all", () => {
    const made = actions();
    made.show({ state: "running" }, ALL);
    expect([made.pause.hidden, made.checkpoint.hidden, made.end.hidden, made.rate.element.hidden]).toEqual([true, true, false, true]);
    made.show({ ...TRAINING, state: "finished" }, []);
    expect([made.element.hidden, made.rate.field.disabled]).toEqual([true, true]);
  });
});

describe("the learning rate", () => {
  test("a typed one is sent, and pending until it is in force", () => {
    const made = actions();
    const { rate } = made;
    const show = (/** @type {number} */ value) => made.show({ ...TRAINING, learning_rate: value }, ALL);
    show(0.01);
    expect(rate.field.value).toBe("0.01");
    rate.field.value = "0.5";
    fire(rate.field, "input");
    show(0.01); // what is being typed is left alone
    expect(rate.field.value).toBe("0.5");
    fire(rate.field, "keydown", "Enter");
    fire(rate.field, "change");
    expect(sent).toEqual([["set", 0.5]]);
    expect(rate.status.textContent).toBe("pending");
    show(0.01);
    expect([rate.status.textContent, rate.field.value]).toEqual(["pending", "0.5"]);
    show(0.5);
    expect(rate.status.textContent).toBe("");
  });

  test("an invalid rate is refused beside its field", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    const { field, status } = made.rate;
    field.value = "-3";
    fire(field, "input");
    fire(field, "change");
    expect([field.getAttribute("aria-invalid"), status.textContent]).toEqual(["true", "must be at least 0"]);
    made.show(TRAINING, ALL);
    expect(status.textContent).toBe("must be at least 0");
    fire(field, "keydown", "Escape");
    expect([field.hasAttribute("aria-invalid"), status.textContent, field.value]).toEqual([false, "", "0.01"]);
    expect(sent).toEqual([]);
  });

  test("a slider sends when it is released", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    const { slider, field } = made.rate;
    slider.value = "1";
    fire(slider, "input");
    expect([field.value, sent]).toEqual(["0.1", []]);
    fire(slider, "change");
    expect(sent).toEqual([["set", 0.1]]);
    made.show({ ...TRAINING, learning_rate: 0.1 }, ALL);
    fire(slider, "keydown", "ArrowRight");
    for (const place of ["1.05", "1.1"]) {
      slider.value = place;
      fire(slider, "input");
      fire(slider, "change");
    }
    expect(sent).toHaveLength(1);
    fire(slider, "keyup", "ArrowRight");
    expect(sent).toEqual([["set", 0.1], ["set", 0.13]]);
  });

  test("arrow keys in the field move by round rates, and send nothing", () => {
    const made = actions();
    made.show(TRAINING, ALL);
    fire(made.rate.field, "keydown", "ArrowUp");
    expect([made.rate.field.value, sent]).toEqual(["0.02", []]);
  });

  test("is hidden if the run has none", () => {
    const made = actions();
    made.show({ ...TRAINING, learning_rate: null }, ALL);
    expect(made.rate.element.hidden).toBe(true);
  });
});

describe("the result of a command", () => {
  const HOSTILE = "<img src=x onerror=alert(1)>";
  test("a checkpoint is a status, a problem is an alert", () => {
    const header = new Header("v", () => {});
    header.show({ title: "t" }, { ...TRAINING, checkpoint: { number: 1, step: 1234, path: "/home/me/c", error: null } });
    expect([header.savedWords.textContent, header.path.textContent, header.copy.hidden]).toEqual(["checkpoint at step 1,234: ", "/home/me/c", false]);
    header.show({ title: "t" }, { ...TRAINING, checkpoint: { number: 2, step: 1300, path: "", error: HOSTILE }, problem: { kind: "set", number: 1, text: HOSTILE } });
    expect([header.savedWords.textContent, header.copy.hidden]).toEqual([`checkpoint failed: ${HOSTILE}`, true]);
    expect(header.problem.textContent).toBe(HOSTILE);
    expect(header.element.querySelector("img")).toBeNull();
  });
  test("without callbacks there are no controls", () => {
    const header = new Header("v", () => {});
    header.show({ title: "t", controls: [] }, TRAINING);
    expect(header.controls.element.hidden).toBe(true);
  });
});
