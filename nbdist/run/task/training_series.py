"""Series of a training that nobody has to ask for: learning rate, gradient norm, throughput.

    series = TrainingSeries(recorder)
    series.sample(context, progress, now)       # ten times a second, before the recorder is flushed

The thread that reports the run takes the samples, so they cost a step nothing but two assignments. Changes of
the learning rate are recorded where they happen (`Context.set_rate`); here it is repeated while it stays.
"""

from __future__ import annotations

import math

from nbdist.metrics.names import EXAMPLES, GRADIENT_NORM, LEARNING_RATE, STEPS
from nbdist.metrics.recorder import Recorder
from nbdist.train.context import Context, Progress

TRAINS = ("running", "training")
"""The states in which steps are made; a replica that is paused, or waits for others, makes none."""
RATE_SECONDS = 1.0  # between two points of a learning rate that stays
WINDOW_SECONDS = 0.5  # over which the throughput is measured


class TrainingSeries:
    """Records the series of one replica into its recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._step = self._rate_step = -1
        self._rate_due = -math.inf
        self._window: tuple[float, int, int] | None = None  # when it began, its steps and examples then

    def sample(self, context: Context, progress: Progress, now: float, ended: bool = False) -> None:
        """Record what has changed, ``now`` on a monotonic clock; ``ended``: for the last time."""
        if not context.trainings:
            return
        step = progress.global_step if progress.by_updates else progress.step
        if step > self._step:
            self._sample_gradient(context, step)
        self._sample_rate(context, progress, step, now, ended)
        self._sample_throughput(progress, step, now)
        self._step = step

    def _add(self, name: str, step: int, value: float) -> None:
        self._recorder.add(self._recorder.series(name), step, value)

    def _sample_gradient(self, context: Context, step: int) -> None:
        if (gradient := context.gradient) is None:
            return
        context.gradient = None
        squares, mine, size = gradient
        # The program divides by the whole batch, for the sum over replicas is the mean gradient.
        self._add(GRADIENT_NORM, step, math.sqrt(squares) * (size / mine if mine else 1.0))

    def _sample_rate(self, context: Context, progress: Progress, step: int, now: float, ended: bool) -> None:
        rate, last = progress.learning_rate, max(self._rate_step, context.rate_step)
        if rate is not None and step > last and (ended or now >= self._rate_due):
            self._add(LEARNING_RATE, step, rate)
            self._rate_step, self._rate_due = step, now + RATE_SECONDS

    def _sample_throughput(self, progress: Progress, step: int, now: float) -> None:
        if progress.state not in TRAINS:
            self._window = None
            return
        if self._window is None or progress.step < self._window[1]:
            self._window = now, progress.step, progress.examples
            return
        begun, steps, examples = self._window
        made = progress.step - steps
        if now - begun < WINDOW_SECONDS or not made:
            return
        seconds, read = now - begun, progress.examples - examples
        self._window = now, progress.step, progress.examples
        self._add(EXAMPLES if read else STEPS, step, (read or made) / seconds)
