"""`RingLog`: the last rows, and a few before each of many moments that all tasks share.

A timeline shows one step of every task at the same time. While a run is under way, the last steps of each
are enough. At its end they may not be: a fast replica finishes long before a slow one. So each task also
keeps the rows before whole fiftieths of a second of the day, more of the late ones than of the early ones,
and two tasks always have such a moment in common.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
EVERY = 0.02  # seconds between the moments
DENSE = 8  # moments that are kept without gaps, before every other one, every fourth, ...
RECENT, BEFORE = 64, 8  # rows


class RingLog:
    """Takes rows with their end time as last entry, in order; ``add`` costs about 0.1 microseconds.

    One thread adds, any thread reads. ``recent`` rows are kept, and ``before`` for each moment; ``clock`` is
    what rows are timed by, ``day`` the time of day, in seconds.

    >>> log = RingLog(recent=2)
    >>> for end in (1.0, 2.0, 3.0):
    ...     log.add((int(end), end))
    >>> log.rows()[-2:]
    [(2, 2.0), (3, 3.0)]
    """

    def __init__(
        self,
        recent: int = RECENT,
        before: int = BEFORE,
        clock: Callable[[], float] = time.perf_counter,
        day: Callable[[], float] = time.time,
    ) -> None:
        self._recent: deque[Row] = deque(maxlen=recent)
        self._before, self._clock, self._day = before, clock, day
        self._moments: list[tuple[int, list[Row]]] = []
        self._room = DENSE
        self._next = 0
        self._due = 0.0
        self._aim(day())

    def add(self, row: Row) -> None:
        """Record a row."""
        self._recent.append(row)
        if row[-1] >= self._due:
            self._keep()

    def rows(self) -> list[Row]:
        """Return what is on the log, in order."""
        # A list is copied in one go: the adding thread may continue during the copy.
        kept = [row for _, rows in list(self._moments) for row in rows]
        return sorted(dict.fromkeys([*kept, *list(self._recent)]), key=lambda row: row[-1])

    def _keep(self) -> None:
        """Keep the last rows; this comes in the middle of a training, and is to be over soon."""
        day, recent = self._day(), self._recent
        passed = max(self._next, int(day // EVERY))
        rows = [recent[i] for i in range(-min(self._before, len(recent)), 0)]
        self._moments.append((roundest(self._next, passed), rows))
        if len(self._moments) > self._room:
            self._moments = [moment for moment in self._moments if is_kept(moment[0], passed)]
            self._room = len(self._moments) + DENSE
        self._aim(day)

    def _aim(self, day: float) -> None:
        """Find the next moment, on the clock of the rows."""
        self._next = int(day // EVERY) + 1  # also when the time of day was put back
        self._due = self._clock() + self._next * EVERY - day


def roundest(first: int, last: int) -> int:
    """Return the roundest binary number from ``first`` to ``last``: of the moments in one row, which to keep.

    >>> roundest(41, 50), roundest(33, 35), roundest(7, 7)
    (48, 34, 7)
    """
    differing = ((first - 1) ^ last).bit_length() - 1
    return last >> differing << differing


def is_kept(number: int, newest: int) -> bool:
    """Whether moment ``number`` is still kept at moment ``newest``: the older, the rounder its number.

    Of n moments about ``DENSE / 2 * log2(n)`` stay. Tasks that end at different times agree on which.

    >>> [number for number in range(41) if is_kept(number, 40)]
    [0, 8, 12, 16, 20, 24, 26, 28, 30, 32, 33, 34, 35, 36, 37, 38, 39, 40]
    """
    roundness = number & -number if number else newest + 1
    return newest - number < DENSE * roundness
