"""Gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import backend_of
from nbdist.graph.kernel import COMPUTE_IN_W, define_kernel
from nbdist.keras_arguments import keras_class
from nbdist.optim.base import Array, Optimizer, blocks, scratch

SGD_KERNEL = define_kernel("sgd", "T g, float64 rate", "T p", COMPUTE_IN_W + "p = T(W(p) - W(g) * W(rate));")
# The rate multiplies gradients (before) or the velocity (after); the other of the two factors is 1.
FACTORS = "T g, float64 before, float64 after, float64 momentum"
MOMENTUM = "velocity = T(W(velocity) * W(momentum) - W(g) * W(before));"
SGD_MOMENTUM = define_kernel(
    "sgd_momentum",
    FACTORS,
    "T p, T velocity",
    COMPUTE_IN_W + MOMENTUM + "p = T(W(p) + W(velocity) * W(after));",
)
SGD_NESTEROV = define_kernel(
    "sgd_nesterov",
    FACTORS,
    "T p, T velocity",
    COMPUTE_IN_W
    + MOMENTUM
    + "p = T(W(p) + W(momentum) * W(velocity) * W(after) - W(g) * W(before) * W(after));",
)


@keras_class
@dataclass
class SGD(Optimizer):
    """Gradient descent: ``p -= learning_rate * g``, with momentum if asked (Sutskever et al. 2013).

    - ``learning_rate``, ``use_locking``: see :class:`Optimizer`
    - ``momentum``: the part of the last change that is added again, from 0 to below 1
    - ``nesterov``: whether the gradient counts as that of the point ahead; needs a momentum
    - ``rate_after_momentum``: whether the learning rate multiplies the velocity, as in PyTorch; else each
      gradient before it is added to the velocity, as in Keras. They differ once the rate changes

    >>> p = np.array([1.0, 2.0]); SGD(0.1).apply(p, np.array([1.0, 1.0]), {}, 1); p
    array([0.9, 1.9])
    """

    momentum: float = 0.0
    nesterov: bool = False
    rate_after_momentum: bool = field(default=False, kw_only=True, repr=False)
    counts_steps: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, float]] = {"momentum": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise InvalidArgumentError("nesterov=True needs momentum above 0, got 0")

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the velocity, if there is momentum."""
        return {"velocity": np.zeros_like(parameters)} if self.momentum else {}

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place; the gradient is only read."""
        if backend_of(parameters) is not np:
            xp = backend_of(parameters)
            if not self.momentum:
                return SGD_KERNEL(xp, gradient, self.learning_rate, parameters)
            kernel = SGD_NESTEROV if self.nesterov else SGD_MOMENTUM
            return kernel(xp, gradient, *factors(self), self.momentum, parameters, slots["velocity"])
        before, after = factors(self)
        # It may be in memory that another core writes next.
        room = scratch(parameters)
        for p, g, *state in blocks(parameters, gradient, *slots.values()):
            change = np.multiply(g, before, out=room[: len(p)])
            if state:
                change = self._with_momentum(p, change, state[0], after)
            np.subtract(p, change, out=p)
        return None

    def _with_momentum(self, p: Array, change: Array, velocity: Array, after: float) -> Array:
        """Move the velocity on; return what is left to subtract."""
        np.multiply(velocity, self.momentum, out=velocity)
        np.subtract(velocity, change, out=velocity)
        if not self.nesterov:
            np.negative(velocity, out=change)
        else:
            np.add(p, self.momentum * velocity * after, out=p)
        return change if after == 1.0 else np.multiply(change, after, out=change)


def factors(optimizer: Any) -> tuple[Any, Any]:
    """Return what multiplies a gradient before it is added to the velocity, and the velocity after that."""
    rate = optimizer.learning_rate
    return (1.0, rate) if optimizer.rate_after_momentum and optimizer.momentum else (rate, 1.0)
