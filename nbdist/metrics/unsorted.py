"""Points that came in batches, before they are put to their series: many at once cost far less than each."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.metrics.batch import POINT, Points

TAKEN = 0xFFFF  # no series: the point is where it belongs already


class Unsorted:
    """What waits, by replica, in the order in which it came.

    >>> waiting = Unsorted()
    >>> points = np.array([(0, 1, 0.5, 0.0), (1, 1, 0.9, 0.0), (0, 2, 0.4, 0.0)], POINT)
    >>> waiting.add(0, points)
    3
    >>> waiting.take(0, series=0)["value"], waiting.take(0)["value"]
    (array([0.5, 0.4]), array([0.9]))
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Points]] = {}

    def add(self, replica: int, points: Points) -> int:
        """Have points wait, which are written into later on; return how many of the replica's do."""
        waiting = self._waiting.setdefault(replica, [])
        waiting.append(points)
        return sum(map(len, waiting))

    def take(self, replica: int, series: int | None = None) -> Points:
        """Return a replica's points, or only those of one series; they do not wait any more."""
        waiting = self._waiting.pop(replica, [np.empty(0, POINT)])
        points: Points = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        wanted = points["series"] != TAKEN if series is None else points["series"] == series
        found: Points = points[wanted]
        if series is None:
            return found
        self._waiting[replica] = [points]
        points["series"][wanted] = TAKEN
        return found

    def last(self, replica: int, series: int) -> Any:
        """Return the newest point of a series that waits, or None."""
        for points in reversed(self._waiting.get(replica, ())):
            if len(found := np.flatnonzero(points["series"] == series)):
                return points[found[-1]]
        return None

    @property
    def replicas(self) -> list[int]:
        """The replicas of which points wait."""
        return list(self._waiting)
