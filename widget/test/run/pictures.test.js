// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { PictureSection, readPictures } from "../../src/run/pictures.js";

const WEIGHTS = { task: "worker 0", tag: "weights", kind: "histogram", items: [{ step: 1, low: -1, high: 1, counts: "1 2 1" }, { step: 5, low: -2, high: 2, counts: "0 4 0" }] };
const DIGITS = { task: "worker 0", tag: "digits", kind: "image", items: [{ step: 1234, png: "iVBORw0=" }, { step: 1234, png: "iVBORw1=" }] };

/** @param {unknown} pictures */
function shown(pictures) {
  const section = new PictureSection();
  section.show(pictures);
  return section.element;
}

describe("the pictures of a run's summaries", () => {
  test("are a ridge for each step, over one range of values", () => {
    const element = shown([WEIGHTS]);
    const lines = [...element.querySelectorAll(".nbd-ridge")].map((line) => line.getAttribute("d"));
    expect(lines).toEqual(["M60 34L80 25.5L120 17L160 25.5L180 34", "M0 118L40 118L120 84L200 118L240 118"]);
    expect(element.querySelector("svg")?.getAttribute("aria-label")).toBe("Histogram of weights at step 5: values from −2.000 to 2.000");
    expect(element.querySelector("figcaption")?.textContent).toBe("weightsstep 5");
  });

  test("are the newest images, with their tags", () => {
    const images = [...shown([DIGITS]).querySelectorAll("img")];
    expect(images.map((image) => image.getAttribute("src"))).toEqual(["data:image/png;base64,iVBORw0=", "data:image/png;base64,iVBORw1="]);
    expect(images[0].getAttribute("alt")).toBe("digits, step 1,234");
  });

  test("name the task if there are several", () => {
    const element = shown([DIGITS, { ...DIGITS, task: "worker 1" }]);
    expect([...element.querySelectorAll("figcaption span")].map((node) => node.textContent)).toEqual(["worker 0 · step 1,234", "worker 1 · step 1,234"]);
  });

  test("are hidden if there are none, and keep what has not changed", () => {
    expect(shown([]).hidden).toBe(true);
    const section = new PictureSection();
    section.show([WEIGHTS, DIGITS]);
    const before = section.element.querySelector(".nbd-image");
    section.show([{ ...WEIGHTS, items: WEIGHTS.items.slice(1) }, { ...DIGITS }]);
    expect(section.element.querySelector(".nbd-image")).toBe(before);
    expect(section.element.querySelectorAll(".nbd-ridge").length).toBe(1);
  });

  test("are left out where they are damaged", () => {
    const bad = [null, 3, {}, { ...WEIGHTS, items: [{ step: 1, low: 2, high: 1, counts: "1" }, { step: 1, low: 0, high: 1, counts: "-1" }, { step: 1, low: 0, high: 1, counts: "x" }] },
      { ...DIGITS, items: [{ step: 1, png: "\"><script>" }, { step: null, png: "iVBORw0=" }] }];
    expect(readPictures(bad)).toEqual([]);
    expect(readPictures("pictures")).toEqual([]);
  });
});
