"""A loop of one's own over a `FrameworkModel`, on one replica of any strategy: `ReplicaLoop`.

    with ReplicaLoop(model, optimizer) as loop:
        for epoch in range(epochs):
            for arrays, size in loop.batches(dataset):      # this replica's share, and the size of the batch
                loss, *metrics = loop.step(arrays, size)    # pull, program, push
    # the model has the final values

It calls the replica in the order of `nbdist.train.loop`, so that replicas cannot wait for each other for
ever. Leaving the ``with`` by an error breaks the groups in which the other replicas wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NanLossError
from nbdist.frameworks.trainable import FrameworkModel
from nbdist.graph.backend import Array, backend_of, device_scope, to_device, to_host
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.boundary import Boundary, describe_nonfinite, read_step
from nbdist.train.context import current
from nbdist.train.custom.replicas import StepRecorder, StepTimes
from nbdist.train.device import on_device
from nbdist.train.fixed import share_fixed
from nbdist.train.strategy import Replica, RetryStep
from nbdist.train.weighing import counted_in, measures_of, own_loss

Program = Any


class ReplicaLoop:
    """Trains a model by steps that the caller makes, under the strategy of the surrounding run.

    Raises InvalidArgumentError for what such a loop does not do: saving its state and continuing from one.
    """

    def __init__(self, model: FrameworkModel, optimizer: Optimizer) -> None:
        self.context = context = current()
        if context.states is not None:
            raise InvalidArgumentError(
                "a loop of one's own over a model of another framework cannot save its state or continue: "
                "drop --checkpoint-every and --resume, or train with fit"
            )
        if context.world.rejoins:
            raise FailedPreconditionError(
                "this process replaces one that was lost, and a loop of your own cannot continue at its "
                "step: use fit, which does"
            )
        self.model, self._optimizer = model, optimizer
        self.steps, self.ended = 0, False
        self._replica: Replica | None = None
        self._programs: dict[Any, Program] = {}
        self._agreed = self._stepped = False
        self._batch: tuple[Array, ...] = ()

    def __enter__(self) -> ReplicaLoop:
        context = self.context
        if context.strategy.companions(context, self.model, self._optimizer):
            raise InvalidArgumentError(
                "a loop of one's own over a model of another framework has one replica in a process: drop "
                "devices="
            )
        context.trainings += 1
        context.progress.trainings, context.progress.state = context.trainings, "running"
        context.metric_names = list(self.model.metric_names)
        self._updates_before = context.progress.global_step
        self._first_step = context.progress.step
        share_fixed(context, self.model)
        with device_scope(context.device):
            begun = context.strategy.begin(self.model, self._optimizer)
        self._replica = replica = on_device(begun, context.device)
        self.model.weighs = replica.adds_measures
        context.see_arrays(replica.computed_with)
        context.progress.by_updates = replica.by_updates
        if context.step_log is not None:
            context.step_log.begin(replica)
        for note in replica.notes:
            print(note)
        self._recorder = StepRecorder(context, np)
        self._boundary = Boundary(context, lambda: [replica], self._updates, self._write)
        self._boundary.show_rate()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        replica = self.replica
        with device_scope(self.context.device):
            try:
                if error is not None:
                    self.context.on_error(error)
                    replica.abort(error)
                else:
                    self._finish()
            except BaseException as wrong:
                replica.abort(wrong)
                raise
            finally:
                self._replica = None
                try:
                    self.model.fetch_states()
                    for (_, own), value in zip(self.model.variables, replica.values, strict=True):
                        np.copyto(own, to_host(value))
                finally:
                    replica.close()

    @property
    def replica(self) -> Replica:
        """The replica, inside the ``with``."""
        if self._replica is None:
            raise FailedPreconditionError("this loop is over, or has not begun: use it inside its `with`")
        return self._replica

    def batches(self, dataset: Dataset) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield this replica's share of each batch of one pass, with the size of the whole batch.

        The pass ends early if the run is asked to stop, and no other one follows then. A share may be empty:
        a step with it takes part in the update.
        """
        context, replica = self.context, self.replica
        if self.ended:
            return
        seed = None if context.seed is None else context.seed + context.trainings - 1
        data = context.served(context.strategy.dataset(dataset, seed)).ahead_of_training()
        if context.recorder is not None:
            context.input_meter = Meter(training=True)
        for arrays, size in context.strategy.batches(data, context.input_meter):
            if self._stops():
                break
            yield arrays, size
        if self._stepped:
            self._stepped = False
            self.ended = replica.end_epoch(self.ended or context.control.stop_requested) or self.ended

    def step(self, batch: Sequence[Array], size: int) -> tuple[float, ...]:
        """Make a step with this replica's share of a batch of ``size``; return loss and metrics.

        They are those of the whole batch where replicas add them up (`Replica.adds_measures`). Elsewhere they
        are means over the share, NaN for an empty one. Raises NanLossError for a loss or gradient that
        is NaN or infinite, AbortedError if the training has ended.
        """
        if self._stops():
            raise AbortedError(
                "the training has ended: the run was asked to stop, or another replica has left. A loop over "
                "batches() ends then"
            )
        while True:
            try:
                with device_scope(self.context.device):
                    return self._step(tuple(batch), size)
            except RetryStep:  # replicas were lost: the others share the batch anew
                batch, size = self.context.strategy.batch()

    def fetch(self) -> list[Array]:
        """Return the newest values of the parameters."""
        with device_scope(self.context.device):
            self.replica.fetch()
        return self.replica.values

    def _step(self, batch: tuple[Array, ...], size: int) -> tuple[float, ...]:
        replica, context, model = self.replica, self.context, self.model
        mine, gradients = len(batch[0]) if batch else 0, replica.gradients()
        times = StepTimes(perf_counter())
        try:
            times.pull([replica])
            gradients = replica.gradients()
            results: Sequence[Any] = [np.nan] * (1 + len(model.metric_names))
            if mine:
                xp = backend_of(replica.values[0])
                arrays = tuple(to_device(one, xp) for one in model.prepare(batch))
                draw = (model.draw(self.steps, context.strategy.first_example(size)),) if model.draws else ()
                scale = np.asarray(1 / size, np.float32)
                found = self._program(arrays)(*arrays, scale, *draw, *gradients)
                results, squares = read_step(replica.read_results(found), replica.flat_gradients())
                counted = counted_in(model.counted, replica, context.strategy, mine)
                loss = own_loss(float(results[0]), counted, mine, size)
                if wrong := describe_nonfinite(loss, squares, gradients):
                    raise self._nonfinite(wrong)
                if replica.adds_measures:
                    replica.measure(measures_of(results, counted, mine, size))
                results = [loss, *results[1:]]
            else:
                for gradient in gradients:
                    gradient.fill(0)
            times.push([replica])
            if replica.nonfinite is not None:
                raise self._nonfinite(replica.nonfinite.what)
            results = results if replica.measured is None else replica.measured
        except StepStopped:
            self.ended = True
            raise AbortedError("the training has ended: another replica has left before this step") from None
        self._agreed, self._stepped = False, True
        self._count(times, mine, results, bool(mine) or replica.measured is not None)
        return tuple(float(value) for value in results)

    def _nonfinite(self, wrong: str) -> NanLossError:
        return NanLossError(
            f"{wrong} at step {self.steps + 1}; that gradient was not applied. Try a smaller learning rate, "
            "and look for NaN in the data"
        )

    def _count(self, times: StepTimes, mine: int, results: Sequence[Any], is_known: bool) -> None:
        """Count a step, and record its loss and metrics, if they are known."""
        context, replica, progress = self.context, self.replica, self.context.progress
        self.steps += 1
        progress.step = self._first_step + self.steps
        progress.examples += mine
        progress.global_step = self._updates()
        at = progress.global_step if replica.by_updates else progress.step
        self._recorder.add(at, times, [np.asarray(results[0])] if is_known else [], 1.0, replica)
        if context.recorder is not None and is_known:
            for name, value in zip(self.model.metric_names, results[1:], strict=True):
                context.recorder.add(context.recorder.series(name), at, float(value))

    def _stops(self) -> bool:
        """Return whether no step follows; asked once before each step."""
        if self._agreed or self.ended:
            return self.ended
        context, replica = self.context, self.replica
        if context.control.messages != self._boundary.handled:
            try:
                with device_scope(context.device):  # it may write a checkpoint
                    self._recorder.exclude(self._boundary.handle())
            except StepStopped:
                self.ended = True
                return True
        self.ended, self._agreed = replica.agree(context.control.stop_requested), True
        context.control.check()
        return self.ended

    def _finish(self) -> None:
        """Wait until the updates of all replicas are applied, and bring the final values."""
        replica, progress = self.replica, self.context.progress
        if self._stepped:
            replica.end_epoch(False)
        progress.state = "waiting for the others"
        replica.finish()
        progress.global_step = self._updates()
        self._boundary.end()

    def _program(self, arrays: tuple[Array, ...]) -> Program:
        shapes = tuple(array.shape for array in arrays)
        if shapes not in self._programs:
            self._programs[shapes] = self.replica.program(self.model, shapes)
        return self._programs[shapes]

    def _updates(self) -> int:
        return self._updates_before + self.replica.global_step

    def _write(self, folder: Path) -> Path:
        return self.model.write(self.replica.values, folder)
