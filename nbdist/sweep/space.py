"""What a sweep searches: names and what each may be. Pure.

>>> from nbdist.sweep.space import log, when
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
from graphlib import CycleError, TopologicalSorter
from keyword import iskeyword
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.parameters import (
    Choice,
    Fixed,
    Integer,
    Parameter,
    Real,
    Value,
    When,
    literal,
    plain,
    same_key,
)

Parameters: TypeAlias = "dict[str, Value]"
"""What one trial gets: names and values."""


VERSION = 1
MOST_PARAMETERS = 200


class Space(Mapping[str, Parameter]):
    """Parameters by name, in the order given, each with its possible values; immutable.

    ``parameters`` maps names to parameters or plain values (a list is a choice), or has pairs of them.

    Raises `InvalidArgumentError` for a space that is empty, contradicts itself, names a parameter twice, has
    a name that is not a Python variable's, or a condition on a missing parameter or in a cycle.
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

        It is called only for parameters that exist, given the values of those before them.
        """
        found: Parameters = {}
        for name in self.order:
            if self.exists(name, found):
                found[name] = value_of(name, self._parameters[name])
        return {name: found[name] for name in self._parameters if name in found}

    def exists(self, name: str, parameters: Mapping[str, Value]) -> bool:
        """Return whether a trial with the values ``parameters`` has a parameter ``name``."""
        return all(
            on in parameters and same_key(parameters[on]) in allowed for on, allowed in self._conditions[name]
        )

    def contains(self, parameters: Mapping[str, Value]) -> bool:
        """Return whether a trial of this space can have exactly ``parameters``: these names and values."""
        return self.why_not(parameters) is None

    def why_not(self, parameters: Mapping[str, Value]) -> str | None:
        """Return why a trial of this space cannot have ``parameters``, or None if it can."""
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
        """Return the space with ``changes``, parameters to replace or add, and ``without`` some names.

        >>> print(Space({"width": [32, 64], "epochs": 5}).with_changes({"width": [64, 128]}))
        width=[64, 128] epochs=5
        """
        removed = set(without)
        for name in removed - self.keys():
            raise InvalidArgumentError(
                f"there is no parameter {name} to take out; there are {', '.join(self)}"
            )
        return Space({**{name: one for name, one in self.items() if name not in removed}, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return the space as plain JSON data (a list, since the order counts)."""
        return {"version": VERSION, "parameters": [[name, one.to_json()] for name, one in self.items()]}

    @classmethod
    def from_json(cls, data: object) -> Space:
        """Return the space of the ``data`` that `to_json` wrote, or raise `InvalidArgumentError`."""
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
            f"{name!r:.80} cannot name a parameter: the body uses it as a variable, so take letters, "
            "digits and _"
        )
    if iskeyword(name):
        raise InvalidArgumentError(
            f"{name!r} is a word of Python's own; call the parameter {name}_ or the like"
        )


# Conditions: the order in which parameters are drawn, and conditions that never hold. Pure.


