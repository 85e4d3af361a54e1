// Trials for tests of a sweep's page, as the kernel sends them.
import { SweepModel } from "../../src/sweep/model.js";

export const HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>";

export const PARAMETERS = [
  { name: "lr", kind: "log", low: 1e-4, high: 0.1, text: "log(0.0001, 0.1)", when: null },
  { name: "width", kind: "choice", values: [32, 64], text: "[32, 64]", when: null },
  { name: "momentum", kind: "uniform", low: 0, high: 1, text: "uniform(0, 1)", when: "width=64" },
  { name: "epochs", kind: "fixed", values: [5], text: "5", when: null },
];

/** A snapshot of so many trials: their values rise with their numbers. @param {number} count @param {Record<string, any>} [more] of the trials */
export function snapshot(count, more = {}) {
  const all = (/** @type {(i: number) => any} */ value) => Array.from({ length: count }, (_, i) => value(i));
  const trials = {
    number: all((i) => i), state: all((i) => [2, 2, 3, 1, 5, 4][i % 6]), value: all((i) => (i % 6 === 4 ? "NaN" : i / count)), step: all(() => 3), attempt: all(() => 1),
    parent: all(() => -1), asked: all((i) => i), started: all((i) => i), ended: all((i) => (i % 6 === 3 ? null : i + 1)), stopping: all(() => null), promoted: all(() => false),
    ranks: all((i) => [i % 2]), error: all((i) => (i % 6 === 4 ? `ValueError: ${HOSTILE}` : null)), seed: all((i) => String(i)),
    parameters: { lr: all((i) => 1e-4 * 1000 ** (i / Math.max(1, count - 1))), width: all((i) => (i % 2 ? 64 : 32)), momentum: all((i) => (i % 2 ? (i % 10) / 10 : null)), epochs: all(() => 5) },
    metrics: { acc: all((i) => i / 100) }, ...more,
  };
  const counts = { waiting: 0, running: 0, finished: count, pruned: 0, stopped: 0, failed: 0 };
  return {
    kind: "sweep", sequence: 1, snapshot: true, trials, spans: [], best: [], replaced: [],
    head: { id: "s-1", name: "s", metric: "loss", direction: "min", began: 0, sampler: "random", pruner: "asha", per_trial: 1, seed: "1", again: "nb.attach('s-1')",
      space: "lr=log(0.0001, 0.1) width=[32, 64] momentum=when(uniform(0, 1), width=64) epochs=5", engines: [[0, "/job:worker/task:0"], [1, "/job:worker/task:1"]], parameters: [...PARAMETERS] },
    status: { state: "running", now: 9, wanted: 2 * count, counts, engines: [[0, "busy", 3], [1, "free", null]], trouble: null, best: 0, trials_per_second: 2, seconds_left: 5, closed: false },
  };
}

/** @param {number} count @param {Record<string, any>} [more] */
export function filled(count, more) {
  const model = new SweepModel();
  model.apply(snapshot(count, more));
  return model;
}
