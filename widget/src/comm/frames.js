// Decodes the binary frames of nbdist/ui/widgets/frames.py.

/**
 * Consecutive points of one curve.
 * @typedef {{ replica: number, series: number, steps: number[], values: number[] }} CurveSegment
 */

/** In place of a replica: the mean over all replicas. */
export const MEAN = 0xffff;
/** In place of a series: the value is the time in seconds since the run began. */
export const CLOCK = 0xffff;
/** In place of a series: the value is the number of the epoch that begins after the step. */
export const EPOCHS = 0xfffe;
/** Added to a series: the values are means of neighbouring points. */
export const TREND = 0x8000;

const HEADER = 4;
const RECORD = 12;

/**
 * Decodes `sequence u32, [replica u16, series u16, step u32, value f32]*`, little-endian.
 * @param {DataView} bytes
 * @returns {{ sequence: number, segments: CurveSegment[] }}
 */
export function decodeFrame(bytes) {
  if (bytes.byteLength < HEADER || (bytes.byteLength - HEADER) % RECORD !== 0) {
    throw new RangeError(`a frame cannot have ${bytes.byteLength} bytes`);
  }
  /** @type {CurveSegment[]} */
  const segments = [];
  /** @type {CurveSegment | undefined} */
  let segment;
  for (let at = HEADER; at < bytes.byteLength; at += RECORD) {
    const replica = bytes.getUint16(at, true);
    const series = bytes.getUint16(at + 2, true);
    if (!segment || segment.replica !== replica || segment.series !== series) {
      segment = { replica, series, steps: [], values: [] };
      segments.push(segment);
    }
    segment.steps.push(bytes.getUint32(at + 4, true));
    segment.values.push(bytes.getFloat32(at + 8, true));
  }
  return { sequence: bytes.getUint32(0, true), segments };
}
