"""Optimizers of Keras as those of nbdist, which run where a strategy keeps the parameters: `translated`.

Schedules of their learning rates are followed step by step: `scheduled_rate`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nbdist import optim
from nbdist.errors import InvalidArgumentError
from nbdist.frameworks.clipping import ClippedSums, clipped_by_norm, clipped_by_value
from nbdist.optim import Optimizer
from nbdist.train.context import Context
from nbdist.train.schedule import RateAt
from nbdist.train.training import BeforeUpdate

OPTIMIZERS: dict[str, tuple[type[Optimizer], tuple[str, ...]]] = {
    "SGD": (optim.SGD, ("momentum", "nesterov")),
    "Adam": (optim.Adam, ("beta_1", "beta_2", "epsilon", "amsgrad")),
    "AdamW": (optim.AdamW, ("beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay")),
    "RMSprop": (optim.RMSprop, ("rho", "momentum", "epsilon", "centered")),
    "Adagrad": (optim.Adagrad, ("initial_accumulator_value", "epsilon")),
}
"""The optimizers of Keras that have an equal one here, and the settings of both."""
EXTRAS = ("use_ema", "loss_scale_factor", "weight_decay", "gradient_accumulation_steps")
CLIPS: dict[str, Callable[[float], BeforeUpdate]] = {
    "clipnorm": lambda largest: partial(clipped_by_norm, largest),
    "clipvalue": lambda largest: partial(clipped_by_value, largest),
    "global_clipnorm": ClippedSums,
}
"""What the settings for clipping do with the gradients of an update."""


def translated(optimizer: Any) -> Optimizer:
    """Return the optimizer of nbdist that makes the updates of one of Keras; its state begins anew."""
    name = type(optimizer).__name__
    if name not in OPTIMIZERS:
        raise InvalidArgumentError(
            f"the strategy makes the updates, and has none of Keras's {name}: compile the model with "
            f"{', '.join(OPTIMIZERS)}"
        )
    kind, names = OPTIMIZERS[name]
    config = optimizer.get_config()
    for extra in EXTRAS:
        usual = 1 if extra == "gradient_accumulation_steps" else None
        if extra not in names and config.get(extra) not in (None, False, usual):
            raise InvalidArgumentError(
                f"{name}({extra}={config[extra]!r}) has no equal here: compile the model without {extra}"
            )
    excluded = any(
        getattr(optimizer, f"_exclude_from_weight_decay{which}", None) for which in ("", "_pattern")
    )
    if excluded and config.get("weight_decay") and "weight_decay" in names:
        raise InvalidArgumentError(
            f"{name}.exclude_from_weight_decay() has no equal here, and the strategy would decay all "
            "variables: compile the model with Adam, and give the layers that decay a kernel_regularizer"
        )
    return kind(float(optimizer.learning_rate), **{setting: config[setting] for setting in names})


def clipping(optimizer: Any, context: Context) -> BeforeUpdate | None:
    """Return what clips the gradients of each update as an optimizer of Keras would; None for none.

    Raises InvalidArgumentError where no replica has the sums of all gradients.
    """
    config = optimizer.get_config()
    for name, make in CLIPS.items():
        if config.get(name) is not None:
            if not context.strategy.has_sums:
                raise InvalidArgumentError(
                    f"{type(optimizer).__name__}({name}={config[name]!r}) clips the sum of all gradients, "
                    f"and strategy {context.strategy.name} has no place where it is whole: take --strategy "
                    f"multi_worker or mirrored, or compile the model without {name}"
                )
            return make(float(config[name]))
    return None


def scheduled_rate(optimizer: Any) -> RateAt | None:
    """Return the rates of the schedule that is an optimizer's learning rate; None if it is a number."""
    if isinstance(optimizer.get_config()["learning_rate"], (int, float)):
        return None

    def rate_at(updates: int, epoch: int) -> float:
        optimizer.iterations.assign(updates)
        return float(optimizer.learning_rate)

    return rate_at
