"""How far a chart's y axis reaches. Pure; the live view does the same (widget/src/chart/domain.js)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MOST_OF_POINTS = (0.03, 0.97)  # quantiles of the points that are covered
FEWEST = 5  # values among which a spike can be told from a steep curve
FAR = 2.0  # times the range of the others, beyond which a spike leaves the plot


def y_range(lines: Sequence[Floats], points: Sequence[Floats]) -> tuple[float, float] | None:
    """Return the range that shows the lines, but for single spikes, and most of the points; None for nothing.

    Points are the extremes of their neighbours already, so 94% of them cover more of what was measured.

    >>> y_range([np.array([1.0, 2.0])], [np.array([1.0, 1e6] + 98 * [1.5])])
    (0.94, 2.06)
    """
    noise = finite(np.concatenate([np.empty(0), *points]))
    covered = [without_spikes(finite(line)) for line in lines]
    if len(noise):
        covered.append(np.quantile(noise, MOST_OF_POINTS))
    values = np.concatenate([np.empty(0), *covered])
    if not len(values):
        return None
    low, high = float(values.min()), float(values.max())
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def finite(values: Floats) -> Floats:
    """Return the finite values."""
    return np.asarray(values[np.isfinite(values)])


def without_spikes(values: Floats) -> Floats:
    """Return the values but for single spikes: far off medians with both neighbours, which they do not move.

    >>> without_spikes(np.array([5.0, 3.0, 2.0, 900.0, 1.0, 1.0])).tolist()
    [5.0, 3.0, 2.0, 1.0, 1.0]
    """
    if len(values) < FEWEST:
        return values
    middle = np.median([values[:-2], values[1:-1], values[2:]], axis=0)
    low, high = middle.min(), middle.max()
    far = FAR * (high - low)
    return np.asarray(values[(values >= low - far) & (values <= high + far)])
