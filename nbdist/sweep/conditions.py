"""Which parameters exist when: an order in which to decide, and what can never be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from nbdist.errors import InvalidArgumentError
from nbdist.sweep.numeric import Real
from nbdist.sweep.parameters import Parameter
from nbdist.sweep.values import Value, literal, same_key


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
                _check_reachable(name, on, value, parameters[on])
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


def _check_reachable(name: str, on: str, value: Value, parameter: Parameter) -> None:
    if isinstance(parameter.kind, Real):
        raise InvalidArgumentError(
            f"{name} depends on {on}={value!r}, but {on} is {parameter}, which hits no value exactly; "
            "conditions look at a choice, an int or a fixed value"
        )
    if not parameter.contains(value):
        raise InvalidArgumentError(f"{name} depends on {on}={value!r}, but {on} may only be {parameter}")
