"""The kinds of a hyperparameter: a choice, a fixed value, a range of numbers, or one under a condition.

>>> Choice(("sgd", "adam")).draw(0.6)
'adam'
>>> print(When(Choice((0.0, 0.9)), (("opt", ("sgd",)),)))
when([0.0, 0.9], opt=['sgd'])
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, TypeAlias, TypeGuard

from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole

MOST_VALUES = 10_000


@dataclass(frozen=True)
class Parameter(ABC):
    """What one hyperparameter may be; frozen, and the same from Python, from text and from JSON."""

    json_kind: ClassVar[str]

    @abstractmethod
    def draw(self, fraction: float) -> Value:
        """Return the value at ``fraction`` (0 up to, not including, 1) of the way through what is allowed."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""

    @abstractmethod
    def grid(self) -> list[Value]:
        """Return the values of a grid search; `InvalidArgumentError` for a float range without ``points``."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data that `parameter_from_json` reads: the kind, and the fields that are set."""
        found: dict[str, Any] = {"kind": self.json_kind}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None or one.default is MISSING:
                found[one.name] = jsonable(value)
        return found

    @property
    def conditions(self) -> dict[str, tuple[Value, ...]]:
        """The values that other parameters must have for this one to exist; mostly none."""
        return {}

    @property
    def kind(self) -> Parameter:
        """The range, choice or fixed value that it is when it exists."""
        return self


# Values of parameters: comparison, spelling and serialization.

Value: TypeAlias = "bool | int | float | str | tuple[Value, ...] | None"


@dataclass(frozen=True)
class Choice(Parameter):
    """One of several values, each as likely as another."""

    json_kind = "choice"
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        values = tuple(plain(value) for value in self.values)
        if not values:
            raise InvalidArgumentError("a choice needs at least one value, got none")
        if len(values) > MOST_VALUES:
            raise InvalidArgumentError(f"a choice has at most {MOST_VALUES:,} values, got {len(values):,}")
        seen: set[object] = set()
        for value in values:
            if same_key(value) in seen:
                raise InvalidArgumentError(f"{value!r} stands twice in {list(values)!r:.200}; drop one")
            seen.add(same_key(value))
        object.__setattr__(self, "values", values)

    def draw(self, fraction: float) -> Value:
        """Return the value at ``fraction`` of what is allowed."""
        return self.values[min(int(fraction * len(self.values)), len(self.values) - 1)]

    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""
        return same_key(value) in map(same_key, self.values)

    def grid(self) -> list[Value]:
        """Return the values that a grid search takes."""
        return list(self.values)

    def __str__(self) -> str:
        return literal(self.values)


@dataclass(frozen=True)
class Fixed(Parameter):
    """One value, the same in all trials."""

    json_kind = "fixed"
    value: Value

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))

    def draw(self, fraction: float) -> Value:
        """Return the value at ``fraction`` of what is allowed."""
        return self.value

    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""
        return same_key(value) == same_key(self.value)

    def grid(self) -> list[Value]:
        """Return the values that a grid search takes."""
        return [self.value]

    def __str__(self) -> str:
        return f"fixed({literal(self.value)})" if isinstance(self.value, tuple) else repr(self.value)


@dataclass(frozen=True)
class When(Parameter):
    """A parameter that a trial has only when others have one of the given values."""

    parameter: Parameter
    only: tuple[tuple[str, tuple[Value, ...]], ...]

    def __post_init__(self) -> None:
        if isinstance(self.parameter, When):
            raise InvalidArgumentError(f"{self}: give all conditions in one when(), not one inside another")
        if not self.only:
            raise InvalidArgumentError(
                f'when({self.parameter}) has no condition: give one such as when({self.parameter}, opt="sgd")'
            )
        for name, values in self.only:
            if not values:
                raise InvalidArgumentError(f"{self}: {name} has no value to be, so it would never exist")

    @property
    def conditions(self) -> dict[str, tuple[Value, ...]]:
        """The values that other parameters must have for this one to exist."""
        return dict(self.only)

    @property
    def kind(self) -> Parameter:
        """The parameter without its conditions."""
        return self.parameter

    def draw(self, fraction: float) -> Value:
        """Return the value at ``fraction`` of what is allowed."""
        return self.parameter.draw(fraction)

    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""
        return self.parameter.contains(value)

    def grid(self) -> list[Value]:
        """Return the values that a grid search takes."""
        return self.parameter.grid()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        when = {name: [jsonable(value) for value in values] for name, values in self.only}
        return {"kind": "when", "parameter": self.parameter.to_json(), "when": when}

    def __str__(self) -> str:
        given = "".join(f", {name}={literal(values)}" for name, values in self.only)
        return f"when({self.parameter}{given})"


# Ranges of numbers: floats and whole numbers, linear or logarithmic.
#
# >>> round(Real(1e-4, 1e-1, log=True).draw(0.5), 9) 0.003162278 >>> Integer(16, 128, log=True,
# points=4).grid() [16, 32, 64, 128]


@dataclass(frozen=True)
class Real(Parameter):
    """A float from ``low`` to ``high``, both included; with ``log`` every factor is as likely as another.

    ``points`` is how many values a grid search takes.
    """

    json_kind = "float"
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
        between = (self._at(index / (self.points - 1)) for index in range(1, self.points - 1))
        return [self.low, *between, self.high]  # both ends as given, and not as a logarithm is rounded

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

    json_kind = "int"
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
        if not is_whole(value):
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


def _points(points: int | None) -> str:
    return f", points={points}" if points is not None else ""


"""What a trial gets for a parameter: a plain value, or a tuple of such."""


LARGEST_INTEGER = 2**53  # beyond it a float, and so JavaScript, no longer distinguishes neighbours


def plain(value: object) -> Value:
    """Return a value as a trial gets it; raises `InvalidArgumentError` for what the log could not keep."""
    if hasattr(value, "dtype") and hasattr(value, "item") and not getattr(value, "shape", (0,)):
        value = value.item()  # a NumPy scalar
    if isinstance(value, (list, tuple)):
        return tuple(plain(one) for one in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgumentError(f"{value!r} cannot be a parameter's value: it must be finite")
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        raise InvalidArgumentError(f"{value!r} is too large for a parameter: at most 2**53")
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[return-value]  # type() tells mypy less than isinstance would
    raise InvalidArgumentError(
        f"{value!r:.80} is a {type(value).__name__}; a parameter's value is a number, a text, True, False, "
        "None, or a list of these"
    )


def jsonable(value: Value) -> Any:
    """Return a value with lists for tuples."""
    return [jsonable(one) for one in value] if isinstance(value, tuple) else value


def same_key(value: object) -> tuple[object, ...]:
    """Return a key under which two values are the same parameter value: 1, 1.0 and True are three."""
    if isinstance(value, (list, tuple)):
        return ("tuple", *(same_key(one) for one in value))
    return (type(value).__name__, value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether it is an int or a float; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(value: object, what: str) -> float:
    """Return it as a float; ``what`` names it in the error."""
    value = plain(value)
    if not is_number(value):
        raise InvalidArgumentError(f"the {what} must be a number, got {value!r}")
    return float(value)


def whole(value: object, what: str) -> int:
    """Return it as an int, also if it is a float without a fraction."""
    value = plain(value)
    if not is_number(value) or value != value // 1:  # so are infinity and NaN refused
        raise InvalidArgumentError(f"the {what} must be a whole number, got {value!r}")
    return int(value)


def literal(value: Value) -> str:
    """Return it as it is written in a cell, with brackets for tuples."""
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, tuple) else repr(value)
