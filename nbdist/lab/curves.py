"""The small curve of a run: one metric, the mean over its replicas, from logs read a bounded piece at a time.

What is kept of a log is bounded whatever its size: about sixty means of neighbouring points for each replica.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nbdist.lab.pace import rounded
from nbdist.lab.tail import Tail
from nbdist.metrics.average import mean_by_step
from nbdist.metrics.log import FORMAT, LogPart, parse
from nbdist.metrics.trend import Trend
from nbdist.ui.chartplan import NOT_CURVES

METRIC = "loss"
MOST = 60  # points of a curve
DIGITS = 6
LEAST = 4096  # bytes that a read counts as
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
