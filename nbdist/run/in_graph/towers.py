"""The towers of an in-graph run: each is a replica of the run, with points and progress of its own.

    towers = Towers(folder, 2, context)
    context.towers = towers.context         # towers that go their own ways: a context for each one's thread
    strategy = InGraphStrategy(..., on_tower=towers.on_tower)       # towers that step together: called here

Tower i is replica i of the run: its points go to metrics-000i.log, wherever they are computed. A tower that
is spread over several workers goes by the number of its first one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from nbdist.machine import count_cores
from nbdist.metrics.log import Batch, log_path
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.timeline import Span, covered
from nbdist.run.task.training_series import TrainingSeries
from nbdist.train.context import Context, Progress
from nbdist.train.step_timing import StepLog

JUDGED = 3  # traces that a tower's share of a step is judged by, so that one hiccup is none
MOST_TRACES = 4  # the newest; each is some hundred spans


class Towers:
    """Recorders, contexts and progress of ``count`` towers; ``context`` is that of the body.

    ``events`` are folders for TensorBoard's files, one for each; ``tasks`` are the names of their workers,
    ``devices`` those of these workers on which the ops of a tower are placed.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        context: Context,
        events: Sequence[Path | None] = (),
        tasks: Sequence[str] = (),
        devices: Sequence[str] = (),
    ) -> None:
        self.main, self._tasks, self._devices = context, list(tasks), list(devices)
        self._towers = [
            _Tower(Recorder(log_path(folder, i), replica=i, events=into))
            for i, into in enumerate(events or [None] * count)
        ]
        self._making = threading.Lock()
        self._traces: deque[list[Span]] = deque(maxlen=MOST_TRACES)
        self._epoch, self._steps_before = context.last_epoch, 0
        context.recorder = self._towers[0].recorder  # for validation, which is the chief's: tower 0

    def context(self, i: int) -> Context:
        """Return the context in which tower ``i`` trains by itself; the same one each time.

        It shares the body's control (so that a stop or an abort reaches every tower) and nothing else. Put
        the tower's strategy into it. May be called from any thread.
        """
        tower = self._towers[i]
        with self._making:
            if tower.context is None:
                tower.context = self.main.derive(
                    device=self.main.device,
                    checkpoints=self.main.checkpoints,
                    recorder=tower.recorder,
                    summaries=self.main.summaries,
                    step_log=StepLog(f"tower {i}"),
                    progress=tower.progress,
                    is_chief=i == 0,
                    end_everywhere=self._end_training,
                )
        return tower.context

    def on_tower(
        self,
        i: int,
        step: int,
        loss: float,
        metrics: Sequence[float],
        examples: int,
        seconds: float,
    ) -> None:
        """Note a step of tower ``i``: its own loss and metrics, and the ``seconds`` that it took.

        ``step`` counts from 1 in each training. Called by the thread that trains.
        """
        tower, main = self._towers[i], self.main
        self._see_epoch()
        if step == 1:
            self._steps_before = main.progress.step
        step += self._steps_before
        add, series = tower.recorder.add, tower.recorder.series
        logs = {"loss": loss, **dict(zip(main.metric_names, metrics, strict=True))}
        for name, value in logs.items():
            add(series(name), step, value)
        add(series("step_ms"), step, seconds * 1e3)
        tower.note(logs, examples)
        progress = tower.progress
        progress.step = step
        progress.examples += examples
        progress.spent["compute"] += seconds * tower.share

    def replicas(self, ended: bool = False) -> list[tuple[int, dict[str, Any], Batch | None]]:
        """Return (replica, progress, new points) of every tower; ``ended``: for the last time."""
        found, now = [], time.monotonic()
        for i, tower in enumerate(self._towers):
            progress = self._progress(tower)
            tower.series.sample(tower.context or self.main, progress, now, ended)
            found.append((i, {**asdict(progress), **self._device(i)}, tower.recorder.flush()))
        return found

    def _device(self, i: int) -> dict[str, Any]:
        """Return where the ops of a tower run, once it trains: each op runs where it is placed, or fails."""
        tower, device = self._towers[i], self._devices[i : i + 1]
        trains = tower.progress.step or (tower.context is not None and tower.context.progress.step)
        return {"devices": device, "cores": count_cores()} if device and trains else {}

    def troubles(self, ended: bool) -> list[str]:
        """Return what the disk has refused so far, and at the end what is lost."""
        return [trouble for tower in self._towers for trouble in tower.recorder.all_troubles(ended)]

    def last_epochs(self) -> dict[int, dict[str, float]]:
        """Return each tower's means over the last epoch; called when the body is over."""
        self._see_epoch()
        return {i: t.context.last_epoch if t.context else t.last_epoch for i, t in enumerate(self._towers)}

    @property
    def first(self) -> Recorder:
        """The first tower's recorder."""
        return self._towers[0].recorder

    def spans(self, task: str) -> list[Span]:
        """Return when the towers did what, for the timeline: those with threads in ``task``, and all tasks.

        What all tasks did is known of some steps; of the others, when the client was in them.
        """
        logs = [t.context.step_log for t in self._towers if t.context is not None]
        own = [span for log in logs if log is not None for span in log.spans(task)]
        return own + [span for spans in list(self._traces) for span in spans]

    def on_trace(self, spans: list[Span]) -> None:
        """Note what all tasks did in a step; called by a thread that trains."""
        before = self._steps_before
        if self._traces:  # the first trace also shows how tracing gets ready
            for tower, share in zip(self._towers, shares(spans, self._tasks)):
                tower.see(share)
        self._traces.append([replace(s, step=None if s.step is None else s.step + before) for s in spans])

    def close(self) -> None:
        """Write what is left and close the logs."""
        for tower in self._towers:
            tower.recorder.close()

    def _see_epoch(self) -> None:
        """Notice that the body's training has ended an epoch since the last look."""
        if self.main.last_epoch is not self._epoch:
            self._epoch = self.main.last_epoch
            for tower in self._towers:
                tower.end_epoch()

    def _end_training(self, number: int) -> None:
        self.main.control.ended_training = number

    def _progress(self, tower: _Tower) -> Progress:
        """Return how far a tower is; one that steps with the others is where the body's training is."""
        main, own = self.main.progress, tower.progress
        if tower.context is not None:
            same = own.state == "starting" or main.state == "finished"
            return replace(own, state=main.state if same else own.state)
        if not own.step and self._towers[0].progress.step:  # a layer or a stage of another tower is there
            return replace(own, total=0, state="part of a tower")
        together = own.spent["compute"]
        spent = {**main.spent, "compute": together}
        spent["wait"] += max(0.0, main.spent["compute"] - together)
        return replace(main, step=own.step, examples=own.examples, spent=spent)


