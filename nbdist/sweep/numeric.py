"""Ranges of numbers: floats and whole numbers, linear or logarithmic.

>>> round(Real(1e-4, 1e-1, log=True).draw(0.5), 9)
0.003162278
>>> Integer(16, 128, log=True, points=4).grid()
[16, 32, 64, 128]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.parameters import MOST_VALUES, Parameter
from nbdist.sweep.values import Value, is_number, number, whole


@dataclass(frozen=True)
class Real(Parameter):
    """A float from ``low`` to ``high``, both included; with ``log`` every factor is as likely as another.

    ``points`` is how many values a grid search takes.
    """

    low: float
    high: float
    log: bool = False
    points: int | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, number(getattr(self, name), f"{name} of {self._word}"))
        _check_range(self)

    def draw(self, fraction: float) -> float:
        """Return the float at ``fraction`` of the range, or of its logarithm."""
        return self._at(fraction)

    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""
        return is_number(value) and self.low <= value <= self.high

    def grid(self) -> list[Value]:
        """Return the values that a grid search takes."""
        if self.low == self.high:
            return [self.low]
        if self.points is None:
            raise InvalidArgumentError(
                f"a grid needs to know how many values {self} has: {self._word}({self.low!r}, {self.high!r}, "
                "points=5), or give a list"
            )
        return [*(self._at(index / (self.points - 1)) for index in range(self.points - 1)), self.high]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return _given(kind="float", low=self.low, high=self.high, log=self.log, points=self.points)

    def __str__(self) -> str:
        return f"{self._word}({self.low!r}, {self.high!r}{_points(self.points)})"

    @property
    def _word(self) -> str:
        return "log" if self.log else "uniform"

    def _at(self, fraction: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + fraction * (high - low))
        else:
            value = self.low * (1 - fraction) + self.high * fraction  # high - low may be more than a float
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Integer(Parameter):
    """A whole number from ``low`` to ``high``, both included, in steps of ``step``.

    With ``log`` every factor is as likely as another. ``points`` is how many values a grid search takes at
    most; without it, all there are.
    """

    low: int
    high: int
    log: bool = False
    step: int = 1
    points: int | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            object.__setattr__(self, name, whole(getattr(self, name), f"{name} of int"))
        _check_range(self)
        if self.step < 1:
            raise InvalidArgumentError(f"the step of {self} must be 1 or more")
        if self.log and self.step != 1:
            raise InvalidArgumentError(f"{self}: log and step cannot both be; drop one")

    def draw(self, fraction: float) -> int:
        """Return the whole number at ``fraction`` of the range."""
        if not self.log:
            return self.low + self.step * min(int(fraction * self._count), self._count - 1)
        # Half a step is added at both ends, so that the ends are as likely as their neighbours.
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(max(round(math.exp(low + fraction * (high - low))), self.low), self.high)

    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def grid(self) -> list[Value]:
        """Return the values that a grid search takes."""
        if self.points is None or (self.points >= self._count and not self.log):
            if self._count > MOST_VALUES:
                raise InvalidArgumentError(
                    f"{self} has {self._count:,} values, a grid at most {MOST_VALUES:,}: give a step, points "
                    "or a list"
                )
            return list(range(self.low, self.high + 1, self.step))
        if self.log:
            between = Real(self.low, self.high, True, self.points).grid()
            return list(dict.fromkeys(round(value) for value in between if is_number(value)))
        last, gaps = self._count - 1, self.points - 1
        return [self.low + self.step * round(index * last / gaps) for index in range(self.points)]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return _given(
            kind="int", low=self.low, high=self.high, log=self.log, step=self.step, points=self.points
        )

    def __str__(self) -> str:
        step = f", step={self.step}" if self.step != 1 else ""
        return f"int({self.low}, {self.high}{', log=True' if self.log else ''}{step}{_points(self.points)})"

    @property
    def _count(self) -> int:
        return (self.high - self.low) // self.step + 1


def _check_range(range_: Real | Integer) -> None:
    if range_.low > range_.high:
        raise InvalidArgumentError(
            f"{range_} is empty: {range_.low!r} is more than {range_.high!r}; swap them"
        )
    if not isinstance(range_.log, bool):
        raise InvalidArgumentError(f"log is True or False, got {range_.log!r}")
    if range_.log and range_.low <= 0:
        raise InvalidArgumentError(
            f"{range_}: a logarithmic range starts above 0, not at {range_.low!r}; give a small number"
        )
    if range_.points is not None and not 2 <= whole(range_.points, "points") <= MOST_VALUES:
        raise InvalidArgumentError(f"{range_}: points must be 2 to {MOST_VALUES:,}")


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _points(points: int | None) -> str:
    return f", points={points}" if points is not None else ""
