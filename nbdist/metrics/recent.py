"""The newest points of all replicas in one ring, for readers that follow with a cursor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ENTRY = np.dtype([("replica", "<u2"), ("series", "<u2"), ("step", "<u4"), ("value", "<f8")])

Group = tuple[int, int, NDArray[np.uint32], NDArray[np.float64]]


class Recent:
    """A ring of ``size`` points; the cursor of a point is how many came before it."""

    def __init__(self, size: int) -> None:
        self.total = 0
        self._ring = np.empty(size, ENTRY)

    def extend(
        self, replica: int, series: int | NDArray[Any], steps: NDArray[Any], values: NDArray[Any]
    ) -> None:
        """Append points of one replica, over the oldest; of one series, or of each its own."""
        size, count = len(self._ring), len(values)
        series = np.broadcast_to(series, count)
        skip = max(0, count - size)
        start = (self.total + skip) % size
        first = min(size - start, count - skip)
        rest = slice(skip, skip + first)
        self._put(slice(start, start + first), replica, series[rest], steps[rest], values[rest])
        if (left := count - skip - first) > 0:
            rest = slice(skip + first, count)
            self._put(slice(0, left), replica, series[rest], steps[rest], values[rest])
        self.total += count

    def since(self, cursor: int, limit: int) -> tuple[int, NDArray[np.void]]:
        """Return (the next cursor, at most ``limit`` points from ``cursor`` on, as they came)."""
        size = len(self._ring)
        start = min(max(cursor, self.total - size, 0), self.total)
        end = min(start + limit, self.total)
        return end, self._ring[np.arange(start, end) % size]

    def _put(
        self,
        where: slice,
        replica: int,
        series: NDArray[Any],
        steps: NDArray[Any],
        values: NDArray[Any],
    ) -> None:
        part = self._ring[where]
        part["replica"], part["series"], part["step"], part["value"] = replica, series, steps, values


def grouped(entries: NDArray[np.void]) -> list[Group]:
    """Split entries by (replica, series), each group in the order its points came."""
    entries, starts = by_curve(entries)
    pieces = np.split(entries, starts[1:]) if len(starts) else []
    return [
        (int(piece["replica"][0]), int(piece["series"][0]), piece["step"].copy(), piece["value"].copy())
        for piece in pieces
    ]


def by_curve(entries: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.intp]]:
    """Return entries with those of one replica and series together, and where each curve's begin."""
    key = entries["replica"].astype(np.uint32) << 16 | entries["series"]
    order = np.argsort(key, kind="stable")
    key = key[order]
    return entries[order], np.flatnonzero(np.concatenate((key[:1] >= 0, key[1:] != key[:-1])))
