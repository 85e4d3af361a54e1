"""A batch of metric points on its way from a task to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError

POINT = np.dtype([("series", "<u2"), ("step", "<u4"), ("value", "<f8"), ("time", "<f8")])
"""One metric point; ``time`` is in seconds since 1970."""

Points = NDArray[np.void]


@dataclass(frozen=True)
class Batch:
    """Points of one replica; ``points["series"]`` is an index into this batch's own ``names``.

    A batch says all it needs: a driver that attaches late, or loses a batch, can still read the next one.
    ``dropped`` is how many points the replica has had to drop so far.

    >>> points = np.array([(0, 7, 0.5, 1e9)], POINT)
    >>> meta, arrays = Batch(3, ["loss"], points).arrays()
    >>> [(n, s, v) for n, s, v, _ in Batch.from_arrays(meta, arrays).by_series()]
    [('loss', array([7], dtype=uint32), array([0.5]))]
    """

    replica: int
    names: list[str]
    points: Points
    dropped: int = 0

    def arrays(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Return (a dict for msgpack, five plain arrays: names, series u2, step u4, value f8, time f8).

        Names are text in JSON: ten thousand of them are more than the head of a message may hold.
        """
        meta = {"replica": self.replica, "dropped": self.dropped}
        names = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
        return meta, [names, *(np.ascontiguousarray(self.points[field]) for field in POINT.names or ())]

    @classmethod
    def from_arrays(cls, meta: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> Batch:
        """Undo `arrays`; raises `InvalidArgumentError` if what came off the wire does not fit together."""
        try:
            replica, dropped = int(meta["replica"]), int(meta["dropped"])
            names = json.loads(arrays[0].tobytes())
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"a metrics batch needs replica, dropped and names: {meta!r}"
            ) from error
        fields, columns = POINT.names or (), arrays[1:]
        shapes = [(column.dtype.str, column.shape) for column in columns]
        wanted = [(POINT[field].str, columns[0].shape if columns else ()) for field in fields]
        if shapes != wanted or columns[0].ndim != 1:
            raise InvalidArgumentError(
                f"a metrics batch has arrays {shapes}; expected u2, u4, f8, f8 of one length"
            )
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError("the names in a metrics batch are no list of text")
        points = np.empty(len(columns[0]), POINT)
        for field, column in zip(fields, columns, strict=True):
            points[field] = column
        if len(points) and int(points["series"].max()) >= len(names):
            raise InvalidArgumentError(f"a metrics batch names {len(names)} series but uses more")
        return cls(replica, names, points, dropped)

    def by_series(self) -> Iterator[tuple[str, NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]]]:
        """Yield (name, steps, values, times) for each series, points in the order they were added."""
        for index, steps, values, times in by_series(self.points):
            yield self.names[index], steps, values, times


def by_series(
    points: Points,
) -> Iterator[tuple[int, NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield (series, steps, values, times) for each series that has points; cheap for very many of them."""
    if not len(points):
        return
    order = np.argsort(points["series"], kind="stable")
    series = points["series"][order]
    steps, values, times = (np.ascontiguousarray(points[field])[order] for field in ("step", "value", "time"))
    starts = np.flatnonzero(np.concatenate(([True], series[1:] != series[:-1]))).tolist()
    for start, end in zip(starts, [*starts[1:], len(points)], strict=True):
        yield int(series[start]), steps[start:end], values[start:end], times[start:end]
