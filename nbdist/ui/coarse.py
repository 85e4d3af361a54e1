"""The course of a noisy curve: means of neighbours, as few as it takes to read it. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Curve = tuple[NDArray[np.uint32], NDArray[np.float64]]

FEWEST = 32  # points that are left of a noisy curve
QUIET = 0.008  # noise, as a share of the curve's own range, that does not disturb


def course(steps: ArrayLike, values: ArrayLike, most: int = 512) -> Curve:
    """Return (steps, values): pairs of neighbours become their mean until what is left is a line to follow.

    A smooth curve stays as it is, up to ``most`` points.

    >>> steps = np.arange(400)
    >>> len(course(steps, np.exp(-steps / 100))[0]), len(course(steps, np.sin(2 * steps))[0])
    (400, 50)
    """
    steps, values = coarse(steps, values, most)
    while len(values) >= 2 * FEWEST and noise(values) > QUIET:
        steps, values = coarse(steps, values, -(-len(values) // 2))
    return steps, values


def coarse(steps: ArrayLike, values: ArrayLike, most: int) -> Curve:
    """Return (steps, values) of at most ``most`` points, each the mean of neighbours, at the last one's step.

    What is left over at the end joins the last mean: alone it would be noisier than the others.

    >>> coarse([1, 2, 3, 4, 5], [1.0, 3.0, 5.0, 7.0, 9.0], most=3)
    (array([2, 5], dtype=uint32), array([2., 7.]))
    """
    steps, values = np.asarray(steps, np.uint32), np.asarray(values, np.float64)
    width = -(-len(values) // most)
    if width <= 1:
        return steps, values
    starts = np.arange(0, len(values) - width + 1, width)
    lengths = np.diff(starts, append=len(values))
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, and that is the answer
        means = np.add.reduceat(values, starts) / lengths
    return steps[starts + lengths - 1], means


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
