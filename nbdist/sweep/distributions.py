"""Our parameters as Optuna's distributions; needs Optuna, on the driver only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from nbdist.errors import MissingExtra
from nbdist.sweep.numeric import Integer, Real
from nbdist.sweep.parameters import Choice, Fixed, Parameter
from nbdist.sweep.values import Value, literal, same_key

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
except ImportError:
    raise MissingExtra("sweep", "the samplers of Optuna and the export to a study") from None

Category: TypeAlias = "bool | int | float | str | None"


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of what a parameter may be."""
    match parameter.kind:
        case Real(low=low, high=high, log=log):
            return FloatDistribution(low, high, log=log)
        case Integer(low=low, high=high, log=log, step=step):
            # Optuna wants a highest value that a step hits.
            return IntDistribution(low, low + (high - low) // step * step, log=log, step=step)
    return CategoricalDistribution(categories(listed(parameter)))


class Translation:
    """A parameter's values to and from what its distribution gives."""

    def __init__(self, parameter: Parameter) -> None:
        self.distribution = distribution(parameter)
        self._real = isinstance(parameter.kind, Real)
        values = listed(parameter)
        self._there = dict(zip(map(same_key, values), categories(values)))
        self._back = dict(zip(categories(values), values))

    def to_optuna(self, value: Value) -> Category:
        """Return a value of ours as Optuna has it."""
        if self._there:
            return self._there[same_key(value)]
        # Only numbers get here, which mypy cannot know: what is listed by value, text too, was found above.
        return float(value) if self._real else value  # type: ignore[arg-type, return-value]  # as said above

    def to_ours(self, found: Category) -> Value:
        """Return a value of Optuna's as our trials get it."""
        return self._back[found] if self._back else found


def listed(parameter: Parameter) -> tuple[Value, ...]:
    """Return the values of a choice or a fixed value; none for a range."""
    match parameter.kind:
        case Choice(values=values):
            return values
        case Fixed(value=value):
            return (value,)
    return ()


def categories(values: Sequence[Value]) -> list[Category]:
    """Return values as Optuna's categories: as they are, or their texts if Optuna could not tell them apart.

    >>> categories([32, 64]), categories([1, True]), categories([(32, 32), (64,)])
    ([32, 64], ['1', 'True'], ['[32, 32]', '[64]'])
    """
    plain = [value for value in values if not isinstance(value, tuple)]
    if len(set(plain)) == len(values):
        return plain
    return [literal(value) for value in values]
