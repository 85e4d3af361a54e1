"""Ranks that wait for each other on one core part, where there is a core for each.

The scheduler leaves them together: they yield to each other every few microseconds, so that both look too
recently run to be moved, and each call takes twice as long, for ever.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from nbdist.wire.collective.desk import CORE

LOOK_EVERY = 16  # waits that were longer than the scheduler's patience would explain


class Parting:
    """Moves the calling thread of a rank off a core on which a rank before it runs."""

    def __init__(self, rank: int, words: Sequence[memoryview[int]]) -> None:
        self._own, self._others = words[rank], [one for one in words if one is not words[rank]]
        self._before = words[:rank]
        self._waits = 0
        self._core: Callable[[], int] = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: -1)
        self._enough = len(words) <= len(os.sched_getaffinity(0))

    def look(self) -> None:
        """Note a long wait; now and then, see where the others are and move if need be."""
        self._waits += 1
        if self._enough and self._waits % LOOK_EVERY == 0:
            core = self._core()
            self._own[CORE] = core + 1  # 0 is unknown
            if any(words[CORE] == core + 1 for words in self._before):
                self._move(core)

    def _move(self, core: int) -> None:
        allowed = os.sched_getaffinity(0)
        free = allowed - {core} - {int(words[CORE]) - 1 for words in self._others}
        if free:
            os.sched_setaffinity(0, free)  # of this thread only
            os.sched_setaffinity(0, allowed)  # it stays where it is until there is a reason to move it
            self._own[CORE] = self._core() + 1
