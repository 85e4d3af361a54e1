"""The mean of several replicas' curves, which need not have their points at the same steps. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Curve = tuple[NDArray[Any], NDArray[Any]]


def mean_by_step(
    curves: list[Curve], most: int, ended: list[Curve] | None = None
) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    """Return (steps, means) at the steps of any curve, at most ``most`` of them.

    Curves that have ``ended`` count as well, but not beyond the others: who is gone does not lead.

    A curve counts at a step between its first and last: with its own value where it has one (the newest, if
    a restart repeated the step), else on the straight line between its neighbours. Where its neighbours are
    not finite nor is the mean.

    >>> a, b = (np.array([0, 2]), np.array([0.0, 2.0])), (np.array([1, 3]), np.array([3.0, 5.0]))
    >>> mean_by_step([a, b], most=100)
    (array([0, 1, 2, 3], dtype=uint32), array([0., 2., 3., 5.]))
    """
    reached = max((int(steps.max()) for steps, _ in curves if len(steps)), default=None)
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
