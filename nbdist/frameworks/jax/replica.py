"""`JaxReplica`: parameters, optimizer and step of a function of JAX, where no other replica takes part.

A step is one compiled function: forward, backward, the check for NaN, and the update, in which XLA joins what
is one pass through memory. Parameters, slots and states stay on JAX's device: they go into the function and
come out of it changed, in the same memory (donated buffers).

A transfer of a host array to the device takes JAX 5 to 10 us. The learning rate is therefore transferred
only when it changes, and updates are counted on the device. Results of a step are read after the next one is
dispatched (`Overlap`), so that XLA computes while the host works. Where a step that is not finite
ends the training, the one that has been dispatched after it changes nothing.

The number that says whether all is finite is a sum of each column of the gradients, a product of a matrix and
a vector: 20 us, where XLA's own reductions take 35 to 75.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.frameworks.jax.optimizer import OptaxOptimizer
from nbdist.frameworks.jax.tree import copy_leaves
from nbdist.graph.backend import Array
from nbdist.graph.xla.devices import jax_module, wide_types
from nbdist.graph.xla.functional import FunctionalArray, prepared, updated
from nbdist.optim import OPTIMIZERS, Optimizer
from nbdist.train.capabilities import Overlap
from nbdist.train.compiled_replica import CompiledReplica
from nbdist.train.replica import itself
from nbdist.train.trainable import Program, Shapes, Trainable

if TYPE_CHECKING:
    from nbdist.frameworks.jax.step import LossFunction

SMALL = 2.0**-40
"""The factor of gradients in their sum, which then cannot overflow."""


def makes_updates(optimizer: Optimizer) -> bool:
    """Return whether XLA can compile the updates of an optimizer; code of one's own may need NumPy."""
    return type(optimizer) in (*OPTIMIZERS.values(), OptaxOptimizer)