def shares(spans: Sequence[Span], tasks: Sequence[str]) -> list[float]:
    """Return for how much of a step each task was at work, and did not wait.

    >>> spans = [Span("a", "CPU:0", "compute", "step", 0.0, 2.0), Span("a", "CPU:0", "wait", "x", 2.0, 1.0),
    ...          Span("b", "CPU:0", "compute", "step", 0.0, 4.0)]
    >>> shares(spans, ["a", "b"])
    [0.5, 1.0]
    """
    begin = min((span.start for span in spans), default=0.0)
    lasted = max((span.start + span.seconds for span in spans), default=0.0) - begin
    if not lasted:
        return []
    work: dict[str, list[tuple[float, float]]] = {task: [] for task in tasks}
    for span in spans:
        if span.kind != "wait" and span.task in work:
            work[span.task].append((span.start, span.start + span.seconds))
    return [covered(intervals) / lasted for intervals in work.values()]


@dataclass
class _Tower:
    recorder: Recorder
    series: TrainingSeries = field(init=False)
    progress: Progress = field(default_factory=Progress)
    context: Context | None = None
    last_epoch: dict[str, float] = field(default_factory=dict)
    share: float = 1.0
    """How much of a step that all towers make together this one's worker is at work, as far as is known."""
    _shares: deque[float] = field(default_factory=lambda: deque(maxlen=JUDGED))
    _sums: dict[str, float] = field(default_factory=dict)
    _count: int = 0

    def __post_init__(self) -> None:
        self.series = TrainingSeries(self.recorder)

    def note(self, logs: dict[str, float], examples: int) -> None:
        self._count += examples
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * examples

    def see(self, share: float) -> None:
        self._shares.append(share)
        if len(self._shares) == JUDGED:
            self.share = median(self._shares)

    def end_epoch(self) -> None:
        if self._count:
            self.last_epoch = {name: total / self._count for name, total in self._sums.items()}
        self._sums, self._count = {}, 0
