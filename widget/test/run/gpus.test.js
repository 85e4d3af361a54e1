// @vitest-environment happy-dom
import { describe, expect, test } from "vitest";
import { GpuSection, readGpus } from "../../src/run/gpus.js";

const GIGABYTE = 2 ** 30;
const curve = (/** @type {number[]} */ values, mean = values[0]) => ({ seconds: values.map((_, i) => i).join(" "), values: values.join(" "), mean: String(mean) });
const H100 = {
  replica: 0, id: "GPU-8f3a91bc-00", model: "NVIDIA H100", total: 80 * GIGABYTE,
  use: curve([0, 90, 60], 50), memory: curve([GIGABYTE, 41.2 * GIGABYTE, 40 * GIGABYTE]), power: curve([98.5, 612, 300], 336.8), temperature: curve([40, 67, 66]),
};
const LABELS = ["worker 0", "worker 1"];

/** @param {unknown} gpus @param {boolean} [over] */
function shown(gpus, over = false) {
  const section = new GpuSection();
  section.show(gpus, LABELS, over, 2);
  return section.element;
}

const texts = (/** @type {Element} */ element, /** @type {string} */ selector) => [...element.querySelectorAll(selector)].map((node) => node.textContent);

describe("the GPUs of a run", () => {
  test("have the latest figures while it runs, and means and peaks at its end", () => {
    expect(texts(shown([H100]), ".nbd-gpu-value")).toEqual(["use60%", "memory40 / 80 GB", "power300 W", "temperature66 °C"]);
    const ended = shown([H100], true);
    expect(texts(ended, ".nbd-gpu-value")).toEqual(["use, mean50%", "memory, peak41 GB", "power, mean337 W", "temperature, peak67 °C"]);
    expect(texts(ended, ".nbd-gpu-model, .nbd-name")).toEqual(["worker 0", "NVIDIA H100"]);
    expect(texts(ended, ".nbd-gpus-span")).toEqual(["over 2.0 s"]);
    expect(ended.querySelector("svg")?.getAttribute("aria-label")).toBe("GPU use of worker 0: mean 50%, from 0% to 90%");
  });

  test("are drawn over one range of time, each figure in its own range", () => {
    const lines = [...shown([H100]).querySelectorAll(".nbd-gpu-line")].map((line) => line.getAttribute("d"));
    expect(lines[0]).toBe("M0 25L50 3.4L100 10.6");
    expect(shown([{ ...H100, use: curve([50]) }]).querySelector(".nbd-gpu-line")?.getAttribute("d")).toBe("M0 13L100 13");
  });

  test("leave out figures that none has, and keep the place of those that one lacks", () => {
    const slice = { replica: 1, id: "MIG-91bc", total: 10 * GIGABYTE, memory: curve([GIGABYTE]) };
    expect(texts(shown([slice]), ".nbd-gpu-figure")).toEqual(["memory1.0 / 10 GBGPU memory of worker 1: 1.0 / 10 GB, from 1.0 / 10 GB to 1.0 / 10 GB"]);
    const rows = shown([H100, slice]).querySelectorAll(".nbd-gpu");
    expect([...rows].map((row) => row.querySelectorAll(".nbd-gpu-figure").length)).toEqual([4, 4]);
  });

  test("say why one is not measured, and are not there without GPUs", () => {
    expect(texts(shown([{ replica: 0, id: "0", problem: "no driver" }]), ".nbd-gpu-problem")).toEqual(["not measured: no driver"]);
    expect(shown([]).hidden).toBe(true);
  });

  test.each([null, "x", [null], [{}], [{ replica: -1 }], [{ replica: 0.5 }]])("read rubbish as none: %j", (rubbish) => {
    expect(readGpus(rubbish)).toEqual([]);
  });

  test("drop damaged curves, and show texts as texts", () => {
    const damaged = { ...H100, model: "<img src=x>", use: { seconds: "0 1", values: "1" }, memory: { seconds: "0", values: "nan" }, power: 7, total: "many" };
    const [read] = readGpus([damaged]);
    expect([...read.figures.keys()]).toEqual(["temperature"]);
    const element = shown([damaged]);
    expect(element.querySelectorAll("img")).toHaveLength(0);
    expect(texts(element, ".nbd-gpu-model")).toEqual(["<img src=x>"]);
  });
});
