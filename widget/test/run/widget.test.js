// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import live from "../../src/run/widget.js";

/** @type {Record<string, any>[]} */
let said = [];
/** @type {(message: any, buffers: DataView[]) => void} */
let hear = () => {};
/** @type {(entries: { isIntersecting: boolean }[]) => void} */
let see = () => {};
let broken = false;

const model = {
  send: (/** @type {any} */ message) => {
    if (broken) throw new Error("the kernel is gone");
    said.push(message);
  },
  on: (/** @type {string} */ _, /** @type {any} */ handler) => (hear = handler),
  off: () => (hear = () => {}),
};

/** @param {number} sequence @param {boolean} snapshot */
function frame(sequence, snapshot = false) {
  const bytes = new DataView(new ArrayBuffer(4));
  bytes.setUint32(0, sequence, true);
  const head = snapshot ? { head: { title: "t", run: "r", tasks: [], total: 1, charts: [], series: [], controls: ["stop"], again: "do this" } } : {};
  hear({ kind: "frame", snapshot, replaced: [], progress: { state: "running" }, ...head }, [bytes]);
}

const kinds = () => said.map(({ kind }) => kind);

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
  said = [];
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

describe("the page's end of the line", () => {
  test("acknowledges a frame when it is drawn, if anybody sees it", () => {
    expect(said).toEqual([expect.objectContaining({ kind: "ready", sequence: 0, visible: false })]);
    frame(1, true);
    vi.advanceTimersByTime(50);
    expect(kinds()).toEqual(["ready"]); // nobody sees it
    see([{ isIntersecting: true }]);
    expect(said[1]).toMatchObject({ kind: "visible", sequence: 1, visible: true });
    frame(2);
    expect(kinds()).toHaveLength(2); // not drawn yet
    vi.advanceTimersByTime(50);
    expect(said[2]).toMatchObject({ kind: "ack", sequence: 2 });
  });

  test("asks for everything when something is missing, and is quiet until it comes", () => {
    see([{ isIntersecting: true }]);
    frame(1, true);
    frame(3);
    frame(4);
    expect(said.filter(({ kind }) => kind === "snapshot")).toEqual([expect.objectContaining({ sequence: 0 })]);
    frame(5, true);
    vi.advanceTimersByTime(50);
    expect(said.at(-1)).toMatchObject({ kind: "ack", sequence: 5 });
  });

  test("asks when it has been quiet for two seconds, but not while hidden nor when the run is over", () => {
    frame(1, true);
    vi.advanceTimersByTime(10_000);
    expect(kinds()).toEqual(["ready"]);
    see([{ isIntersecting: true }]);
    vi.advanceTimersByTime(1_500);
    expect(kinds().filter((kind) => kind === "snapshot")).toHaveLength(1);
    hear({ kind: "frame", snapshot: true, replaced: [], progress: { state: "finished" } }, [new DataView(new ArrayBuffer(4))]);
    said = [];
    vi.advanceTimersByTime(10_000);
    expect(kinds().filter((kind) => kind === "snapshot")).toEqual([]);
  });

  test("says what to do when the kernel is gone", () => {
    see([{ isIntersecting: true }]);
    frame(1, true);
    vi.advanceTimersByTime(50);
    /** @type {HTMLButtonElement | undefined} */ ([...document.querySelectorAll("button")].find((button) => button.textContent === "Stop"))?.click();
    expect(said.at(-1)).toMatchObject({ kind: "stop" });
    broken = true;
    vi.advanceTimersByTime(5_000);
    expect(document.querySelector(".nbd-chip")?.textContent).toContain("disconnected");
    expect(document.querySelector(".nbd-note")?.textContent).toBe("do this");
  });

  test("leaves nothing behind", () => {
    close();
    expect(said.at(-1)).toMatchObject({ kind: "closed" });
    expect(document.querySelector(".nbdist-live")).toBeNull();
    const count = said.length;
    frame(1, true);
    vi.advanceTimersByTime(10_000);
    expect(said).toHaveLength(count);
    close = () => {};
  });
});
