"""Ranks that wait for each other on one core part, where there is a core for each.

The scheduler leaves them together: they yield to each other every few microseconds, so that both look too
recently run to be moved, and each call takes twice as long, for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nbdist.wire.collective.desk import THREAD

LOOK_EVERY = 0.02  # seconds; a look at the others takes some 15 µs each
CORE_FIELD = 36  # of /proc/<pid>/stat, after the name


class Parting:
    """Moves the calling thread of a rank off a core on which another rank runs."""

    def __init__(self, rank: int, words: Sequence[memoryview[int]]) -> None:
        self._own = words[rank]
        self._others = [one for one in words if one is not words[rank]]
        self._next = 0.0
        self._enough = len(words) <= len(os.sched_getaffinity(0))

    def say(self) -> None:
        """Let the others know which thread this rank is."""
        self._own[THREAD] = threading.get_native_id()

    def look(self, now: float) -> None:
        """See where the others are, if it is time to, and move if need be; for when this rank waits long."""
        if not self._enough or now < self._next:
            return
        self._next = now + LOOK_EVERY
        self.say()
        here = core_of(self._own[THREAD])
        taken = {core_of(words[THREAD]) for words in self._others}
        if here not in taken or here < 0:
            return
        allowed = os.sched_getaffinity(0)
        if free := allowed - taken:
            os.sched_setaffinity(0, free)  # of this thread only
            os.sched_setaffinity(0, allowed)  # it stays where it is until there is a reason to move it


def core_of(thread: int) -> int:
    """Return the core on which a thread of this host runs, or ran last; -1 if it is not seen here."""
    with suppress(OSError, IndexError, ValueError):
        stat = Path(f"/proc/{thread}/task/{thread}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[CORE_FIELD])
    return -1
