"""In-graph replication: one client builds one graph with all replicas in it, and one session drives it.

Synchronous: in each step every tower gets its share of the batch; gradients are summed where the variables
live and applied once. Asynchronous: each tower has a thread of the client, which goes through all the data in
an order of its own and applies its gradients as they come. The client feeds batches, or the towers read them.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.data.shares import share_of
from nbdist.distribute.reading import Reading
from nbdist.distribute.towers import Master, Step
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.graph.tensor import Tensor, Variable
from nbdist.metrics.timeline import Span
from nbdist.optim import Optimizer
from nbdist.runtime.session import Session
from nbdist.train.context import Context
from nbdist.train.micro import bubble_fraction
from nbdist.train.reading import described
from nbdist.train.strategy import Replica, Strategy
from nbdist.train.trainable import Parts, Trainable

Array: TypeAlias = np.ndarray[Any, Any]

OnTower = Callable[[int, int, float, Sequence[float], int, float], None]
"""Gets a tower's step: the number of its first device, step, loss, metrics, examples, seconds."""
OnTrace = Callable[[list[Span]], None]
"""Gets what all tasks did in a step, for one step now and then."""

DATA = ("client", "workers")
"""Who has the data: the client, which feeds batches, or the workers, which read them."""

SECOND_TRACE, TRACE_EVERY = 0.05, 1.0  # seconds between steps that are traced; the first step is one


class InGraphStrategy(Strategy):
    """Drive one tower per worker device from this process.

    ``target`` is the cluster's; ``devices`` are those of the workers, ``ps_devices`` those that variables
    live on (none: with the first tower). With ``data`` "client" this process feeds every batch; with
    "workers" each tower reads its share of every batch, from arrays that are sent to its device once: that
    takes a dataset without functions. Runs on the client.
    """

    name = "in_graph"
    skips = False
    no_loops = (
        "towers are in one graph, which fit builds from a model; use Model.fit, or between-graph "
        "replication, where every worker runs its own loop (%%distribute without --replication in-graph)"
    )

    def __init__(
        self,
        target: str,
        devices: Sequence[str],
        ps_devices: Sequence[str] = (),
        *,
        synchronous: bool = True,
        data: str = "client",
        check: Callable[[], None] = lambda: None,
        on_tower: OnTower | None = None,
        on_trace: OnTrace | None = None,
        transport: str = "auto",
    ) -> None:
        if not devices:
            raise InvalidArgumentError("in-graph replication needs a worker: the cluster has none")
        if data not in DATA:
            raise InvalidArgumentError(f"no data {data!r}; choose from {', '.join(DATA)}")
        self.target, self.devices, self.ps_devices = target, list(devices), list(ps_devices)
        self.synchronous, self.data, self.transport = synchronous, data, transport
        self.check, self.on_tower, self.on_trace = check, on_tower, on_trace
        self.num_replicas_in_sync = len(self.devices) if synchronous else 1
        self.reading: Reading | None = None
        """How this strategy's towers read the dataset of a training, if they do."""
        self._joint: _Joint | None = None

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Refuse: without a graph there is nothing to put towers into."""
        raise InvalidArgumentError("in-graph replication trains models that are graphs: use Model.fit")

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Take part in the graph with all towers; the first builds it."""
        if self._joint is None:
            self._joint = _Joint(self, model.parts(), optimizer)
        return InGraphReplica(self._joint, self.towers, self)

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of the towers that have threads of their own, beside the first."""
        if self.synchronous:
            return []
        self._joint = _Joint(self, model.parts(), optimizer)
        return [self._companion(context, i) for i in range(1, len(self._joint.master.groups))]

    def end(self) -> None:
        """End the session of a training, and with it what other towers still do."""
        if self._joint is not None:
            self._joint.session.close()
        self._joint = self.reading = None

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order (synchronous), or in this tower's own order."""
        if self.data == "workers":
            described(dataset)  # what cannot be read elsewhere is refused before anything begins
        if self.synchronous:
            return dataset.with_seed(seed or 0)
        if seed is None and self.data == "workers":
            seed = secrets.randbits(63)  # towers that read share no count of passes
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def batches(self, dataset: Dataset) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield the batches of one epoch; arrays that take no memory where the towers read the batches."""
        if self.data == "client":
            yield from super().batches(dataset)
            return
        assert self._joint is not None, "begin() comes first"
        if self.reading is None or self.reading.dataset is not dataset:
            self.reading = self._joint.read(dataset, self.towers)
        yield from self.reading.batches(self._joint.session.run)

    @property
    def towers(self) -> list[int]:
        """The numbers of the towers that make a step of this strategy together."""
        if not self.synchronous:
            return [self.replica_index]
        return [] if self._joint is None else list(range(len(self._joint.master.groups)))

    def share(self, size: int) -> slice:
        """Return all of a batch: what each tower gets of it is decided when it is fed."""
        return slice(0, size)

    def place(self, size: int) -> int:
        """Return the place of the batch's first example; towers that go their own ways are far apart."""
        return self.replica_index << 32

    def _companion(self, context: Context, i: int) -> Context:
        first = i * self._joint.parts.devices_needed if self._joint is not None else i
        made = context.towers(first) if context.towers is not None else Context(control=context.control)
        made.strategy = own = InGraphStrategy(
            self.target, self.devices, self.ps_devices, synchronous=False, data=self.data, check=self.check
        )
        own.replica_index, own._joint, own.keeps_values = i, self._joint, False
        made.is_chief, made.quiet, made.seed, made.epochs = False, True, context.seed, context.epochs
        made.trainings = context.trainings
        return made


