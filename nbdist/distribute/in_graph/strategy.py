"""In-graph replication: one client builds one graph with all replicas in it, and one session drives it.

Synchronous: in each step every tower gets its share of the batch; gradients are summed where the variables
live and applied once. Asynchronous: each tower has a thread of the client, which goes through all the data in
an order of its own and applies its gradients as they come. The client feeds batches, or the towers read them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.distribute.in_graph.dataset import Reading
from nbdist.distribute.in_graph.graph import Joint
from nbdist.distribute.in_graph.replica import InGraphReplica
from nbdist.errors import InvalidArgumentError, choices
from nbdist.metrics.timeline import Span
from nbdist.optim import Optimizer
from nbdist.train.context import Context
from nbdist.train.graph_dataset import described
from nbdist.train.replica import Replica
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import Trainable

Array: TypeAlias = np.ndarray[Any, Any]
OnTower = Callable[[int, int, float, Sequence[float], int, float], None]
"""Gets a tower's step: the number of its first device, step, loss, metrics, examples, seconds."""


OnTrace = Callable[[list[Span]], None]
"""Gets what all tasks did in a step, for one step now and then."""


DATA = ("client", "workers")
"""Where the data is: on the client, which feeds batches, or on the workers, which read them."""


class InGraphStrategy(Strategy):
    """Drive one tower per worker device from this process.

    ``target`` is the cluster's; ``devices`` are those of the workers, ``ps_devices`` those that variables
    live on (none: with the first tower). With ``data`` "client" this process feeds every batch; with
    "workers" each tower reads its share of every batch, from arrays that are sent to its device once: that
    takes a dataset without functions. Runs on the client.
    """

    name = "in_graph"
    skips = False
    calls_update = True
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
            raise InvalidArgumentError(f"no data {data!r}; {choices(data, DATA)}")
        self.target, self.devices, self.ps_devices = target, list(devices), list(ps_devices)
        self.synchronous, self.data, self.transport = synchronous, data, transport
        self.check, self.on_tower, self.on_trace = check, on_tower, on_trace
        self.num_replicas_in_sync = len(self.devices) if synchronous else 1
        self.reading: Reading | None = None
        """How this strategy's towers read the dataset of a training, if they do."""
        self._joint: Joint | None = None

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Refuse: without a graph there is nothing to put towers into."""
        raise InvalidArgumentError("in-graph replication trains models that are graphs: use Model.fit")

    def begin(self, model: Trainable, optimizer: Optimizer) -> Replica:
        """Take part in the graph with all towers; the first builds it."""
        if self._joint is None:
            self._joint = Joint(self, model.parts(), optimizer)
        return InGraphReplica(self._joint, self.towers, self)

    def companions(self, context: Context, model: Trainable, optimizer: Optimizer) -> list[Context]:
        """Return the contexts of the towers that have threads of their own, beside the first."""
        if self.synchronous:
            return []
        self._joint = Joint(self, model.parts(), optimizer)
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
            seed = secrets.randbits(63)  # towers that read do not share a count of passes
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def batches(
        self, dataset: Dataset, meter: Meter | None = None, reuse_buffers: bool = True
    ) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield the batches of one epoch; arrays that take no memory where the towers read the batches."""
        if self.data == "client":
            yield from super().batches(dataset, meter, reuse_buffers)
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

    def first_example(self, size: int) -> int:
        """Return the place of the batch's first example; towers that go their own ways are far apart."""
        return self.replica_index << 32

    def _companion(self, context: Context, i: int) -> Context:
        first = i * self._joint.parts.devices_needed if self._joint is not None else i
        made = context.towers(first) if context.towers is not None else context.derive()
        made.strategy = own = InGraphStrategy(
            self.target, self.devices, self.ps_devices, synchronous=False, data=self.data, check=self.check
        )
        own.replica_index, own._joint, own.keeps_values = i, self._joint, False
        made.checkpoints = None  # they are the chief's to write
        made.trainings = context.trainings
        return made
