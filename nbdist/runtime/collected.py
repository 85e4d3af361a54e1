"""What the ops of an accumulator do: whole gradients or rows, their mean or their sum. Without clocks.

Which gradients count for a step is the rule of :mod:`nbdist.runtime.accumulator`; how they are added is here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import OutOfRangeError
from nbdist.graph.op import Shape
from nbdist.graph.ops.rows import check_rows, summed_rows
from nbdist.runtime.accumulator import Accumulator, Rows

Array = np.ndarray[Any, Any]


class Collected:
    """Gradients of one variable, offered by replicas that are known by name.

    >>> collected = Collected((), mean=True)
    >>> collected.offer("/job:worker/task:0", [np.array(10.0)], 0)
    True
    >>> collected.offer("/job:worker/task:1", [np.array(20.0)], 0)
    True
    >>> collected.take(1), collected.take(1), collected.step
    ([array(15.)], None, 1)
    """

    def __init__(self, shape: Shape, mean: bool) -> None:
        self.shape, self.mean = shape, mean
        self.closed = False
        self.givers: dict[str, int] = {}
        """Who has given gradients, and the local step of the last one."""
        self.bytes = 0
        """What is collected takes."""
        self._rule = Accumulator()

    @property
    def step(self) -> int:
        """Gradients of earlier steps are dropped."""
        return self._rule.step

    @step.setter
    def step(self, step: int) -> None:
        self._rule.step = step

    @property
    def count(self) -> int:
        """How many gradients are collected."""
        return self._rule.count

    @property
    def dropped(self) -> int:
        """How many gradients came too late."""
        return self._rule.dropped

    def offer(self, replica: str, gradient: list[Array], local_step: int) -> bool:
        """Keep a gradient, unless it is too old; its arrays are written over."""
        self.givers[replica] = local_step
        order = int.from_bytes(replica.encode())  # numbers that sort as the names do
        accepted = self._rule.offer(order, [*gradient], local_step)
        if accepted:
            self.bytes += sum(array.nbytes for array in gradient)
        return accepted

    def take(self, needed: int) -> list[Array] | None:
        """Return the mean or sum of all gradients, or None if fewer than ``needed`` are there."""
        if self.closed:
            raise OutOfRangeError("the accumulator was closed: the training that it belongs to has ended")
        if self.count < max(needed, 1):
            return None if needed > 0 else self.total(needed)
        self.bytes = 0
        return self.total(needed)

    def total(self, needed: int) -> list[Array]:
        """Return what is collected as one gradient; it is not there any more."""
        return [part for part in self._rule.take(needed, mean=self.mean) if not isinstance(part, Rows)]

    def begin(self, step: int) -> None:
        """Forget what is collected and counted, and wait for gradients of a step."""
        self._rule, self.bytes, self.closed = Accumulator(), 0, False
        self.givers.clear()
        self.step = step

    def missing(self, needed: int) -> str:
        """Return, for people, whose gradients are there and whose are not."""
        there = [name for name, step in self.givers.items() if step >= self.step]
        others = [f"{name} (last: step {s})" for name, s in self.givers.items() if s < self.step]
        text = f"{self.count} of {needed} gradients of step {self.step} are there"
        text += f", from {', '.join(there)}" if there and self.count else ""
        return text + (f"; none from {', '.join(others)}" if others else "")


class CollectedRows(Collected):
    """The same for gradients that hold rows: values, and their positions.

    A row is divided by the number of gradients that hold it.
    """

    def offer(self, replica: str, gradient: list[Array], local_step: int) -> bool:
        """Keep the rows of a gradient, each once."""
        values, positions = gradient
        check_rows(positions, self.shape[0] or 0)
        at, rows = summed_rows(np, values, positions)
        return super().offer(replica, [rows, at], local_step)

    def total(self, needed: int) -> list[Array]:
        """Return rows and their positions."""
        collected = self._rule.close(needed)
        values, positions = (np.concatenate(parts) for parts in zip(*collected, strict=True))
        at, rows = summed_rows(np, values, positions)
        if self.mean and len(at):
            counts = np.unique(positions, return_counts=True)[1]
            rows = rows / counts.reshape(-1, *[1] * (rows.ndim - 1)).astype(rows.dtype)
        return [rows, at]
