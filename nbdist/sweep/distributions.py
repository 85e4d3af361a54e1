"""Our parameters as Optuna's distributions; needs Optuna, on the driver only."""

from __future__ import annotations

from nbdist.errors import MissingExtra
from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, When
from nbdist.sweep.values import Value, literal

try:
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
except ImportError:
    raise MissingExtra("sweep", "the samplers of Optuna and the export to a study") from None


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return the distribution of what a parameter may be."""
    match parameter:
        case When(parameter=inner):
            return distribution(inner)
        case Real(low=low, high=high, log=log):
            return FloatDistribution(low, high, log=log)
        case Integer(low=low, high=high, log=log, step=step):
            # Optuna wants a highest value that a step hits.
            return IntDistribution(low, low + (high - low) // step * step, log=log, step=step)
        case Choice(values=values):
            return CategoricalDistribution([category(value) for value in values])
        case Fixed(value=value):
            return CategoricalDistribution([category(value)])
    raise TypeError(f"no distribution for {parameter!r}")


def as_choice(parameter: Parameter, value: Value) -> bool | int | float | str | None:
    """Return a value as Optuna has it: a category for a choice or a fixed value, else the number."""
    kind = parameter.parameter if isinstance(parameter, When) else parameter
    if isinstance(kind, Real):
        return float(value)  # type: ignore[arg-type]
    return value if isinstance(kind, Integer) else category(value)  # type: ignore[return-value]


def category(value: Value) -> str:
    """Return a value as one of Optuna's categories: its text, since to Optuna 1, 1.0 and True are one."""
    return value if isinstance(value, str) else literal(value)
