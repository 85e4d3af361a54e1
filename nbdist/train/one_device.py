"""Everything on one device: `OneDeviceReplica`, from which many strategies' replicas inherit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from nbdist.graph.backend import Array, backend, scoped_device, to_device
from nbdist.optim import Optimizer
from nbdist.optim.base import Part
from nbdist.runtime.layout import Layout
from nbdist.runtime.tables import RowGradient, Tables
from nbdist.train.capabilities import ArrayMemory, LearningRate, StateAccess, StepChecks, StepSpans, TableRows
from nbdist.train.replica import Replica, itself
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import Trainable

T = TypeVar("T")


class OneDeviceStrategy(Strategy):
    """Everything on one device: for testing code before distributing it.

    >>> OneDeviceStrategy().num_replicas_in_sync
    1
    """

    name = "one_device"
    alone = True
    has_sums = True
    continues = True
    takes_rows = True
    calls_update = True

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train in this process."""
        return OneDeviceReplica(variables, optimizer, tables=tables)

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Begin to train ``model``, with steps and updates as one where the model has such."""
        return model.whole_replica(optimizer) or super().begin(model, optimizer)


class OneDeviceReplica(Replica, LearningRate, StateAccess, StepChecks, TableRows):
    """Parameters and optimizer in this process, on the device that its thread works for.

    ``parameters`` are bytes of the host for them, if another process reads them there.
    """

    spans = StepSpans(pull=None, push=("apply", "gradients"))
    rate = state = checks = rows = itself

    def __init__(
        self,
        variables: Sequence[tuple[str, Array]],
        optimizer: Optimizer,
        parameters: Array | None = None,
        tables: Sequence[int] = (),
    ) -> None:
        optimizer.to_config()  # raises for a learning rate that only a graph computes
        own, rest = apart(variables, tables)
        self.tables, self._tables = tuple(tables), Tables(own, optimizer)
        self._taken: Sequence[RowGradient] = ()
        self._layout = layout = layout_of(rest)
        xp = backend(scoped_device()) if parameters is None else np
        self.memory = ArrayMemory(in_place=xp is not np)
        gradient = layout.buffer(xp)
        parameters = layout.buffer(xp) if parameters is None else parameters
        views, self._gradients = layout.views(parameters), layout.views(gradient)
        for view, (_, value) in zip(views, rest, strict=True):
            view[...] = to_device(value, xp)
        called = [name for name, _ in rest]
        self._parts = [
            Part(i, *one) for i, one in enumerate(zip(called, views, self._gradients, strict=True))
        ]
        self.values = interleaved(own, views, tables)
        self._optimizer = optimizer
        self._flats = [
            (p, g, optimizer.all_slots(p))
            for p, g in zip(layout.flats(parameters), layout.flats(gradient), strict=True)
        ]

    def pull(self) -> None:
        """Do nothing: the parameters are here."""

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update."""
        rate: float = self._optimizer.learning_rate
        return rate

    def set_learning_rate(self, rate: float) -> None:
        """Make updates at another rate from the next step on."""
        self._optimizer.learning_rate = rate

    @property
    def slots(self) -> list[dict[str, Array]]:
        """What the optimizer keeps for each variable."""
        kept = [slots for *_, slots in self._flats]
        count = len(self.values) - len(self.tables)
        return interleaved(self._tables.slots, by_variable(kept, self._layout.cut, count), self.tables)

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates, at a learning rate."""
        self.report.global_step, self._optimizer.learning_rate = updates, rate

    def gradients(self) -> Sequence[Array]:
        """Return the gradient buffers, one per variable that is not a table."""
        return self._gradients

    def flat_gradients(self) -> Sequence[Array]:
        """Return the memory of the gradients, one array per dtype."""
        return [gradient for _, gradient, _ in self._flats]

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Take the gradients of the tables' rows."""
        self._taken = gradient

    def push(self) -> None:
        """Apply the gradients."""
        self.report.global_step = number = self.report.global_step + 1
        if self.hooks.before_update is not None:
            self.hooks.before_update(self._gradients, self.values)
        self._optimizer.update(self._flats, number, lambda: self._parts)
        if self._taken:
            self._tables.apply(self._taken, number)
            self._taken = ()
        self.after_step()

    def skip(self) -> None:
        """Make no update."""
        self.after_step()

    def after_step(self) -> None:
        """Do nothing; it is called after each step, whether the step has made an update or was left out.

        Replicas that exchange their parameters from time to time do it here.
        """

    def finish(self) -> None:
        """Do nothing: every update is applied when ``push`` returns."""

    def close(self) -> None:
        """Do nothing: memory goes with the object."""


def apart(
    variables: Sequence[tuple[str, Array]], tables: Sequence[int]
) -> tuple[list[Array], list[tuple[str, Array]]]:
    """Return the arrays of the tables, which are trained in place, and all other variables."""
    rest = [v for i, v in enumerate(variables) if i not in tables]
    return [variables[i][1] for i in tables], rest


def interleaved(own: Sequence[T], rest: Sequence[T], tables: Sequence[int]) -> list[T]:
    """Merge items of tables and of other variables in the order of all variables; undoes :func:`apart`."""
    of_tables, others = dict(zip(tables, own, strict=True)), iter(rest)
    count = len(own) + len(rest)
    return [of_tables[i] if i in of_tables else next(others) for i in range(count)]


def layout_of(variables: Sequence[tuple[str, Array]]) -> Layout:
    """Return where each variable lies in one buffer of all."""
    return Layout.of((name, value.shape, value.dtype) for name, value in variables)


def by_variable(
    slots: Sequence[dict[str, Array]], cut: Callable[[Sequence[Array]], list[Array]], count: int
) -> list[dict[str, Array]]:
    """Return the slots of each of ``count`` variables, given those of flat arrays, which ``cut`` cuts up."""
    columns = {name: cut([one[name] for one in slots]) for name in (slots[0] if slots else ())}
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]
