"""The driver's store of a run's metrics: every series of every replica, in bounded memory."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.metrics.log import POINT, Batch, Points, by_series
from nbdist.metrics.series import BUCKETS, Downsampled, Trend, decimate, mean_by_step
from nbdist.metrics.table import Floats, Part, Steps, as_columns, parts_from_logs

MOST_BUCKETS, FEWEST_BUCKETS = 2048, 32
MANY_TRENDS, FEW_BUCKETS = 1000, 32  # from so many trends on, each gets so many buckets
MOST_SERIES = 0xFFFF
MOST_CURVES = 200_000  # series of single replicas; points of more stand in the logs only
UNSORTED, UNSORTED_EACH = 4096, 16  # points of a replica, and of each series, that may wait to be sorted
MANY_SERIES = 256  # from here on one series alone is taken from what waits, when it is read


class Point(NamedTuple):
    """One metric point; ``time`` is in seconds since 1970."""

    step: int
    value: float
    time: float


class RunStore:
    """Holds a run's metrics for the live view; thread-safe, on the driver.

    Keeps every point of a series up to 2,048, then what min/max decimation keeps (spikes, first and last).
    All series together keep about ``limit`` points (28 bytes each), and the newest ``recent`` points stand
    in a ring for `since`. Batches are sorted into series at the next read: many at a time cost less.
    The logs in the run folder hold everything: `columns_from_logs`.

    >>> store = RunStore()
    >>> store.extend(0, "loss", np.array([1, 2], "u4"), np.array([0.5, 0.4]), np.array([1e9, 1e9]))
    >>> store.last(0, "loss").value
    0.4
    >>> store.since(0)
    (2, [(0, 0, array([1, 2], dtype=uint32), array([0.5, 0.4]))])
    """

    def __init__(self, limit: int = 500_000, recent: int = 1 << 18) -> None:
        self._lock = threading.RLock()
        self._limit = limit
        self._buckets = MOST_BUCKETS
        self._recent = Recent(recent)
        self._ids: dict[str, int] = {}
        self._kept: dict[tuple[int, int], Downsampled] = {}
        self._trends: dict[tuple[int, int], Trend] = {}
        self._replicas: list[int] = []  # in order
        self._ingest = IngestBuffer()
        self._left_out = 0  # points there was no room for

    def extend(
        self, replica: int, series: str, steps: ArrayLike, values: ArrayLike, times: ArrayLike
    ) -> None:
        """Append points of one series of one replica; three arrays of one length (u4, f8, f8)."""
        steps, values, times = np.asarray(steps), np.asarray(values), np.asarray(times)
        if not steps.shape == values.shape == times.shape or values.ndim != 1:
            raise InvalidArgumentError(
                f"series {series!r} of replica {replica}: steps, values and times have shapes "
                f"{steps.shape}, {values.shape}, {times.shape}; expected one length"
            )
        with self._lock:
            self._see(replica)
            index = self._index(series)
            self._sort(replica)
            self._append(replica, index, steps, values, times)
            self._recent.extend(replica, index, steps, values)

    def extend_batch(self, batch: Batch) -> None:
        """Append a batch that came from a task; points of names without room are counted."""
        points = batch.points.copy()
        with self._lock:
            self._see(batch.replica)
            names = batch.names
            if len(self._ids) + len(names) > MOST_SERIES:  # there may be too many new ones
                names, points = self._known_only(names, points)
            ids = np.zeros(1 + max(names, default=0), np.uint16)  # of this store, by the replica's ids
            for series, name in names.items():
                ids[series] = self._ids.setdefault(name, len(self._ids))
            points["series"] = ids[points["series"]]
            self._recent.extend(batch.replica, points["series"], points["step"], points["value"])
            if self._ingest.add(batch.replica, points) > max(UNSORTED, UNSORTED_EACH * len(self._ids)):
                self._sort(batch.replica)

    @property
    def series(self) -> list[str]:
        """The names of the series; a name's index is its id in `since`."""
        with self._lock:
            return list(self._ids)

    def number(self, series: str) -> int | None:
        """Return the index of a series in `series`, or None if there is none of that name."""
        return self._ids.get(series)

    @property
    def replicas(self) -> list[int]:
        """The replicas that have sent points, in order."""
        with self._lock:
            return list(self._replicas)

    @property
    def dropped(self) -> int:
        """How many points have been thinned out here so far (they stand in the logs)."""
        with self._lock:
            self._sort_all()
            return sum(one.count - one.held for one in self._kept.values()) + self._left_out

    def points(self, replica: int, series: str, limit: int = 2000) -> tuple[Steps, Floats, Floats]:
        """Return (steps, values, times) with at most ``limit`` points: extremes, first and last."""
        with self._lock:
            kept = self._points_of(replica, series)
            kept = kept[decimate(kept["value"], check_limit(limit))]
        return kept["step"].copy(), kept["value"].copy(), kept["time"].copy()

    def since(self, cursor: int, limit: int = 20_000) -> tuple[int, list[Group]]:
        """Return (the next cursor, [(replica, series index, steps, values)]) for points from ``cursor`` on.

        Start with 0; call again until the cursor stands still. If ``new - cursor`` is more than the points
        returned, the difference had left the ring: take a snapshot with `points`.
        """
        cursor, entries = self.entries_since(cursor, limit)
        return cursor, grouped(entries)

    def entries_since(self, cursor: int, limit: int = 20_000) -> tuple[int, NDArray[np.void]]:
        """Return what `since` does as one array, in the order in which points came.

        Its fields are "replica", "series" (an index), "step" and "value".
        """
        with self._lock:
            return self._recent.since(cursor, limit)

    def aggregate(
        self, series: str, limit: int = 2000, ended_replicas: Collection[int] = ()
    ) -> tuple[Steps, Floats]:
        """Return (steps, values): the mean over replicas by step, of each replica's `trend`.

        It ends at the last step that all replicas with this series have reached, without ``ended_replicas``
        (lost ones, and those that have left). Between its own points a replica counts with a straight line;
        before its first and after its last it does not count.
        """
        with self._lock:
            number = self._known(series)
            self._sort_all(number)
            curves = {
                replica: self._trends[replica, number].curve()
                for replica in self.replicas
                if (replica, number) in self._trends
            }
        there = [curve for replica, curve in curves.items() if replica not in ended_replicas]
        ended = [curve for replica, curve in curves.items() if replica in ended_replicas]
        steps, values = mean_by_step(there, most=8 * check_limit(limit), ended=ended)
        chosen = decimate(values, limit)
        return steps[chosen], values[chosen]

    def trend(self, replica: int, series: str) -> tuple[Steps, Floats]:
        """Return (steps, values): exact means of neighbouring points; noise does not hide the course.

        Series of few points (up to 512) are returned as they are.
        """
        with self._lock:
            number = self._known(series)
            self._sort(replica, number)
            trend = self._trends.get((replica, number))
            steps, values = trend.curve() if trend is not None else Trend().curve()
        return steps.astype(np.uint32), values

    def last(self, replica: int, series: str) -> Point | None:
        """Return the newest point (step, value, time), or None if there is none."""
        with self._lock:
            number = self._known(series)
            if (newest := self._ingest.last(replica, number)) is not None:
                return Point(int(newest["step"]), float(newest["value"]), float(newest["time"]))
            thinned = self._kept.get((replica, number))
            if thinned is None or not thinned.count:
                return None
            _, step, value, time = thinned.last()[0].item()
        return Point(step, value, time)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all points kept as columns "replica", "series" (names), "step", "value", "time"."""
        with self._lock:
            return as_columns(self.parts())

    def parts(self) -> list[Part]:
        """Return (replica, name, steps, values, times) of every series of every replica, as it is now."""
        with self._lock:
            self._sort_all()
            names = list(self._ids)
            return [
                (replica, names[index], kept["step"].copy(), kept["value"].copy(), kept["time"].copy())
                for (replica, index), thinned in sorted(self._kept.items(), key=lambda item: item[0])
                if len(kept := thinned.kept())
            ]

    def _sort(self, replica: int, series: int | None = None) -> None:
        """Put what came in batches of a replica to its series, or at least that of one series."""
        part = self._ingest.take(replica, series if len(self._ids) > MANY_SERIES else None)
        for index, steps, values, times in by_series(part):
            self._append(replica, index, steps, values, times)

    def _append(self, replica: int, index: int, steps: Steps, values: Floats, times: Floats) -> None:
        key = (replica, index)
        if key not in self._kept:
            if len(self._kept) >= MOST_CURVES:
                self._left_out += len(values)
                return
            self._make(key)
        self._kept[key].extend(steps, values, times)
        self._trends[key].extend(steps, values)

    def _sort_all(self, series: int | None = None) -> None:
        for replica in self._ingest.replicas:
            self._sort(replica, series)

    def _see(self, replica: int) -> None:
        if replica not in self._replicas:
            if not 0 <= replica <= 0xFFFF:
                raise InvalidArgumentError(f"replica {replica} is not in 0..65535")
            insort(self._replicas, replica)

    def _index(self, series: str) -> int:
        if series not in self._ids and len(self._ids) >= MOST_SERIES:
            raise InvalidArgumentError(f"no room for series {series!r}: a run may have 65,535 names")
        return self._ids.setdefault(series, len(self._ids))

    def _known_only(self, names: dict[int, str], points: Points) -> tuple[dict[int, str], Points]:
        """Return the names that are known here and their points; those of others are counted."""
        known = {series: name for series, name in names.items() if name in self._ids}
        kept = points[np.isin(points["series"], list(known))]
        self._left_out += len(points) - len(kept)
        return known, kept

    def _known(self, series: str) -> int:
        if series not in self._ids:
            raise NotFoundError(f"no series {series!r}; there are {', '.join(self._ids) or 'none yet'}")
        return self._ids[series]

    def _make(self, key: tuple[int, int]) -> None:
        # The limit is shared by all series, so a store with very many of them keeps less of each.
        while len(self._kept) * 2 * self._buckets > self._limit and self._buckets > FEWEST_BUCKETS:
            self._buckets //= 2
            for thinned in self._kept.values():
                thinned.narrow(self._buckets)
        self._kept[key] = Downsampled(self._buckets)
        self._trends[key] = Trend(BUCKETS if len(self._trends) < MANY_TRENDS else FEW_BUCKETS)

    def _points_of(self, replica: int, series: str) -> NDArray[np.void]:
        number = self._known(series)
        self._sort(replica, number)
        thinned = self._kept.get((replica, number))
        return thinned.kept() if thinned else np.empty(0, Downsampled(1).kept().dtype)


def training_seconds(store: RunStore, rested: float) -> float:
    """Return the seconds of training, from the first point of a loss to the last, without ``rested`` ones."""
    spans = [store.points(i, "loss")[2] for i in store.replicas if "loss" in store.series]
    longest = max((float(times[-1] - times[0]) for times in spans if len(times) > 1), default=0.0)
    return max(0.0, longest - rested)


def columns_from_logs(folder: Path) -> dict[str, NDArray[Any]]:
    """Return every point in a run folder's logs in the shape of `RunStore.columns`."""
    return as_columns(parts_from_logs(folder))


