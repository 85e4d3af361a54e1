"""`JaxReplica`: parameters, optimizer and step of a function of JAX, where no other replica takes part.

A step is one compiled function: forward, backward, the check for NaN, and the update, in which XLA joins what
is one pass through memory. Parameters, slots and states stay on JAX's device: they go into the function and
come out of it changed, in the same memory (donated buffers).

An update with a NaN or infinite loss or gradient is not made: the function returns the old values, and a
number in ``gradients()`` that is not finite, where the training loop looks. That number is a sum of each
column of the gradients, a product of a matrix and a vector: a tenth of the time of XLA's own reductions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.frameworks.jax.optimizer import OptaxOptimizer
from nbdist.frameworks.jax.tree import copy_leaves
from nbdist.graph.backend import Array
from nbdist.graph.xla.devices import wide_types
from nbdist.graph.xla.functional import FunctionalArray
from nbdist.optim import OPTIMIZERS, Optimizer
from nbdist.train.strategy import Replica, ReplicaState, Trainable

if TYPE_CHECKING:
    from nbdist.frameworks.jax.step import LossFunction

SMALL = 2.0**-40
"""The factor of gradients in their sum, which then cannot overflow."""


def makes_updates(optimizer: Optimizer) -> bool:
    """Return whether XLA can compile the updates of an optimizer; code of one's own may need NumPy."""
    return type(optimizer) in (*OPTIMIZERS.values(), OptaxOptimizer)


class JaxReplica(Replica):
    """Steps of a `LossFunction` on JAX's device. ``values`` are copies on the host, as of the last fetch."""

    pull_is = None
    program_is = ("compute", "step and update")
    push_is = ("apply", "count")
    computes_elsewhere = True

    def __init__(self, model: LossFunction, optimizer: Optimizer) -> None:
        import jax

        optimizer.to_config()  # raises for a learning rate that only a graph computes
        self._model, self._optimizer = model, optimizer
        self.values = [np.array(value) for _, value in model.variables]
        if isinstance(optimizer, OptaxOptimizer):
            self._slots, self._others = optimizer.first_state(self.values)
        else:
            self._slots, self._others = [optimizer.new_slots(value) for value in self.values], []
        self._flag = np.zeros(1)
        self._held: Any = {}
        self._is_home = True
        self._step = jax.jit(self._stepped, donate_argnums=0)
        self._upload()

    def pull(self) -> None:
        """Do nothing: the step reads what is on the device."""

    def fetch(self) -> None:
        """Copy parameters, slots and states to the host, if a step has changed them."""
        if not self._is_home:
            held, states = self._held, [array for _, array in self._model.states]
            copy_leaves([self.values, self._slots, states], [held["values"], held["slots"], held["states"]])
            self._is_home = True

    def program(
        self, model: Trainable, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return ``program(*batch, scale, [key words,] flag) -> (loss, *metrics)``, which updates as well."""
        count, last = len(shapes), len(shapes) + 1 + model.draws

        def program(*arrays: Array) -> tuple[Array, ...]:
            self._held, results, total = self._step(
                self._held,
                arrays[:count],
                np.asarray(self._optimizer.learning_rate, np.float32),
                np.asarray(self.global_step + 1, np.int32),
                *arrays[count + 1 : last],
            )
            self._is_home = False
            arrays[last][...] = np.asarray(total)
            return tuple(np.asarray(result) for result in results)

        return program

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update."""
        rate: float = self._optimizer.learning_rate
        return rate

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate from the next step on; nothing is compiled again."""
        self._optimizer.learning_rate = rate

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable, on the host; `resume` brings changes to the device."""
        self.fetch()
        return self._slots

    def state(self) -> ReplicaState:
        """Return what continues the training."""
        self.fetch()
        return super().state()

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate, with values and slots as the host has them."""
        self.global_step, self._optimizer.learning_rate = updates, rate
        self._upload()

    def gradients(self) -> Sequence[Array]:
        """Return one number, which is finite if all gradients of the step were."""
        return [self._flag]

    def push(self) -> None:
        """Count the update, which the step has made."""
        self.global_step += 1

    def skip(self) -> None:
        """Count nothing: the step has left everything as it was."""

    def abort(self, error: BaseException) -> None:
        """Bring the newest parameters to the host, if an interrupted step has left them."""
        with contextlib.suppress(Exception):
            self.fetch()

    def finish(self) -> None:
        """Bring the final parameters to the host."""
        self.fetch()

    def close(self) -> None:
        """Release the memory of the device."""
        self._held = {}

    def _upload(self) -> None:
        import jax

        states = [array for _, array in self._model.states]
        held = {"values": self.values, "slots": self._slots, "others": self._others, "states": states}
        self._held = jax.tree.map(jax.numpy.array, held)  # copies: the host's arrays change
        self._is_home = True

    def _stepped(self, held: Any, batch: Any, rate: Any, step: Any, words: Any = None) -> Any:
        """Return what is held after a step, (loss, *metrics), and a number that says if all is finite."""
        import jax

        results, states, gradients = self._model.results_and_gradients(
            held["values"], held["states"], batch, 1.0, words
        )
        total = sum(map(total_of, gradients)) + results[0] * SMALL
        new = {**self._updated(held, gradients, rate, step), "states": states}
        fine = jax.numpy.isfinite(total)
        return jax.tree.map(lambda a, b: jax.numpy.where(fine, a, b), new, held), results, total

    def _updated(self, held: Any, gradients: Any, rate: Any, step: Any) -> Any:
        """Return what is held after an update, by the optimizer's own code."""
        values, slots = held["values"], held["slots"]
        if isinstance(self._optimizer, OptaxOptimizer):
            parts = self._optimizer.updated(values, gradients, slots, held["others"], rate, step)
            return dict(zip(("values", "slots", "others"), parts, strict=True))
        new: dict[str, list[Any]] = {"values": [], "slots": [], "others": []}
        with wide_types():  # numbers, such as Adam's bias corrections, are of 64 bits in NumPy
            optimizer = copy(self._optimizer)
            optimizer.learning_rate = FunctionalArray(rate.astype(np.float64))
            number = FunctionalArray(step.astype(np.int64))
            for value, gradient, slot in zip(values, gradients, slots, strict=True):
                p, g = FunctionalArray(value.reshape(-1)), FunctionalArray(gradient.reshape(-1))
                state = {name: FunctionalArray(one.reshape(-1)) for name, one in slot.items()}
                optimizer.apply(p, g, state, number)  # type: ignore[arg-type]  # in place of arrays
                new["values"].append(p.value.reshape(value.shape))
                new["slots"].append({name: one.value.reshape(value.shape) for name, one in state.items()})
        return new


def total_of(gradient: Any) -> Any:
    """Return the sum of a gradient's values times a small number: NaN or infinite if one of them is."""
    import jax.numpy as jnp

    if gradient.ndim < 2:
        return gradient.sum() * SMALL
    rows = gradient.reshape(-1, gradient.shape[-1])
    return (jnp.full(len(rows), SMALL, rows.dtype) @ rows).sum()
