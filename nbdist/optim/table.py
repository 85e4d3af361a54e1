"""Optimizers by name and by config."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.optim import schedules
from nbdist.optim.adam import Adam, AdamW
from nbdist.optim.adaptive import Adagrad, RMSprop
from nbdist.optim.base import Optimizer
from nbdist.optim.precision import LossScaleOptimizer
from nbdist.optim.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.__name__.lower(): kind for kind in (SGD, Adam, AdamW, RMSprop, Adagrad)
}
"""Optimizers by the name that ``compile`` takes."""


def from_config(config: dict[str, Any]) -> Optimizer:
    """Return the optimizer of a ``config`` that :meth:`Optimizer.to_config` returned."""
    settings = dict(config)
    if settings.get("name") == LossScaleOptimizer.__name__:
        del settings["name"]
        return LossScaleOptimizer(from_config(settings.pop("inner")), **settings)
    kind = type(get(settings.pop("name")))
    excluded = settings.pop("excluded", ())
    schedule, factor = settings.pop("schedule", None), settings.pop("factor", 1.0)
    known = {one.name for one in fields(kind) if one.init}
    if not set(settings) <= known:
        raise InvalidArgumentError(f"{kind.__name__} has no setting {sorted(set(settings) - known)[0]!r}")
    if isinstance(rate := settings.get("learning_rate"), dict):
        settings["learning_rate"] = schedules.from_config(rate)
    made = kind(**settings)
    made.excluded = tuple(excluded)
    if schedule is not None:
        made.schedule, made.factor = schedules.from_config(schedule), float(factor)
    return made


def get(optimizer: str | Optimizer) -> Optimizer:
    """Return an ``optimizer`` by name (such as "adam") with its default settings, or the one given.

    Raises InvalidArgumentError for an unknown name.

    >>> get("sgd")
    SGD(learning_rate=0.01, momentum=0.0, nesterov=False)
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    kind = OPTIMIZERS.get(str(optimizer).lower())
    if kind is None:
        raise InvalidArgumentError(
            f"no optimizer {optimizer!r}; {choices(optimizer, sorted(OPTIMIZERS))} (or give an Optimizer)"
        )
    return kind()