def check_limit(limit: int) -> int:
    """Return ``limit``, or raise if it cannot hold first, last and one bucket's extremes."""
    if limit < 5:
        raise InvalidArgumentError(f"limit={limit} points is too few to draw a curve; give at least 5")
    return limit


# The ingest buffer: batches of points are sorted into their series together, which costs far less.

TAKEN = 0xFFFF  # no series: the point is where it belongs already


class IngestBuffer:
    """What waits, by replica, in the order in which it came.

    >>> waiting = IngestBuffer()
    >>> points = np.array([(0, 1, 0.5, 0.0), (1, 1, 0.9, 0.0), (0, 2, 0.4, 0.0)], POINT)
    >>> waiting.add(0, points)
    3
    >>> waiting.take(0, series=0)["value"], waiting.take(0)["value"]
    (array([0.5, 0.4]), array([0.9]))
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Points]] = {}

    def add(self, replica: int, points: Points) -> int:
        """Have points wait, which are written into later on; return how many of the replica's do."""
        waiting = self._waiting.setdefault(replica, [])
        waiting.append(points)
        return sum(map(len, waiting))

    def take(self, replica: int, series: int | None = None) -> Points:
        """Return a replica's points, or only those of one series; they do not wait any more."""
        waiting = self._waiting.pop(replica, [np.empty(0, POINT)])
        points: Points = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        wanted = points["series"] != TAKEN if series is None else points["series"] == series
        found: Points = points[wanted]
        if series is None:
            return found
        self._waiting[replica] = [points]
        points["series"][wanted] = TAKEN
        return found

    def last(self, replica: int, series: int) -> Any:
        """Return the newest point of a series that waits, or None."""
        for points in reversed(self._waiting.get(replica, ())):
            if len(found := np.flatnonzero(points["series"] == series)):
                return points[found[-1]]
        return None

    @property
    def replicas(self) -> list[int]:
        """The replicas of which points wait."""
        return list(self._waiting)


