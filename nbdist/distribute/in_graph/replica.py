"""Steps of an in-graph training: the client feeds towers, or has them read, and waits for the update."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.distribute.in_graph.graph import Joint, split_batch
from nbdist.errors import NanLossError
from nbdist.graph.tensor import Tensor
from nbdist.train.capabilities import ArrayMemory, LearningRate, Programs, Reads, StepSpans
from nbdist.train.replica import Replica, itself
from nbdist.train.trainable import Program, Shapes, Trainable

if TYPE_CHECKING:
    from nbdist.distribute.in_graph.strategy import InGraphStrategy

Array: TypeAlias = np.ndarray[Any, Any]
SECOND_TRACE, TRACE_EVERY = 0.05, 1.0  # seconds between steps that are traced; the first step is one


class InGraphReplica(Replica, LearningRate, Programs, Reads):
    """Steps of some towers: all of them together, or one."""

    spans = StepSpans(pull=None, program=("wait", "for the towers"), push=("compute", "the step's end"))
    memory = ArrayMemory(in_place=True)
    rate = programs = reads = itself

    def __init__(self, joint: Joint, towers: list[int], strategy: InGraphStrategy) -> None:
        self._joint, self._towers, self._strategy = joint, towers, strategy
        self.values = [np.array(value) for value in joint.parts.values]
        self.notes = [] if strategy.replica_index else [joint.describe()]
        self._step, self._going_on = 0, True
        self._trace_at, self._traced = 0.0, False

    def pull(self) -> None:
        """Do nothing: the towers read the variables in the step."""

    def fetch(self) -> None:
        """Bring the newest parameters, and the first tower's states."""
        states = list(self._joint.master.states[0].items())
        found = self._joint.session.run([*self._joint.master.weights, *(own for _, own in states)])
        for own, value in zip(self.values, found, strict=False):
            np.copyto(own, value)
        for (v, _), value in zip(states, found[len(self.values) :], strict=True):
            np.copyto(self._joint.parts.states[v], value)

    def program(self, model: Trainable, shapes: Shapes) -> Program:
        """Return the step for batches of these shapes; the update is part of it."""
        cuts = split_batch(shapes[0][0], len(self._towers), self._joint.parts.micro_batches)
        way = [(tower, len(cut)) for tower, cut in zip(self._towers, cuts, strict=True) if cut]
        reading = self._strategy.reading
        step = self._joint.step(dict(zip(self._towers, cuts, strict=True)), reading)
        parts, scale = self._joint.parts, self._joint.master.scale
        micro_batches = [micro for tower in step.towers for micro in tower.micro_batches]
        pieces = [piece for cut in cuts for piece in cut]
        fetches: list[Tensor] = [t for micro in micro_batches for t in (micro.loss, *micro.metrics)]
        width = 1 + len(parts.metrics)
        rows = np.array([piece.stop - piece.start for piece in pieces], float)

        def run(x: Array, y: Array, scaled: Array, *draw: Array) -> tuple[Array, ...]:
            begun = time.perf_counter()
            feeds: dict[Tensor, Array] = {} if reading is not None else {scale: scaled}
            for micro, piece in zip(micro_batches, pieces, strict=True):
                if reading is None:
                    feeds[micro.x], feeds[micro.y] = x[piece], y[piece]
                if micro.draw is not None:
                    feeds[micro.draw] = draw[0] + np.array([0, 0, 0, piece.start])
            found = self._run([*fetches, step.update], feeds)
            table = np.array(found[:-1], float).reshape(len(micro_batches), width)
            self._tell(way, table, rows, time.perf_counter() - begun)
            metrics = rows @ table[:, 1:] / rows.sum()
            return np.float32(table[:, 0].sum()), *metrics

        return run

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, as the first tower knows it."""
        return None if self._strategy.replica_index else self._joint.optimizer.learning_rate

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate of all towers' updates; the first tower does it, between two of its steps."""
        if not self._strategy.replica_index:
            self._joint.set_rate(rate)

    def gradients(self) -> Sequence[Array]:
        """Return nothing: gradients never reach the client."""
        return ()

    def push(self) -> None:
        """Count the update that the step has made."""
        with self._joint.lock:
            self._joint.updates += 1
            self.report.global_step = self._joint.updates

    def finish(self) -> None:
        """Wait for the other towers, and bring the final parameters."""
        self.close()
        joint = self._joint
        with joint.lock:
            while joint.going_on:
                self._strategy.check()
                joint.lock.wait(0.1)
            self.report.global_step = joint.updates
        self.fetch()

    def close(self) -> None:
        """Leave: the others need not wait for this tower."""
        with self._joint.lock:
            self._joint.going_on -= self._going_on
            self._going_on = False
            self._joint.lock.notify_all()

    def _run(self, fetches: list[Tensor], feeds: dict[Tensor, Array]) -> list[Any]:
        try:
            if self._strategy.on_trace is None or time.monotonic() < self._trace_at:
                return list(self._joint.session.run(fetches, feeds))
            values, timeline = self._joint.session.trace(fetches, feeds)
            self._trace_at = time.monotonic() + (TRACE_EVERY if self._traced else SECOND_TRACE)
            self._traced = True  # the first one also shows how tracing gets ready
            self._strategy.on_trace([replace(s, step=self._step + 1) for s in timeline.spans])
            return list(values)
        except NanLossError as error:
            raise NanLossError(
                f"{error}, at step {self._step + 1}; that gradient was not applied. "
                "Try a smaller learning rate, and look for NaN in the data"
            ) from None

    def _tell(self, way: list[tuple[int, int]], table: Array, rows: Array, seconds: float) -> None:
        """Report each tower's own loss and metrics, as means over its examples."""
        self._step += 1
        on_tower = self._strategy.on_tower
        if on_tower is None:
            return
        at, needed = 0, self._joint.parts.devices_needed
        for tower, micro_batches in way:
            part, weights = table[at : at + micro_batches], rows[at : at + micro_batches]
            at += micro_batches
            loss = part[:, 0].sum() * rows.sum() / weights.sum()
            metrics = weights @ part[:, 1:] / weights.sum()
            measured = [float(m) for m in metrics]
            on_tower(tower * needed, self._step, float(loss), measured, int(weights.sum()), seconds)
