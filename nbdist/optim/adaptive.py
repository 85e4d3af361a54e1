"""RMSprop and Adagrad: per-parameter rates from the magnitudes of past gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from nbdist.graph.backend import backend_of
from nbdist.graph.kernel import COMPUTE_IN_W, Kernel, define_kernel
from nbdist.keras_arguments import keras_class
from nbdist.optim.base import Array, Optimizer, blocks, scratch
from nbdist.optim.sgd import factors

# PyTorch adds epsilon to the root and multiplies the velocity by the rate, Keras adds it under the root and
# multiplies what is added to the velocity: one of inside and outside is 0, one of before and after is 1.
EPSILONS = "float64 inside, float64 outside"


def _rmsprop(centered: bool, momentum: bool) -> Kernel:
    return define_kernel(
        "rmsprop" + "_centered" * centered + "_momentum" * momentum,
        f"T g, float64 before, float64 after, float64 rho, float64 momentum, {EPSILONS}",
        "T p, T square" + ", T mean" * centered + ", T velocity" * momentum,
        COMPUTE_IN_W
        + "square = T(W(square) * W(rho) + W(g) * W(g) * W(1 - rho)); W over = W(square) + W(inside);"
        + "mean = T(W(mean) * W(rho) + W(g) * W(1 - rho)); over = over - W(mean) * W(mean);" * centered
        + "W change = W(g) / (sqrt(over) + W(outside)) * W(before);"
        + "velocity = T(W(velocity) * W(momentum) + change); change = velocity;" * momentum
        + "p = T(W(p) - change * W(after));",
    )


RMSPROP = {
    (centered, momentum): _rmsprop(centered, momentum)
    for centered in (False, True)
    for momentum in (False, True)
}
ADAGRAD = define_kernel(
    "adagrad",
    f"T g, float64 rate, {EPSILONS}",
    "T p, T square",
    COMPUTE_IN_W
    + "square = T(W(square) + W(g) * W(g));"
    + "p = T(W(p) - W(g) / (sqrt(W(square) + W(inside)) + W(outside)) * W(rate));",
)


@keras_class
@dataclass
class RMSprop(Optimizer):
    """Gradients divided by the root of a moving mean of their squares (Tieleman, Hinton 2012), as Keras does.

    - ``learning_rate``, ``use_locking``: see :class:`Optimizer`
    - ``rho``: decay per step of the mean of squares, from 0 to below 1
    - ``momentum``: the part of the last change that is added again, from 0 to below 1
    - ``epsilon``: added to the mean square, under the root; 0 or more
    - ``centered``: whether the square of the moving mean is subtracted from the mean square
    - ``epsilon_outside_root``: whether epsilon is added to the root, as in PyTorch
    - ``rate_after_momentum``: whether the learning rate multiplies the velocity, as in PyTorch

    >>> p = np.array([1.0]); rule = RMSprop(0.1)
    >>> rule.apply(p, np.array([3.0]), rule.new_slots(p), 1); p.round(4)
    array([0.6838])
    """

    learning_rate: Any = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False
    epsilon_outside_root: bool = field(default=False, kw_only=True, repr=False)
    rate_after_momentum: bool = field(default=False, kw_only=True, repr=False)
    counts_steps: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, float]] = {"rho": 1, "momentum": 1, "epsilon": math.inf}

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the mean square, the mean if centered, and the velocity if there is momentum."""
        names = ("square", *(("mean",) * self.centered), *(("velocity",) * bool(self.momentum)))
        return {name: np.zeros_like(parameters) for name in names}

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place; the gradient is only read."""
        if backend_of(parameters) is not np:
            settings = (*factors(self), self.rho, self.momentum, *epsilons(self))
            kernel = RMSPROP[self.centered, bool(self.momentum)]
            return kernel(backend_of(parameters), gradient, *settings, parameters, *slots.values())
        room, (before, after) = scratch(parameters), factors(self)
        for p, g, *state in blocks(parameters, gradient, *slots.values()):
            kept = dict(zip(slots, state, strict=True))
            change = np.multiply(self._direction(g, kept, room[: len(p)]), before, out=room[: len(p)])
            if self.momentum:
                velocity = kept["velocity"]
                np.multiply(velocity, self.momentum, out=velocity)
                np.add(velocity, change, out=velocity)
                change = np.multiply(velocity, after, out=change)
            np.subtract(p, change, out=p)
        return None

    def _direction(self, g: Array, kept: dict[str, Array], work: Array) -> Array:
        """Return the gradient divided by the root, in ``work``."""
        square, (inside, outside) = kept["square"], epsilons(self)
        np.multiply(square, self.rho, out=square)
        np.multiply(g, g, out=work)
        np.multiply(work, 1 - self.rho, out=work)
        np.add(square, work, out=square)
        np.add(square, inside, out=work)
        if self.centered:
            mean = kept["mean"]
            np.multiply(mean, self.rho, out=mean)
            np.add(mean, g * (1 - self.rho), out=mean)
            np.subtract(work, mean * mean, out=work)
        np.sqrt(work, out=work)
        np.add(work, outside, out=work)
        return np.divide(g, work, out=work)


@keras_class
@dataclass
class Adagrad(Optimizer):
    """Gradients divided by the root of the sum of all their squares so far (Duchi et al. 2011), as in Keras.

    - ``learning_rate``, ``use_locking``: see :class:`Optimizer`
    - ``initial_accumulator_value``: the initial sum of squares; 0 or more
    - ``epsilon``: added to the sum of squares, under the root; 0 or more
    - ``epsilon_outside_root``: whether epsilon is added to the root, as in PyTorch

    >>> p = np.array([1.0]); rule = Adagrad(0.1, initial_accumulator_value=0.0)
    >>> rule.apply(p, np.array([3.0]), rule.new_slots(p), 1); p.round(4)
    array([0.9])
    """

    learning_rate: Any = 0.001
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7
    epsilon_outside_root: bool = field(default=False, kw_only=True, repr=False)
    counts_steps: ClassVar[bool] = False
    limits: ClassVar[Mapping[str, float]] = {"initial_accumulator_value": math.inf, "epsilon": math.inf}

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the sum of squares, at its initial value."""
        return {"square": np.full_like(parameters, self.initial_accumulator_value)}

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place; the gradient is only read."""
        if backend_of(parameters) is not np:
            xp, square = backend_of(parameters), slots["square"]
            return ADAGRAD(xp, gradient, self.learning_rate, *epsilons(self), parameters, square)
        room, (inside, outside) = scratch(parameters), epsilons(self)
        for p, g, square in blocks(parameters, gradient, slots["square"]):
            work = room[: len(p)]
            np.multiply(g, g, out=work)
            np.add(square, work, out=square)
            np.add(square, inside, out=work)
            np.sqrt(work, out=work)
            np.add(work, outside, out=work)
            np.divide(g, work, out=work)
            np.multiply(work, self.learning_rate, out=work)
            np.subtract(p, work, out=p)
        return None


def epsilons(optimizer: RMSprop | Adagrad) -> tuple[float, float]:
    """Return what is added under the root, and to it."""
    epsilon = optimizer.epsilon
    return (0.0, epsilon) if optimizer.epsilon_outside_root else (epsilon, 0.0)