# The newest points of all replicas in one ring, for readers that follow with a cursor.

ENTRY = np.dtype([("replica", "<u2"), ("series", "<u2"), ("step", "<u4"), ("value", "<f8")])
Group = tuple[int, int, NDArray[np.uint32], NDArray[np.float64]]


class Recent:
    """A ring of ``size`` points; the cursor of a point is how many came before it."""

    def __init__(self, size: int) -> None:
        self.total = 0
        self._ring = np.empty(size, ENTRY)

    def extend(
        self, replica: int, series: int | NDArray[Any], steps: NDArray[Any], values: NDArray[Any]
    ) -> None:
        """Append points of one replica, over the oldest; of one series, or of each its own."""
        size, count = len(self._ring), len(values)
        series = np.broadcast_to(series, count)
        skip = max(0, count - size)
        start = (self.total + skip) % size
        first = min(size - start, count - skip)
        rest = slice(skip, skip + first)
        self._put(slice(start, start + first), replica, series[rest], steps[rest], values[rest])
        if (left := count - skip - first) > 0:
            rest = slice(skip + first, count)
            self._put(slice(0, left), replica, series[rest], steps[rest], values[rest])
        self.total += count

    def since(self, cursor: int, limit: int) -> tuple[int, NDArray[np.void]]:
        """Return (the next cursor, at most ``limit`` points from ``cursor`` on, as they came)."""
        size = len(self._ring)
        start = min(max(cursor, self.total - size, 0), self.total)
        end = min(start + limit, self.total)
        return end, self._ring[np.arange(start, end) % size]

    def _put(
        self,
        where: slice,
        replica: int,
        series: NDArray[Any],
        steps: NDArray[Any],
        values: NDArray[Any],
    ) -> None:
        part = self._ring[where]
        part["replica"], part["series"], part["step"], part["value"] = replica, series, steps, values


def grouped(entries: NDArray[np.void]) -> list[Group]:
    """Split entries by (replica, series), each group in the order its points came."""
    entries, starts = by_curve(entries)
    pieces = np.split(entries, starts[1:]) if len(starts) else []
    return [
        (int(piece["replica"][0]), int(piece["series"][0]), piece["step"].copy(), piece["value"].copy())
        for piece in pieces
    ]


def by_curve(entries: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.intp]]:
    """Return entries with those of one replica and series together, and where each curve's begin."""
    key = entries["replica"].astype(np.uint32) << 16 | entries["series"]
    order = np.argsort(key, kind="stable")
    key = key[order]
    return entries[order], np.flatnonzero(np.concatenate((key[:1] >= 0, key[1:] != key[:-1])))
