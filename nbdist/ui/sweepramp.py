"""The colours of values in a sweep's picture: pale is bad, dark is good, on white paper. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nbdist.sweep.events import Direction
from nbdist.ui.palette import INK, PAPER, STEPS

STOPS = ("#e9e6a0", "#93d390", "#00b69b", "#0086ad", "#004fa1", "#31156d")
"""Those of the grid on a light page, with a palest that is seen on white; of even steps in lightness, so that
they are told apart in grey too."""
COUNT = 16


def _mixed(count: int) -> tuple[str, ...]:
    stops = np.array([list(bytes.fromhex(stop[1:])) for stop in STOPS], float)
    at = np.linspace(0, len(STOPS) - 1, count)
    parts = [np.interp(at, np.arange(len(STOPS)), stops[:, part]) for part in range(3)]
    return tuple("#" + bytes(int(part) for part in colour).hex() for colour in np.rint(parts).T)


RAMP = _mixed(COUNT)
FOR_EDGES = STEPS[2:3]  # mixed with the paper, where a line or a point ends


def ramp_shades() -> list[int]:
    """Return the colours and some shades of them towards the paper, as red, green, blue, red, ...

    >>> len(ramp_shades()) // 3
    24
    """
    colours = [bytes.fromhex(colour[1:]) for colour in RAMP]
    edges = [
        round(255 - share * (255 - part)) for colour in colours[::2] for share in FOR_EDGES for part in colour
    ]
    return [*(part for colour in colours for part in colour), *edges]


class Scale(NamedTuple):
    """From values to colours; values beyond ``ends`` have the colours of the ends."""

    ends: tuple[float, float]
    direction: Direction

    @classmethod
    def of(cls, values: Sequence[float], direction: Direction) -> Scale:
        """Return a scale for finite values, on which those that are far worse than most do not count.

        >>> Scale.of([0.1, 0.2, 0.3, 1e9], "min").ends[1] < 1e9
        True
        """
        best_first = sorted(values, reverse=direction == "max")
        worst = best_first[min(len(values) - 1, math.ceil(0.75 * len(values)) - 1)]
        # Half as far again as three of four are from the best; the worst if that is nearer.
        reach = 1.5 * (worst - best_first[0])
        end = best_first[0] + reach
        last = min(end, best_first[-1]) if direction == "min" else max(end, best_first[-1])
        return cls((min(best_first[0], last), max(best_first[0], last)), direction)

    def share(self, value: float | None) -> float:
        """Return 0 for the worst, 1 for the best."""
        low, high = self.ends
        if value is None or not math.isfinite(value):
            return 0.0
        if not low < high:
            return 1.0
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return share if self.direction == "max" else 1 - share

    def colour(self, value: float | None) -> str:
        """Return the colour of a value."""
        return RAMP[round(self.share(value) * (COUNT - 1))]

    def ink(self, value: float | None) -> str:
        """Return the colour of letters on the colour of a value."""
        return INK if self.share(value) < 0.62 else PAPER
