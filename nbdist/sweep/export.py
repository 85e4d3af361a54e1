"""A sweep's trials as columns, a row each: for NumPy, a DataFrame, or a CSV file.

>>> from nbdist.sweep.events import Asked, Created
>>> from nbdist.sweep.space import Space
>>> created = Created(0, Space({"width": [32, 64]}), trials=1, seed=7, metric="accuracy")
>>> ledger = Ledger.of([created, Asked(1, 0, {"width": 64}, 5)])
>>> found = columns(ledger)
>>> found["trial"], found["state"], found["width"]
(array([0]), array(['waiting'], dtype=object), array([64]))
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.sweep.state import Ledger


def columns(ledger: Ledger) -> dict[str, NDArray[Any]]:
    """Return trial, state, value, step, seconds, attempts, seed, parent, error, then parameters and metrics.

    ``seconds`` is how long the last attempt took, ``parent`` the trial that it is a clone of (-1 for none).
    A parameter or metric that has the name of another column gets ``parameter_`` or ``metric_`` before it.
    What a trial does not have is NaN among numbers, else None. `nbdist.metrics.table.table` makes a DataFrame
    of them.
    """
    trials = sorted(ledger.trials.values(), key=lambda trial: trial.number)
    found: dict[str, list[Any]] = {
        "trial": [trial.number for trial in trials],
        "state": [trial.state for trial in trials],
        "value": [trial.value for trial in trials],
        "step": [trial.step for trial in trials],
        "seconds": [trial.seconds for trial in trials],
        "attempts": [trial.attempt for trial in trials],
        "seed": [trial.seed for trial in trials],
        "parent": [-1 if trial.parent is None else trial.parent for trial in trials],
        "error": [trial.error for trial in trials],
    }
    for name in _names([ledger.spaces[-1], *(trial.parameters for trial in trials)]):
        key = f"parameter_{name}" if name in found else name
        found[key] = [trial.parameters.get(name) for trial in trials]
    for name in _names([trial.values for trial in trials]):
        if name != ledger.created.metric:
            key = f"metric_{name}" if name in found else name
            found[key] = [trial.values.get(name) for trial in trials]
    numbers = {"value", "step", "seconds"}
    return {key: as_column(values, key in numbers) for key, values in found.items()}


def write_csv(ledger: Ledger, path: Path) -> Path:
    """Write the columns as a CSV file with a line of names, and return its path."""
    found = columns(ledger)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(found)
        for row in zip(*(column.tolist() for column in found.values())):
            writer.writerow(["" if one is None or one != one else one for one in row])
    return path


def as_column(values: Sequence[Any], numbers: bool = False) -> NDArray[Any]:
    """Return values as an array: of whole numbers, of floats (NaN for None), of truth values, or of objects.

    >>> as_column([1, 2]), as_column([1, None]), as_column([True, False]), as_column([1, "a"])
    (array([1, 2]), array([ 1., nan]), array([ True, False]), array([1, 'a'], dtype=object))
    """
    kinds = {type(value) for value in values}
    if kinds == {int} and not numbers:
        return np.array(values, np.int64)
    if kinds == {bool}:
        return np.array(values)
    if numbers or (kinds <= {int, float, type(None)} and kinds != {type(None)} and kinds):
        return np.array([np.nan if value is None else value for value in values], np.float64)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _names(maps: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(name for one in maps for name in one))
