"""What a sweep searches: names and what each may be. Pure.

>>> from nbdist.sweep.ranges import log, when
>>> space = Space({"lr": log(1e-4, 1e-1, points=4), "opt": ["sgd", "adam"], "epochs": 5,
...                "momentum": when([0.0, 0.9], opt="sgd")})
>>> print(space)
lr=log(0.0001, 0.1, points=4) opt=['sgd', 'adam'] epochs=5 momentum=when([0.0, 0.9], opt=['sgd'])
>>> space.contains({"lr": 0.01, "opt": "adam", "epochs": 5})
True
>>> space.why_not({"lr": 0.01, "opt": "sgd", "epochs": 5})
'momentum is missing; it may be [0.0, 0.9]'
>>> Space.from_json(space.to_json()) == space
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from keyword import iskeyword
from typing import Any, TypeAlias

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.conditions import check_conditions, in_order
from nbdist.sweep.parameters import Parameter
from nbdist.sweep.ranges import as_parameter, parameter_from_json
from nbdist.sweep.values import Value, same_key

Parameters: TypeAlias = "dict[str, Value]"
"""What one trial gets: names and values."""

VERSION = 1
MOST_PARAMETERS = 200


class Space(Mapping[str, Parameter]):
    """Names and what each may be, in the order given; never changes, and is checked when it is made.

    Raises `InvalidArgumentError` for a space that is empty, contradicts itself, names a parameter twice, has
    a name that Python could not bind, or a condition on what is not there or goes round in a circle.
    """

    def __init__(self, parameters: Mapping[str, object] | Iterable[tuple[str, object]]) -> None:
        pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
        if not pairs:
            raise InvalidArgumentError("the space is empty; name what may vary, such as lr=log(1e-4, 1e-1)")
        if len(pairs) > MOST_PARAMETERS:
            raise InvalidArgumentError(f"{len(pairs)} parameters; a space has at most {MOST_PARAMETERS}")
        self._parameters: dict[str, Parameter] = {}
        for name, value in pairs:
            check_name(name)
            if name in self._parameters:
                raise InvalidArgumentError(f"{name} stands twice in the space; give it once")
            try:
                self._parameters[name] = as_parameter(value)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{name}: {error}") from None
        self.order = in_order(self._parameters)
        """The names, each after those that its conditions look at."""
        check_conditions(self._parameters, self.order)
        self._conditions = {
            name: tuple((on, frozenset(map(same_key, values))) for on, values in one.conditions.items())
            for name, one in self._parameters.items()
        }

    def fill(self, value_of: Callable[[str, Parameter], Value]) -> Parameters:
        """Return a trial's parameters in the order of the space, each from ``value_of(name, parameter)``.

        Only parameters that exist, given the values of those before them, are asked for.
        """
        found: Parameters = {}
        for name in self.order:
            if self.exists(name, found):
                found[name] = value_of(name, self._parameters[name])
        return {name: found[name] for name in self._parameters if name in found}

    def exists(self, name: str, parameters: Mapping[str, Value]) -> bool:
        """Return whether a trial with these values has a parameter ``name``."""
        return all(
            on in parameters and same_key(parameters[on]) in allowed for on, allowed in self._conditions[name]
        )

    def contains(self, parameters: Mapping[str, Value]) -> bool:
        """Return whether a trial of this space can have exactly these names and values."""
        return self.why_not(parameters) is None

    def why_not(self, parameters: Mapping[str, Value]) -> str | None:
        """Return why a trial of this space cannot have these parameters, or None if it can."""
        for name in parameters:
            if name not in self._parameters:
                return f"there is no parameter {name}; there are {', '.join(self)}"
        for name, parameter in self._parameters.items():
            if not self.exists(name, parameters):
                if name in parameters:
                    return f"{name} has no place here: it is {parameter}"
            elif name not in parameters:
                return f"{name} is missing; it may be {parameter.kind}"
            elif not parameter.contains(parameters[name]):
                return f"{name}={parameters[name]!r} is outside of {parameter}"
        return None

    def with_changes(self, changes: Mapping[str, object], without: Iterable[str] = ()) -> Space:
        """Return the space with parameters replaced or added, and others taken out.

        >>> print(Space({"width": [32, 64], "epochs": 5}).with_changes({"width": [64, 128]}))
        width=[64, 128] epochs=5
        """
        gone = set(without)
        for name in gone - self.keys():
            raise InvalidArgumentError(
                f"there is no parameter {name} to take out; there are {', '.join(self)}"
            )
        return Space({**{name: one for name, one in self.items() if name not in gone}, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the space as plain JSON data (a list, since the order counts)."""
        return {"version": VERSION, "parameters": [[name, one.to_json()] for name, one in self.items()]}

    @classmethod
    def from_json(cls, data: object) -> Space:
        """Return the space that `to_json` wrote; raises `InvalidArgumentError` for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("parameters"), list):
            raise InvalidArgumentError(f"no space: {data!r:.200}")
        if data.get("version") != VERSION:
            raise InvalidArgumentError(
                f"a space of version {data.get('version')!r:.40}; this nbdist reads version {VERSION}"
            )
        pairs = data["parameters"]
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise InvalidArgumentError(f"no space: {data!r:.200}")
        return cls([(name, parameter_from_json(one)) for name, one in pairs])

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Space) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return " ".join(f"{name}={parameter}" for name, parameter in self.items())

    def __repr__(self) -> str:
        return f"<Space {self}>"


def check_name(name: object) -> None:
    """Raise `InvalidArgumentError` unless a trial's body could use ``name`` as a variable."""
    if not isinstance(name, str) or not name.isidentifier():
        raise InvalidArgumentError(
            f"{name!r:.80} is no name for a parameter: the body uses it as a variable, so take letters, "
            "digits and _"
        )
    if iskeyword(name):
        raise InvalidArgumentError(
            f"{name!r} is a word of Python's own; call the parameter {name}_ or the like"
        )
