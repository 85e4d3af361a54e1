import { expect, test } from "vitest";
import { logTicks } from "../../src/chart/ticks.js";

const values = (/** @type {number} */ low, /** @type {number} */ high, /** @type {number} */ most) =>
  logTicks(Math.log10(low), Math.log10(high), most).map((tick) => Number((10 ** tick).toPrecision(2)));

test("one decade gets round values in it", () => expect(values(0.1, 2.5, 5)).toEqual([0.1, 0.2, 0.5, 1, 2]));
test("many decades get some of them", () => expect(values(1e-12, 1, 5)).toEqual([1e-12, 1e-9, 1e-6, 1e-3, 1]));
test("less than one digit gets even steps", () => expect(values(0.962, 0.968, 5)).toHaveLength(2));
