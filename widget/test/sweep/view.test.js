// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import sweep from "../../src/sweep/widget.js";
import { HOSTILE, snapshot } from "./data.js";

/** @type {Record<string, any>[]} */
let sent = [];
/** @type {boolean[]} */
let used = []; // what the page has said of its use
/** @type {(message: any, buffers?: DataView[]) => void} */
let deliver = () => {};
/** @type {(entries: { isIntersecting: boolean }[]) => void} */
let see = () => {};
let broken = false;

const model = {
  send: (/** @type {any} */ message) => {
    if (broken) throw new Error("the kernel has ended");
    if (message.kind !== "focus") sent.push(message); // a form that opens has the focus
    else used.push(message.focused);
  },
  on: (/** @type {string} */ _, /** @type {any} */ handler) => (deliver = handler),
  off: () => (deliver = () => {}),
};

const query = (/** @type {string} */ selector) => /** @type {any} */ (document.querySelector(selector));
const all = (/** @type {string} */ selector) => /** @type {any[]} */ ([...document.querySelectorAll(selector)]);
const button = (/** @type {string} */ text, within = ".nbdist-sweep") => all(`${within} button`).find((one) => one.textContent === text);
const drawn = () => vi.advanceTimersByTime(50);
const kinds = () => sent.map(({ kind }) => kind);
/** Answers the last command. @param {Record<string, any>} more */
async function answered(more) {
  deliver({ kind: "answer", request: sent.at(-1)?.request, ok: true, message: "", ...more });
  await Promise.resolve();
  await Promise.resolve();
  await Promise.resolve();
}

/** Shows so many trials. @param {number} [count] @param {Record<string, any>} [more] */
function shown(count = 12, more = {}) {
  see([{ isIntersecting: true }]);
  const content = snapshot(count, more.trials);
  deliver({ ...content, status: { ...content.status, ...more.status }, head: { ...content.head, ...more.head } });
  drawn();
  sent = [];
}

/** @type {() => void} */
let close = () => {};

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "requestAnimationFrame", "cancelAnimationFrame", "performance"] });
  vi.stubGlobal("IntersectionObserver", class {
    /** @param {any} callback */
    constructor(callback) {
      see = callback;
    }
    observe() {}
    disconnect() {}
  });
  sent = [];
  broken = false;
  const el = document.createElement("div");
  document.body.replaceChildren(el);
  close = /** @type {any} */ (sweep.render(/** @type {any} */ ({ model, el })));
});

