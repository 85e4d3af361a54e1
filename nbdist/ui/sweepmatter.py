"""Which of a sweep's trials and parameters a picture shows. Pure.

A parameter matters as much as its value explains of the trials' ranks: the share of the variance between
groups of trials that have about the same value (omega squared, Hays 1963), so that one of many values gains
nothing by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.sweep.parameters import Choice, Integer, Parameter, Real, Value, is_number, same_key
from nbdist.sweep.state import Ledger, Trial

MOST_GROUPS = 6  # of a parameter with many numbers


def ranked(ledger: Ledger) -> list[Trial]:
    """Return the trials to compare, the best first: the finished ones, or if there is none all that have a
    value."""
    valued = all_ranked(ledger)
    return [one for one in valued if one.state == "finished"] or valued


def all_ranked(ledger: Ledger) -> list[Trial]:
    """Return all trials that have a finite value: the finished ones, then the rest, each best first."""
    valued = [one for one in ledger.trials.values() if one.value is not None and math.isfinite(one.value)]
    score = ledger.reports.score
    return sorted(valued, key=lambda one: (one.state != "finished", -score(one.value or 0.0), one.number))


def widest(ledger: Ledger) -> list[str]:
    """Return the two parameters that can have the most values, in the space's order, as in the grid.

    Of those that differ between trials. Ranges of floats are wider than all others; a parameter that not all
    trials have comes after those that all have.
    """
    everyone = [one.parameters for one in ledger.trials.values()]
    names = [name for name in dict.fromkeys([*ledger.space, *_names(everyone)]) if _differs(name, everyone)]

    def key(name: str) -> tuple[bool, float]:
        one = ledger.space.get(name)
        return one is None or bool(one.conditions), -math.inf if one is None else -_size(one.kind)

    two = sorted(names, key=key)[:2]
    return [name for name in names if name in two]


def _size(kind: Parameter) -> float:
    match kind:
        case Real():
            return math.inf
        case Integer(low=low, high=high, step=step):
            return (high - low) / (step or 1) + 1
        case Choice(values=values):
            return len(values)
    return 1


def every(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most so many trials: half of them the first, and of the rest each so many-th.

    >>> every(range(100), 6)
    [0, 1, 2, 3, 36, 69]
    """
    if len(trials) <= most:
        return list(trials)
    half = most // 2
    rest = trials[half:]
    return [*trials[:half], *rest[:: -(-len(rest) // (most - half))]]


def by_weight(ledger: Ledger) -> list[str]:
    """Return the parameters that differ between trials, those that matter most first.

    >>> from nbdist.sweep.events import Asked, Created, Ended, Started
    >>> from nbdist.sweep.space import Space
    >>> ledger = Ledger(Created(0, Space({"a": [1, 2], "b": [1, 2], "c": 5}), 8, seed=7, metric="accuracy"))
    >>> for number in range(8):
    ...     of_it = {"a": 1 + number % 2, "b": 1 + number // 4, "c": 5}
    ...     for event in (Asked(1, number, of_it, 5), Started(2, number, 1, (0,)),
    ...                   Ended(3, number, 1, "finished", float(of_it["b"]))):
    ...         _ = ledger.apply(event)
    >>> by_weight(ledger)
    ['b', 'a']
    """
    trials = ranked(ledger)
    scores = ranks(np.array([ledger.reports.score(one.value or 0.0) for one in trials]))
    everyone = [one.parameters for one in ledger.trials.values()]
    names = [name for name in dict.fromkeys([*ledger.space, *_names(everyone)]) if _differs(name, everyone)]
    weights = {name: weight([one.parameters for one in trials], name, scores) for name in names}
    return sorted(names, key=lambda name: -weights[name])


def weight(parameters: Sequence[Mapping[str, Value]], name: str, scores: NDArray[np.float64]) -> float:
    """Return the share (0 to 1) of the scores' variance that a parameter explains, where it exists."""
    there = [index for index, one in enumerate(parameters) if name in one]
    if len(there) < 3:
        return 0.0
    group = groups([parameters[index][name] for index in there])
    some = scores[there]
    counts = np.bincount(group)
    means = np.bincount(group, weights=some) / counts
    whole = float(((some - some.mean()) ** 2).sum())
    within = float(((some - means[group]) ** 2).sum())
    free = len(some) - len(counts)
    if free <= 0 or whole <= 0:
        return 0.0
    noise = within / free
    share = (whole - within - (len(counts) - 1) * noise) / (whole + noise)
    return max(0.0, share) * len(there) / len(parameters)


def groups(values: Sequence[Value]) -> NDArray[np.intp]:
    """Return the group of each value: its own, or for many numbers one of a few of about the same size."""
    keys = [same_key(value) for value in values]
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    found = np.array([places[key] for key in keys], np.intp)
    if len(places) > MOST_GROUPS and all(map(is_number, values)):
        numbers = np.array(values, np.float64)
        edges = np.quantile(numbers, np.arange(1, MOST_GROUPS) / MOST_GROUPS)
        found = np.unique(np.searchsorted(edges, numbers), return_inverse=True)[1].astype(np.intp)
    return found


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each value, equal ones sharing theirs.

    >>> ranks(np.array([0.5, 0.1, 0.5]))
    array([1.5, 0. , 1.5])
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: NDArray[np.float64] = (ends - counts + ends - 1) / 2
    return middles[place]


def _names(parameters: Sequence[Mapping[str, Value]]) -> list[str]:
    return list(dict.fromkeys(name for one in parameters for name in one))


def _differs(name: str, parameters: Sequence[Mapping[str, Value]]) -> bool:
    found: set[Any] = {same_key(one[name]) for one in parameters if name in one}
    return len(found) > 1
