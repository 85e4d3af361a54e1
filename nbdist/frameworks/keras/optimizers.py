"""Optimizers of Keras as those of nbdist, which run where a strategy keeps the parameters: `translated`.

Schedules of their learning rates are followed step by step: `scheduled_rate`.
"""

from __future__ import annotations

from typing import Any

from nbdist import optim
from nbdist.errors import InvalidArgumentError
from nbdist.optim import Optimizer
from nbdist.train.schedule import RateAt

OPTIMIZERS: dict[str, tuple[type[Optimizer], tuple[str, ...]]] = {
    "SGD": (optim.SGD, ("momentum", "nesterov")),
    "Adam": (optim.Adam, ("beta_1", "beta_2", "epsilon", "amsgrad")),
    "AdamW": (optim.AdamW, ("beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay")),
    "RMSprop": (optim.RMSprop, ("rho", "momentum", "epsilon", "centered")),
    "Adagrad": (optim.Adagrad, ("initial_accumulator_value", "epsilon")),
}
"""The optimizers of Keras that have an equal one here, and the settings of both."""
EXTRAS = (
    "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "loss_scale_factor", "weight_decay",
    "gradient_accumulation_steps",
)  # fmt: skip


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
    return kind(float(optimizer.learning_rate), **{setting: config[setting] for setting in names})


def scheduled_rate(optimizer: Any) -> RateAt | None:
    """Return the rates of the schedule that is an optimizer's learning rate; None if it is a number."""
    if isinstance(optimizer.get_config()["learning_rate"], (int, float)):
        return None

    def rate_at(updates: int, epoch: int) -> float:
        optimizer.iterations.assign(updates)
        return float(optimizer.learning_rate)

    return rate_at
