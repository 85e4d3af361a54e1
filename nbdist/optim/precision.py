"""Mixed precision: the policies by name, and the scale that keeps small gradients in float16's range.

    model.compile(LossScaleOptimizer(Adam(), initial_scale=2**12), "mse", precision="mixed_float16")

Parameters, the optimizer and all sums are float32; products and activations are float16 (Micikevicius et al.,
"Mixed Precision Training", ICLR 2018). A float16 below 6e-8 is 0, and above 65,504 infinite, so the loss is
multiplied by a scale before gradients are computed, and float32 gradients are divided by it. The scale is
found at run time: a step with a gradient that is infinite or NaN is left out and halves it, and some steps in
a row without one double it. A bfloat16 has the range of a float32, with 8 bits of precision, so a loss in
"mixed_bfloat16" is not scaled.

Why the host decides whether a step is left out. The program divides by the scale before it writes a gradient
to its buffer, so no strategy sees a scaled one, and replicas may have different scales. The loop reads the
loss and whether gradients are finite in one copy from the device before it hands them over, and the replicas
that make a step together have a message in that exchange already, which carries the decision to all. So the
scale costs no further wait for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.backend import Array, backend_of
from nbdist.graph.tensor import Tensor, Variable
from nbdist.numbers import is_whole
from nbdist.optim import training
from nbdist.optim.base import Optimizer

BFLOAT16 = "mixed_bfloat16"
PRECISIONS: Mapping[str, Any] = {"float32": np.float32, "mixed_float16": np.float16, BFLOAT16: np.float16}
"""What layers compute in, by the name of the policy. NumPy has no bfloat16: float16 stands for it in a graph
that XLA compiles (`Graph.half`), and what NumPy computes of such a model, it computes in float32."""
LEAST, MOST = 1.0, 2.0**32  # float32 holds these and one over them


def checked_precision(what: str, name: str) -> str:
    """Return the name of a policy if there is one; ``what`` names the setting in the error.

    >>> checked_precision("precision", "mixed_float16")
    'mixed_float16'
    """
    if name not in PRECISIONS:
        raise InvalidArgumentError(f"no {what} {name!r}; {choices(name, tuple(PRECISIONS))}")
    return name


class LossScale:
    """The scale of one replica's loss, and how many steps in a row were finite at it.

    >>> scale = LossScale(initial=1024.0, growth_steps=2)
    >>> scale.update(finite=False); scale.value
    512.0
    >>> scale.update(finite=True); scale.update(finite=True); scale.value
    1024.0
    """

    def __init__(self, initial: float = 2.0**15, growth_steps: int = 2000) -> None:
        self.value, self.growth_steps, self.good_steps = initial, growth_steps, 0
        self._array: Array | None = None

    def update(self, finite: bool) -> None:
        """Take the outcome of a step: whether all gradients of all its replicas were finite."""
        if not finite:
            self.restore(max(self.value / 2, LEAST), 0)
        elif self.good_steps + 1 < self.growth_steps:
            self.good_steps += 1
        else:
            self.restore(min(self.value * 2, MOST), 0)

    def restore(self, value: float, good_steps: int) -> None:
        """Continue at a scale, after so many finite steps at it."""
        self.value, self.good_steps = value, good_steps
        if self._array is not None:
            self._array.fill(value)

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller scale may help a gradient that is not finite."""
        return self.value > LEAST

    def array(self, xp: Any) -> Array:
        """Return the scale as an array of one float32 on the current device, which follows it."""
        if self._array is None or backend_of(self._array) is not xp:
            self._array = xp.full((), self.value, np.float32)
        return self._array

    def twin(self) -> LossScale:
        """Return the same scale for another replica, which has an array of its own."""
        twin = copy(self)
        twin._array = None
        return twin