afterEach(() => {
  close();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("the connection of the page", () => {
  test("acknowledges drawn frames, requests a snapshot after a lost frame, reports when it is closed", () => {
    expect(sent).toEqual([expect.objectContaining({ kind: "ready", sequence: 0, visible: false })]);
    see([{ isIntersecting: true }]);
    deliver(snapshot(3));
    drawn();
    expect(sent.at(-1)).toMatchObject({ kind: "ack", sequence: 1, visible: true });
    deliver({ kind: "sweep", sequence: 3, snapshot: false, status: {} });
    expect(sent.at(-1)).toMatchObject({ kind: "snapshot", sequence: 0 });
    deliver({ ...snapshot(3), sequence: 7 });
    drawn();
    expect(sent.at(-1)).toMatchObject({ kind: "ack", sequence: 7 });
    close();
    expect(sent.at(-1)).toMatchObject({ kind: "closed" });
    expect(query(".nbdist-sweep")).toBeNull();
    close = () => {};
  });

  test("requests a snapshot after silence, but not after the end of the sweep", () => {
    shown();
    vi.advanceTimersByTime(5_000);
    expect(kinds()).toContain("snapshot");
    deliver({ ...snapshot(3), status: { ...snapshot(3).status, state: "finished" } });
    drawn();
    sent = [];
    vi.advanceTimersByTime(20_000);
    expect(kinds()).toEqual([]);
  });

  test("says what to do after the end of the kernel, and sends nothing more", async () => {
    shown();
    query(".nbs-best").click();
    drawn();
    broken = true;
    button("Pause").click();
    await Promise.resolve();
    drawn();
    expect(query(".nbd-chip").textContent).toContain("disconnected");
    expect(query(".nbs-trouble").textContent).toBe("nb.attach('s-1')");
    expect(query(".nbd-headline .nbs-actions").hidden).toBe(true);
    expect(button("Insert parameters as cell").getAttribute("aria-disabled")).toBe("true");
  });
});

describe("the header of the sweep", () => {
  test("shows its state, its progress and its best trial, which can be chosen", () => {
    shown();
    expect(query(".nbd-title").textContent).toBe("s");
    expect(query(".nbd-facts").textContent).toBe("12 / 24trials2trials/s9.0 selapsed5.0 sleftrandom, asha");
    expect(query(".nbs-bar").getAttribute("aria-valuetext")).toBe("12 of 24 trials done");
    expect(query(".nbs-counts").textContent).toContain("●12finished");
    expect(query(".nbs-best").textContent).toContain("loss 0trial 0lr=0.0001  width=32  epochs=5");
    query(".nbs-best").click();
    drawn();
    expect(query(".nbs-panel-head").textContent).toContain("Trial 0finished");
  });

  test("shows its name as text", () => {
    see([{ isIntersecting: true }]);
    const content = snapshot(6, { parameters: { [HOSTILE]: Array(6).fill(HOSTILE), width: Array(6).fill(HOSTILE) }, metrics: { [HOSTILE]: Array(6).fill(1) } });
    deliver({ ...content, head: { ...content.head, name: HOSTILE, id: HOSTILE, metric: HOSTILE }, status: { ...content.status, trouble: HOSTILE, best: 4 } });
    drawn();
    query(".nbs-best").click();
    drawn();
    expect(all("img, script, .nbdist-sweep b img")).toHaveLength(0);
    for (const part of [".nbd-title", ".nbs-trouble", ".nbs-best", ".nbs-error", ".nbs-parameters", ".nbs-facts", ".nbs-table thead", ".nbs-table tbody", ".nbs-heat select"]) {
      expect(query(part).textContent, part).toContain(HOSTILE);
    }
  });
});

describe("commands on the sweep", () => {
  test("a pause, with its answer beside it", async () => {
    shown();
    button("Pause").click();
    expect(sent.at(-1)).toMatchObject({ kind: "pause", request: expect.any(Number) });
    expect(query(".nbd-header > .nbs-command-status").textContent).toBe("sent…");
    vi.advanceTimersByTime(1_100); // another cell has the kernel
    expect(query(".nbd-header > .nbs-command-status").textContent).toBe("waiting for the running cell; Pause, Resume and Stop in the sidebar act immediately");
    await answered({ ok: false, message: "the sweep is over" });
    expect(query(".nbd-header > .nbs-command-status").textContent).toBe("the sweep is over");
    expect(query(".nbd-header > .nbs-command-status").className).toContain("nbd-wrong");
    shown(12, { status: { state: "paused" } });
    button("Resume").click();
    expect(sent.at(-1)).toMatchObject({ kind: "resume" });
  });

  test("more trials, a whole number of them", () => {
    shown();
    const field = query(".nbs-number");
    field.value = "2.5";
    button("Add trials").click();
    expect(kinds()).toEqual([]);
    expect(query(".nbd-header > .nbs-command-status").textContent).toContain('"2.5" is not a number of trials');
    field.value = "25";
    button("Add trials").click();
    expect(sent.at(-1)).toMatchObject({ kind: "add", trials: 25 });
  });

  test("says beside each figure that its trials are a sample", () => {
    shown();
    expect(document.body.textContent).not.toContain("a sample");
    deliver({ ...snapshot(12), of: 1000 });
    drawn();
    const captions = [...document.querySelectorAll(".nbs-figures-area figcaption")];
    expect(captions.length).toBe(5);
    for (const caption of captions) expect(caption.textContent).toContain("a sample: 12 of 1,000 trials");
  });

  test("its end, after a confirmation", () => {
    shown();
    button("Stop sweep").click();
    expect(kinds()).toEqual([]);
    button("No").click();
    button("Stop sweep").click();
    button("Stop it").click();
    expect(sent.at(-1)).toMatchObject({ kind: "close" });
    deliver({ ...snapshot(12), status: { ...snapshot(12).status, state: "finished" } });
    drawn();
    expect(button("Stop sweep").getAttribute("aria-disabled")).toBe("true");
  });

  test("another space with one line per parameter; an edited text is kept", async () => {
    shown();
    button("Edit the space").click();
    const field = query(".nbs-space");
    expect(field.value.split("\n")).toEqual(["lr=log(0.0001, 0.1)", "width=[32, 64]", "momentum=when(uniform(0, 1), width=64)", "epochs=5"]);
    field.focus();
    field.value = "lr=0.1\n\n  width=[32]  ";
    deliver({ ...snapshot(12), head: { ...snapshot(12).head, space: "lr=0.5" } });
    drawn();
    expect(field.value).toBe("lr=0.1\n\n  width=[32]  ");
    all('input[type="radio"]')[1].click();
    button("Change the space").click();
    expect(sent.at(-1)).toMatchObject({ kind: "edit", space: "lr=0.1 width=[32]", outside: "stop" });
    await answered({ message: "new trials come from the edited space" });
    expect(query(".nbs-form .nbs-command-status").textContent).toBe("new trials come from the edited space");
  });

  test("the grid is in use while an open form has a draft, also if the focus is elsewhere", () => {
    shown();
    used = [];
    const type = () => query(".nbs-space").dispatchEvent(new Event("input", { bubbles: true }));
    const inUse = () => used.at(-1);
    const read = () => query(".nbs-table tbody button").focus();
    button("Edit the space").click();
    expect(inUse()).toBe(true); // its field has the focus
    read();
    expect(inUse()).toBe(false); // nothing would be lost
    query(".nbs-space").focus();
    type();
    read(); // what is to be typed
    expect(inUse()).toBe(true);
    button("Change the space").click();
    expect(inUse()).toBe(false);
    query(".nbs-space").focus();
    type();
    read();
    button("Edit the space").click();
    expect(inUse()).toBe(false);
  });

  test("none after it is closed", () => {
    shown(12, { status: { state: "finished", closed: true } });
    expect(query(".nbd-headline .nbs-actions").hidden).toBe(true);
  });

  test("more trials still, when all are done", () => {
    shown(12, { status: { state: "finished" } });
    expect(query(".nbd-headline .nbs-actions").hidden).toBe(false);
    expect(button("Pause").getAttribute("aria-disabled")).toBe("true");
  });
});

describe("the chosen trial", () => {
  const choose = (/** @type {number} */ number) => {
    all(".nbs-table tbody tr").find((line) => line.dataset.number === String(number)).click();
    drawn();
  };
  const enabled = () => ["Stop", "Retry", "Clone…", "Promote…"].filter((text) => button(text, ".nbs-panel").getAttribute("aria-disabled") !== "true");

  test("has the commands for its state, and reasons at the others", () => {
    shown();
    choose(0); // finished
    expect(enabled()).toEqual(["Clone…", "Promote…"]);
    expect(button("Retry", ".nbs-panel").title).toContain("clone it");
    choose(3); // running
    expect(enabled()).toEqual(["Stop", "Clone…"]);
    choose(4); // failed
    expect(enabled()).toEqual(["Retry", "Clone…", "Promote…"]);
    button("Stop", ".nbs-panel").click();
    expect(kinds()).toEqual([]);
    button("Retry", ".nbs-panel").click();
    expect(sent.at(-1)).toMatchObject({ kind: "retry", number: 4 });
    expect(query(".nbs-error").textContent).toBe(`ValueError: ${HOSTILE}`);
  });

  test("is being stopped until it has ended, and no longer", async () => {
    shown(12, { trials: { stopping: Array.from({ length: 12 }, (_, i) => (i === 3 || i === 5 ? "stopped" : null)) } });
    choose(3);
    expect(query(".nbs-panel .nbs-state").textContent).toBe("running, being stopped");
    choose(5); // of a log from before: it has ended
    expect(query(".nbs-panel .nbs-state").textContent).toBe("stopped");
    choose(9);
    button("Stop", ".nbs-panel").click();
    await answered({ message: "trial 9 is being stopped" });
    drawn();
    expect(query(".nbs-panel .nbs-command-status").textContent).toBe("trial 9 is being stopped");
    deliver({ kind: "sweep", sequence: 2, snapshot: false, trials: { number: [9], state: [4] } });
    drawn();
    expect(query(".nbs-panel .nbs-state").textContent).toBe("stopped");
    expect(query(".nbs-panel .nbs-command-status").textContent).toBe("");
  });

  test("is cloned with the changed parameters only, and the form stays open", async () => {
    shown();
    choose(1);
    button("Clone…", ".nbs-panel").click();
    const [lr, width, momentum] = all("[aria-label='Clone with changes'] :is(input, select)");
    expect([lr.value, width.value, momentum.value]).toEqual([String(1e-4 * 1000 ** (1 / 11)), "64", "0.1"]);
    lr.value = "fast";
    button("Clone", ".nbs-panel").click();
    expect(kinds()).toEqual([]);
    expect(query("[aria-label='Clone with changes'] .nbs-command-status").textContent).toBe('lr: "fast" is not a number');
    lr.value = "5e-1";
    width.selectedIndex = 0;
    button("Clone", ".nbs-panel").click();
    expect(sent.at(-1)).toMatchObject({ kind: "clone", number: 1, changes: { lr: 0.5, width: 32 } });
    expect(sent.at(-1)?.changes).toEqual({ lr: 0.5, width: 32 });
    expect(query("[aria-label='Clone with changes'] .nbs-command-status").textContent).toContain("lr=0.5 is outside of log(0.0001, 0.1)");
    await answered({ number: 7, message: "trial 7 is a clone of trial 1" });
    drawn();
    expect(query(".nbs-panel .nbd-chart-title").textContent).toBe("Trial 1");
    expect(query("[aria-label='Clone with changes'] .nbs-command-status").textContent).toBe("trial 7 is a clone of trial 1");
  });

  test("is promoted as its fields say, or on all engines", () => {
    shown(12, { status: { engines: [[0, "busy", 1], [1, "gone", null], [2, "free", null]] } });
    choose(2);
    button("Promote…", ".nbs-panel").click();
    const [epochs, engines] = all("[aria-label='Promote'] input");
    epochs.value = "50";
    button("Continue from its checkpoint", ".nbs-panel").click();
    expect(sent.at(-1)).toMatchObject({ kind: "promote", number: 2, epochs: 50, per_trial: null, changes: {} });
    button("On the whole cluster", ".nbs-panel").click();
    expect(sent.at(-1)).toMatchObject({ per_trial: 2 });
    const count = sent.length;
    engines.value = "3";
    button("Continue from its checkpoint", ".nbs-panel").click();
    engines.value = "0.5";
    button("Continue from its checkpoint", ".nbs-panel").click();
    expect(sent).toHaveLength(count);
    expect(query("[aria-label='Promote'] .nbs-command-status").textContent).toContain("engines is a whole number");
  });

  test("shows its output on request", async () => {
    shown();
    choose(1);
    query(".nbs-output").open = true;
    query(".nbs-output").dispatchEvent(new Event("toggle"));
    expect(sent.at(-1)).toMatchObject({ kind: "output", number: 1 });
    await answered({ text: `${HOSTILE}\n` });
    expect(query(".nbs-printed").textContent).toBe(`${HOSTILE}\n`);
    choose(2);
    expect(query(".nbs-printed").textContent).toBe("");
  });

  test("ignores the answer to another view", async () => {
    shown();
    choose(1);
    button("Retry", ".nbs-panel").click(); // not possible
    choose(5);
    button("Retry", ".nbs-panel").click();
    const request = sent.at(-1)?.request;
    choose(1);
    deliver({ kind: "answer", request, ok: true, message: "trial 5 starts again" });
    await Promise.resolve();
    await Promise.resolve();
    expect(query(".nbs-panel-body > .nbs-command-status").textContent).toBe("");
  });
});

describe("the table", () => {
  const numbers = () => all(".nbs-table tbody th").map((one) => Number(one.textContent));

  test("has the best first, and can be sorted by any column", () => {
    shown();
    expect(numbers()).toEqual([0, 1, 6, 7, 2, 3, 5, 8, 9, 11, 4, 10]); // those that have finished before all others
    const column = (/** @type {string} */ text) => all(".nbs-table thead button").find((one) => one.textContent.startsWith(text));
    column("lr").click();
    column("lr").click();
    expect(numbers()[0]).toBe(11);
    expect(column("lr").closest("th").getAttribute("aria-sort")).toBe("descending");
    column("momentum").click();
    expect(numbers().slice(-6).every((number) => number % 2 === 0)).toBe(true); // those that have none
  });

  test("has pages of trials, and the arrow keys move to the next page", () => {
    shown(10_000);
    expect(numbers()).toHaveLength(40);
    expect(query(".nbs-range").textContent).toBe("1–40 of 10,000");
    expect(all(".nbs-table tbody button").filter((one) => one.tabIndex === 0)).toHaveLength(1);
    const last = all(".nbs-table tbody button").at(-1);
    last.focus();
    last.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    expect(query(".nbs-range").textContent).toBe("41–80 of 10,000");
    button("Previous").click();
    expect(query(".nbs-range").textContent).toBe("1–40 of 10,000");
  });
});
