import { describe, expect, test } from "vitest";
import { lengthWithin, placeBox } from "../../src/chart/readout.js";

const [ROOM, SIZE] = [{ width: 400, height: 200 }, { width: 120, height: 60 }];
/** @param {{ x: number, y: number }} box @param {{ x: number, y: number }} point */
const covers = ({ x, y }, point) => point.x >= x && point.x <= x + SIZE.width && point.y >= y && point.y <= y + SIZE.height;
const line = (/** @type {(x: number) => number} */ at) => {
  const xs = Array.from({ length: 101 }, (_, i) => 4 * i);
  return { xs, ys: xs.map(at) };
};

describe("the box with the values", () => {
  test.each([[200, 100], [2, 2], [398, 2], [2, 198], [398, 198], [200, 1], [200, 199]])("covers no point at %i, %i, and stays in the room", (x, y) => {
    const box = placeBox(SIZE, ROOM, { x, y }, []);
    expect(covers(box, { x, y })).toBe(false);
    expect(Math.min(box.x, box.y, ROOM.width - SIZE.width - box.x, ROOM.height - SIZE.height - box.y)).toBeGreaterThanOrEqual(0);
  });

  test.each([["falls", (/** @type {number} */ x) => 10 + 0.45 * x], ["rises", (/** @type {number} */ x) => 190 - 0.45 * x], ["is level", () => 20]])("covers no curve that %s", (_, at) => {
    for (let x = 0; x <= 400; x += 20) {
      const curve = line(at);
      const box = placeBox(SIZE, ROOM, { x, y: at(x) }, [curve]);
      const edges = { left: box.x, top: box.y, right: box.x + SIZE.width, bottom: box.y + SIZE.height };
      expect(lengthWithin(curve, edges)).toBe(0);
    }
  });

  test("stands beside a cell, also in a narrow figure", () => {
    const [room, cell] = [{ width: 160, height: 300 }, { x: 40, y: 100, width: 80, height: 50 }];
    const box = placeBox(SIZE, room, cell, []);
    expect(box.y + SIZE.height < cell.y || box.y > cell.y + cell.height).toBe(true);
  });

  test("stands below a figure that is too low for both", () => {
    const box = placeBox(SIZE, { width: 160, height: 50 }, { x: 60, y: 5, width: 40, height: 20 }, []);
    expect(box.y).toBeGreaterThan(25);
  });

  test("stays on its side while that is about as good", () => {
    const point = { x: 200, y: 100 };
    const left = placeBox(SIZE, ROOM, point, [{ xs: [260, 260], ys: [0, 200] }]);
    expect(placeBox(SIZE, ROOM, point, []).x).toBeGreaterThan(point.x);
    expect(placeBox(SIZE, ROOM, point, [], left.side).x).toBeLessThan(point.x);
    expect(covers(placeBox(SIZE, ROOM, { x: 10, y: 100 }, [], left.side), { x: 10, y: 100 })).toBe(false); // no room there
  });
});

test("the length of a line in a box leaves out gaps", () => {
  const box = { left: 0, top: 0, right: 10, bottom: 10 };
  expect(lengthWithin({ xs: [-5, 5, 15], ys: [5, 5, 5] }, box)).toBe(10);
  expect(lengthWithin({ xs: [-5, 5, 15], ys: [5, NaN, 5] }, box)).toBe(0);
  expect(lengthWithin({ xs: [5, 5], ys: [-10, 20] }, box)).toBe(10);
  expect(lengthWithin({ xs: [20, 30], ys: [5, 5] }, box)).toBe(0);
});
