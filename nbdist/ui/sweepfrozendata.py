"""The data in a sweep's last output, for those who draw it again: `application/vnd.nbdist.sweep+json`.

A snapshot as the grid takes it (see sweepdata.py), thinned to fit: ``curves`` instead of points, by number,
each as base64 of float32 pairs (step, value; little-endian); ``left_out`` are those that had no room, if any;
``shown`` of ``of`` trials, the best and some of all others; empty columns are left out, and long texts are
cut. (Notebooks saved before 2026-11-22 have ``{number: [[steps], [values]]}``.)
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.metrics.series import shape_weights
from nbdist.sweep.reports import Curve
from nbdist.sweep.state import Ledger, Trial
from nbdist.ui.shorten import clip
from nbdist.ui.sweepdata import pairs, plain, rows, span_row
from nbdist.ui.sweephead import LONGEST_REASON, SweepSeen, head, names_of, since, status
from nbdist.ui.sweepmatter import by_weight, ranked

BEST = 24  # trials that are shown before all others
POINTS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12)  # of each curve, as many as there is room for
MOST_TRIALS = 200
MOST_PARAMETERS, MOST_METRICS, MOST_ENGINES, MOST_IMPROVEMENTS = 12, 6, 32, 24
MOST_VALUES = (24, 8, 3)
KEPT = ("number", "state")  # columns that are there even if there is no trial
LONGEST_TEXT, LONGEST_SPACE, LONGEST_ERROR = 60, 1_000, 100


def sweep_data(sweep: SweepSeen, limit: int) -> dict[str, Any]:
    """Return the data in at most ``limit`` bytes of a notebook file; called with the sweep's lock held."""
    data = trial_data(sweep, limit // 2)
    return with_curves(data, sweep.ledger, limit - size(data))


def trial_data(sweep: SweepSeen, limit: int) -> dict[str, Any]:
    """Return the data without curves in at most ``limit`` bytes of a notebook file.

    Called with the sweep's lock held, as is `with_curves`, which adds the curves.
    """
    ledger = sweep.ledger
    best = ranked(ledger)
    shown = {one.number for one in best[:BEST]}
    rest = [ledger.trials[number] for number in sorted(ledger.trials.keys() - shown)]
    data: dict[str, Any] = {}
    for values in MOST_VALUES:
        data = whole(sweep, values)
        if size(data) < limit / 2:
            break

    def made(count: int) -> dict[str, Any]:
        return with_trials(data, ledger, chosen(best, rest, count))

    most = min(len(ledger.trials), MOST_TRIALS)
    return made(most_that_fit(most, lambda count: size(made(count)) <= limit))


def with_curves(data: dict[str, Any], ledger: Ledger, room: int) -> dict[str, Any]:
    """Return the data with the curves of its trials, in ``room`` bytes of a notebook file.

    All curves are thinned alike, by their shape. Only if a dozen points of each are too many there are fewer
    curves: those of the best trials.
    """
    numbers = data["trials"]["number"]
    curves = {number: one for number in numbers if (one := ledger.curve(number)) is not None and one.steps}

    def cost(points: int) -> int:
        return sum(curve_bytes(min(points, len(one.steps))) for one in curves.values())

    points = next((points for points in POINTS if cost(points) <= room), POINTS[-1])
    told: dict[str, str] = {}
    for number, one in curves.items():  # the best first
        room -= curve_bytes(min(points, len(one.steps)))
        if room < 0:
            break
        told[str(number)] = packed(one, points)
    left_out = len(curves) - len(told)
    return {**data, "curves": told, **({"left_out": left_out} if left_out else {})}


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
        "status": {
            **stands,
            "engines": stands["engines"][:MOST_ENGINES],
            "trouble": stands["trouble"] and clip(stands["trouble"], LONGEST_REASON),
        },
        "best": [[since(ledger, at), number, digits(value)] for at, number, value in improvements],
        "of": len(ledger.trials),
    }


def with_trials(data: dict[str, Any], ledger: Ledger, trials: Sequence[Trial]) -> dict[str, Any]:
    """Return the data with these trials."""
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
    return {
        **data,
        "shown": len(trials),
        "trials": {name: column for name, column in columns.items() if not empty(name, column)},
        "spans": [span_row(ledger, span) for span in ledger.spans if span.number in numbers],
        "curves": {},
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


def packed(curve: Curve, points: int) -> str:
    """Return the points of a curve that make its shape, at most so many, as base64."""
    kept = np.argsort(-shape_weights(curve.steps, curve.values), kind="stable")[:points]
    kept.sort()
    some = kept.tolist()
    bytes_ = pairs([curve.steps[index] for index in some], [curve.values[index] for index in some])
    return base64.b64encode(bytes_).decode("ascii")


def curve_bytes(points: int) -> int:
    """Return the bytes that a curve of so many points takes in a notebook file, at most."""
    return 4 * -(-8 * points // 3) + 40


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
