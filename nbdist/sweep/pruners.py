"""Pruners: which trials to stop early: none, the worse half, or all but the best few at each rung.

Pure: a pruner looks at what all trials reported and says keep or prune; the decision is written in the log,
so it is not made again when the log is read.

>>> from nbdist.sweep.reports import Reports
>>> reports = Reports("max")
>>> for number, value in enumerate([0.9, 0.8, 0.2]):
...     reports.add(number, step=1, value=value)
>>> asha = make_pruner("asha", {"eta": 3})
>>> [asha.decide(reports, number, step=1) for number in range(3)]
['keep', 'prune', 'prune']
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.sweep.parameters import whole
from nbdist.sweep.reports import Reports

Decision: TypeAlias = Literal["keep", "prune"]


class Pruner(ABC):
    """Decides after each report whether its trial continues."""

    @abstractmethod
    def decide(self, reports: Reports, number: int, step: int) -> Decision:
        """Return the decision on trial ``number`` after its report at ``step``, which is in ``reports``."""


@dataclass(frozen=True)
class NoPruner(Pruner):
    """Lets every trial run to its end."""

    def decide(self, reports: Reports, number: int, step: int) -> Decision:
        """Return "keep"."""
        return "keep"


@dataclass(frozen=True)
class MedianPruner(Pruner):
    """Prunes a trial if its best value so far is worse than the finished trials' median at that step.

    It waits for ``startup`` finished trials and ``warmup`` steps, then looks at every ``every``-th step. (The
    median stopping rule of Google Vizier, Golovin et al. 2017, on values as they are, as in Optuna.) Of an
    even number the worse of the two middle ones counts. A trial that reported nothing but NaN is pruned.
    """

    startup: int = 5
    warmup: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        _check(self, startup=1, warmup=0, every=1)

    def decide(self, reports: Reports, number: int, step: int) -> Decision:
        """Compare the trial's best with the median of finished trials."""
        if step < self.warmup or (step - self.warmup) % self.every:
            return "keep"
        others = reports.at(step, finished=True)
        others = np.sort(others[~np.isnan(others)])
        if len(others) < self.startup:
            return "keep"
        best = reports.best(number, step)
        return "prune" if best == -math.inf or best < others[(len(others) - 1) // 2] else "keep"


@dataclass(frozen=True)
class AshaPruner(Pruner):
    """Asynchronous successive halving: at each rung the best 1 in ``eta`` trials that reached it continue.

    Rungs are at ``min_resource * eta**k`` steps, for k from ``skip`` on. A trial is compared as soon as it
    gets to a rung, with all that got there before it, and not again: nothing waits. (Li et al. 2020, "A
    System for Massively Parallel Hyperparameter Tuning", in its stopping variant: what is not among the best
    stops instead of waiting to be promoted.) The first trial at a rung continues; so do ties; NaN does not.
    A report that passes several rungs at once counts at each and is judged at the last.
    """

    min_resource: int = 1
    eta: int = 3
    skip: int = 0

    def __post_init__(self) -> None:
        _check(self, min_resource=1, eta=2, skip=0)

    def decide(self, reports: Reports, number: int, step: int) -> Decision:
        """Compare the trial with the others at the rung it has just got to, if it did."""
        rung = self.rung(step)
        curve = reports.curves.get(number)
        if rung is None or curve is None or curve.before(step) >= rung:
            return "keep"
        scores = reports.at(rung)
        own = float(scores[number])
        if own == -math.inf:
            return "prune"
        there = int(np.count_nonzero(~np.isnan(scores)))
        better = int(np.count_nonzero(scores > own))
        return "keep" if better < max(1, there // self.eta) else "prune"

    def rung(self, step: int) -> int | None:
        """Return the highest rung that ``step`` has got to.

        >>> [AshaPruner(min_resource=2, eta=3).rung(step) for step in (1, 2, 5, 6, 18)]
        [None, 2, 2, 6, 18]
        """
        rung: int = self.min_resource * self.eta**self.skip
        if step < rung:
            return None
        while rung * self.eta <= step:
            rung *= self.eta
        return rung


PRUNERS: dict[str, type[Pruner]] = {"none": NoPruner, "median": MedianPruner, "asha": AshaPruner}


def make_pruner(name: str, settings: Mapping[str, Any] | None = None) -> Pruner:
    """Return the pruner called ``name``; raises `InvalidArgumentError` for one, or a setting, not there.

    >>> make_pruner("median", {"startup": 3})
    MedianPruner(startup=3, warmup=0, every=1)
    """
    if name not in PRUNERS:
        raise InvalidArgumentError(f"no pruner {name!r}; {choices(name, PRUNERS)}")
    known = [one.name for one in fields(PRUNERS[name])]  # type: ignore[arg-type]
    for setting in settings or {}:
        if setting not in known:
            raise InvalidArgumentError(
                f"the pruner {name} has no setting {setting!r}; it has {', '.join(known) or 'none'}"
            )
    return PRUNERS[name](**(settings or {}))


def _check(pruner: object, **least: int) -> None:
    for name, lowest in least.items():
        value = whole(getattr(pruner, name), name)
        if not lowest <= value < 1 << 32:
            raise InvalidArgumentError(f"{name} of {pruner} must be {lowest} or more")
        object.__setattr__(pruner, name, value)
