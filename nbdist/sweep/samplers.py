"""Samplers choose a trial's parameters: all points of a grid, at random, or (by name) one of Optuna's.

A sampler answers from the space, the seed, the number of the trial and the history only, so that going
through a log again gives the same questions the same answers.

>>> from nbdist.sweep.space import log
>>> space = Space({"lr": log(1e-4, 1e-1), "width": [32, 64]})
>>> random = make_sampler("random", space, seed=7)
>>> random.ask([], 0) == make_sampler("random", space, seed=7).ask([Ask(0, {}, True)], 0)
True
>>> make_sampler("annealing", space, seed=7)
Traceback (most recent call last):
nbdist.errors.InvalidArgumentError: no sampler 'annealing'; choose from random, grid, tpe, tpe-univariate
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbdist.errors import InvalidArgumentError, OutOfRangeError, choices
from nbdist.sweep.events import Direction
from nbdist.sweep.parameters import Value, same_key
from nbdist.sweep.sampler import Ask, History, Sampler, fraction
from nbdist.sweep.space import Parameters, Space

OF_OPTUNA = ("tpe", "tpe-univariate")
SAMPLERS = ("random", "grid", *OF_OPTUNA)


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
        from nbdist.sweep.optuna import OptunaSampler

        return OptunaSampler(name, space, seed, direction, settings or {})
    if settings:
        raise InvalidArgumentError(f"the sampler {name} takes no settings, got {', '.join(settings)}")
    return GridSampler(space) if name == "grid" else RandomSampler(space, seed)


def _key(parameters: Mapping[str, Value]) -> frozenset[object]:
    return frozenset((name, same_key(value)) for name, value in parameters.items())


# The numbered points of a grid over a space. Pure.
#
# >>> from nbdist.sweep.space import when >>> grid = Grid(Space({"opt": ["sgd", "adam"], "momentum":
# when([0.0, 0.9], opt="sgd"), "width": [32, 64]})) >>> grid.size 6 >>> grid.point(0), grid.point(5)
# ({'opt': 'sgd', 'momentum': 0.0, 'width': 32}, {'opt': 'adam', 'width': 64})

MOST_POINTS = 1 << 53


class Grid:
    """All combinations that exist, counted as on a mileage counter: the last parameter changes fastest.

    A parameter that does not exist beside certain values takes no part in the count there. Raises
    `InvalidArgumentError` for a float range that does not say how many points it has.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._values: dict[str, list[Value]] = {}
        for name, parameter in space.items():
            try:
                self._values[name] = parameter.grid()
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{name}: {error}") from None
        # How many points follow depends on the values of these only.
        self._deciding = {on for parameter in space.values() for on in parameter.conditions}
        self._counts: dict[tuple[object, ...], int] = {}
        self.size = self._count(0, {})
        if self.size > MOST_POINTS:
            raise InvalidArgumentError(f"a grid of {self.size:,} points; fewer values, or another sampler")

    def point(self, index: int) -> Parameters:
        """Return the parameters of point ``index``; raises `OutOfRangeError` past the last one."""
        if not 0 <= index < self.size:
            raise OutOfRangeError(f"the grid has {self.size:,} points, and no number {index}")
        found: Parameters = {}
        for place, name in enumerate(self._space.order):
            if not self._space.exists(name, found):
                continue
            for value in self._values[name]:
                found[name] = value
                following = self._count(place + 1, found)
                if index < following:
                    break
                index -= following
        return {name: found[name] for name in self._space if name in found}

    def _count(self, place: int, found: Parameters) -> int:
        if place == len(self._space.order):
            return 1
        key = (place, *((name, same_key(found[name])) for name in self._deciding if name in found))
        if key not in self._counts:
            name = self._space.order[place]
            if not self._space.exists(name, found):
                self._counts[key] = self._count(place + 1, found)
            elif name not in self._deciding:
                self._counts[key] = len(self._values[name]) * self._count(place + 1, found)
            else:
                each = (self._count(place + 1, {**found, name: value}) for value in self._values[name])
                self._counts[key] = sum(each)
        return self._counts[key]
