"""Points as columns: what is read from the logs of a run, joined."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.log import by_series, logs_in, read_log, replica_of

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

Steps = NDArray[np.uint32]
Floats = NDArray[np.float64]
Part = tuple[int, str, Steps, Floats, Floats]
"""Replica, series, steps, values, times."""


def parts_from_logs(folder: Path) -> list[Part]:
    """Return every point in a run folder's logs in the shape of `RunStore.parts`, by replica and name."""
    parts: list[Part] = []
    for path in logs_in(folder):
        log = read_log(path)
        replica = replica_of(path) if log.replica is None else log.replica
        for series, steps, values, times in by_series(log.points):
            name = log.names.get(series, f"series {series}")
            parts.append((replica, name, steps, values, times))
    return sorted(parts, key=lambda part: part[:2])


def as_columns(parts: list[Part]) -> dict[str, NDArray[Any]]:
    """Join (replica, name, steps, values, times) into five columns of one length."""
    lengths = [len(steps) for _, _, steps, _, _ in parts]
    # dtype object shares one str per series instead of a copy per point.
    names = np.array([name for _, name, _, _, _ in parts], object)

    def joined(index: int, dtype: str) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *(part[index] for part in parts)]).astype(
            dtype, copy=False
        )

    return {
        "replica": np.repeat(np.array([part[0] for part in parts], np.uint16), lengths),
        "series": np.repeat(names, lengths),
        "step": joined(2, "u4"),
        "value": joined(3, "f8"),
        "time": joined(4, "f8"),
    }


# All points of a run as a table: a DataFrame where pandas is installed, else columns.


def every_point(folder: Path, store: RunStore) -> dict[str, NDArray[Any]]:
    """Return the columns of all points in a run folder's logs; of a replica that has none there, the store's.

    Ordered by replica and series, and then as the points were recorded.
    """
    logged = parts_from_logs(folder)
    here = {replica for replica, *_ in logged}
    return as_columns([*logged, *(part for part in store.parts() if part[0] not in here)])


def table(columns: dict[str, NDArray[Any]]) -> Any:
    """Return a DataFrame of the columns if pandas is installed, else the columns themselves.

    >>> list(table({"step": [1, 2], "value": [0.5, 0.4]})["step"])
    [1, 2]
    """
    if find_spec("pandas") is None:
        return columns
    import pandas  # takes half a second: only for tables

    return pandas.DataFrame(columns)
