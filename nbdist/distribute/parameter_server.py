"""Parameter servers: variables live on ps tasks, replicas push gradients to them.

Asynchronous: each replica goes through all the data in an order of its own, and its gradients are applied
as they come. Synchronous: replicas share each batch, their gradients are summed and applied once.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.graph.placement import round_robin
from nbdist.optim import Optimizer
from nbdist.runtime.applied import gradient_of, parameters_for
from nbdist.runtime.layout import Layout
from nbdist.runtime.linkopening import ShardRequest, open_link
from nbdist.runtime.links import Link, Stopped
from nbdist.runtime.mailbox import SLOTS
from nbdist.runtime.task import Task, TaskInfo
from nbdist.train.strategy import Replica, Strategy
from nbdist.wire.peers import Peer

Array: TypeAlias = np.ndarray[Any, Any]


class ParameterServerStrategy(Strategy):
    """Train with variables on the cluster's ps tasks, placed round robin in order of creation.

    ``synchronous=False`` applies every gradient as it comes; ``True`` waits for all replicas' each step.
    ``transport`` is "auto" (shared memory on one host, else a socket) or "socket"; ``servers`` are tasks that
    keep the variables instead. Runs on the workers.
    """

    name = "ps"

    def __init__(
        self,
        task: Task,
        *,
        ranks: Sequence[int],
        run: str,
        prefix: str,
        check: Callable[[], None],
        synchronous: bool = False,
        transport: str = "auto",
        servers: Sequence[TaskInfo] = (),
    ) -> None:
        self._servers = list(servers) or [info for info in task.roster if info.job == "ps"]
        if not self._servers:
            raise InvalidArgumentError(
                "--strategy ps needs a parameter server and the cluster has none; "
                "start one with %cluster start --workers N --ps 1"
            )
        if transport not in ("auto", "socket"):
            raise InvalidArgumentError(f"no transport {transport!r}; choose from auto, socket")
        self._task, self._run, self._prefix, self._check = task, run, prefix, check
        self.synchronous, self._transport = synchronous, transport
        self.replica_index = list(ranks).index(task.rank)
        self.replicas = len(ranks)
        self.num_replicas_in_sync = self.replicas if synchronous else 1
        self._trainings = 0

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all (synchronous), or in this replica's own order."""
        if self.synchronous:
            if dataset.shards > 1 and self.replicas > 1:
                raise InvalidArgumentError(
                    f"the dataset is one of {dataset.shards} shards: synchronous replicas share each batch "
                    "of the whole dataset by themselves; drop .shard(), or train with --async"
                )
            return dataset.with_seed(seed or 0)
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def share(self, size: int) -> slice:
        """Return this replica's part of a batch: all of it when replicas go their own ways."""
        return super().share(size) if self.synchronous else slice(0, size)

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer) -> Replica:
        """Begin to train: variables go to the ps tasks, with the chief's values."""
        number = self._trainings
        self._trainings += 1
        places = round_robin(len(variables), len(self._servers))
        links: list[Link] = []
        try:
            for index, info in enumerate(self._servers):
                mine = [v for v, place in zip(variables, places, strict=True) if place == index]
                request = ShardRequest(
                    shard=f"{self._run}/{number}",
                    replica=self.replica_index,
                    replicas=self.replicas,
                    layout=Layout.of((n, a.shape, a.dtype) for n, a in mine),
                    optimizer=optimizer,
                    synchronous=self.synchronous,
                    counts=index == 0 and (self.synchronous or len(self._servers) == 1),
                    initial=tuple(a for _, a in mine) if self.replica_index == 0 else None,
                )
                here = info.host == self._task.info.host and self._transport == "auto"
                peer = Peer(info.address, self._task.keys, name=info.name)
                links.append(
                    open_link(peer, request, prefix=self._prefix if here else None, check=self._check)
                )
        except BaseException:
            for link in links:
                link.close()
            raise
        return ServedReplica(links, places, replica=self.replica_index, synchronous=self.synchronous)


class ServedReplica(Replica):
    """One replica of parameters that are kept by several links' shards; the first counts the global step."""

    def __init__(
        self, links: Sequence[Link], places: Sequence[int], *, replica: int, synchronous: bool
    ) -> None:
        self._links = links
        self.pull_is, self.push_is = ("receive", parameters_for(replica)), ("send", gradient_of(replica))
        self._depth = 1 if synchronous else SLOTS  # asynchronous: one gradient travels while one is made
        self._counts_apart = len(links) > 1 and not synchronous
        self._under_way: deque[int] = deque()
        self._slot = 0
        for link in links:  # what fails before the first step must not leave zeros in the model
            link.pull()
        self.notes = [link.note for link in links if link.note]
        self.values = self._in_order([link.layout.views(link.parameters) for link in links], places)
        self._gradients = [
            self._in_order([link.layout.views(link.gradient(slot)) for link in links], places)
            for slot in range(SLOTS)
        ]

    @property
    def transports(self) -> list[str]:
        """How each shard is reached, for people."""
        return [link.kind for link in self._links]

    def pull(self) -> None:
        """Bring the newest parameters, once there is room for another gradient under way."""
        while len(self._under_way) >= self._depth:
            self._retire()
        for link in self._links:
            link.pull()
        self.global_step = self._links[0].global_step

    def gradients(self) -> Sequence[Array]:
        """Return the arrays of the next free slot: in the server's own memory where it is shared."""
        return self._gradients[self._slot]

    def push(self) -> None:
        """Send this step's gradients."""
        for link in self._links:
            link.push(self._slot)
        self._under_way.append(self._slot)
        self._slot = (self._slot + 1) % self._depth

    def finish(self) -> None:
        """Wait for all gradients of all replicas, and bring the final parameters."""
        while self._under_way:
            with contextlib.suppress(Stopped):  # that step cannot complete any more; its gradient is dropped
                self._retire()
        for link in self._links:
            link.wait_counted()
        for link in self._links:
            link.leave()
        self.global_step = self._links[0].global_step

    def close(self) -> None:
        """Let go of the links."""
        for link in self._links:
            link.close()

    def _retire(self) -> None:
        """Wait for the oldest gradient under way; all its shards together are one update."""
        slot = self._under_way.popleft()
        begun = time.perf_counter()
        staleness = [link.wait(slot) for link in self._links]
        self.waited += time.perf_counter() - begun
        self.staleness = staleness[0]
        if self._counts_apart:
            self._links[0].count()

    @staticmethod
    def _in_order(by_link: Sequence[Sequence[Array]], places: Sequence[int]) -> list[Array]:
        """Return what each link has, in the order of the variables."""
        following = [iter(arrays) for arrays in by_link]
        return [next(following[place]) for place in places]
