"""Decimation: fewer points, the same picture. By lowest and highest point, or by the shape of the line.

`decimate` goes by buckets. Pure functions on arrays.

Points are put into buckets by the order in which they came; a bucket keeps its lowest and highest point and
its first NaN, each the first of its kind. So a spike stays, whatever the zoom; and thinning what was
thinned already gives what thinning everything at once would have given (buckets are powers of two wide, and
the extremes of extremes are the extremes), which is what lets a store thin as it goes.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
