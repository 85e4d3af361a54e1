"""Who chooses a trial's parameters: all of a grid, at random, or (by name) one of Optuna's.

A sampler answers from the space, the seed, the number of the trial and the history only, so that going
through a log again gives the same questions the same answers.

>>> from nbdist.sweep.ranges import log
>>> space = Space({"lr": log(1e-4, 1e-1), "width": [32, 64]})
>>> random = make_sampler("random", space, seed=7)
>>> random.ask([], 0) == make_sampler("random", space, seed=7).ask([Ask(0, {}, True)], 0)
True
>>> make_sampler("annealing", space, seed=7)
Traceback (most recent call last):
nbdist.errors.InvalidArgumentError: no sampler 'annealing'; choose from random, grid, tpe, tpe-univariate
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from nbdist.errors import InvalidArgumentError, choices
from nbdist.sweep.events import Direction, EndState
from nbdist.sweep.grid import Grid
from nbdist.sweep.seeds import fraction
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.values import Value, same_key

OF_OPTUNA = ("tpe", "tpe-univariate")
SAMPLERS = ("random", "grid", *OF_OPTUNA)


class Ask(NamedTuple):
    """A trial that was asked for; ``sampled`` is False if somebody chose its parameters by hand."""

    number: int
    parameters: Mapping[str, Value]
    sampled: bool


class Tell(NamedTuple):
    """The end of a trial: ``value`` at ``step`` is its last report, for a finished trial its result."""

    number: int
    state: EndState
    value: float | None
    step: int | None


History: TypeAlias = Sequence[Ask | Tell]
"""What was asked and told so far, in that order; it only grows."""


class Sampler(ABC):
    """Chooses the parameters of trials; the same for the same space, seed, number and history.

    It may remember what it made of the history so far: that makes it faster, not different.
    """

    @abstractmethod
    def ask(self, history: History, number: int) -> Parameters | None:
        """Return the parameters of trial ``number``, or None if all there is was asked for (driver)."""

    @property
    def size(self) -> int | None:
        """How many trials it has in all, or None for as many as one likes."""
        return None


class RandomSampler(Sampler):
    """Every parameter drawn by itself, from the sweep's seed, the trial's number and its own name."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, history: History, number: int) -> Parameters:
        """Return the parameters of trial ``number``, whatever the history."""
        return self._space.fill(lambda name, parameter: parameter.draw(fraction(self._seed, number, name)))


class GridSampler(Sampler):
    """All combinations in order, but for those that were asked for already (before an edit, by hand)."""

    def __init__(self, space: Space) -> None:
        self._grid = Grid(space)
        self._read = self._next = 0
        self._taken: set[object] = set()

    def ask(self, history: History, number: int) -> Parameters | None:
        """Return the first point of the grid that no trial has, or None."""
        if len(history) < self._read:  # another history
            self._read = self._next = 0
            self._taken.clear()
        self._taken.update(_key(one.parameters) for one in history[self._read :] if isinstance(one, Ask))
        self._read = len(history)
        while self._next < self._grid.size:
            point = self._grid.point(self._next)
            if _key(point) not in self._taken:
                return point
            self._next += 1
        return None

    @property
    def size(self) -> int:
        """The number of points."""
        return self._grid.size


def make_sampler(
    name: str,
    space: Space,
    seed: int,
    direction: Direction = "max",
    settings: Mapping[str, Any] | None = None,
) -> Sampler:
    """Return the sampler called ``name`` for a space (driver); ``settings`` go to those of Optuna.

    Raises `InvalidArgumentError` for a name or setting that does not exist or a grid of a range without
    points, `MissingExtra` if Optuna is needed and not installed.
    """
    if name not in SAMPLERS:
        raise InvalidArgumentError(f"no sampler {name!r}; {choices(name, SAMPLERS)}")
    if name in OF_OPTUNA:
        from nbdist.sweep.optuna_sampler import OptunaSampler

        return OptunaSampler(name, space, seed, direction, settings or {})
    if settings:
        raise InvalidArgumentError(f"the sampler {name} takes no settings, got {', '.join(settings)}")
    return GridSampler(space) if name == "grid" else RandomSampler(space, seed)


def _key(parameters: Mapping[str, Value]) -> frozenset[object]:
    return frozenset((name, same_key(value)) for name, value in parameters.items())
