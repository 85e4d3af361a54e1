// @vitest-environment happy-dom
import { expect, test } from "vitest";
import { opaque, SvgCanvas } from "../../src/export/svg.js";

/** @param {(canvas: SvgCanvas) => void} draw */
function drawn(draw) {
  const canvas = new SvgCanvas(100, 50);
  draw(canvas);
  return new DOMParser().parseFromString(canvas.toString("t"), "image/svg+xml").documentElement;
}
const only = (/** @type {Element} */ svg, /** @type {string} */ selector) => /** @type {Element} */ (svg.querySelector(selector));

test("paths have the colour, width, dash and opacity of their time", () => {
  const svg = drawn((canvas) => {
    canvas.save();
    [canvas.strokeStyle, canvas.lineWidth, canvas.globalAlpha] = ["#ff0000", 2.5, 0.5];
    canvas.setLineDash([4, 3]);
    canvas.beginPath();
    canvas.moveTo(1, 2);
    canvas.lineTo(3.14159, 4);
    canvas.stroke();
    canvas.restore();
    canvas.fill();
  });
  const [line, area] = svg.querySelectorAll("path");
  expect(line.getAttribute("d")).toBe("M1 2L3.14 4");
  expect(["stroke", "stroke-width", "stroke-dasharray", "stroke-opacity"].map((name) => line.getAttribute(name))).toEqual(["#ff0000", "2.5", "4 3", "0.5"]);
  expect([area.getAttribute("fill"), area.hasAttribute("fill-opacity")]).toEqual(["#000", false]);
});

test("a whole circle and half of one, in either direction", () => {
  const svg = drawn((canvas) => {
    for (const [from, to, back] of /** @type {[number, number, boolean][]} */ ([[0, 2 * Math.PI, false], [-Math.PI / 2, Math.PI / 2, true]])) {
      canvas.beginPath();
      canvas.arc(10, 10, 5, from, to, back);
      canvas.fill();
    }
  });
  const [whole, half] = [...svg.querySelectorAll("path")].map((one) => one.getAttribute("d"));
  expect(whole).toBe("M15 10A5 5 0 0 1 5 10A5 5 0 0 1 15 10");
  expect(half).toBe("M10 5A5 5 0 0 0 5 10A5 5 0 0 0 10 15"); // the left half
});

test("a clip and a shift end with the state in which they began", () => {
  const svg = drawn((canvas) => {
    canvas.save();
    canvas.translate(5, 6);
    canvas.beginPath();
    canvas.rect(0, 0, 10, 10);
    canvas.clip();
    canvas.fillRect(0, 0, 1, 1);
    canvas.restore();
    canvas.fillRect(2, 2, 1, 1);
  });
  const [inside, outside] = svg.querySelectorAll("rect");
  expect(inside.parentElement?.getAttribute("clip-path")).toBe(`url(#${only(svg, "clipPath").id})`);
  expect(inside.parentElement?.parentElement?.getAttribute("transform")).toBe("translate(5 6)");
  expect(outside.parentElement).toBe(svg);
});

test("texts are escaped, aligned, and fitted into their room", () => {
  const svg = drawn((canvas) => {
    [canvas.font, canvas.textAlign, canvas.textBaseline] = ['600 12px "A B", sans-serif', "right", "middle"];
    canvas.fillText('<script>"&\u0007', 9, 9, 20);
  });
  const text = only(svg, "text");
  expect(text.textContent).toBe('<script>"&\ufffd');
  expect(["font-family", "font-size", "font-weight", "text-anchor", "dy", "textLength"].map((name) => text.getAttribute(name))).toEqual(['"A B", sans-serif', "12", "600", "end", "0.35em", "20"]);
});

test("a gradient is defined once for each use", () => {
  const svg = drawn((canvas) => {
    const ramp = canvas.createLinearGradient(0, 0, 0, 10);
    ramp.addColorStop(0, "#000000");
    canvas.fillStyle = ramp;
    canvas.fillRect(0, 0, 1, 1);
  });
  expect(only(svg, "rect").getAttribute("fill")).toBe(`url(#${only(svg, "linearGradient").id})`);
});

test("colours that only browsers mix become plain ones with an opacity", () => {
  const ruler = (/** @type {string} */ known) => /** @type {any} */ ({ set fillStyle(_) {}, get fillStyle() { return known; } });
  expect(opaque("x", ruler("color(srgb 1 0.5 0 / 0.09)"))).toEqual(["rgb(255,128,0)", 0.09]);
  expect(opaque("x", ruler("rgba(1, 2, 3, 0.5)"))).toEqual(["rgb(1,2,3)", 0.5]);
  expect(opaque("x", ruler("#102030"))).toEqual(["#102030", 1]);
});
