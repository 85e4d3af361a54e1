"""What the towers of an in-graph training have in common: the graph, the session, who has finished."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from nbdist.data import Dataset
from nbdist.data.shares import share_of
from nbdist.distribute.reading import Reading
from nbdist.distribute.towers import Master, Step
from nbdist.graph.tensor import Variable
from nbdist.optim import Optimizer
from nbdist.runtime.session.session import Session
from nbdist.train.pipeline import bubble_fraction
from nbdist.train.strategy import Parts

if TYPE_CHECKING:
    from nbdist.distribute.in_graph import InGraphStrategy


class Joint:
    """One training of some towers; any of their threads may ask it."""

    def __init__(self, strategy: InGraphStrategy, parts: Parts, optimizer: Optimizer) -> None:
        self.parts, self.data, self.optimizer = parts, strategy.data, optimizer
        self.master = Master(parts, optimizer, strategy.devices, strategy.ps_devices)
        number = len(self.master.groups)
        if strategy.data == "client":  # the steps take batches of any size
            usual = cut_up(number * parts.micro_batches, number, parts.micro_batches)
            ways = (
                [dict(enumerate(usual))] if strategy.synchronous else [{i: usual[0]} for i in range(number)]
            )
            for cuts in ways:
                self.master.step(cuts)
        transport: Literal["auto", "socket"] = "socket" if strategy.transport == "socket" else "auto"
        self.session = Session(strategy.target, self.master.graph, isolate=True, transport=transport)
        self.lock = threading.Condition()
        self.going_on = 1 if strategy.synchronous else number
        """Towers with a thread of their own that have not finished."""
        self.updates = 0
        self._initialised: set[Variable] = set()
        try:
            self._initialise()
        except BaseException:
            self.session.close()
            raise

    def describe(self) -> str:
        """Return what a user should know of how the work is spread."""
        parts, number = self.parts, len(self.master.groups)
        text = f"in-graph: one graph with {number} tower{'s' * (number > 1)}, one session"
        if parts.stages > 1:
            idle = bubble_fraction(parts.stages, parts.micro_batches, parts.schedule)
            text += (
                f"; {parts.stages} stages, {parts.micro_batches} micro-batches, {parts.schedule}: each stage "
                f"is idle {idle:.0%} of the time at best (the pipeline's bubble)"
            )
        elif parts.devices_needed > 1:
            text += f"; layers split over {parts.devices_needed} tasks"
        if self.data == "workers":
            text += "; the data is sent to the workers once, and each reads its share of every batch"
        return text

    def step(self, cuts: Mapping[int, Sequence[slice]], reading: Reading | None) -> Step:
        """Return a step of the graph, which grows if a batch is smaller than usual."""
        with self.lock:
            step = self.master.step(cuts, reading)
            self._initialise()
            return step

    def set_rate(self, rate: float) -> None:
        """Change the learning rate, wherever variables live; returns when all have."""
        self.session.run(*self.master.rate_op(rate))
        self.optimizer.learning_rate = rate

    def read(self, dataset: Dataset, towers: Sequence[int]) -> Reading:
        """Have some towers read a dataset together."""
        with self.lock:
            return self.master.read(dataset, towers)

    def _initialise(self) -> None:
        """Initialise the variables that are new: an optimizer's come with its first step."""
        new = [v for v in self.master.graph.variables() if v not in self._initialised]
        if new:
            self.session.run(self.master.initializer(new))
            self._initialised.update(new)


def cut_up(size: int, towers: int, micros: int) -> list[list[slice]]:
    """Return, for each tower, the slices of its micro-batches; none of them is empty.

    >>> cut_up(5, 2, 2)
    [[slice(0, 2, None), slice(2, 3, None)], [slice(3, 4, None), slice(4, 5, None)]]
    """
    found = []
    for i in range(towers):
        own = share_of(size, towers, i)
        edges = [own.start + -(-(own.stop - own.start) * k // micros) for k in range(micros + 1)]
        found.append([slice(a, b) for a, b in pairwise(edges) if b > a])
    return found
