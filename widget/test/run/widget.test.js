// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import live from "../../src/run/widget.js";

/** @type {Record<string, any>[]} */
let sent = [];
/** @type {(message: any, buffers: DataView[]) => void} */
let deliver = () => {};
/** @type {(entries: { isIntersecting: boolean }[]) => void} */
let see = () => {};
let broken = false;

const model = {
  send: (/** @type {any} */ message) => {
    if (broken) throw new Error("the kernel has ended");
    sent.push(message);
  },
  on: (/** @type {string} */ _, /** @type {any} */ handler) => (deliver = handler),
  off: () => (deliver = () => {}),
};

/** @param {number} sequence @param {boolean} snapshot */
function frame(sequence, snapshot = false) {
  const bytes = new DataView(new ArrayBuffer(4));
  bytes.setUint32(0, sequence, true);
  const head = snapshot ? { head: { title: "t", run: "r", tasks: [], total: 1, charts: [], series: [], controls: ["stop"], again: "do this" } } : {};
  deliver({ kind: "frame", snapshot, replaced: [], progress: { state: "running" }, ...head }, [bytes]);
}

const kinds = () => sent.map(({ kind }) => kind);

/** @type {() => void} */
let close = () => {};

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "requestAnimationFrame", "cancelAnimationFrame", "performance"] });
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
  close = /** @type {any} */ (live.render(/** @type {any} */ ({ model, el })));
});

afterEach(() => {
  close();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("the connection of the page", () => {
  test("tells the kernel when a user types, so that the view is not replaced", () => {
    vi.spyOn(document, "hasFocus").mockReturnValue(true);
    frame(1, true);
    const field = document.querySelector("input");
    const button = document.querySelector("button");
    sent = [];
    button?.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    expect(sent).toEqual([]);
    field?.dispatchEvent(new FocusEvent("focusin", { bubbles: true }));
    field?.dispatchEvent(new FocusEvent("focusout", { bubbles: true }));
    expect(sent.map(({ kind, focused }) => [kind, focused])).toEqual([["focus", true], ["focus", false]]);
  });

  test("acknowledges a frame when it is drawn, if the view is visible", () => {
    expect(sent).toEqual([expect.objectContaining({ kind: "ready", sequence: 0, visible: false })]);
    frame(1, true);
    vi.advanceTimersByTime(50);
    expect(kinds()).toEqual(["ready"]); // the view is not visible
    see([{ isIntersecting: true }]);
    expect(sent[1]).toMatchObject({ kind: "visible", sequence: 1, visible: true });
    frame(2);
    expect(kinds()).toHaveLength(2); // not drawn yet
    vi.advanceTimersByTime(50);
    expect(sent[2]).toMatchObject({ kind: "ack", sequence: 2 });
  });

  test("requests a snapshot after a lost frame, and sends nothing until it arrives", () => {
    see([{ isIntersecting: true }]);
    frame(1, true);
    frame(3);
    frame(4);
    expect(sent.filter(({ kind }) => kind === "snapshot")).toEqual([expect.objectContaining({ sequence: 0 })]);
    frame(5, true);
    vi.advanceTimersByTime(50);
    expect(sent.at(-1)).toMatchObject({ kind: "ack", sequence: 5 });
  });

  test("requests a snapshot after two seconds of silence, but not while hidden nor after the end of the run", () => {
    frame(1, true);
    vi.advanceTimersByTime(10_000);
    expect(kinds()).toEqual(["ready"]);
    see([{ isIntersecting: true }]);
    vi.advanceTimersByTime(1_500);
    expect(kinds().filter((kind) => kind === "snapshot")).toHaveLength(1);
    deliver({ kind: "frame", snapshot: true, replaced: [], progress: { state: "finished" } }, [new DataView(new ArrayBuffer(4))]);
    sent = [];
    vi.advanceTimersByTime(10_000);
    expect(kinds().filter((kind) => kind === "snapshot")).toEqual([]);
  });

  test("says what to do after the end of the kernel", () => {
    see([{ isIntersecting: true }]);
    frame(1, true);
    vi.advanceTimersByTime(50);
    /** @type {HTMLButtonElement | undefined} */ ([...document.querySelectorAll("button")].find((button) => button.textContent === "Stop it"))?.click();
    expect(sent.at(-1)).toMatchObject({ kind: "stop" });
    broken = true;
    vi.advanceTimersByTime(5_000);
    expect(document.querySelector(".nbd-chip")?.textContent).toContain("disconnected");
    expect(document.querySelector(".nbd-note")?.textContent).toBe("do this");
  });

  test("removes all listeners when it is closed", () => {
    close();
    expect(sent.at(-1)).toMatchObject({ kind: "closed" });
    expect(document.querySelector(".nbdist-live")).toBeNull();
    const count = sent.length;
    frame(1, true);
    vi.advanceTimersByTime(10_000);
    expect(sent).toHaveLength(count);
    close = () => {};
  });
});