def in_order(parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    """Return the names, each after those that its conditions look at, else as they stand.

    Raises `InvalidArgumentError` for a condition on a parameter that is not there, or a circle of conditions.
    """
    for name, parameter in parameters.items():
        for on in parameter.conditions:
            if on not in parameters:
                raise InvalidArgumentError(
                    f"{name} depends on {on}, which is not in the space; there are {', '.join(parameters)}"
                )
    waits = {name: set(parameter.conditions) for name, parameter in parameters.items()}
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise InvalidArgumentError(f"conditions go round in a circle: {circle}; drop one of them") from None
    order: list[str] = []
    while len(order) < len(waits):
        order.append(next(name for name in waits if name not in order and waits[name] <= set(order)))
    return tuple(order)


def check_conditions(parameters: Mapping[str, Parameter], order: tuple[str, ...]) -> None:
    """Raise `InvalidArgumentError` if a parameter can never exist."""
    needs: dict[str, dict[str, tuple[Value, ...]]] = {}
    for name in order:
        needs[name] = {}
        for on, values in parameters[name].conditions.items():
            for value in values:
                if isinstance(parameters[on].kind, Real):
                    raise InvalidArgumentError(
                        f"{name} depends on {on}={value!r}, but {on} is {parameters[on]}, which hits no "
                        "value exactly; conditions look at a choice, an int or a fixed value"
                    )
                if not parameters[on].contains(value):
                    raise InvalidArgumentError(
                        f"{name} depends on {on}={value!r}, but {on} may only be {parameters[on]}"
                    )
            # What the other parameter needs to exist, this one needs as well.
            for further, allowed in [(on, values), *needs[on].items()]:
                before = needs[name].get(further, allowed)
                keys = set(map(same_key, before))
                both = tuple(value for value in allowed if same_key(value) in keys)
                if not both:
                    raise InvalidArgumentError(
                        f"{name} can never exist: {further} would have to be one of {literal(before)} and of "
                        f"{literal(allowed)} at once"
                    )
                needs[name][further] = both


# Constructors of parameters, and the meaning of plain values in a space.
#
# >>> round(log(1e-4, 1e-1).draw(0.5), 9) 0.003162278 >>> choice("sgd", "adam").contains("adam") True >>>
# print(when(uniform(0, 0.9), optimizer="sgd")) when(uniform(0.0, 0.9), optimizer=['sgd'])


def uniform(low: float, high: float, points: int | None = None) -> Real:
    """Return a float from ``low`` to ``high``; ``points`` is the number of its values in a grid search."""
    return Real(low, high, points=points)


def log(low: float, high: float, points: int | None = None) -> Real:
    """Return a positive float from ``low`` to ``high``, uniform in its logarithm (for learning rates).

    ``points`` is the number of its values in a grid search.
    """
    return Real(low, high, log=True, points=points)


loguniform = log
"""The same by the name that SciPy and Ray have for it."""


def integer(low: int, high: int, log: bool = False, step: int = 1, points: int | None = None) -> Integer:
    """Return a whole number from ``low`` to ``high``, both included.

    With ``log`` it is uniform in its logarithm; otherwise only ``low``, ``low + step``, ... occur. ``points``
    is the number of its values in a grid search.
    """
    return Integer(low, high, log, step, points)


def choice(*values: object) -> Choice:
    """Return one of several ``values``: ``choice("sgd", "adam")`` or ``choice(["sgd", "adam"])``."""
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        values = tuple(values[0])
    return Choice(values)  # type: ignore[arg-type]  # Choice checks and cleans what it is given


def fixed(value: object) -> Fixed:
    """Return one ``value`` for all trials; needed for a list only: other plain values are fixed anyway."""
    return Fixed(value)  # type: ignore[arg-type]  # Fixed checks and cleans what it is given


def when(parameter: object, conditions: Mapping[str, object] | None = None, /, **more: object) -> When:
    """Return a ``parameter`` that exists only if others have certain values, by their names.

    ``when(uniform(0, 0.99), opt="sgd")`` and ``when(uniform(0, 0.99), {"opt": ["sgd"]})`` are the same.
    """
    if conditions is not None and not isinstance(conditions, Mapping):
        raise InvalidArgumentError(
            f'the conditions of when() are names and values, such as opt="sgd", got {conditions!r}'
        )
    twice = more.keys() & (conditions or {}).keys()
    if twice:
        raise InvalidArgumentError(f"when() has two conditions on {', '.join(sorted(twice))}; give one")
    only = [
        (str(name), tuple(plain(one) for one in (wanted if isinstance(wanted, (list, tuple)) else [wanted])))
        for name, wanted in {**(conditions or {}), **more}.items()
    ]
    return When(as_parameter(parameter), tuple(only))


def as_parameter(value: object) -> Parameter:
    """Return what a value means in a space: a list or a row of an array is a choice, a plain value is fixed.

    >>> import numpy as np
    >>> print(as_parameter(np.logspace(-2, 0, 3)))
    [0.01, 0.1, 1.0]
    """
    if isinstance(value, Parameter):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return Choice(tuple(value.tolist()))
    if isinstance(value, (list, tuple, range)):
        return Choice(tuple(value))
    return Fixed(value)  # type: ignore[arg-type]  # as above


def parameter_from_json(data: object) -> Parameter:
    """Return the parameter that `Parameter.to_json` wrote, or raise `InvalidArgumentError`."""
    if not isinstance(data, dict):
        raise InvalidArgumentError(f"a parameter is an object with a kind, got {data!r:.80}")
    given = {key: value for key, value in data.items() if key != "kind"}
    try:
        match data.get("kind"):
            case "float":
                return Real(**given)
            case "int":
                return Integer(**given)
            case "choice":
                return choice(list(given.pop("values")), **given)
            case "fixed":
                return Fixed(**given)
            case "when":
                return when(parameter_from_json(given.pop("parameter")), given.pop("when"), **given)
    except (TypeError, KeyError) as error:
        raise InvalidArgumentError(f"{data!r:.200} is not a parameter: {error}") from None
    raise InvalidArgumentError(
        f"no kind of parameter {data.get('kind')!r:.80}; there are float, int, choice, fixed, when"
    )
