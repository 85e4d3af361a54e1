import { describe, expect, test } from "vitest";
import { ask, isSettled } from "../../src/run/controls.js";
import { nextRate, rateAtPosition, rateText, readRate, sameRate, sliderPosition } from "../../src/run/learning-rate.js";

test.each([[0, 0.003], [2, 0.3], [-2, 0.00003], [1, 0.03], [0.05, 0.0034]])("a slider at %s has the rate %s", (place, rate) =>
  expect(rateAtPosition(place, 0.003)).toBeCloseTo(rate, 10));
test.each([[0.003, 0], [0.3, 2], [9, 2], [1e-9, -2], [0, -2]])("the rate %s has the position %s", (rate, place) =>
  expect(sliderPosition(rate, 0.003)).toBeCloseTo(place));
test("a position and its rate are inverse", () => {
  for (let place = -2; place <= 2; place += 0.05) expect(Math.abs(sliderPosition(rateAtPosition(place, 0.1), 0.1) - place)).toBeLessThan(0.025);
});
test.each([[0.001, "0.001"], [0.1 + 0.2, "0.3"], [1e-7, "1e-7"], [0, "0"], [0.000123456, "0.000123"], [100, "100"]])(
  "rateText(%s) is %s", (rate, text) => expect(rateText(rate)).toBe(text));
test.each([["0.1", 0.1], [" 1e-3 ", 0.001], ["0", 0], [".5", 0.5]])("readRate(%j) is %s", (text, rate) => expect(readRate(text)).toEqual({ rate }));
test.each(["", " ", "abc", "1e999", "-1", "NaN", "Infinity", "1 2"])("readRate(%j) is refused", (text) => expect(readRate(text)).toHaveProperty("problem"));
test.each([[0.001, true, 0.002], [0.0034, true, 0.005], [0.005, true, 0.01], [0.001, false, 0.0005], [0.0034, false, 0.002], [0, true, 0], [1, false, 0.5]])(
  "after %s (up: %s) comes %s", (rate, up, next) => expect(nextRate(rate, up)).toBe(next));
test("sameRate accepts single precision", () => {
  expect(sameRate(0.001, Math.fround(0.001))).toBe(true);
  expect(sameRate(0.001, 0.0011)).toBe(false);
  expect(sameRate(0, 0)).toBe(true);
});

describe("a pending command", () => {
  test("is settled when the progress shows it", () => {
    expect(isSettled(ask("pause", null, { state: "running" }, 0), { state: "running" }, 1)).toBe(false);
    expect(isSettled(ask("pause", null, { state: "running" }, 0), { state: "paused" }, 1)).toBe(true);
    expect(isSettled(ask("resume", null, { state: "paused" }, 0), { state: "paused" }, 1)).toBe(false);
    expect(isSettled(ask("resume", null, { state: "paused" }, 0), { state: "running" }, 1)).toBe(true);
    const set = ask("set", 0.01, { learning_rate: 0.1 }, 0);
    expect(isSettled(set, { learning_rate: 0.1 }, 1)).toBe(false);
    expect(isSettled(set, { learning_rate: Math.fround(0.01) }, 1)).toBe(true);
  });
  test("a checkpoint is settled when there is a new one, or it has failed", () => {
    const one = { number: 1, step: 5, path: "a", error: null };
    const pending = ask("checkpoint", null, { checkpoint: one }, 0);
    expect(isSettled(pending, { checkpoint: { ...one } }, 1)).toBe(false);
    expect(isSettled(pending, { checkpoint: { ...one, number: 2 } }, 1)).toBe(true);
    expect(isSettled(pending, { checkpoint: { ...one, number: 2, error: "disk full" } }, 1)).toBe(true);
  });
  test("is settled by its own failure only", () => {
    const progress = { state: "running", problem: { kind: "set", number: 1, text: "no" } };
    expect(isSettled(ask("pause", null, { state: "running" }, 0), progress, 1)).toBe(false);
    expect(isSettled(ask("set", 1, { state: "running" }, 0), progress, 1)).toBe(true);
    expect(isSettled(ask("set", 1, progress, 0), progress, 1)).toBe(false);
  });
  test("is settled after a timeout", () => expect(isSettled(ask("stop", null, {}, 0), {}, 20_000)).toBe(true));
});