class _Joint:
    """What the towers of one training have in common: the graph, the session, who has finished."""

    def __init__(self, strategy: InGraphStrategy, parts: Parts, optimizer: Optimizer) -> None:
        self.parts, self.data = parts, strategy.data
        self.master = Master(parts, optimizer, strategy.devices, strategy.ps_devices)
        number = len(self.master.groups)
        if strategy.data == "client":  # the steps take batches of any size
            usual = cut_up(number * parts.micro_batches, number, parts.micro_batches)
            ways = (
                [dict(enumerate(usual))] if strategy.synchronous else [{i: usual[0]} for i in range(number)]
            )
            for cuts in ways:
                self.master.step(cuts)
        transport: Literal["auto", "socket"] = "socket" if strategy.transport == "socket" else "auto"
        self.session = Session(strategy.target, self.master.graph, isolate=True, transport=transport)
        self.lock = threading.Condition()
        self.going_on = 1 if strategy.synchronous else number
        """Towers with a thread of their own that have not finished."""
        self.updates = 0
        self._initialised: set[Variable] = set()
        try:
            self._initialise()
        except BaseException:
            self.session.close()
            raise

    def describe(self) -> str:
        """Return what a user should know of how the work is spread."""
        parts, number = self.parts, len(self.master.groups)
        text = f"in-graph: one graph with {number} tower{'s' * (number > 1)}, one session"
        if parts.stages > 1:
            idle = bubble_fraction(parts.stages, parts.micro_batches, parts.schedule)
            text += (
                f"; {parts.stages} stages, {parts.micro_batches} micro-batches, {parts.schedule}: each stage "
                f"is idle {idle:.0%} of the time at best (the pipeline's bubble)"
            )
        elif parts.devices_needed > 1:
            text += f"; layers split over {parts.devices_needed} tasks"
        if self.data == "workers":
            text += "; the data is sent to the workers once, and each reads its share of every batch"
        return text

    def step(self, cuts: Mapping[int, Sequence[slice]], reading: Reading | None) -> Step:
        """Return a step of the graph, which grows if a batch is smaller than usual."""
        with self.lock:
            step = self.master.step(cuts, reading)
            self._initialise()
            return step

    def read(self, dataset: Dataset, towers: Sequence[int]) -> Reading:
        """Have some towers read a dataset together."""
        with self.lock:
            return self.master.read(dataset, towers)

    def _initialise(self) -> None:
        """Initialise the variables that are new: an optimizer's come with its first step."""
        new = [v for v in self.master.graph.variables() if v not in self._initialised]
        if new:
            self.session.run(self.master.initializer(new))
            self._initialised.update(new)


