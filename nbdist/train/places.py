"""The replicas of one process, each with its surroundings, its thread and what it has for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from nbdist.graph.backend import Array, backend
from nbdist.graph.tensor import Variable
from nbdist.optim import SGD
from nbdist.train.context import Context
from nbdist.train.crew import Crew
from nbdist.train.meeting import meet, part
from nbdist.train.updates import Nothing

if TYPE_CHECKING:
    from nbdist.train.strategy import Strategy

Result = TypeVar("Result")
CutOff: TypeAlias = Callable[[int, BaseException], None]


class Place:
    """One of this process's replicas: its surroundings, and what it has for itself."""

    def __init__(self, context: Context, index: int) -> None:
        self.context, self.index = context, index
        self.xp = backend(context.device)
        self.arrays: dict[Variable, Array] = {}
        self.programs: dict[Any, Any] = {}

    def all_reduce(self, array: Array, how: str) -> Array:
        """Return the sum or mean of all replicas' arrays, or that of the first one."""
        strategy = self.context.strategy
        if how == "first":
            own = array if strategy.replica_index == 0 else np.zeros_like(array)
            return strategy.all_reduce(own, "sum")
        return strategy.all_reduce(array, how)


class Places:
    """This process's replicas of a strategy, made at the first use; they can meet from then on."""

    def __init__(self, strategy: Strategy, context: Context, cut_off: CutOff) -> None:
        self._strategy, self._context, self._cut_off = strategy, context, cut_off
        self._made: list[Place] = []
        self._met = False
        self._crew: Crew | None = None

    @property
    def all(self) -> list[Place]:
        """The replicas, in order."""
        if not self._met:
            self._met = True
            # As many as begin a training together; which one it is makes no difference.
            others = self._strategy.companions(self._context, Nothing(), SGD())
            self._made = self._made or [Place(c, i) for i, c in enumerate([self._context, *others])]
            if others:  # now, while nobody else meets in the group that the companions have in common
                for place in self._made:
                    meet(place.context.strategy)
        return self._made

    @property
    def made(self) -> list[Place]:
        """The replicas, if there are any yet."""
        return self._made

    @property
    def meet(self) -> bool:
        """Whether replicas of several processes have brought values together."""
        strategy = self._strategy
        return strategy.num_replicas_in_sync > max(len(self._made), 1) and "_meeting" in strategy.__dict__

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Let every replica work on its own thread, given its number; return what each returned."""
        if self._crew is None:
            self._crew = Crew(len(self.all), self._cut_off)
        return self._crew.each(work)

    def all_reduce(self, arrays: Sequence[Any], how: str) -> Array:
        """Return the sum or mean over all replicas, or the first one's, given those of this process."""
        return self.each(lambda i: self._made[i].all_reduce(np.asarray(arrays[i]), how))[0]

    def part(self, index: int, error: BaseException) -> None:
        """Break the group in which a replica meets others."""
        if index < len(self._made):
            part(self._made[index].context.strategy, error)

    def leave(self) -> None:
        """Let go of the group in which replicas meet; they form another one when they need it."""
        for place in self._made:
            part(place.context.strategy)
        self._met = False

    def rest(self) -> None:
        """Let go of threads and programs; replicas keep what they have for themselves."""
        for place in self._made:
            place.programs.clear()
        if self._crew is not None:
            self._crew.close()
            self._crew = None
