"""Which replicas are slower than the others, from what they say of their steps. Pure.

A replica says ten times a second how many steps it has made and how long it was busy in all of them: with
data, computing and exchanging, not waiting. What matters is the time of a step lately: the median over
intervals between its words, so that one pause for the garbage or a checkpoint says nothing. And its quick
intervals have to be slow as well: replicas that take turns on too few cores are now quick and now slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

BUSY = ("data", "compute", "exchange")
STEPS, SECONDS = 10, 0.7
"""What the intervals cover at least."""
SLOW, NORMAL = 1.2, 1.1
"""Times the others' step from which a replica is named, and below which no longer."""
QUICK = 0.25
"""The share of intervals that are quicker than the one that stands for the quick ones."""
IN_A_ROW = 3
"""Words in a row that have to tell of a slow replica."""


class Stragglers:
    """Names replicas that are slower than the others: those of 30% within 20 of their steps.

    >>> told = Stragglers(2)
    >>> for tenth in range(20):
    ...     for replica, step in enumerate((0.05, 0.1)):
    ...         told.hear(replica, int(0.1 * tenth / step), {"compute": 0.1 * tenth}, 0.1 * tenth)
    >>> told.slowness(0), told.slowness(1)
    (None, 2.0)
    """

    def __init__(self, replicas: int) -> None:
        self._lately = [_Lately() for _ in range(replicas)]

    def hear(
        self, replica: int, step: int, spent: Mapping[str, float], now: float, training: int = 1
    ) -> None:
        """Take in how far a replica is, and its busy seconds so far; only those of one training compare."""
        lately = self._lately[replica]
        if training != lately.training or step < lately.step:
            self._lately[replica] = lately = _Lately(training)
        if not lately.add(step, sum(spent.get(part, 0.0) for part in BUSY), now):
            return
        others = [
            one.typical
            for one in self._lately
            if one is not lately and one.typical is not None and one.training == training
        ]
        if others and lately.typical is not None:
            lately.compare(median(others))

    def leave(self, replica: int) -> None:
        """Forget a replica: it is gone."""
        self._lately[replica] = _Lately()

    def slowness(self, replica: int) -> float | None:
        """Return how many times the others' step a slow replica's takes; None if it is not slow."""
        lately = self._lately[replica]
        return round(lately.times, 2) if lately.named else None


@dataclass
class _Lately:
    """One replica's last steps."""

    training: int = 0
    step: int = 0
    named: bool = False
    times: float = 1.0
    """How many times the others' step its own takes."""
    typical: float | None = None
    """Seconds of a step; None before enough is known."""
    quick: float = 0.0
    """Seconds of a step in its quick intervals."""
    _busy: float = 0.0
    _at: float | None = None
    _intervals: deque[tuple[int, float, float]] = field(default_factory=deque)
    """Steps, busy seconds of each, and how long it all took."""
    _steps: int = 0
    _took: float = 0.0
    _in_a_row: int = 0

    def add(self, step: int, busy: float, now: float) -> bool:
        """Take in a word; whether an interval has ended with it."""
        if self._at is None:
            self.step, self._busy, self._at = step, busy, now
            return False
        steps = step - self.step
        if steps < 1:
            return False
        took = now - self._at
        self._intervals.append((steps, max(0.0, busy - self._busy) / steps, took))
        self._steps, self._took = self._steps + steps, self._took + took
        self.step, self._busy, self._at = step, busy, now
        oldest, _, long = self._intervals[0]
        while self._steps - oldest >= STEPS and self._took - long >= SECONDS:  # enough without it
            self._intervals.popleft()
            self._steps, self._took = self._steps - oldest, self._took - long
            oldest, _, long = self._intervals[0]
        if self._steps >= STEPS and self._took >= SECONDS:
            each = sorted(each for _, each, _ in self._intervals)
            self.typical, self.quick = median(each), each[int(QUICK * len(each))]
        return True

    def compare(self, others: float) -> None:
        """Decide, given the others' step."""
        assert self.typical is not None
        self.times = self.typical / others if others > 0 else 1.0
        slow = self.times >= SLOW and self.quick >= NORMAL * others
        self._in_a_row = self._in_a_row + 1 if slow else 0
        stays = self.named and self.times >= NORMAL and self.quick >= others
        self.named = self._in_a_row >= IN_A_ROW or stays
