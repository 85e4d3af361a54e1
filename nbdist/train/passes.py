"""A dataset, gone through epoch after epoch: from the beginning, or from a place where a training ended.

passes = Passes(strategy, dataset, steps_per_epoch, place, control.check)
for epoch in range(place.epoch, epochs):
    for arrays, size in passes.following():
        ...
    passes.made(steps, whole=True)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.train.strategy import Strategy

Array: TypeAlias = np.ndarray[Any, Any]
Batch: TypeAlias = tuple[tuple[Array, ...], int]


@dataclass(frozen=True)
class Place:
    """Where a training is in its data: between two batches of an epoch."""

    epoch: int = 0
    """How many epochs are over."""
    batches: int = 0
    """How many batches of the next one are."""
    opened: tuple[int, ...] | None = None
    """How often each shuffle had been opened when the pass began that the next batch is of."""


class Passes:
    """One pass over ``dataset`` for each epoch, or one for all if it is endless."""

    def __init__(
        self,
        strategy: Strategy,
        dataset: Dataset,
        steps: int | None,
        place: Place,
        check: Callable[[], object],
    ) -> None:
        self._strategy, self._dataset, self._steps, self._check = strategy, dataset, steps, check
        if place.opened is not None:
            dataset.reopen(place.opened)
        self._opened, self._epoch, self._batches = dataset.opened, place.epoch, place.batches
        self._within = False
        self._endless = strategy.batches(dataset) if dataset.endless else None
        self._over = place.batches
        if self._endless is not None:
            self._over += place.epoch * (steps or 0)

    @property
    def place(self) -> Place:
        """Where the training is."""
        begun = self._within or self._endless is not None
        return Place(self._epoch, self._batches, self._opened if begun else self._dataset.opened)

    def following(self) -> Iterator[Batch]:
        """Return the batches of the next epoch that are still to come."""
        batches = self._endless
        if batches is None:
            self._opened, batches = self._dataset.opened, self._strategy.batches(self._dataset)
        for number in range(self._over):  # made again and put aside: what follows is then what followed
            self._check()
            if next(batches, None) is None:
                raise InvalidArgumentError(
                    f"the dataset has ended after {number} batches, and the training that is continued had "
                    f"had {self._over}: continue it on the same data"
                )
        self._over = 0
        return itertools.islice(batches, None if self._steps is None else self._steps - self._batches)

    def made(self, steps: int, whole: bool) -> None:
        """Note that an epoch has ended, after so many steps."""
        self._within = not whole
        if whole:
            self._epoch, self._batches = self._epoch + 1, 0
        else:
            self._batches += steps
