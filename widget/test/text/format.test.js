import { describe, expect, test } from "vitest";
import { formatCount, formatDuration, formatShort, formatTick, formatValue, shortTask } from "../../src/text/format.js";

test.each([
  [0.31239, "0.3124"], [2.30258, "2.303"], [98.7654, "98.77"], [0.09, "0.0900"], [0.001234, "0.00123"], [0, "0"],
  [-1.5, "−1.500"], [123456, "123,456"], [1.5e7, "1.50e7"], [1.5e-7, "1.50e-7".replace("-", "−")],
  [NaN, "NaN"], [Infinity, "∞"], [-Infinity, "−∞"], [null, "–"], [undefined, "–"],
])("formatValue(%s) is %s", (value, text) => expect(formatValue(value)).toBe(text));

test.each([[0, "0"], [0.1 + 0.2, "0.3"], [250, "250"], [12500, "12.5k"], [0.0001, "1e-4"]])(
  "formatTick(%s) is %s", (value, text) => expect(formatTick(value)).toBe(text));

test.each([[0, "0"], [999, "999"], [1234567, "1,234,567"], [NaN, "–"], [null, "–"]])(
  "formatCount(%s) is %s", (value, text) => expect(formatCount(value)).toBe(text));

test.each([[312.4, "312"], [31_249, "31.2k"], [999.9, "1k"], [2.5e6, "2.5M"], [0.123, "0.123"], [Infinity, "–"]])(
  "formatShort(%s) is %s", (value, text) => expect(formatShort(value)).toBe(text));

test.each([[0.5, "0.5 s"], [9.99, "10 s"], [59.4, "59 s"], [65, "1 min 05 s"], [7500, "2 h 05 min"], [-1, "–"], [NaN, "–"]])(
  "formatDuration(%s) is %s", (value, text) => expect(formatDuration(value)).toBe(text));

describe("shortTask", () => {
  test("shortens a task's name", () => expect(shortTask("/job:worker/task:12")).toBe("worker 12"));
  test("leaves any other name", () => expect(shortTask("<b>/job:x")).toBe("<b>/job:x"));
});
