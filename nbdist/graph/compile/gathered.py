"""Variables that a program has only while it reads them, in units (stage 3 of ZeRO). Pure.

    gathered = Gathered({kernel: 0, bias: 0, last: 1}, gathers.need, gathers.release)
    compile_program([loss], feeds=[x], shapes=[(8, 64)], values=arrays, gathered=gathered)

A unit's lines are those that read its variables, also through views. The program calls ``need`` before the
first of a run of them, and ``release`` after the last. A variable has one address for good, so a line and a
view that was taken at compile time find it there; what a line computes from it (a cast, say) has memory of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from nbdist.graph.tensor import Tensor


@dataclass(frozen=True)
class Gathered:
    """The units of variables.

    - ``units``: the unit of each variable
    - ``need``: has a unit be here
    - ``release``: lets go of a unit; with ``True`` if the program needs it again
    """

    units: Mapping[Tensor, int]
    need: Callable[[int], object]
    release: Callable[[int, bool], object]


@dataclass(frozen=True, slots=True)
class UnitRun:
    """The lines ``first`` to ``last`` have a unit; ``again`` if another run of it follows."""

    unit: int
    first: int
    last: int
    again: bool


def runs_of(reads: Sequence[Collection[int]]) -> list[UnitRun]:
    """Return the runs of each unit, given the units that each line reads.

    A unit has two runs, as of the forward and the backward pass, if lines between them read other units;
    otherwise it has one. The cut is where the most such lines are.

    >>> for run in runs_of([{0}, {}, {1}, {}, {1}, {0}]):
    ...     print(run)
    UnitRun(unit=0, first=0, last=0, again=True)
    UnitRun(unit=0, first=5, last=5, again=False)
    UnitRun(unit=1, first=2, last=4, again=False)
    """
    lines: dict[int, list[int]] = {}
    for now, units in enumerate(reads):
        for unit in units:
            lines.setdefault(unit, []).append(now)
    reading = [0, *accumulate(bool(units) for units in reads)]  # lines before each one that read any unit
    runs = []
    for unit, own in sorted(lines.items()):
        between = [(reading[after] - reading[before + 1], before, after) for before, after in pairwise(own)]
        others, before, after = max(between, default=(0, 0, 0))
        if others:
            runs += [UnitRun(unit, own[0], before, True), UnitRun(unit, after, own[-1], False)]
        else:
            runs.append(UnitRun(unit, own[0], own[-1], False))
    return runs
