"""What a step of a custom loop leaves behind: its loss and its times, for the run's curves and timeline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from nbdist.graph.backend import Array
from nbdist.train.context import Context
from nbdist.train.strategy import Replica


@dataclass
class Marks:
    """When a replica's step began, had parameters, had gradients and had handed them over."""

    begun: float
    waited: float = 0.0
    pulled: float = 0.0
    computed: float = 0.0
    late: float = 0.0
    ended: float = 0.0

    def pull(self, replicas: Sequence[Replica]) -> None:
        """Pull the newest parameters."""
        waited = _waited(replicas)
        for replica in replicas:
            replica.pull()
        self.pulled, self.waited = time.perf_counter(), _waited(replicas) - waited

    def push(self, replicas: Sequence[Replica], skip: bool = False) -> None:
        """Push the gradients; with ``skip``, take no part in the update."""
        self.computed, waited = time.perf_counter(), _waited(replicas)
        for replica in replicas:
            if skip:
                replica.skip()
            else:
                replica.push()
        self.ended, self.late = time.perf_counter(), _waited(replicas) - waited


class Notes:
    """Writes down the steps of this process's first replica."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._before: float | None = None

    def rest(self, seconds: float) -> None:
        """Leave out a time between two steps that belongs to none."""
        if self._before is not None:
            self._before += seconds

    def add(
        self,
        step: int,
        marks: Marks,
        losses: Sequence[Array],
        scale: float,
        replica: Replica,
        paused: float = 0.0,
    ) -> None:
        """Note a step that made an update.

        ``scale`` makes a replica's part of the global batch's loss the mean over its own examples, as in fit.
        ``paused`` are seconds for which the run was paused meanwhile.
        """
        spent, data = self._context.progress.spent, 0.0
        if self._before is not None:
            data = max(0.0, marks.begun - self._before)
        self._before = marks.ended
        late = min(marks.late, marks.ended - marks.computed)
        rest = min(paused, marks.waited + late)
        spent["data"] += data
        spent["compute"] += marks.computed - marks.pulled
        spent["exchange"] += marks.pulled - marks.begun - marks.waited + marks.ended - marks.computed - late
        spent["wait"] += marks.waited + late - rest
        if self._context.step_log is not None:
            self._context.step_log.add(
                (step, data, marks.begun, marks.waited, marks.pulled, marks.computed, late, marks.ended)
            )
        recorder = self._context.recorder
        if recorder is None:
            return
        recorder.add(recorder.series("step_ms"), step, (marks.ended - marks.begun - rest) * 1e3)
        if replica.staleness is not None:
            recorder.add(recorder.series("staleness"), step, replica.staleness)
        for number, loss in enumerate(losses, 1):
            name = "loss" if number == 1 else f"loss_{number}"
            recorder.add(recorder.series(name), step, float(loss.sum()) * scale)


def _waited(replicas: Sequence[Replica]) -> float:
    return sum(replica.waited for replica in replicas)
