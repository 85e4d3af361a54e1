"""A parameter as an axis of a picture: where a value stands on it, from 0 to 1. Pure.

>>> from nbdist.sweep.space import choice, log
>>> axis = axis_of("lr", [0.001, 0.1, 0.01], log(1e-4, 1e-1))
>>> [round(axis.place(value), 2) for value in (0.001, 0.01, 0.1)], axis.ticks()
([0.0, 0.5, 1.0], [(0.0, '0.001'), (0.5, '0.01'), (1.0, '0.1')])
>>> axis_of("opt", ["sgd", "adam", "sgd"], choice("sgd", "adam")).ticks()
[(0.25, 'sgd'), (0.75, 'adam')]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nbdist.sweep.parameters import Choice, Integer, Parameter, Real, Value, is_number, literal, same_key
from nbdist.sweep.state import Ledger
from nbdist.ui.shorten import clip

FEW = 8  # numbers that stand side by side, like texts
EACH = 3  # trials of each such number at least
MOST_LABELS = 12
LONGEST_LABEL = 14


@dataclass(frozen=True)
class Axis:
    """A range of numbers from ``low`` to ``high``, or ``values`` side by side."""

    name: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Value) -> float:
        """Return where a value stands, NaN if it has no place."""
        if self.values:
            place = self._places.get(same_key(value))
            return math.nan if place is None else (place + 0.5) / len(self.values)
        if not is_number(value):
            return math.nan
        number = float(value)
        if not self.log:
            return (number / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        if number <= 0:
            return math.nan
        return math.log(number / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and what stands there, so few that they can be read."""
        if self.values:
            every = -(-len(self.values) // MOST_LABELS)
            return [(self.place(value), label(value)) for value in self.values[::every]]
        from matplotlib.ticker import LogLocator, MaxNLocator

        wide = self.log and self.high / self.low >= 10
        locator = LogLocator(numticks=5) if wide else MaxNLocator(4)
        found = [float(one) for one in locator.tick_values(self.low, self.high)]
        slack = 1e-9
        return [
            (min(max(place, 0.0), 1.0), label(one))
            for one in found
            if -slack <= (place := self.place(one)) <= 1 + slack
        ]

    @cached_property
    def _places(self) -> dict[tuple[object, ...], int]:
        return {same_key(value): place for place, value in enumerate(self.values)}


def axis_in(ledger: Ledger, name: str) -> Axis:
    """Return a parameter's axis, for all trials that have it."""
    values = [one.parameters[name] for one in ledger.trials.values() if name in one.parameters]
    return axis_of(name, values, ledger.space.get(name))


def axis_of(name: str, values: Sequence[Value], parameter: Parameter | None) -> Axis:
    """Return the axis for values that trials have; ``parameter`` is what it may be now, if it is there still.

    It has the ends of the values, not of the parameter: what nobody tried needs no room.
    """
    kind = None if parameter is None else parameter.kind
    distinct = {same_key(value): value for value in values}
    numeric = all(map(is_number, values))
    few = len(distinct) <= FEW and len(values) >= EACH * len(distinct)
    if not numeric or isinstance(kind, Choice) or few or len(set(values)) < 2:
        order = kind.values if isinstance(kind, Choice) else ()
        known = {same_key(value): value for value in order if same_key(value) in distinct}
        rest = [value for key, value in distinct.items() if key not in known]
        numbers = sorted(filter(is_number, rest), key=float)  # type: ignore[arg-type]
        others = sorted((value for value in rest if not is_number(value)), key=literal)
        ordered = [*known.values(), *numbers, *others]
        if numeric:
            ordered.sort(key=float)  # type: ignore[arg-type]
        return Axis(name, tuple(ordered))
    numbers_ = np.array(values, np.float64)
    low, high = float(numbers_.min()), float(numbers_.max())
    logarithmic = isinstance(kind, (Real, Integer)) and kind.log and low > 0
    return Axis(name, (), low, high, logarithmic)


def label(value: Value) -> str:
    """Return a value as it stands at a tick."""
    text = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else None
    return clip(literal(value) if text is None else text, LONGEST_LABEL)
