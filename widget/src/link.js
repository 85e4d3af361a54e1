// What to do with a frame, given those before it. Pure: it is told the time and sends nothing.
import { decodeFrame } from "./frame.js";

const ASK_AGAIN = 500; // milliseconds between two requests for the same snapshot
const QUIET = 2000; // milliseconds without a frame after which the page asks whether it missed one

/** @typedef {{ sequence: number, behind: boolean, asked: number, heard: number }} Link */

/** @param {number} now milliseconds @returns {Link} */
export function newLink(now) {
  return { sequence: 0, behind: true, asked: now, heard: now };
}

/**
 * A message with a frame arrived: applies it, if it is its turn; returns what the kernel is to be told.
 * @template {{ snapshot: boolean }} M
 * @param {Link} link
 * @param {M} message
 * @param {DataView} bytes
 * @param {number} now milliseconds
 * @param {(message: M, runs: import("./frame.js").Run[]) => void} apply
 * @returns {"ack" | "snapshot" | null}
 */
export function take(link, message, bytes, now, apply) {
  const { sequence, runs } = decodeFrame(bytes);
  const verdict = receive(link, sequence, message.snapshot, now);
  if (verdict === "apply") apply(message, runs);
  return verdict === "apply" ? "ack" : verdict === "ask" ? "snapshot" : null;
}

/** What the kernel is told that the page has: nothing, if something is missing. @param {Link} link */
export function has(link) {
  return link.behind ? 0 : link.sequence;
}

/**
 * A frame arrived. "apply" it; or "ask" for a snapshot because one before it was lost; or "skip" it because
 * the snapshot is on its way.
 * @param {Link} link
 * @param {number} sequence
 * @param {boolean} snapshot
 * @param {number} now milliseconds
 * @returns {"apply" | "ask" | "skip"}
 */
export function receive(link, sequence, snapshot, now) {
  link.heard = now;
  if (snapshot || (!link.behind && sequence === link.sequence + 1)) {
    link.sequence = sequence;
    link.behind = false;
    return "apply";
  }
  if (!link.behind && sequence <= link.sequence) return "skip"; // meant for another view of the same run
  if (link.behind && now - link.asked < ASK_AGAIN) return "skip";
  link.behind = true;
  link.asked = now;
  return "ask";
}

/**
 * Whether to ask now if frames were lost: nothing came for a while, or an asked-for snapshot did not.
 * @param {Link} link
 * @param {number} now milliseconds
 */
export function tooQuiet(link, now) {
  if (now - Math.max(link.heard, link.asked) < QUIET) return false;
  link.asked = now;
  return true;
}
