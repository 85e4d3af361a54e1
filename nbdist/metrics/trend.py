"""The course of one noisy series in bounded memory: exact means of neighbouring points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BUCKETS = 256  # at least this many, once there are as many points; at most twice as many


class Trend:
    """Means over buckets of neighbouring points; when there are too many buckets, pairs become one.

    Up to ``2 * BUCKETS`` points each is a bucket of its own, so that the course is the series itself. The
    start keeps its shape however long the series is: the first bucket is split into the first point, the
    second, the next two, the next four, and so on (a curve falls steeply at its start). The result depends
    on the points only, not on how the calls split them.

    >>> trend = Trend(buckets=2)
    >>> trend.extend(np.arange(8), np.array([1.0, 3, 2, 4, 5, 7, 6, 8]))
    >>> trend.curve()
    (array([0, 1, 3, 5, 7]), array([1., 3., 3., 6., 7.]))
    """

    __slots__ = ("_count", "_head", "_most", "_steps", "_sums", "_width")  # there may be very many of them

    def __init__(self, buckets: int = BUCKETS) -> None:
        self._most = 2 * buckets
        self._width = 1
        self._count = 0
        self._head: list[tuple[int, float]] = []  # last step and mean of the parts of the first bucket
        self._sums = np.zeros(min(4, self._most))  # grows up to `_most`
        self._steps = np.zeros(min(4, self._most), np.int64)  # the last step of each bucket

    def extend(self, steps: NDArray[Any], values: NDArray[Any]) -> None:
        """Append points; the two have one length."""
        start = 0
        while start < len(values):
            if self._count >= self._most * self._width:
                self._merge()
            room = self._most * self._width - self._count
            part = slice(start, start + room)
            self._append(steps[part], values[part])
            start += room

    def _append(self, steps: NDArray[Any], values: NDArray[Any]) -> None:
        buckets = np.arange(self._count, self._count + len(values)) // self._width
        if len(buckets) and buckets[-1] >= len(self._sums):
            self._grow(int(buckets[-1]) + 1)
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, and that is the answer
            np.add.at(self._sums, buckets, values)
        self._steps[buckets] = steps  # of several, the last one stays
        self._count += len(values)

    def _grow(self, needed: int) -> None:
        size = min(self._most, max(2 * len(self._sums), needed))
        self._sums = np.concatenate([self._sums, np.zeros(size - len(self._sums))])
        self._steps = np.concatenate([self._steps, np.zeros(size - len(self._steps), np.int64)])

    def _merge(self) -> None:
        half = self._most // 2
        if not self._head:
            self._head.append((int(self._steps[0]), float(self._sums[0])))
        # The part that the first bucket now adds is as wide as the whole bucket was before.
        self._head.append((int(self._steps[1]), float(self._sums[1]) / self._width))
        with np.errstate(invalid="ignore", over="ignore"):
            self._sums[:half] = self._sums[0::2] + self._sums[1::2]
        self._steps[:half] = self._steps[1::2]
        self._sums[half:] = 0
        self._width *= 2

    def curve(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return (steps, means): a point per bucket, at its last step; the newest may be partly full.

        The first bucket is as many points as it has parts.
        """
        filled = -(-self._count // self._width)
        counts = np.full(filled, self._width)
        if filled:
            counts[-1] = self._count - (filled - 1) * self._width
        steps, means = self._steps[:filled].copy(), self._sums[:filled] / counts
        if not self._head:
            return steps, means
        head_steps, head_means = zip(*self._head, strict=True)
        return np.concatenate([head_steps, steps[1:]]), np.concatenate([head_means, means[1:]])
