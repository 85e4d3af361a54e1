"""The course of a noisy curve: means of neighbours, as few as it takes to read it. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Curve = tuple[NDArray[np.uint32], NDArray[np.float64]]

FEWEST = 32  # points that are left of a noisy curve
QUIET = 0.008  # noise, as a share of the curve's own range, that does not disturb


def course(steps: ArrayLike, values: ArrayLike, most: int = 512) -> Curve:
    """Return (steps, values): pairs of neighbours become their mean until what is left is a line to follow.

    A smooth curve stays as it is, up to ``most`` points. It begins at the first step in any case, and ends
    at the last one.

    >>> steps = np.arange(400)
    >>> len(course(steps, np.exp(-steps / 100))[0]), len(course(steps, np.sin(2 * steps))[0])
    (400, 47)
    """
    steps, values = coarse(steps, values, most)
    while len(values) >= 2 * FEWEST and noise(values) > QUIET:
        steps, values = coarse(steps, values, -(-len(values) // 2))
    return steps, values


def coarse(steps: ArrayLike, values: ArrayLike, most: int) -> Curve:
    """Return (steps, values) of at most ``most`` points, each the mean of neighbours, at the last one's step.

    The start is kept as it is, as far as there is room: the first point, and one for each doubling of the
    distance from it. The points left over at the end join the last mean: a mean of them alone would be
    noisier than the others.

    >>> coarse([1, 2, 3, 4, 5, 6, 7], [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0], most=4)
    (array([1, 2, 4, 7], dtype=uint32), array([ 1.,  3.,  6., 11.]))
    """
    steps, values = np.asarray(steps, np.uint32), np.asarray(values, np.float64)
    width = -(-len(values) // most)
    if width <= 1:
        return steps, values
    while len(starts := group_starts(steps, width)) > most:
        width += 1
    lengths = np.diff(starts, append=len(values))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, and that is the answer
        means = np.add.reduceat(values, starts) / lengths
    return steps[starts + lengths - 1], means


def group_starts(steps: NDArray[np.uint32], width: int) -> NDArray[np.intp]:
    """Return where groups of ``width`` neighbours begin; those of the start are narrower, an octave each.

    >>> group_starts(np.arange(16, dtype=np.uint32), 4)
    array([ 0,  1,  3,  4,  8, 12])
    """
    offset = steps.astype(np.float64) - steps[0]
    count = len(steps)
    head = int(np.searchsorted(offset, offset[-1] * width / count))
    octave = np.floor(np.log2(np.maximum(offset[:head], 0) + 1))
    first = np.flatnonzero(np.diff(octave, prepend=-1))
    return np.concatenate([first, np.arange(head, max(head + 1, count - width + 1), width)])


def noise(values: NDArray[np.float64]) -> float:
    """Return how far points lie from the middle of their neighbours, as a share of the curve's range."""
    finite = values[np.abs(values) < 1e100]
    if len(finite) < 3:
        return 0.0
    ordered = np.sort(finite)
    low, high = quantile(ordered, 0.01), quantile(ordered, 0.99)
    off = quantile(np.sort(np.abs(finite[1:-1] - (finite[:-2] + finite[2:]) / 2)), 0.5)
    return off / (high - low) if high > low else 0.0


def quantile(ordered: NDArray[np.float64], share: float) -> float:
    """Return a quantile of sorted values. np.quantile takes ten times as long for a few hundred.

    >>> quantile(np.array([1.0, 2.0, 4.0]), 0.75)
    3.0
    """
    position = share * (len(ordered) - 1)
    below = int(position)
    low, high = float(ordered[below]), float(ordered[min(below + 1, len(ordered) - 1)])
    return low + (high - low) * (position - below)
