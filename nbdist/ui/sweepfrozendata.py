"""The data in a sweep's last output, for those who draw it again: `application/vnd.nbdist.sweep+json`.

A snapshot as the grid takes it (see sweepdata.py), thinned to fit: ``curves`` instead of points, as
``{number: [[steps], [values]]}`` of the best trials; ``shown`` of ``of`` trials, the best and some of all
others; columns in which nothing stands are left out, and long texts are cut.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nbdist.metrics.decimate import decimate
from nbdist.sweep.ledger import Ledger
from nbdist.sweep.reports import Curve
from nbdist.sweep.trial import Trial
from nbdist.ui.shorten import clip
from nbdist.ui.sweepdata import plain, rows, span_row
from nbdist.ui.sweephead import SweepSeen, head, names_of, since, status
from nbdist.ui.sweepmatter import by_weight, ranked

BEST = 24  # trials that have curves
LEVELS = ((BEST, 16), (BEST, 8), (12, 8), (6, 8), (3, 8), (0, 0))  # curves, and points of each
ENOUGH = 24  # trials, for which curves give way
MOST_TRIALS = 200
MOST_PARAMETERS, MOST_METRICS, MOST_ENGINES, MOST_IMPROVEMENTS = 12, 6, 32, 24
MOST_VALUES = (24, 8, 3)
KEPT = ("number", "state")  # columns that are there even if there is no trial
LONGEST_TEXT, LONGEST_SPACE, LONGEST_ERROR = 60, 1_000, 100


def sweep_data(sweep: SweepSeen, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of a notebook file; called with the sweep's lock held."""
    ledger = sweep.ledger
    best = ranked(ledger)
    shown = {one.number for one in best[:BEST]}
    rest = [ledger.trials[number] for number in sorted(ledger.trials.keys() - shown)]
    data: dict[str, Any] = {}
    for values in MOST_VALUES:
        data = whole(sweep, values)
        if size(data) < limit / 2:
            break

    def made(count: int, curves: int, points: int) -> dict[str, Any]:
        return with_trials(data, ledger, chosen(best, rest, count), curves, points)

    def fits(level: tuple[int, int], count: int) -> bool:
        return size(made(count, *level)) <= limit

    most = min(len(ledger.trials), MOST_TRIALS)
    for level in LEVELS:
        count = most_that_fit(most, partial(fits, level))
        if count >= min(most, ENOUGH):
            break
    return made(count, *level)


def whole(sweep: SweepSeen, most_values: int) -> dict[str, Any]:
    """Return what is said of the sweep as a whole, with so many values of a choice."""
    ledger = sweep.ledger
    about = head(sweep, names_of(sweep, ledger.spans, {}))
    weighty = set([*by_weight(ledger), *ledger.space][:MOST_PARAMETERS])
    parameters = [one for one in about["parameters"] if one["name"] in weighty]
    for one in parameters:
        if "values" in one:
            one["values"] = one["values"][:most_values]
    about |= {
        "parameters": cut(parameters),
        "space": clip(about["space"], LONGEST_SPACE),
        "engines": cut(about["engines"][:MOST_ENGINES]),
        **{key: cut(about[key]) for key in ("name", "metric", "sampler", "pruner")},
    }
    stands = status(sweep, time.time())
    improvements = ledger.improvements[-MOST_IMPROVEMENTS:]
    return {
        "version": 1,
        "kind": "sweep",
        "snapshot": True,
        "head": about,
        "status": {**stands, "engines": stands["engines"][:MOST_ENGINES], "trouble": cut(stands["trouble"])},
        "best": [[since(ledger, at), number, digits(value)] for at, number, value in improvements],
        "of": len(ledger.trials),
    }


def with_trials(
    data: dict[str, Any], ledger: Ledger, trials: Sequence[Trial], curves: int, points: int
) -> dict[str, Any]:
    """Return the data with these trials, the first few of them with their curves."""
    numbers = {one.number for one in trials}
    metrics = dict.fromkeys(name for one in trials for name in one.values if name != ledger.created.metric)
    columns = rows(ledger, trials, list(metrics)[:MOST_METRICS], LONGEST_ERROR)
    columns["value"] = [digits(one.value) for one in trials]
    names = {one["name"] for one in data["head"]["parameters"]}
    columns["parameters"] = {
        clip(name, LONGEST_TEXT): [cut(value) for value in column]
        for name, column in columns["parameters"].items()
        if clip(name, LONGEST_TEXT) in names
    }
    columns["metrics"] = {
        clip(name, LONGEST_TEXT): [digits(one.values.get(name)) for one in trials]
        for name in columns["metrics"]
    }
    some = ((one.number, ledger.curve(one.number)) for one in trials[:curves])
    return {
        **data,
        "shown": len(trials),
        "trials": {name: column for name, column in columns.items() if not empty(name, column)},
        "spans": [span_row(ledger, span) for span in ledger.spans if span.number in numbers],
        "curves": {str(number): told(curve, points) for number, curve in some if curve is not None},
    }


def chosen(best: Sequence[Trial], rest: Sequence[Trial], count: int) -> list[Trial]:
    """Return so many trials: the best, and of all others each so many-th."""
    first = list(best[: min(BEST, count)])
    room = count - len(first)
    return [*first, *(rest[index * len(rest) // room] for index in range(room))]


def most_that_fit(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` that fits, 0 if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def told(curve: Curve, points: int) -> list[list[Any]]:
    """Return a curve of at most so many points, as steps and values."""
    kept = decimate(np.array(curve.values), max(points, 5)).tolist()
    return [[curve.steps[index] for index in kept], [digits(curve.values[index]) for index in kept]]


def empty(name: str, column: Any) -> bool:
    """Whether nothing stands in a column."""
    nothing = (lambda one: one == -1) if name == "parent" else (lambda one: one in (None, "") or one is False)
    return name not in KEPT and isinstance(column, list) and all(map(nothing, column))


def digits(value: float | None) -> float | str | None:
    """Return a number with six significant digits, or what JSON has for it."""
    told = plain(value)
    return float(f"{told:.6g}") if isinstance(told, float) else told


def cut(value: Any) -> Any:
    """Return plain JSON data with its texts cut."""
    if isinstance(value, str):
        return clip(value, LONGEST_TEXT)
    if isinstance(value, list):
        return [cut(one) for one in value]
    if isinstance(value, dict):
        return {key: cut(one) for key, one in value.items()}
    return value


def size(value: Any) -> int:
    """Return the bytes of a value in a notebook file, where each item has a line, far to the right."""
    return len(json.dumps([[[[[[value]]]]]], indent=1))
