"""All points of a run as a table: a DataFrame where pandas is installed, else columns."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from nbdist.metrics.columns import as_columns, parts_from_logs

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore


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
    import pandas  # takes half a second: nobody pays for it who does not look at a table

    return pandas.DataFrame(columns)
