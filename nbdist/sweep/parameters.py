"""What one hyperparameter may be: a choice, a fixed value, or a parameter under a condition.

Ranges of numbers are in `numeric`.

>>> Choice(("sgd", "adam")).draw(0.6)
'adam'
>>> print(When(Choice((0.0, 0.9)), (("opt", ("sgd",)),)))
when([0.0, 0.9], opt=['sgd'])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.values import Value, jsonable, literal, plain, same_key

MOST_VALUES = 10_000


class Parameter(ABC):
    """What one hyperparameter may be; frozen, and the same from Python, from text and from JSON."""

    @abstractmethod
    def draw(self, fraction: float) -> Value:
        """Return the value at ``fraction`` (0 up to, not including, 1) of the way through what is allowed."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Return whether a trial may have this value."""

    @abstractmethod
    def grid(self) -> list[Value]:
        """Return the values of a grid search; `InvalidArgumentError` for a float range without ``points``."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data that `parameter_from_json` reads."""

    @property
    def conditions(self) -> dict[str, tuple[Value, ...]]:
        """The values that other parameters must have for this one to exist; mostly none."""
        return {}

    @property
    def kind(self) -> Parameter:
        """The range, choice or fixed value that it is when it exists."""
        return self


@dataclass(frozen=True)
class Choice(Parameter):
    """One of several values, each as likely as another."""

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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": "choice", "values": [jsonable(value) for value in self.values]}

    def __str__(self) -> str:
        return literal(self.values)


@dataclass(frozen=True)
class Fixed(Parameter):
    """One value, the same in all trials."""

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

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": "fixed", "value": jsonable(self.value)}

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
