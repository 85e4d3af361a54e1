"""The small curve of a run in the panel, and the store of all its curves for its page.

`Curves`, polled, follows one metric and averages it over the replicas. It reads the logs in bounded pieces
and keeps about sixty means of neighbouring points per replica, so its memory does not depend on the logs'
size. `load_store`, for a page that opens a run, reads whole logs up to MAX_LOG_BYTES, and evenly spaced parts
of longer ones.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nbdist.errors import DataLossError, NbdistError
from nbdist.lab.readers.files import Tail, open_regular
from nbdist.lab.readers.run_record import rounded
from nbdist.metrics.log import FORMAT, LOG_NAME, MAGIC, LogPart, by_series, damage, parse, replica_of
from nbdist.metrics.series import Curve, Trend, mean_by_step
from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.run_feed import NOT_CURVES

METRIC = "loss"
MAX_POINTS = 60  # points of a curve
DIGITS = 6
MIN_CHARGE = 4096  # bytes that a read costs at least

MAX_LOG_BYTES = 64 << 20  # of a run's logs together, in `load_store`
MAX_LOGS = 1024  # of one run


@dataclass
class Budget:
    """The bytes of logs that a poll may still read, over all runs; the rest waits for the next poll."""

    left: int


class Curves:
    """The curve of a run's metric: its loss, else the first series in its logs.

    ``steps`` are those up to the last one, from 1 or 0 on. Call `read` at each poll until ``left`` is 0.
    """

    def __init__(self, folder: Path) -> None:
        self.steps = range(1, 1)
        self.metric: str | None = None
        self.paths: list[str] = []
        """The names of the logs."""
        self._folder = folder
        self._logs: dict[str, _CurveLog] = {}

    def set_files(self, names: Iterable[str]) -> None:
        """Set the names of the files in the run's folder."""
        self.paths = sorted(name for name in names if LOG_NAME.fullmatch(name))[:MAX_LOGS]

    def read(self, budget: Budget) -> bool:
        """Read new points within the budget; return whether there were any.

        Raises `ReplacedError` if a log was replaced, and OSError.
        """
        changed = False
        for name in self.paths:
            if budget.left <= 0:
                break
            if name not in self._logs:
                path = self._folder / name
                self._logs[name] = _CurveLog(Tail(path, FORMAT, parse), replica_of(path))
            log = self._logs[name]
            while budget.left > 0:
                before = log.tail.offset
                part = log.tail.read()
                if part is None:
                    break
                budget.left -= max(MIN_CHARGE, log.tail.offset - before)
                changed = self._take(log, part) or changed
        return changed

    @property
    def left(self) -> int:
        """Bytes known to be unread."""
        return sum(log.tail.left for log in self._logs.values()) + (len(self._logs) < len(self.paths))

    @property
    def size(self) -> int:
        """Bytes of all logs at the last read."""
        return sum(log.tail.size for log in self._logs.values())

    def curve(self, ended_replicas: Collection[int] = ()) -> tuple[list[int], list[float]]:
        """Return (steps, values) of at most sixty finite points of the mean.

        ``ended_replicas``, by the numbers of their logs, were lost or have left: they do not cut the mean.
        """
        logs = [log for log in self._logs.values() if self.metric in log.trends]
        if not logs:
            return [], []
        newest: dict[int, Curve] = {}  # a replica whose process was replaced has several logs
        there: list[Curve] = []
        ended: list[Curve] = []
        for log in logs:
            made = log.trends[self.metric].curve()  # type: ignore[index]
            before = newest.get(log.number)
            newest[log.number] = made if before is None or made[0][-1] > before[0][-1] else before
            ended += [] if before is None else [made if newest[log.number] is before else before]
        for number, made in newest.items():
            (ended if number in ended_replicas else there).append(made)
        steps, values = mean_by_step(there, most=MAX_POINTS, ended=ended)
        finite = np.isfinite(values)
        return steps[finite].tolist(), [rounded(value, DIGITS) for value in values[finite].tolist()]

    def problems(self) -> list[str]:
        """Return the problems of the logs of an ended run."""
        problems = []
        for name, log in sorted(self._logs.items()):
            tail = log.tail
            if tail.error:
                problems.append(tail.error)
            elif not tail.left and tail.torn:
                problems.append(f"{tail.torn:,} bytes at the end of {name} are an incomplete record")
            if tail.damaged:
                problems.append(f"{tail.damaged:,} damaged bytes in {name} were skipped")
        return problems

    def forget(self) -> None:
        """Free what only further reads need."""
        for log in self._logs.values():
            log.names.clear()

    def _take(self, log: _CurveLog, part: LogPart) -> bool:
        log.names.update(part.names)
        if not len(part.points):
            return False
        if METRIC in log.names.values():
            self._choose(METRIC)
        elif self.metric is None:
            self._choose(next((name for name in log.names.values() if name not in NOT_CURVES), None))
        for series, name in log.names.items():
            if name == self.metric:
                one = part.points[part.points["series"] == series]
                if len(one):
                    low, high = int(one["step"].min()), int(one["step"].max())
                    self.steps = range(min(self.steps.start, low), max(self.steps.stop, high + 1))
                trend = log.trends.setdefault(name, Trend(MAX_POINTS // 2))
                trend.extend(one["step"], one["value"])
        return True

    def _choose(self, metric: str | None) -> None:
        if metric != self.metric:
            self.metric = metric
            for log in self._logs.values():
                log.trends.clear()


@dataclass
class _CurveLog:
    tail: Tail[LogPart]
    number: int
    names: dict[int, str] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)


PIECE = 1 << 20
PART_BYTES = 1 << 18  # bytes of a part of a long log; it begins and ends within a frame


def load_store(folder: str | Path) -> tuple[RunStore, list[str]]:
    """Return a store with the points of a run's logs, and notes about points that are missing in it."""
    store, notes = RunStore(recent=1), []
    logs, total = [], 0
    for name in sorted(os.listdir(folder)):
        if LOG_NAME.fullmatch(name):
            with suppress(OSError, NbdistError):
                descriptor, status = open_regular(Path(folder, name))
                os.close(descriptor)
                logs.append((name, status.st_size))
                total += status.st_size
    for name, size in logs[:MAX_LOGS]:
        most = size if total <= MAX_LOG_BYTES else int(size * MAX_LOG_BYTES / total)
        try:
            notes.extend(add_log(store, Path(folder, name), size, most))
        except DataLossError as error:
            notes.append(str(error))
        except (OSError, NbdistError):  # it was removed
            continue
    if total > MAX_LOG_BYTES:
        notes.append(
            f"its logs have {total / 1e6:,.0f} MB: "
            f"the curves are drawn from {MAX_LOG_BYTES / 1e6:,.0f} MB of them"
        )
    return store, notes


def add_log(store: RunStore, path: Path, size: int, most: int) -> list[str]:
    """Put at most about ``most`` bytes of a log into the store; return a message about damage, or "".

    Its first piece has the names; damaged frames, and frames that the edge of a piece cuts, are skipped.
    Raises `DataLossError` if the file is not a metrics log.
    """
    descriptor, _ = open_regular(path)
    try:
        start = FORMAT.start(os.pread(descriptor, PIECE, 0), path.name)
        if start is None:  # its writer has just created it
            return []
        damaged = len(MAGIC) - start
        names: dict[int, str] = {}
        replica = replica_of(path)
        rest = b""
        for at, length, joined in parts(len(MAGIC), size, most):
            data = (rest if joined else b"") + os.pread(descriptor, length, at)
            part = parse(data)
            damaged += part.damaged
            rest = data[part.offset :]
            names.update(part.names)
            replica = replica if part.replica is None else part.replica
            for series, steps, values, times in by_series(part.points):
                if series in names:
                    store.extend(replica, names[series], steps, values, times)
    finally:
        os.close(descriptor)
    problems = damage(path.name, damaged) if size <= most else ""  # else pieces begin and end within frames
    return [problems] if problems else []


def parts(start: int, size: int, most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (position, length, contiguous with the part before) of the parts of a log to read.

    >>> list(parts(0, 3 << 20, 3 << 20))
    [(0, 1048576, False), (1048576, 1048576, True), (2097152, 1048576, True)]
    >>> list(parts(0, 8 << 20, 1 << 20))
    [(0, 262144, False), (2708821, 262144, False), (5417642, 262144, False), (8126464, 262144, False)]
    """
    if size <= most:
        for at in range(start, size, PIECE):
            yield at, min(PIECE, size - at), at > start
        return
    count = max(2, most // PART_BYTES)
    for index in range(count):
        yield start + index * (size - start - PART_BYTES) // (count - 1), PART_BYTES, False
