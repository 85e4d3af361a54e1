// Edits on their way to the kernel: what it has not answered yet stays as it was typed.

/** @typedef {Record<string, unknown> & { what: string }} Change */

export class Edits {
  /** @param {(number: number, change: Change) => void} send */
  constructor(send) {
    this.send = send;
    this.number = 0; // of the last one sent
    /** @type {Map<string, number>} */
    this.sent = new Map(); // field -> the last edit of it that is not answered
    /** @type {Map<string, Change>} */
    this.held = new Map(); // field -> what is sent when that is
  }

  /** Something is done once. @param {Change} change @returns {number} */
  once(change) {
    this.flush();
    this.number += 1;
    this.send(this.number, change);
    return this.number;
  }

  /** What stands in a field now; while one is on its way only the latest follows. @param {string} field @param {Change} change */
  type(field, change) {
    if (this.sent.has(field)) this.held.set(field, change);
    else this.go(field, change);
  }

  /** @param {string} field @param {Change} change */
  go(field, change) {
    this.number += 1;
    this.sent.set(field, this.number);
    this.send(this.number, change);
  }

  /** Sends what is held back, before something that needs it. */
  flush() {
    const held = [...this.held];
    this.held.clear();
    for (const [field, change] of held) this.go(field, change);
  }

  /** The kernel has heard everything up to a number. @param {number} number */
  heard(number) {
    for (const [field, sent] of this.sent) {
      if (sent > number) continue;
      this.sent.delete(field);
      const next = this.held.get(field);
      this.held.delete(field);
      if (next) this.go(field, next);
    }
  }

  /** Whether the page knows better than the kernel what stands in a field. @param {string} field */
  waits(field) {
    return this.sent.has(field);
  }

  /** The kernel will not answer any more. */
  forget() {
    this.sent.clear();
    this.held.clear();
  }
}
