"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from nbdist.graph.backend import backend_of
from nbdist.graph.kernel import COMPUTE_IN_W, INTEGERS, define_kernel
from nbdist.keras_arguments import keras_class
from nbdist.optim.base import Array, Optimizer, blocks, scratch

SETTINGS = (
    "T g, float64 rate, float64 learning_rate, float64 decay, float64 beta_1, float64 beta_2, float64 epsilon"
)
MOMENTS = """
mean = T(W(mean) * W(beta_1) + W(g) * W(1 - beta_1));
square = T(W(square) * W(beta_2) + W(g) * W(g) * W(1 - beta_2));
"""
STEP = "p = T(W(p) * W(1 - learning_rate * decay) - W(mean) / (sqrt(W(over)) + W(epsilon)) * W(rate));"
ADAM = define_kernel(
    "adam", SETTINGS, "T p, T mean, T square", COMPUTE_IN_W + MOMENTS + "const T over = square;" + STEP
)
ADAM_AMSGRAD = define_kernel(
    "adam_amsgrad",
    SETTINGS,
    "T p, T mean, T square, T largest",
    COMPUTE_IN_W
    + MOMENTS
    + "largest = W(square) > W(largest) || W(square) != W(square) ? square : largest;"
    + "const T over = largest;"
    + STEP,
)
# In a graph the number of the step is on the GPU. A double power for each parameter would take longer than
# the rest of the step, so one thread computes the rate.
ADAM_RATE = define_kernel(
    "adam_rate",
    "I step, float64 learning_rate, float64 beta_1, float64 beta_2",
    "float64 rate",
    "rate = learning_rate * sqrt(1 - pow(beta_2, double(step))) / (1 - pow(beta_1, double(step)));",
    types={"I": INTEGERS},
)


@keras_class
@dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015), with the AMSGrad correction if asked (Reddi et al. 2018).

    - ``learning_rate``, ``use_locking``: see :class:`Optimizer`
    - ``beta_1``, ``beta_2``: decay per step of the means of gradients and of their squares, from 0 to below 1
    - ``epsilon``: added to the root of the mean square; 0 or more
    - ``amsgrad``: whether to divide by the largest mean square so far
    - ``bias_corrected_epsilon``: whether epsilon is added to the root of the bias-corrected mean square, as
      in the paper's algorithm 1 and in PyTorch; else to that of the uncorrected one (section 2), as in Keras

    >>> p = np.array([1.0]); adam = Adam(0.1)
    >>> adam.apply(p, np.array([3.0]), adam.new_slots(p), 1); p.round(6)
    array([0.9])
    """

    learning_rate: Any = 0.001
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False
    bias_corrected_epsilon: bool = field(default=False, kw_only=True, repr=False)
    limits: ClassVar[Mapping[str, float]] = {"beta_1": 1, "beta_2": 1, "epsilon": math.inf}

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the two moments, and the largest second moment for AMSGrad."""
        names = ("mean", "square", *(("largest",) if self.amsgrad else ()))
        return {name: np.zeros_like(parameters) for name in names}

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place; the gradient is only read."""
        if backend_of(parameters) is not np:
            return self._launch(parameters, gradient, slots, step)
        rate = self.learning_rate * (1 - self.beta_2**step) ** 0.5 / (1 - self.beta_1**step)
        epsilon = self._epsilon_at(step)
        room = scratch(parameters)
        for p, g, mean, square, *largest in blocks(parameters, gradient, *slots.values()):
            work = room[: len(p)]
            np.multiply(mean, self.beta_1, out=mean)
            np.multiply(g, 1 - self.beta_1, out=work)
            np.add(mean, work, out=mean)
            np.multiply(square, self.beta_2, out=square)
            np.multiply(g, g, out=work)
            np.multiply(work, 1 - self.beta_2, out=work)
            np.add(square, work, out=square)
            for top in largest:
                square = np.maximum(top, square, out=top)
            np.sqrt(square, out=work)
            np.add(work, epsilon, out=work)
            np.divide(mean, work, out=work)
            np.multiply(work, rate, out=work)
            np.subtract(p, work, out=p)
        return None

    def _launch(
        self, parameters: Array, gradient: Array, slots: dict[str, Array], step: Any, decay: float = 0.0
    ) -> None:
        """The same on a GPU; ``step`` and the learning rate may be there, too."""
        xp, betas = backend_of(parameters), (self.beta_1, self.beta_2)
        rate: Any
        if isinstance(step, int):
            rate = self.learning_rate * (1 - self.beta_2**step) ** 0.5 / (1 - self.beta_1**step)
        else:
            rate = xp.empty((), np.float64)
            ADAM_RATE(xp, step, self.learning_rate, *betas, rate)
        kernel = ADAM_AMSGRAD if self.amsgrad else ADAM
        settings = (rate, self.learning_rate, decay, *betas, self._epsilon_at(step))
        kernel(xp, gradient, *settings, parameters, *slots.values())

    def _epsilon_at(self, step: Any) -> Any:
        """Return what is added to the root of the uncorrected mean square in a step."""
        return self.epsilon * (1 - self.beta_2**step) ** 0.5 if self.bias_corrected_epsilon else self.epsilon


@keras_class
@dataclass
class AdamW(Adam):
    """Adam with weights that decay by themselves: ``p -= learning_rate * weight_decay * p`` before each step.

    Loshchilov and Hutter 2019, as in Keras. ``weight_decay`` is 0 or more; ``learning_rate``, ``beta_1``,
    ``beta_2``, ``epsilon``, ``amsgrad``, ``bias_corrected_epsilon`` and ``use_locking`` are those of
    :class:`Adam`.

    >>> p = np.array([1.0]); adam = AdamW(0.1, weight_decay=0.5)
    >>> adam.apply(p, np.array([0.0]), adam.new_slots(p), 1); p.round(6)
    array([0.95])
    """

    weight_decay: float = field(default=0.004, kw_only=True)
    decays_itself: ClassVar[bool] = True
    limits: ClassVar[Mapping[str, float]] = {**Adam.limits, "weight_decay": math.inf}

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place; the gradient is only read."""
        if backend_of(parameters) is not np:
            return self._launch(parameters, gradient, slots, step, self.weight_decay)
        np.multiply(parameters, 1 - self.learning_rate * self.weight_decay, out=parameters)
        return super().apply(parameters, gradient, slots, step)
