"""What an edit of a space changes, and what it leaves outside. Pure.

>>> from nbdist.sweep.space import log
>>> before = Space({"lr": log(1e-4, 1e-1), "width": [32, 64]})
>>> for edit in edits(before, Space({"lr": log(1e-3, 1e-2), "width": [32, 64, 128]})):
...     print(edit)
lr narrower: log(0.0001, 0.1) -> log(0.001, 0.01)
width wider: [32, 64] -> [32, 64, 128]
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from nbdist.sweep.parameters import Choice, Fixed, Integer, Parameter, Real, Value, When
from nbdist.sweep.space import Space

Kind: TypeAlias = Literal["narrower", "wider", "changed", "added", "removed"]


class Edit(NamedTuple):
    """One parameter before and after an edit of the space."""

    name: str
    kind: Kind
    before: Parameter | None
    after: Parameter | None

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.name} {self.kind}: {self.after or self.before}"
        return f"{self.name} {self.kind}: {self.before} -> {self.after}"


def edits(before: Space, after: Space) -> list[Edit]:
    """Return what differs, in the order of the names."""
    found = [Edit(name, "removed", one, None) for name, one in before.items() if name not in after]
    for name, one in after.items():
        if name not in before:
            found.append(Edit(name, "added", None, one))
        elif one != before[name]:
            found.append(Edit(name, kind_of(before[name], one), before[name], one))
    return found


def kind_of(before: Parameter, after: Parameter) -> Kind:
    """Return "narrower" if all that ``after`` allows was allowed before, "wider" the other way round."""
    if before.conditions != after.conditions:
        return "changed"
    if within(after, before):
        return "changed" if within(before, after) else "narrower"
    return "wider" if within(before, after) else "changed"


def within(inner: Parameter, outer: Parameter) -> bool:
    """Return whether ``outer`` allows every value that ``inner`` does."""
    if isinstance(inner, When) and isinstance(outer, When):
        return within(inner.parameter, outer.parameter)
    if isinstance(inner, Real):
        return isinstance(outer, Real) and outer.low <= inner.low and inner.high <= outer.high
    if isinstance(inner, Integer) and isinstance(outer, (Integer, Real)):
        whole = isinstance(outer, Real) or inner.step % outer.step == 0
        return whole and outer.contains(inner.low) and outer.contains(inner.low + inner.step * last(inner))
    return values_of(inner) is not None and all(outer.contains(value) for value in values_of(inner) or ())


def last(parameter: Integer) -> int:
    """Return how many steps lead from the lowest value to the highest."""
    return (parameter.high - parameter.low) // parameter.step


def values_of(parameter: Parameter) -> tuple[Value, ...] | None:
    """Return the separate values of a parameter, or None for a range too long to write out."""
    match parameter:
        case Choice(values=values):
            return values
        case Fixed(value=value):
            return (value,)
        case Integer() if last(parameter) < 10_000:
            return tuple(range(parameter.low, parameter.high + 1, parameter.step))
    return None
