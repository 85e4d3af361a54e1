import { describe, expect, test } from "vitest";
import { isSilent, newFrameSequence, receive } from "../../src/comm/connection.js";

describe("receive", () => {
  test("applies frames in their order after a snapshot", () => {
    const link = newFrameSequence(0);
    expect(receive(link, 1, true, 1)).toBe("apply");
    expect(receive(link, 2, false, 2)).toBe("apply");
    expect(receive(link, 3, false, 3)).toBe("apply");
  });

  test("requests one snapshot for a lost frame, and applies it", () => {
    const link = newFrameSequence(0);
    receive(link, 1, true, 0);
    expect(receive(link, 3, false, 1000)).toBe("ask");
    expect(receive(link, 4, false, 1100)).toBe("skip");
    expect(receive(link, 5, true, 1200)).toBe("apply");
    expect(receive(link, 6, false, 1300)).toBe("apply");
  });

  test("requests another snapshot if the first is lost", () => {
    const link = newFrameSequence(0);
    receive(link, 1, true, 0);
    expect(receive(link, 3, false, 1000)).toBe("ask");
    expect(receive(link, 5, false, 1600)).toBe("ask");
  });

  test("a snapshot sent before this view existed is applied", () => {
    const link = newFrameSequence(0);
    expect(receive(link, 40, false, 1)).toBe("skip");
    expect(receive(link, 41, true, 2)).toBe("apply");
  });

  test("an old frame is skipped", () => {
    const link = newFrameSequence(0);
    receive(link, 9, true, 0);
    expect(receive(link, 9, false, 1)).toBe("skip");
    expect(link.sequence).toBe(9);
  });
});

describe("isSilent", () => {
  test("requests a snapshot after two seconds of silence, then waits for as long again", () => {
    const link = newFrameSequence(0);
    receive(link, 1, true, 100);
    expect(isSilent(link, 1900)).toBe(false);
    expect(isSilent(link, 2100)).toBe(true);
    expect(isSilent(link, 3000)).toBe(false);
    expect(isSilent(link, 4200)).toBe(true);
  });
});
