"""The memory that a parameter server shares with the replicas of its host.

    [ counters | parameters | replica 0: slot 0, slot 1 | replica 1: ... ]

A slot is what one gradient travels in: a header of int64 (the version it was made from, its staleness
once applied) and the gradient's bytes. A replica writes a gradient straight into its slot and rings.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from nbdist.runtime.layout import ALIGNMENT, Layout
from nbdist.wire.ordering import fence, yield_core
from nbdist.wire.shm import Segment

Array = np.ndarray[Any, Any]
COUNTERS = 8  # int64, of which these are used
GLOBAL_STEP, VERSION, CHANGES, BEGUN = 0, 1, 2, 3
SLOTS = 2  # gradients of one replica that may be on their way at once
HEADER = 8  # int64 before each gradient
RING = struct.Struct("<HHHH")  # replica to server: shard number, replica, its incarnation, slot or COUNT
COUNT = 0xFFFF
ANSWER = struct.Struct("<BB")  # server to replica: the kind of answer (sync.py), slot


class Mailbox:
    """Views into a segment of the form above; the same on both sides."""

    def __init__(self, segment: Segment, layout: Layout, replicas: int) -> None:
        self.segment = segment
        base = COUNTERS * 8
        self.counters: Array = segment.array(np.int64, COUNTERS, 0)
        self.parameters: Array = segment.bytes[base : base + layout.size]
        self.headers: list[list[Array]] = []
        self.gradients: list[list[Array]] = []
        slot_bytes = HEADER * 8 + layout.size
        start = base + layout.size
        for replica in range(replicas):
            offsets = [start + (replica * SLOTS + slot) * slot_bytes for slot in range(SLOTS)]
            self.headers.append([segment.array(np.int64, HEADER, o) for o in offsets])
            self.gradients.append(
                [segment.bytes[o + HEADER * 8 : o + HEADER * 8 + layout.size] for o in offsets]
            )

    @staticmethod
    def size(layout: Layout, replicas: int) -> int:
        """Return how many bytes the segment needs."""
        assert layout.size % ALIGNMENT == 0
        return COUNTERS * 8 + layout.size + replicas * SLOTS * (HEADER * 8 + layout.size)

    def read_rest(self, into: Array) -> tuple[int, int] | None:
        """Copy what a server that has died left here; return its version and the global step.

        None if it died in the middle of an update. The memory has what its process wrote last, in order.
        """
        if self.counters[BEGUN] != self.counters[VERSION]:
            return None
        np.copyto(into, self.parameters)
        return int(self.counters[VERSION]), int(self.counters[GLOBAL_STEP])

    def read_whole(self, into: Array, tries: int) -> tuple[int, int] | None:
        """Copy the parameters as no update has left them half-way; return their version and the global step.

        None if ``tries`` went by without such a moment. It takes a shard that is changed with locking: its
        changes are counted as each begins and ends (a sequence lock); a copy is good if none came between.
        """
        for _ in range(tries):
            changes = int(self.counters[CHANGES])
            if changes % 2 == 0:
                fence()
                version, step = int(self.counters[VERSION]), int(self.counters[GLOBAL_STEP])
                np.copyto(into, self.parameters)
                fence()
                if int(self.counters[CHANGES]) == changes:
                    return version, step
            yield_core()
        return None
