import { describe, expect, test } from "vitest";
import { SweepModel } from "../../src/sweep/model.js";

const HEAD = { metric: "loss", direction: "min", parameters: [
  { name: "lr", kind: "log", low: 1e-4, high: 0.1, text: "log(0.0001, 0.1)", when: null },
  { name: "momentum", kind: "uniform", low: 0, high: 1, text: "uniform(0, 1)", when: "opt is sgd" },
  { name: "clip", kind: "choice", values: [null, 1], text: "[None, 1]", when: null },
] };

/** Columns of a few trials. @param {[number, number, number | string | null][]} rows number, state, value */
function columns(rows) {
  const all = (/** @type {any} */ value) => rows.map(() => value);
  return {
    number: rows.map(([one]) => one), state: rows.map(([, one]) => one), value: rows.map(([, , one]) => one),
    step: all(1), attempt: all(1), parent: all(-1), asked: all(0), started: all(null), ended: all(null), stopping: all(null),
    promoted: all(false), ranks: all([0]), error: all(null), seed: all("7"),
    parameters: { lr: rows.map(([one]) => one / 10), momentum: all(null), clip: all(null) }, metrics: { acc: all("NaN") },
  };
}

/** @param {number[]} pairs step and value in turn */
function bytes(...pairs) {
  const view = new DataView(new ArrayBuffer(4 * pairs.length + 1), 1); // not where float32 would like to be
  pairs.forEach((one, i) => view.setFloat32(4 * i, one, true));
  return view;
}

/** @param {[number, number, number | string | null][]} [rows] */
function opened(rows = [[4, 2, 0.5], [9, 1, null]]) {
  const model = new SweepModel();
  model.apply({ snapshot: true, head: HEAD, status: { state: "running" }, trials: columns(rows), spans: [[4, 1, [0], 0, 1, "finished"]], best: [[1, 4, 0.5]] });
  return model;
}

describe("the model of a sweep", () => {
  test("rows are in the order of their arrival, not of their numbers", () => {
    const model = opened();
    model.apply({ trials: columns([[2, 0, null], [9, 2, "Infinity"]]) });
    expect([...model.number]).toEqual([4, 9, 2]);
    expect([...model.value]).toEqual([0.5, Infinity, NaN]);
    expect([model.row(2), model.row(3), model.stateOf(1)]).toEqual([2, -1, "finished"]);
    expect(model.parameters.get("lr")).toEqual([0.4, 0.9, 0.2]);
    expect(model.metrics.get("acc")).toEqual([NaN, NaN, NaN]);
  });

  test("a missing parameter differs from one that is None", () => {
    const model = opened();
    expect(model.parameters.get("momentum")).toEqual([undefined, undefined]);
    expect(model.parameters.get("clip")).toEqual([null, null]);
  });

  test("a parameter that was added by an edit is missing in earlier trials", () => {
    const model = opened();
    model.apply({ trials: { ...columns([[10, 0, null]]), parameters: { width: [32] } } });
    expect(model.parameters.get("width")).toEqual([undefined, undefined, 32]);
    expect(model.parameters.get("lr")).toEqual([0.4, 0.9, undefined]);
  });

  test("points are appended to the curves of their trials, or replace them", () => {
    const model = opened();
    model.apply({ points: { number: [4, 9], count: [2, 1] } }, [bytes(1, 0.5, 2, 0.25, 1, 4)]);
    model.apply({ points: { number: [4], count: [1] } }, [bytes(3, 0.125)]);
    expect(model.curves.get(4)).toEqual({ steps: [1, 2, 3], values: [0.5, 0.25, 0.125] });
    model.apply({ replaced: [4], points: { number: [4], count: [1] } }, [bytes(1, 8)]);
    expect(model.curves.get(4)).toEqual({ steps: [1], values: [8] });
    expect(() => model.apply({ points: { number: [4], count: [2] } }, [bytes(1, 8)])).toThrow("2 points cannot have 8 bytes");
  });

  test("a snapshot replaces everything, and the chosen trial stays if the snapshot has it", () => {
    const model = opened();
    model.choose(9);
    model.hover(4);
    model.apply({ snapshot: true, trials: columns([[9, 2, 1]]), spans: [], best: [] });
    expect([model.count, model.chosen, model.hovered, model.spans.length, model.best.length]).toEqual([1, 9, -1, 0, 0]);
    model.apply({ snapshot: true, trials: columns([]), spans: [], best: [] });
    expect([model.count, model.chosen]).toEqual([0, -1]);
  });

  test("an open span is sent again when it ends", () => {
    const model = opened();
    model.apply({ spans: [[9, 1, [1], 2, null, "running"]] });
    model.apply({ spans: [[9, 1, [1], 2, 5, "failed"], [9, 2, [0], 6, null, "running"]] });
    expect(model.spans.map(({ number, attempt, end, how }) => [number, attempt, end, how]))
      .toEqual([[4, 1, 1, "finished"], [9, 1, 5, "failed"], [9, 2, NaN, "running"]]);
  });

  test("brushed rows stay brushed after new rows, and after a snapshot in another order", () => {
    const model = opened();
    model.brush(Uint8Array.of(0, 1));
    model.apply({ trials: columns([[11, 0, null]]) });
    expect([[...(model.brushed ?? [])], model.brushedCount]).toEqual([[0, 1, 0], 1]);
    model.apply({ snapshot: true, trials: columns([[9, 2, 1], [4, 2, 1]]) });
    expect([...(model.brushed ?? [])]).toEqual([1, 0]);
    model.brush(null);
    expect([model.brushed, model.brushedCount]).toEqual([null, 0]);
  });

  test("better values depend on the sweep's direction", () => {
    const model = opened();
    expect([model.better(1, 2), model.better(2, 1), model.better(NaN, 1), model.better(1, NaN), model.better(1, 1)]).toEqual([true, false, false, true, false]);
    model.head = /** @type {any} */ ({ direction: "max" });
    expect(model.better(2, 1)).toBe(true);
  });

  test("listeners are called for changes until they unsubscribe", () => {
    const model = opened();
    /** @type {string[]} */
    const kinds = [];
    const off = model.on(["chosen", "brushed", "data"], (kind) => kinds.push(kind));
    model.choose(4);
    model.choose(4);
    model.hover(4);
    model.brush(Uint8Array.of(1, 0));
    model.apply({ status: { state: "finished" } });
    off();
    model.choose(9);
    expect(kinds).toEqual(["chosen", "brushed", "brushed", "data"]);
  });

  test("columns grow by one element without a copy each time", () => {
    const model = opened([]);
    for (let i = 0; i < 300; i++) model.apply({ trials: columns([[i, 0, i]]) });
    expect(model.value).toHaveLength(300);
    expect([model.value[0], model.value[299]]).toEqual([0, 299]);
  });
});
