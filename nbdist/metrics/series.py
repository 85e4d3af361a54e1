"""One series of one replica in bounded memory: what is kept depends on the points only."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FIRST = 6  # points that there is room for at first
_KEPT = np.dtype([("order", "<i8"), ("step", "<u4"), ("value", "<f8"), ("time", "<f8")])


class Downsampled:
    """Keeps all points until there are more than ``buckets``, then each bucket's extremes, the first and
    the last.

    With ``count`` points seen, a bucket is the smallest power of two points wide that needs at most
    ``buckets`` buckets. At most about ``3 * buckets`` points are kept (2 per bucket unless there are NaNs),
    28 bytes each.
    """

    __slots__ = ("_buckets", "_points", "_thin", "count", "held")  # there may be very many of them

    def __init__(self, buckets: int) -> None:
        self.count = 0
        self._buckets = buckets
        self.held = 0
        """How many points are held just now, thinned or not."""
        self._thin = 0  # how many points had been seen when it was last thinned
        self._points = np.empty(FIRST, _KEPT)

    def extend(self, steps: NDArray[Any], values: NDArray[Any], times: NDArray[Any]) -> None:
        """Append points; the three have one length."""
        piece = 4 * self._buckets  # so that one long call takes no more memory than many short ones
        for start in range(0, len(values), piece):
            part = slice(start, start + piece)
            self._append(steps[part], values[part], times[part])

    def _append(self, steps: NDArray[Any], values: NDArray[Any], times: NDArray[Any]) -> None:
        new = len(values)
        if self.held + new > len(self._points):
            self._make_room(new)
        part = self._points[self.held : self.held + new]
        part["order"] = np.arange(self.count, self.count + new)
        part["step"], part["value"], part["time"] = steps, values, times
        self.held += new
        self.count += new

    def kept(self) -> NDArray[np.void]:
        """Return the points kept (fields order, step, value, time) as a view, thinned up to now."""
        if self.count > self._buckets and self._thin != self.count:
            self._thin = self.count
            points = self._points[: self.held]
            keep = extremes(points["order"] // self._width(), points["value"])
            self._points[: len(keep)] = points[keep]
            self.held = len(keep)
        return self._points[: self.held]

    def narrow(self, buckets: int) -> None:
        """Use fewer buckets from now on."""
        self._buckets = min(self._buckets, buckets)
        self._thin = 0
        self._points = self.kept().copy()

    def last(self) -> NDArray[np.void]:
        """Return the newest point, as an array of one."""
        return self._points[self.held - 1 : self.held]

    def _width(self) -> int:
        return 1 << max(0, (-(-self.count // self._buckets) - 1).bit_length())

    def _make_room(self, new: int) -> None:
        kept = self.kept()
        if len(kept) + new <= len(self._points) // 2:  # thinning alone made room, and pays for many calls
            return
        # Past this size twice the kept points fit, so that thinning is rare, also with small calls.
        larger = np.empty(2 * (len(kept) + new), _KEPT)
        larger[: len(kept)] = kept
        self._points = larger


# The trend of one noisy series in bounded memory: exact means of neighbouring points.

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
        self._steps[buckets] = steps  # of several, the last one is kept
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


# Downsampling for display: by the extremes of buckets, or by the shape of the line.
#
# `decimate` goes by buckets. Pure functions on arrays.
#
# Points are put into buckets by the order in which they came; a bucket keeps its lowest and highest point and
# its first NaN, each the first of its kind. So a spike is visible at any zoom; and thinning what was
# thinned already gives what thinning everything at once would have given (buckets are powers of two wide, and
# the extremes of extremes are the extremes), which is what lets a store thin as it goes.

Indices = NDArray[np.intp]


def decimate(values: NDArray[Any], limit: int) -> Indices:
    """Return the sorted indices of at most ``limit`` (>= 5) points to draw: first, last and each bucket's
    extremes.

    >>> decimate(np.array([0.0, 0, 9, 0, 0, 0, 0, 0, -9, 0]), limit=6)
    array([0, 2, 5, 8, 9])
    """
    count = len(values)
    if count <= limit:
        return np.arange(count)
    per_bucket = 3 if np.isnan(values).any() else 2
    buckets = max(1, (limit - 2) // per_bucket)
    return extremes(np.arange(count) * buckets // count, values)


def extremes(bucket: NDArray[np.integer[Any]], values: NDArray[Any]) -> Indices:
    """Return the sorted indices of the first and last point and of each bucket's lowest, highest and first
    NaN.

    ``bucket`` holds each point's bucket number and never falls.
    """
    if not len(values):
        return np.empty(0, np.intp)
    starts = np.flatnonzero(np.concatenate(([True], bucket[1:] != bucket[:-1])))
    lengths = np.diff(starts, append=len(values))
    hole = np.isnan(values)
    low = np.where(hole, np.inf, values) if hole.any() else values
    high = np.where(hole, -np.inf, values) if hole.any() else values
    keep = [
        first_of_each(low == np.repeat(np.minimum.reduceat(low, starts), lengths), bucket),
        first_of_each(high == np.repeat(np.maximum.reduceat(high, starts), lengths), bucket),
        first_of_each(hole, bucket),
        np.array([0, len(values) - 1]),
    ]
    return np.unique(np.concatenate(keep))


def first_of_each(chosen: NDArray[np.bool_], bucket: NDArray[np.integer[Any]]) -> Indices:
    """Return the index of the first chosen point in each bucket that has one."""
    found = np.flatnonzero(chosen)
    if not len(found):
        return found
    where = bucket[found]
    return found[np.concatenate(([True], where[1:] != where[:-1]))]


def keep_shape(steps: ArrayLike, values: ArrayLike, limit: int) -> Indices:
    """Return the sorted indices of at most ``limit`` (>= 2) points to draw: those that make the line's shape.

    Both are of shape (n,), with ascending steps. The result keeps the first and the last point and, if they
    fit, the lowest, the highest and the first of each run of values that are not finite. Unlike `decimate` it
    uses the steps: repeated thinning of a growing curve keeps a steep start.

    >>> steps = np.arange(1000)
    >>> keep_shape(steps, np.minimum(steps / 50, 1), limit=3)
    array([  0,  50, 999])
    """
    count = len(np.asarray(values))
    if count <= limit:
        return np.arange(count)
    weights = shape_weights(steps, values)
    return np.sort(np.argsort(-weights, kind="stable")[:limit])


def shape_weights(steps: ArrayLike, values: ArrayLike) -> NDArray[np.float64]:
    """Return the weight of each point, (n,), in the shape of the line through all of them.

    The weight is the area of the triangle with the remaining neighbours when the point has the smallest area
    of all (Visvalingam and Whyatt 1993). The first and the last point have infinity.
    """
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    weights = np.zeros(len(x))
    finite = np.isfinite(y)
    there = np.flatnonzero(finite)
    if len(there) > 2:
        weights[there] = _areas((x[there] - x[there[0]]).tolist(), y[there].tolist())
    holes = ~finite
    largest = np.finfo(np.float64).max
    weights[holes & ~np.concatenate(([False], holes[:-1]))] = largest
    if len(there):
        weights[there[[int(np.argmin(y[there])), int(np.argmax(y[there]))]]] = largest
    weights[[0, -1]] = np.inf
    return weights


def _areas(x: list[float], y: list[float]) -> list[float]:
    last = len(x) - 1
    before, after = list(range(-1, last)), list(range(1, last + 2))

    def area(at: int) -> float:
        left, right = before[at], after[at]
        return abs((x[at] - x[left]) * (y[right] - y[left]) - (x[right] - x[left]) * (y[at] - y[left]))

    now = [area(at) if 0 < at < last else np.inf for at in range(last + 1)]
    found = list(now)
    heap = [(now[at], at) for at in range(1, last)]
    heapq.heapify(heap)
    largest = 0.0
    while heap:
        size, at = heapq.heappop(heap)
        if size != now[at]:
            continue  # an earlier entry, with a neighbour that was removed since
        largest = max(largest, size)  # else a point could weigh less than one that was removed before it
        found[at], now[at] = largest, np.nan
        left, right = before[at], after[at]
        after[left], before[right] = right, left
        for one in (left, right):
            if 0 < one < last:
                now[one] = area(one)
                heapq.heappush(heap, (now[one], one))
    return found


# The mean of several replicas' curves, which need not have their points at the same steps. Pure.

Curve = tuple[NDArray[Any], NDArray[Any]]


def mean_by_step(
    curves: list[Curve], most: int, ended: list[Curve] | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Return (steps, means) at the steps of any curve, at most ``most`` of them.

    They end where the first of the curves ends: a mean of the others alone would jump there for no reason.
    Curves that have ``ended`` count as well, and the others are not cut at their ends.

    A curve counts at a step between its first and last: with its own value where it has one (the newest, if
    a restart repeated the step), else on the straight line between its neighbours. Where its neighbours are
    not finite nor is the mean.

    >>> a, b = (np.array([0, 2]), np.array([0.0, 2.0])), (np.array([1, 3]), np.array([3.0, 5.0]))
    >>> mean_by_step([a, b], most=100)
    (array([0, 1, 2], dtype=uint32), array([0., 2., 3.]))
    """
    reached = min((int(steps.max()) for steps, _ in curves if len(steps)), default=None)
    curves = [newest_by_step(*curve) for curve in [*curves, *(ended or [])] if len(curve[0])]
    grid = np.unique(np.concatenate([np.empty(0, np.uint32), *(steps for steps, _ in curves)]))
    if reached is not None:
        grid = grid[grid <= reached]
    if len(grid) > most:
        grid = grid[np.linspace(0, len(grid) - 1, most).astype(np.intp)]
    total, count = np.zeros(len(grid)), np.zeros(len(grid))
    for steps, values in curves:
        inside = slice(*np.searchsorted(grid, (steps[0], steps[-1] + np.int64(1))))
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, and that is the answer
            total[inside] += at(grid[inside], steps, values)
        count[inside] += 1
    return grid.astype(np.uint32), total / count


def newest_by_step(steps: NDArray[Any], values: NDArray[Any]) -> Curve:
    """Return the curve in the order of its steps, the last value of each."""
    if (steps[1:] > steps[:-1]).all():  # as nearly always
        return steps, values
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    last = np.append(steps[1:] != steps[:-1], True)
    return steps[last], values[last]


def at(grid: NDArray[Any], steps: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the curve's values at ``grid``, which lies between its first and last step."""
    left = np.searchsorted(steps, grid, side="right") - 1
    right = np.minimum(left + 1, len(steps) - 1)
    way = (grid - steps[left].astype(np.float64)) / np.maximum(
        steps[right].astype(np.float64) - steps[left], 1
    )
    with np.errstate(invalid="ignore", over="ignore"):
        between = values[left] * (1 - way) + values[right] * way
    return np.where(way == 0, values[left], between)
