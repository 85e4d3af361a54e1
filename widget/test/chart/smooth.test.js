import { describe, expect, test } from "vitest";
import { extent, padded, pointRange, valuesWithin, withoutSpikes } from "../../src/chart/domain.js";
import { indexAt, nearestIndex, secondsAt, smooth } from "../../src/chart/curves.js";

describe("smooth", () => {
  test("leaves a constant as it is, from the first value on", () => {
    for (const value of smooth([3, 3, 3, 3], 0.9)) expect(value).toBeCloseTo(3);
  });
  test("does nothing at weight 0", () => {
    const values = [1, 2];
    expect(smooth(values, 0)).toBe(values);
  });
  test("keeps gaps and continues after them", () => {
    const smoothed = smooth([1, NaN, 1, Infinity, 1], 0.5);
    expect(smoothed[1]).toBeNaN();
    expect(smoothed[3]).toBe(Infinity);
    expect(smoothed[4]).toBeCloseTo(1);
  });
  test("follows with a delay", () => {
    const smoothed = smooth([0, 0, 1, 1], 0.5);
    expect(smoothed[2]).toBeGreaterThan(0);
    expect(smoothed[2]).toBeLessThan(smoothed[3]);
    expect(smoothed[3]).toBeLessThan(1);
  });
});

describe("secondsAt", () => {
  const clock = { steps: [0, 100, 200], values: [0, 10, 40] };
  test("interpolates between known steps, and extrapolates beyond them", () => {
    expect(secondsAt([0, 50, 100, 150, 200, 300], clock)).toEqual([0, 5, 10, 25, 40, 70]);
  });
  test("one known step gives a constant", () => {
    expect(secondsAt([5, 6], { steps: [5], values: [0.5] })).toEqual([0.5, 0.5]);
  });
});

describe("finding an x", () => {
  test("indexAt", () => expect([-1, 0, 5, 10, 99].map((x) => indexAt([0, 10, 20], x))).toEqual([-1, 0, 0, 1, 2]));
  test("nearest", () => expect([-9, 4, 6, 99].map((x) => nearestIndex([0, 10, 20], x))).toEqual([0, 0, 1, 2]));
  test("nearest of nothing", () => expect(nearestIndex([], 1)).toBe(-1));
});

describe("extent", () => {
  test("of all lists", () => expect(extent([[4, 5], [], [3]])).toEqual([3, 5]));
  test("of nothing", () => expect(extent([[], []])).toBeNull());
});

describe("valuesWithin", () => {
  const line = { xs: [0, 10, 20, 30, 40], ys: [9, 8, NaN, 6, 5] };
  test("includes values in the range and their neighbours", () => expect(valuesWithin(line, [12, 28])).toEqual([8, 6]));
  test("includes the ends of a line that crosses the range", () => expect(valuesWithin(line, [32, 38])).toEqual([6, 5]));
  test("includes all", () => expect(valuesWithin(line, [-Infinity, Infinity])).toEqual([9, 8, 6, 5]));
  test("of an empty line", () => expect(valuesWithin({ xs: [], ys: [] }, [0, 1])).toEqual([]));
});

describe("the values that set the range", () => {
  test("exclude a single spike", () => expect(withoutSpikes([5, 3, 2, 900, 1, 1])).toEqual([5, 3, 2, 1, 1]));
  test("include a first value of a falling curve", () => expect(withoutSpikes([9, 5, 3, 2, 1])).toContain(9));
  test("include all of a few values", () => {
    for (const few of [[1, 100], [0, 1, 2], [1, 900, 1], [0.5, 1, 1, 0.2]]) expect(withoutSpikes(few)).toEqual(few);
  });
  test("are most of many points", () => {
    const points = Array.from({ length: 20_000 }, (_, i) => i % 2);
    points[7] = 1000;
    expect(pointRange(points, null)).toEqual([0, 1]);
  });
  test("are none without points", () => expect(pointRange([], null)).toEqual([]));
});

describe("withRoom", () => {
  test("does not cross zero with the margin", () => {
    expect(padded([0.01, 1])[0]).toBe(0);
    expect(padded([-1, -0.01])[1]).toBe(0);
  });
  test("a single value has a margin", () => {
    const [low, high] = padded([5, 5]);
    expect(low).toBeLessThan(5);
    expect(high).toBeGreaterThan(5);
    expect(padded([0, 0])).toEqual([0, 1]);
  });
  test("no values have a default range", () => expect(padded(null)).toEqual([0, 1]));
});