class InGraphReplica(Replica):
    """Steps of some towers: all of them together, or one."""

    pull_is = None
    program_is = ("wait", "for the towers")
    push_is = ("compute", "the step's end")

    def __init__(self, joint: _Joint, towers: list[int], strategy: InGraphStrategy) -> None:
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

    def program(
        self, model: Trainable, shapes: tuple[tuple[int, ...], ...]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return the step for batches of these shapes; the update is part of it."""
        cuts = cut_up(shapes[0][0], len(self._towers), self._joint.parts.micro_batches)
        way = [(tower, len(cut)) for tower, cut in zip(self._towers, cuts, strict=True) if cut]
        reading = self._strategy.reading
        step = self._joint.step(dict(zip(self._towers, cuts, strict=True)), reading)
        parts, scale = self._joint.parts, self._joint.master.scale
        micros = [micro for tower in step.towers for micro in tower.micros]
        pieces = [piece for cut in cuts for piece in cut]
        fetches: list[Tensor] = [t for micro in micros for t in (micro.loss, *micro.metrics)]
        width = 1 + len(parts.metrics)
        rows = np.array([piece.stop - piece.start for piece in pieces], float)

        def run(x: Array, y: Array, scaled: Array, *draw: Array) -> tuple[Array, ...]:
            begun = time.perf_counter()
            feeds: dict[Tensor, Array] = {} if reading is not None else {scale: scaled}
            for micro, piece in zip(micros, pieces, strict=True):
                if reading is None:
                    feeds[micro.x], feeds[micro.y] = x[piece], y[piece]
                if micro.draw is not None:
                    feeds[micro.draw] = draw[0] + np.array([0, 0, 0, piece.start])
            found = self._run([*fetches, step.update], feeds)
            table = np.array(found[:-1], float).reshape(len(micros), width)
            self._tell(way, table, rows, time.perf_counter() - begun)
            metrics = rows @ table[:, 1:] / rows.sum()
            return np.float32(table[:, 0].sum()), *metrics

        return run

    def gradients(self) -> Sequence[Array]:
        """Return nothing: gradients never come to the client."""
        return ()

    def push(self) -> None:
        """Count the update that the step has made."""
        with self._joint.lock:
            self._joint.updates += 1
            self.global_step = self._joint.updates

    def finish(self) -> None:
        """Wait for the other towers, and bring the final parameters."""
        self._leave()
        joint = self._joint
        with joint.lock:
            while joint.going_on:
                self._strategy.check()
                joint.lock.wait(0.1)
            self.global_step = joint.updates
        self.fetch()

    def close(self) -> None:
        """Leave: the others need not wait for this tower."""
        self._leave()

    def _leave(self) -> None:
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
        for tower, micros in way:
            part, weights = table[at : at + micros], rows[at : at + micros]
            at += micros
            loss = part[:, 0].sum() * rows.sum() / weights.sum()
            metrics = weights @ part[:, 1:] / weights.sum()
            measured = [float(m) for m in metrics]
            on_tower(tower * needed, self._step, float(loss), measured, int(weights.sum()), seconds)


def cut_up(size: int, towers: int, micros: int) -> list[list[slice]]:
    """Return, for each tower, the slices of its micro-batches; none of them is empty.

    >>> cut_up(5, 2, 2)
    [[slice(0, 2, None), slice(2, 3, None)], [slice(3, 4, None), slice(4, 5, None)]]
    """
    found = []
    for i in range(towers):
        own = share_of(size, towers, i)
        edges = [own.start + -(-(own.stop - own.start) * k // micros) for k in range(micros + 1)]
        found.append([slice(a, b) for a, b in pairwise(edges) if b > a])
    return found
