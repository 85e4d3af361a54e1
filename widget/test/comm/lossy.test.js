// A page that loses 30% of its frames ends with the same curves as one that loses none.
import { describe, expect, test } from "vitest";
import { Curves } from "../../src/chart/curves.js";
import { applyFrame, isSilent, lastApplied, newFrameSequence } from "../../src/comm/connection.js";

/** Pseudo-random numbers from 0 to 1. @param {number} seed */
function random(seed) {
  let state = seed + 0x9e3779b9;
  return () => {
    state = Math.imul(state ^ (state >>> 15), state | 1);
    state ^= state + Math.imul(state ^ (state >>> 7), state | 61);
    return ((state ^ (state >>> 14)) >>> 0) / 4294967296;
  };
}

/** @typedef {{ replica: number, series: number, step: number, value: number }} Point */
/** @typedef {{ sequence: number, snapshot: boolean, replaced: [number, number][] }} Message */

/** A model of the kernel's side (nbdist/ui/widgets/run.py and frames.py). */
class Kernel {
  constructor() {
    this.points = /** @type {Point[]} */ ([]);
    this.sequence = this.sent = 0;
    this.inFlight = /** @type {number[]} */ ([]);
    this.snapshot = true;
    this.visible = false;
  }

  /** @param {string} kind @param {number} sequence @param {boolean} visible */
  receiveMessage(kind, sequence, visible) {
    if (kind !== "ack") this.visible = visible;
    if (kind !== "ack" && (sequence !== this.sequence || sequence === 0)) {
      this.inFlight = [];
      this.snapshot = true;
    } else this.inFlight = this.inFlight.filter((other) => other > sequence);
  }

  /** The next frame, if something has changed and flow control allows it. @param {boolean} renew send one curve again
   * @returns {{ message: Message, bytes: DataView } | null} */
  tick(renew) {
    if (!this.visible || this.inFlight.length >= 2) return null;
    const { snapshot } = this;
    if (!snapshot && this.sent === this.points.length && !renew) return null;
    const news = snapshot ? this.points : this.points.slice(this.sent);
    // A replaced curve is sent with all of its points.
    const replaced = /** @type {[number, number][]} */ (snapshot ? CURVES : renew ? [CURVES[0]] : []);
    const isFirst = (/** @type {Point} */ { replica, series }) => replica === CURVES[0][0] && series === CURVES[0][1];
    const sent = renew && !snapshot ? [...this.points.filter(isFirst), ...news.filter((point) => !isFirst(point))] : news;
    this.sent = this.points.length;
    this.snapshot = false;
    this.inFlight.push(++this.sequence);
    return { message: { sequence: this.sequence, snapshot, replaced }, bytes: encode(this.sequence, sent) };
  }
}

const CURVES = /** @type {[number, number][]} */ ([[0, 0], [0, 1], [1, 0], [65535, 0]]);

/** @param {number} sequence @param {Point[]} points */
function encode(sequence, points) {
  const bytes = new DataView(new ArrayBuffer(4 + 12 * points.length));
  bytes.setUint32(0, sequence, true);
  points.forEach(({ replica, series, step, value }, i) => {
    bytes.setUint16(4 + 12 * i, replica, true);
    bytes.setUint16(6 + 12 * i, series, true);
    bytes.setUint32(8 + 12 * i, step, true);
    bytes.setFloat32(12 + 12 * i, value, true);
  });
  return bytes;
}

/** Runs 60 seconds of a run and then waits; returns the page's curves. @param {number} seed @param {number} lost share of frames */
function watched(seed, lost) {
  const [data, chance] = [random(seed), random(seed + 1)];
  const kernel = new Kernel();
  const link = newFrameSequence(0);
  const curves = new Curves();
  let [visible, dropped, most] = [true, 0, 0];
  const send = (/** @type {string} */ kind) => kernel.receiveMessage(kind, lastApplied(link), visible);
  send("ready");
  for (let tick = 0; tick < 1200; tick++) {
    const now = tick * 100;
    if (tick < 600) {
      for (const [replica, series] of CURVES) kernel.points.push({ replica, series, step: tick, value: data() < 0.02 ? NaN : data() });
    }
    if (chance() < 0.02 || tick === 600) { // it scrolls away, or comes back; at last it is there
      visible = tick === 600 || !visible;
      send("visible");
    }
    const frame = kernel.tick(tick < 600 && tick % 37 === 0);
    most = Math.max(most, kernel.inFlight.length);
    if (frame && chance() < lost) dropped++;
    else if (frame) {
      const answer = applyFrame(link, frame.message, frame.bytes, now, ({ replaced }, segments) => curves.apply(replaced, segments));
      if (answer) send(answer);
    }
    if (tick % 10 === 0 && visible && isSilent(link, now)) send("snapshot");
  }
  return { curves: [...curves.byKey.entries()].sort(([a], [b]) => a - b), dropped, most };
}

describe("a page that loses 30% of its frames", () => {
  test.each(Array.from({ length: 100 }, (_, seed) => seed))("seed %s", (seed) => {
    const whole = watched(seed, 0);
    const lossy = watched(seed, 0.3);
    expect(lossy.dropped).toBeGreaterThan(10);
    expect(lossy.most).toBeLessThanOrEqual(2);
    expect(lossy.curves).toEqual(whole.curves);
    expect(whole.curves.map(([, curve]) => curve.steps.length)).toEqual([600, 600, 600, 600]);
  });
});