class JaxReplica(CompiledReplica, Overlap):
    """Steps of a `LossFunction` on JAX's device."""

    overlap = itself

    def __init__(self, model: LossFunction, optimizer: Optimizer) -> None:
        import jax

        values = [np.array(value) for _, value in model.variables]
        if isinstance(optimizer, OptaxOptimizer):
            slots, self._others = optimizer.first_state(values)
        else:
            slots, self._others = [optimizer.new_slots(value) for value in values], []
        super().__init__(optimizer, values, slots)
        self._model = model
        self._held: Any = {}
        self._rate: Any = None
        self._uploaded_rate: Any = None
        self._fine = jax.numpy.float32(0.0)
        self._unread = self._fine
        """The number that the last step returns, until it is read."""
        self._was_read = False
        self._step = jax.jit(self._stepped, donate_argnums=0)
        self.upload()

    @property
    def computed_with(self) -> Sequence[Array]:
        """The parameters on the device."""
        values: Sequence[Array] = self._held["values"]
        return values

    def fetch(self) -> None:
        """Copy parameters, slots and states to the host, if a step has changed them."""
        if not self.host_is_current:
            held, states = self._held, [array for _, array in self._model.states]
            copy_leaves(
                [self.values, self.host_slots, states], [held["values"], held["slots"], held["states"]]
            )
            self.host_is_current = True

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return ``program(*batch, scale, [key words,] flag)``, which updates as well.

        It returns (loss, *metrics, number that is not finite if a gradient or the loss is not), for
        `read_results`, before XLA has computed them.
        """
        count, last = len(shapes), len(shapes) + 1 + model.draws

        def program(*arrays: Array) -> tuple[Array, ...]:
            self._held, results, number = self._step(
                self._held, arrays[:count], self._rate_on_device(), self._unread, *arrays[count + 1 : last]
            )
            self._unread = self._fine if self.hooks.withholds else number
            self.host_is_current = False
            return *results, number

        return program

    def read_results(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return loss and metrics of a step, and set the flag to the number that says if all was finite."""
        *found, number = map(np.asarray, values)
        if values[-1] is self._unread:
            self._unread = self._fine
        self.flag[...], self._was_read = number, True
        return found

    def is_ready(self, values: Sequence[Any]) -> bool:
        """Return whether XLA has finished the step that has returned ``values``."""
        return bool(values[-1].is_ready())

    def push(self) -> None:
        """Count the update; a batch without examples has made none."""
        self.report.global_step += self._was_read
        self._was_read = False

    def skip(self) -> None:
        """Count nothing: the step has left everything as it was."""
        self._was_read = False

    def interrupt(self) -> None:
        """Bring the newest parameters to the host, if an interrupted step has left them."""
        with suppress(
            RuntimeError
        ):  # JAX's, of arrays that an interrupted step was given and has not returned
            self.fetch()

    def close(self) -> None:
        """Release the memory of the device."""
        self._held, self._unread = {}, self._fine

    def upload(self) -> None:
        """Copy the host's parameters, slots and states to the device."""
        import jax

        states = [array for _, array in self._model.states]
        held = {
            "values": self.values, "slots": self.host_slots, "others": self._others, "states": states,
            "updates": np.int32(self.report.global_step),
        }  # fmt: skip
        self._held = jax.tree.map(jax.numpy.array, held)  # copies: the host's arrays change
        self.host_is_current = True

    def _rate_on_device(self) -> Any:
        """Return the rate of the next update, as an array of JAX."""
        rate = self.optimizer.learning_rate
        if rate is not self._uploaded_rate:
            self._rate, self._uploaded_rate = jax_module().numpy.float32(rate), rate
        return self._rate

    def _stepped(self, held: Any, batch: Any, rate: Any, unread: Any, words: Any = None) -> Any:
        """Return the state after a step, (loss, *metrics), and a number: 0 if all of them are finite.

        It is NaN or infinite otherwise, or if it was so for the step before (``unread``).
        """
        import jax

        jnp = jax.numpy
        results, states, gradients = self._model.results_and_gradients(
            held["values"], held["states"], batch, 1.0, words
        )
        total = sum(map(total_of, gradients)) + results[0] * SMALL
        number = jnp.where(jnp.isfinite(total), 0.0, total).astype(np.float32)
        number = jnp.where(jnp.isfinite(unread), number, unread)
        updates = held["updates"] + 1
        new = {**self._updated(held, gradients, rate, updates), "states": states, "updates": updates}
        fine = jnp.isfinite(number)
        return jax.tree.map(lambda a, b: jnp.where(fine, a, b), new, held), results, number

    def _updated(self, held: Any, gradients: Any, rate: Any, step: Any) -> Any:
        """Return the state after an update by the optimizer's own code."""
        values, slots = held["values"], held["slots"]
        if isinstance(self.optimizer, OptaxOptimizer):
            parts = self.optimizer.updated(values, gradients, slots, held["others"], rate, step)
            return dict(zip(("values", "slots", "others"), parts, strict=True))
        new: dict[str, list[Any]] = {"values": [], "slots": [], "others": []}
        with wide_types():  # numbers, such as Adam's bias corrections, are of 64 bits in NumPy
            optimizer = copy(self.optimizer)
            optimizer.learning_rate = FunctionalArray(rate.astype(np.float64))
            number = FunctionalArray(step.astype(np.int64))
            values, gradients = prepared(optimizer, values, gradients)
            for value, gradient, slot in zip(values, gradients, slots, strict=True):
                after, kept = updated(optimizer, value, gradient, slot, number)
                new["values"].append(after)
                new["slots"].append(kept)
        return new


def total_of(gradient: Any) -> Any:
    """Return the sum of a gradient's values times a small number: NaN or infinite if one of them is."""
    import jax.numpy as jnp

    if gradient.ndim < 2:
        return gradient.sum() * SMALL
    rows = gradient.reshape(-1, gradient.shape[-1])
    return (jnp.full(len(rows), SMALL, rows.dtype) @ rows).sum()
