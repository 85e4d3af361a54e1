"""The points of a grid over a space, numbered. Pure.

>>> from nbdist.sweep.ranges import when
>>> grid = Grid(Space({"opt": ["sgd", "adam"], "momentum": when([0.0, 0.9], opt="sgd"), "width": [32, 64]}))
>>> grid.size
6
>>> grid.point(0), grid.point(5)
({'opt': 'sgd', 'momentum': 0.0, 'width': 32}, {'opt': 'adam', 'width': 64})
"""

from __future__ import annotations

from nbdist.errors import InvalidArgumentError, OutOfRangeError
from nbdist.sweep.space import Parameters, Space
from nbdist.sweep.values import Value, same_key

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
