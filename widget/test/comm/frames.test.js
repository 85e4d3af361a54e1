import { describe, expect, test } from "vitest";
import { decodeFrame } from "../../src/comm/frames.js";

/** The bytes that frames.py's doctest shows. @param {string} hex */
function bytes(hex) {
  const digits = hex.replaceAll(" ", "");
  const data = new Uint8Array(digits.length / 2).map((_, i) => parseInt(digits.slice(2 * i, 2 * i + 2), 16));
  return new DataView(data.buffer);
}

describe("decodeFrame", () => {
  test("reads what Python writes", () => {
    const { sequence, segments } = decodeFrame(bytes("07000000 00000100 0a000000 0000003f"));
    expect(sequence).toBe(7);
    expect(segments).toEqual([{ replica: 0, series: 1, steps: [10], values: [0.5] }]);
  });

  test("joins neighbouring records of one curve only", () => {
    const point = (/** @type {string} */ curve, /** @type {string} */ step) => `${curve} ${step}000000 0000803f`;
    const { segments } = decodeFrame(
      bytes(["01000000", point("00000000", "01"), point("00000000", "02"), point("01000000", "01"), point("00000000", "03")].join("")),
    );
    expect(segments.map(({ replica, steps }) => [replica, steps])).toEqual([[0, [1, 2]], [1, [1]], [0, [3]]]);
  });

  test("keeps values that are not finite, and the largest numbers", () => {
    const { segments } = decodeFrame(bytes("00000000 ffffffff ffffffff 0000c07f"));
    expect(segments[0]).toEqual({ replica: 65535, series: 65535, steps: [4294967295], values: [NaN] });
  });

  test("accepts an empty frame, but not a truncated one", () => {
    expect(decodeFrame(bytes("05000000"))).toEqual({ sequence: 5, segments: [] });
    expect(() => decodeFrame(bytes("05000000 00"))).toThrow("5 bytes");
    expect(() => decodeFrame(bytes("05"))).toThrow(RangeError);
  });

  test("reads a view that does not start at the beginning of its buffer", () => {
    const whole = bytes("ffffffff 07000000 00000100 0a000000 0000003f");
    expect(decodeFrame(new DataView(whole.buffer, 4)).sequence).toBe(7);
  });
});
