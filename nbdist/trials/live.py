"""One trial on one engine while its body runs: what it reports of the sweep's metric goes to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.log import Batch
from nbdist.metrics.recorder import Recorder
from nbdist.runs.live import NEWS_SECONDS, Live
from nbdist.runs.output import Output
from nbdist.train.context import Context
from nbdist.trials.order import SweepOrder, TrialOrder
from nbdist.wire.frames import Frame

FIRST_SECONDS = 0.004  # until the first poll of a trial's reports
KEPT = 1024  # reports of a trial
MOST = 32  # reports at once; of a series with a point for every step so many are enough


class Reports:
    """What a trial has reported so far, for a driver that comes late; of very many reports some."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []

    def add(self, steps: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Take in reports, both (n,)."""
        self._steps += steps.tolist()
        self._values += values.tolist()
        while len(self._steps) > KEPT:  # every second one, and the last
            self._steps = self._steps[-1::-2][::-1]
            self._values = self._values[-1::-2][::-1]

    def frame(self, meta: Mapping[str, Any]) -> Frame | None:
        """Return them as news that may be known in part, None if there are none."""
        if not self._steps:
            return None
        arrays = np.array(self._steps, np.int64), np.array(self._values, np.float64)
        return Frame("trial.news", {**meta, "again": True}, arrays)


class TrialLive(Live):
    """A trial, as its engine knows it. Points of all series stay in its own log."""

    def __init__(
        self,
        run: str,
        context: Context,
        recorder: Recorder,
        output: Output,
        *,
        sweep: SweepOrder,
        trial: TrialOrder,
        reported: Reports,
    ) -> None:
        super().__init__(run, context, recorder, output)
        self._reported = reported
        self._metric = sweep.metric
        self._meta = {"sweep": sweep.sweep, "number": trial.number, "attempt": trial.attempt}

    def intervals(self) -> Iterator[float]:
        """Yield short intervals at first: a trial that takes less than `NEWS_SECONDS` can be pruned, too."""
        return growing(FIRST_SECONDS, NEWS_SECONDS)

    def told(self, rank: int, ended: bool) -> Iterator[Frame]:
        """Yield what was reported since the last time, if anything was."""
        for shown in self.output.take_displays():  # a trial has no cell: its file has the texts
            self.output.write(f"{shown.data['text/plain']}\n")
        self.output.take()  # into its file
        batch = self.recorder.flush()
        if batch is None or not self.context.is_chief:
            return
        steps, values = reports(batch, self._metric)
        if len(steps):
            self._reported.add(steps, values)
            yield Frame("trial.news", {**self._meta, "rank": rank}, (steps, values))


def growing(first: float, last: float) -> Iterator[float]:
    """Yield intervals from ``first`` to ``last``, each longer by a fifth than the one before; without end.

    >>> from itertools import islice
    >>> [round(one, 3) for one in islice(growing(0.05, 0.1), 5)]
    [0.05, 0.06, 0.072, 0.086, 0.1]
    """
    while True:
        yield first
        first = min(1.2 * first, last)


def reports(batch: Batch, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the steps and values of a metric in a batch, both (n,); of very many some, and the last."""
    if metric not in batch.names:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    points = batch.points[batch.points["series"] == batch.names.index(metric)]
    if len(points) > MOST:
        points = points[np.linspace(0, len(points) - 1, MOST).astype(np.intp)]
    return points["step"].astype(np.int64), points["value"].astype(np.float64)
