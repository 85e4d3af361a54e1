"""The cells of a sweep's heat maps, of all trials: a saved output has only some of the trials. Pure.

`cells_of(ledger, names, fits)` returns the bins of each parameter, and the cells of as many pairs as fit:

    {"bins": {"lr": {"edges": [0.0001, 0.001, 0.01, 0.1]}, "hidden": {"values": [[32], [64]]},
              "momentum": {"edges": [0.0, 0.5, 1.0], "none": True}},
     "pairs": [{"x": "lr", "y": "hidden", "cells": "0 1 7 0.95 0.9 0 0 3 1 0 0 ..."}]}

A bin has the numbers from an edge up to the next one, or some values; "none" adds a last bin of the trials
without the parameter. Each cell is `FIELDS` numbers: its bins on x and y, the best trial (-1: none) with its
value, the median, and the number of trials in each state.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.sweep.parameters import Choice, Integer, Real, jsonable, same_key
from nbdist.sweep.state import STATES, Ledger
from nbdist.text import clip
from nbdist.ui.frozen.sweep_axes import axis_in, widest

FIELDS = 5 + len(STATES)
MOST_BINS, MOST_VALUES = 6, 8  # of a range of numbers, of single values
MARGIN = 0.02  # share of an axis within which an edge is too near to its end
LONGEST_TEXT = 60
DIGITS = ((1,), (1, 3), (1, 2, 5))  # of the edges in a decade
Bins = dict[str, Any]


def cells_of(ledger: Ledger, names: Sequence[str], fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the bins of these parameters and the cells of their pairs, as far as they fit.

    The pair that the grid shows first comes first, then the pairs of the names that come first.
    """
    first = [name for name in widest(ledger) if name in names]
    names = [*first, *(name for name in names if name not in first)]
    found = {name: bins_of(ledger, name) for name in names}
    trials = _Trials(ledger)
    made: dict[str, Any] = {"bins": {}, "pairs": []}
    for x, y in combinations(names, 2):
        shown = {clip(name, LONGEST_TEXT): found[name][0] for name in (x, y)}
        one = {
            "x": clip(x, LONGEST_TEXT),
            "y": clip(y, LONGEST_TEXT),
            "cells": trials.cells(found[x][1], found[y][1]),
        }
        more = {"bins": {**made["bins"], **shown}, "pairs": [*made["pairs"], one]}
        if not fits(more):
            break
        made = more
    return made


def bins_of(ledger: Ledger, name: str) -> tuple[Bins, NDArray[np.intp]]:
    """Return a parameter's bins, and the bin of each trial in the order of the ledger."""
    axis = axis_in(ledger, name)
    kind = one.kind if (one := ledger.space.get(name)) is not None else None
    everyone = [one.parameters for one in ledger.trials.values()]
    places: list[int] = []
    if axis.values:
        listed = [same_key(value) for value in kind.values] if isinstance(kind, Choice) else []
        ordered = sorted(
            axis.values,
            key=lambda one: listed.index(key) if (key := same_key(one)) in listed else len(listed),
        )
        size = -(-len(ordered) // MOST_VALUES)
        groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        place_of = {same_key(value): place for place, group in enumerate(groups) for value in group}
        bins: Bins = {"values": [[jsonable(value) for value in group] for group in groups]}
        count = len(groups)
        places = [place_of[same_key(one[name])] if name in one else count for one in everyone]
    else:
        low, high, whole = axis.low, axis.high, isinstance(kind, Integer)
        if isinstance(kind, Real | Integer):
            low, high = min(low, kind.low), max(high, kind.high)
        inner = edges(low, high, axis.log and low > 0, whole)
        bins, count = {"edges": [low, *inner, high]}, len(inner) + 1
        places = [bisect_right(inner, float(one[name])) if name in one else count for one in everyone]
    if count in places:
        bins["none"] = True
    return bins, np.array(places, np.intp)


def edges(low: float, high: float, log: bool, whole: bool = False) -> list[float]:
    """Return round numbers between the ends of a range, that divide it into at most `MOST_BINS` bins.

    >>> edges(1e-4, 1e-1, log=True), edges(0, 0.99, log=False), edges(16, 128, log=False, whole=True)
    ([0.0003, 0.001, 0.003, 0.01, 0.03], [0.2, 0.4, 0.6, 0.8], [50.0, 100.0])
    """
    if not low < high:
        return []
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        tried = [
            [float(f"{digit}e{power}") for power in decades for digit in digits] for digits in DIGITS[::-1]
        ]
        tried += [[float(f"1e{power}") for power in decades[::every]] for every in range(2, len(decades) + 1)]
    else:
        power = math.floor(math.log10((high - low) / MOST_BINS))
        steps = [(digit, power + more) for more in (0, 1, 2) for digit in (1, 2, 5)]
        tried = [_multiples(low, high, digit, power) for digit, power in steps if not whole or power >= 0]

    def place(value: float) -> float:
        return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)

    for numbers in tried:
        inner = [one for one in numbers if low < one < high and MARGIN < place(one) < 1 - MARGIN]
        if len(inner) < MOST_BINS:
            return inner
    return []


def _multiples(low: float, high: float, digit: int, power: int) -> list[float]:
    step = digit * 10.0**power
    return [
        float(f"{index * digit}e{power}")
        for index in range(math.ceil(low / step), math.floor(high / step) + 1)
    ]


class _Trials:
    """The states and values of all trials, in the order of the ledger, and their order by rank."""

    def __init__(self, ledger: Ledger) -> None:
        trials = list(ledger.trials.values())
        best = None if ledger.best is None else ledger.best.number
        self.numbers = np.array([one.number for one in trials], np.int64)
        self.states = np.array([STATES.index(one.state) for one in trials], np.intp)
        self.values = np.array([math.nan if one.value is None else one.value for one in trials], np.float64)
        counted = [
            math.isfinite(value) and (one.state == "finished" or one.number == best)
            for one, value in zip(trials, self.values.tolist(), strict=True)
        ]
        scores = np.array([ledger.reports.score(value) for value in self.values.tolist()], np.float64)
        order = np.lexsort((self.numbers, -scores, ~np.array(counted, bool)))
        self.ranked = order[~np.isnan(self.values[order])]

    def cells(self, xs: NDArray[np.intp], ys: NDArray[np.intp]) -> str:
        """Return the cells of two parameters as text, for the bins of each trial."""
        lines = int(ys.max(initial=0)) + 1
        codes = xs * lines + ys
        best = dict(zip(*np.unique(codes[self.ranked], return_index=True), strict=True))
        counts = np.bincount(
            codes * len(STATES) + self.states, minlength=(int(codes.max(initial=0)) + 1) * len(STATES)
        )
        parts: list[str] = []
        for code in np.unique(codes).tolist():
            at = self.ranked[best[code]] if code in best else -1
            there = np.sort(self.values[self.ranked][codes[self.ranked] == code]).tolist()
            middle = (there[(len(there) - 1) // 2] + there[len(there) // 2]) / 2 if len(there) else math.nan
            number, value = (int(self.numbers[at]), self.values[at]) if at >= 0 else (-1, math.nan)
            of_state = counts[code * len(STATES) : (code + 1) * len(STATES)].tolist()
            cell = [code // lines, code % lines, number, f"{value:.6g}", f"{middle:.6g}", *of_state]
            parts.append(" ".join(map(str, cell)))
        return " ".join(parts)