class LossScaleOptimizer(Optimizer):
    """An optimizer with settings for the scale of the loss in mixed precision.

    ``compile(precision="mixed_float16")`` scales the loss with any optimizer, by the defaults given here; so
    this class is for other settings, and for loops of one's own. There ``minimize`` and ``compute_gradients``
    scale the loss and divide the gradients, in functions that ``strategy.run`` runs.

    A step with a gradient that is infinite or NaN is left out by all replicas that make it together, and
    halves the scale, to 1 at least; replicas that step by themselves do so for their own steps. Steps that
    were left out are counted and printed. At a scale of 1 such a gradient is an error as in float32. Runs
    where gradients are computed. Source: Micikevicius et al. 2018 (arXiv:1710.03740); the names are Keras'.

    - ``inner``: the optimizer that makes the updates
    - ``initial_scale``: the first scale, from 1 to 2**32
    - ``dynamic_growth_steps``: how many finite steps in a row double the scale, 1 or more

    Raises InvalidArgumentError for another kind of ``inner`` and for numbers out of range.

    >>> from nbdist.optim import SGD
    >>> LossScaleOptimizer(SGD(0.1), initial_scale=1024)
    LossScaleOptimizer(SGD(learning_rate=0.1, momentum=0.0, nesterov=False), initial_scale=1024.0)
    """

    def __init__(
        self, inner: Optimizer, initial_scale: float = 2.0**15, dynamic_growth_steps: int = 2000
    ) -> None:
        if not isinstance(inner, Optimizer) or isinstance(inner, LossScaleOptimizer):
            raise InvalidArgumentError(
                f"LossScaleOptimizer: inner is an optimizer such as nb.optim.Adam(), got {inner!r}"
            )
        number = isinstance(initial_scale, (int, float, np.number)) and not isinstance(initial_scale, bool)
        if not number or not LEAST <= initial_scale <= MOST:
            raise InvalidArgumentError(
                f"LossScaleOptimizer: initial_scale is a number from 1 to 2**32, got {initial_scale!r}"
            )
        if not is_whole(dynamic_growth_steps, 1):
            raise InvalidArgumentError(
                "LossScaleOptimizer: dynamic_growth_steps is a whole number of 1 or more, got "
                f"{dynamic_growth_steps!r}"
            )
        self.inner, self.initial_scale = inner, float(initial_scale)
        self.dynamic_growth_steps = int(dynamic_growth_steps)

    __eq__, __hash__ = object.__eq__, object.__hash__  # it has a state in each training

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: Any) -> None:
        self.inner.learning_rate = rate

    def loss_scale(self) -> LossScale:
        """Return the scale that a training begins with."""
        return LossScale(self.initial_scale, self.dynamic_growth_steps)

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        """Change ``parameters`` in place as the inner optimizer does; the gradient is not scaled."""
        self.inner.apply(parameters, gradient, slots, step)

    def new_slots(self, parameters: Array) -> dict[str, Array]:
        """Return the slots of the inner optimizer."""
        return self.inner.new_slots(parameters)

    def config(self, learning_rate: float) -> dict[str, Any]:
        """Return name and settings as plain values, the inner optimizer's among them."""
        return {
            "name": type(self).__name__,
            "inner": self.inner.config(learning_rate),
            "initial_scale": self.initial_scale,
            "dynamic_growth_steps": self.dynamic_growth_steps,
        }

    def compute_gradients(self, loss: Tensor, var_list: Any = None, grad_loss: Any = None) -> training.Pairs:
        """Return (gradient, variable) for each variable: those of the scaled loss, divided by the scale.

        Raises FailedPreconditionError outside of a function that ``strategy.run`` runs.
        """
        return training.scaled_gradients(self, loss, var_list, grad_loss)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Return the op that applies gradients that :meth:`compute_gradients` has returned."""
        return training.apply_gradients(self.inner, grads_and_vars, global_step, name or type(self).__name__)

    def __repr__(self) -> str:
        more = [f"initial_scale={self.initial_scale!r}"] * (self.initial_scale != 2.0**15)
        more += [f"dynamic_growth_steps={self.dynamic_growth_steps}"] * (self.dynamic_growth_steps != 2000)
        return f"LossScaleOptimizer({', '.join([repr(self.inner), *more])})"


def unscaled(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that makes the updates."""
    return optimizer.inner if isinstance(optimizer, LossScaleOptimizer) else optimizer
