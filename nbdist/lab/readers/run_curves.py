"""The small curve of a run: one metric, the mean over its replicas, from logs read a bounded piece at a time.

What is kept of a log is bounded whatever its size: about sixty means of neighbouring points for each replica.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nbdist.errors import DataLossError, NbdistError
from nbdist.lab.readers.files import Tail, open_regular
from nbdist.lab.readers.run_record import rounded
from nbdist.metrics.log import FORMAT, MAGIC, LogPart, by_series, damage, parse
from nbdist.metrics.series import Trend, mean_by_step
from nbdist.metrics.store import RunStore
from nbdist.ui.widgets.run_feed import NOT_CURVES

METRIC = "loss"
MOST = 60  # points of a curve
DIGITS = 6
LEAST = 4096  # bytes that a read counts as

# A run's logs in a store, to be drawn from: all of them, or of very long ones evenly spread parts.

MOST_LOG_BYTES = 64 << 20  # bytes that are read of a run's logs together
MOST_LOGS = 1024  # that are read of one run
LOG = re.compile(r"metrics-(\d{1,9})(?:\.\d{1,9})?\.log")


@dataclass
class Budget:
    """How many bytes of logs one look may still read, over all runs: the others wait for the next look."""

    left: int


class Curves:
    """The course of a run's metric: its loss, else the first series that it has logged.

    ``last_step`` is the last step of any point. Call `read` at each look, until ``left`` is 0.
    """

    def __init__(self, folder: Path) -> None:
        self.last_step: int | None = None
        self.metric: str | None = None
        self.paths: list[str] = []
        """The names of the logs there are."""
        self._folder = folder
        self._logs: dict[str, _Log] = {}

    def found(self, names: Iterable[str]) -> None:
        """Take note of the files in the run's folder."""
        self.paths = sorted(name for name in names if LOG.fullmatch(name))[:MOST_LOGS]

    def read(self, budget: Budget) -> bool:
        """Read what is new, as far as the budget goes; whether anything was.

        Raises `ReplacedError` if a log is not what it was, and OSError.
        """
        news = False
        for name in self.paths:
            if budget.left <= 0:
                break
            if name not in self._logs:
                self._logs[name] = _Log(Tail(self._folder / name, FORMAT, parse), int(name[8:].split(".")[0]))
            log = self._logs[name]
            while budget.left > 0:
                before = log.tail.offset
                part = log.tail.read()
                if part is None:
                    break
                budget.left -= max(LEAST, log.tail.offset - before)
                news = self._take(log, part) or news
        return news

    @property
    def left(self) -> int:
        """How many bytes are still to be read, as far as that is known."""
        return sum(log.tail.left for log in self._logs.values()) + (len(self._logs) < len(self.paths))

    @property
    def size(self) -> int:
        """How many bytes all logs have that were looked at."""
        return sum(log.tail.size for log in self._logs.values())

    def curve(self) -> tuple[list[int], list[float]]:
        """Return (steps, values) of at most sixty finite points."""
        trends = [log.trends[self.metric].curve() for log in self._logs.values() if self.metric in log.trends]
        if not trends:
            return [], []
        steps, values = mean_by_step(trends, most=MOST)
        finite = np.isfinite(values)
        return steps[finite].tolist(), [rounded(value, DIGITS) for value in values[finite].tolist()]

    def complaints(self) -> list[str]:
        """Return what is wrong with the logs of a run that has ended."""
        said = []
        for name, log in sorted(self._logs.items()):
            tail = log.tail
            if tail.wrong:
                said.append(tail.wrong)
            elif not tail.left and tail.torn:
                said.append(f"{tail.torn:,} bytes at the end of {name} are an incomplete record")
            if tail.damaged:
                said.append(f"{tail.damaged:,} damaged bytes in {name} were stepped over")
        return said

    def forget(self) -> None:
        """Give up what is only needed to go on reading."""
        for log in self._logs.values():
            log.names.clear()

    def _take(self, log: _Log, part: LogPart) -> bool:
        log.names.update(part.names)
        if not len(part.points):
            return False
        self.last_step = max(self.last_step or 0, int(part.points["step"].max()))
        if METRIC in log.names.values():
            self._choose(METRIC)
        elif self.metric is None:
            self._choose(next((name for name in log.names.values() if name not in NOT_CURVES), None))
        for series, name in log.names.items():
            if name == self.metric:
                one = part.points[part.points["series"] == series]
                trend = log.trends.setdefault(name, Trend(MOST // 2))
                trend.extend(one["step"], one["value"])
        return True

    def _choose(self, metric: str | None) -> None:
        if metric != self.metric:
            self.metric = metric
            for log in self._logs.values():
                log.trends.clear()


@dataclass
class _Log:
    tail: Tail[LogPart]
    number: int
    names: dict[int, str] = field(default_factory=dict)
    trends: dict[str, Trend] = field(default_factory=dict)


PIECE = 1 << 20
LEAST_PART = 1 << 18  # bytes of a part of a log: it begins and ends within a frame


def filled(folder: str | Path) -> tuple[RunStore, list[str]]:
    """Return a store with the points of a run's logs, and what to say of those that are not in it."""
    store, notes = RunStore(recent=1), []
    logs, whole = [], 0
    for name in sorted(os.listdir(folder)):
        if LOG.fullmatch(name):
            with suppress(OSError, NbdistError):
                descriptor, status = open_regular(Path(folder, name))
                os.close(descriptor)
                logs.append((name, status.st_size))
                whole += status.st_size
    for name, size in logs[:MOST_LOGS]:
        most = size if whole <= MOST_LOG_BYTES else int(size * MOST_LOG_BYTES / whole)
        try:
            notes.extend(add_log(store, Path(folder, name), size, most))
        except DataLossError as error:
            notes.append(str(error))
        except (OSError, NbdistError):  # it was removed
            continue
    if whole > MOST_LOG_BYTES:
        notes.append(
            f"its logs have {whole / 1e6:,.0f} MB: "
            f"the curves are drawn from {MOST_LOG_BYTES / 1e6:,.0f} MB of them"
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
        replica = int(path.name[8:].split(".")[0])
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
    said = damage(path.name, damaged) if size <= most else ""  # else pieces begin and end within frames
    return [said] if said else []


def parts(start: int, size: int, most: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (position, length, whether it follows the one before) of what is read of a log.

    >>> list(parts(0, 3 << 20, 3 << 20))
    [(0, 1048576, False), (1048576, 1048576, True), (2097152, 1048576, True)]
    >>> list(parts(0, 8 << 20, 1 << 20))
    [(0, 262144, False), (2708821, 262144, False), (5417642, 262144, False), (8126464, 262144, False)]
    """
    if size <= most:
        for at in range(start, size, PIECE):
            yield at, min(PIECE, size - at), at > start
        return
    count = max(2, most // LEAST_PART)
    for index in range(count):
        yield start + index * (size - start - LEAST_PART) // (count - 1), LEAST_PART, False
