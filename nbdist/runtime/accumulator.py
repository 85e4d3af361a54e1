"""Synchronous gradients: collect, drop what is stale, take. A state machine without sockets or clocks.

The rules are those of TensorFlow's ConditionalAccumulator: a gradient is accepted only if its local step
is not older than the accumulator's step; older ones are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """The gradient of a table that is zero outside some rows: ``values[i]`` adds to row ``indices[i]``."""

    indices: Array
    values: Array

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Return the sum of gradients of one table; a row may occur several times."""
        indices = np.concatenate([part.indices for part in parts])
        return cls(indices, np.concatenate([part.values for part in parts]))


Gradient: TypeAlias = list[Array | Rows]
"""One array for each dtype of the parameters, then the rows of each table; rows are never overwritten."""


@dataclass
class Collected:
    """A gradient that waits for its step; ``lent`` says that its arrays belong to whoever offered it."""

    replica: int
    gradient: Gradient
    lent: bool = True


class Accumulator:
    """Gradients of one set of parameters, from several replicas, for one step.

    >>> accumulator = Accumulator()
    >>> accumulator.offer(0, [np.array([10.0])], local_step=0)
    True
    >>> accumulator.offer(1, [np.array([20.0])], local_step=0)
    True
    >>> accumulator.take(1, mean=True)
    [array([15.])]
    """

    def __init__(self) -> None:
        self.step = 0
        self.dropped = 0
        self._collected: list[Collected] = []
        self._spare: list[Gradient] = []

    @property
    def count(self) -> int:
        """How many gradients are collected."""
        return len(self._collected)

    @property
    def replicas(self) -> list[int]:
        """Whose gradients are collected, one entry for each."""
        return [one.replica for one in self._collected]

    def offer(self, replica: int, gradient: Gradient, local_step: int) -> bool:
        """Collect a gradient, unless it is older than the step; return whether it was accepted.

        The arrays are kept, not copied, and the first replica's are written over by ``take``.
        """
        if local_step < self.step:
            self.dropped += 1
            return False
        self._collected.append(Collected(replica, gradient))
        return True

    def keep(self, replica: int) -> None:
        """Copy what a replica has lent, so that it may write its next gradient."""
        for one in self._collected:
            if one.replica == replica and one.lent:
                own = self._spare.pop() if self._spare else [_like(part) for part in one.gradient]
                one.gradient = [_kept(target, part) for target, part in zip(own, one.gradient, strict=True)]
                one.lent = False

    def take(self, needed: int, mean: bool = False, scale: float = 1.0) -> Gradient:
        """Return the sum (or mean) of all collected gradients, times ``scale``; go on to the next step.

        They are added in the order of the replicas, so that a result does not depend on who came first. The
        arrays are good until the next gradient is offered.
        """
        collected = self.close(needed)
        total: Gradient = []
        for parts in zip(*collected, strict=True):
            if isinstance(parts[0], Rows):
                sum_of = Rows.joined(parts)
                numbers = sum_of.values  # an array of its own
            else:
                sum_of = numbers = parts[0]
                for part in parts[1:]:
                    np.add(numbers, part, out=numbers)
            if mean:
                np.divide(numbers, len(collected), out=numbers)
            if scale != 1.0:
                np.multiply(numbers, scale, out=numbers, casting="unsafe")
            total.append(sum_of)
        return total

    def close(self, needed: int) -> list[Gradient]:
        """Return all collected gradients, in the order of the replicas, and go on to the next step."""
        if needed < 1:
            raise InvalidArgumentError(f"take at least 1 gradient, got {needed}")
        if self.count < needed:
            raise FailedPreconditionError(f"{self.count} of {needed} gradients have arrived")
        self._collected.sort(key=lambda one: one.replica)
        collected = [one.gradient for one in self._collected]
        self._end()
        self.step += 1
        return collected

    def forget(self) -> int:
        """Drop what is collected, counted as dropped; return how many that were."""
        count = self.count
        self.dropped += count
        self._end()
        return count

    def _end(self) -> None:
        self._spare += [one.gradient for one in self._collected if not one.lent]
        self._collected.clear()


def _like(part: Array | Rows) -> Array | Rows:
    return part if isinstance(part, Rows) else np.empty_like(part)


def _kept(target: Array | Rows, part: Array | Rows) -> Array | Rows:
    """Return a copy, in ``target``, of the arrays that are reused; rows are not copied."""
    if isinstance(part, Rows) or isinstance(target, Rows):
        return part
    np.copyto(target, part)
    return target
