"""Parameter servers: variables live on ps tasks, replicas push gradients to them.

Asynchronous: each replica goes through all the data in an order of its own, and its gradients are applied
as they come. Synchronous: replicas share each batch, their gradients are summed and applied once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.distribute.served import ServedReplica
from nbdist.distribute.sharing import one_order
from nbdist.errors import InvalidArgumentError
from nbdist.graph.placement import round_robin
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import Link, ShardRequest, open_link
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.train.context import current
from nbdist.train.strategy import Replica, Strategy
from nbdist.wire.rpc.client import Peer

Array: TypeAlias = np.ndarray[Any, Any]


class ParameterServerStrategy(Strategy):
    """Train with variables on the cluster's ps tasks, placed round robin in order of creation.

    ``synchronous=False`` applies every gradient as it comes. ``staleness=S`` then lets no replica be more
    than S steps ahead of the slowest; None sets no bound.

    ``synchronous=True`` makes an update of ``aggregate=R`` gradients: one of each of the N replicas unless
    told otherwise. With R < N there are N - R backups: the fastest R make the step, and the late ones are
    dropped and counted. With R > N replicas contribute several batches to a step; its global batch is R
    shares.

    ``locking=True`` has a replica read each server's parameters as they are between two updates. Otherwise a
    read through shared memory may come in the middle of one; updates are made one at a time in both cases.

    ``transport`` is "auto" (shared memory on one host, else a socket) or "socket"; ``servers`` are tasks that
    keep the variables instead. Runs on the workers. Raises InvalidArgumentError for what cannot be meant.
    """

    name = "ps"
    takes_rows = True
    pulls_rows = True
    keeps_slots = False

    def __init__(
        self,
        task: Task,
        *,
        ranks: Sequence[int],
        run: str,
        prefix: str,
        check: Callable[[], None],
        synchronous: bool = False,
        aggregate: int | None = None,
        staleness: int | None = None,
        locking: bool = False,
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
        self._workers = [find_rank(task.roster, rank) for rank in ranks]
        self.replicas = len(ranks)
        self.rules = Rules(
            self.replicas, synchronous, aggregate, staleness, locking, servers=len(self._servers)
        )
        self.num_replicas_in_sync = self.replicas if synchronous else 1
        self._trainings = 0

    @property
    def keeps_pace(self) -> bool:
        """Whether replicas wait for each other: for a step in common, or for who is too far behind."""
        return self.synchronous or self.rules.staleness is not None

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all (synchronous), or in this replica's own order."""
        if self.synchronous:
            return one_order(dataset, seed, self.replicas)
        return dataset if seed is None else dataset.with_seed(seed, self.replica_index)

    def share(self, size: int) -> slice:
        """Return this replica's part of a batch: all of it when replicas go their own ways."""
        return super().share(size) if self.synchronous else slice(0, size)

    def replica(
        self, variables: Sequence[tuple[str, Array]], optimizer: Optimizer, tables: Sequence[int] = ()
    ) -> Replica:
        """Begin to train: variables go to the ps tasks, with the chief's values.

        ``tables`` are numbers of variables. Of each table, sockets carry only the rows that a batch looks up,
        and their gradients; a replica's copy is complete after ``fetch``, ``newest`` and ``finish``.
        Raises InvalidArgumentError if a step takes more gradients than all replicas together will make.
        """
        self._require_supply()
        number = self._trainings
        self._trainings += 1
        places = round_robin(len(variables), len(self._servers))
        links: list[Link] = []
        progress = current().progress

        def lost(replicas: list[int]) -> None:
            ranks = [self._workers[replica].rank for replica in replicas]
            progress.lost += [rank for rank in ranks if rank not in progress.lost]

        try:
            for index, info in enumerate(self._servers):
                mine = [v for i, v in enumerate(variables) if places[i] == index and i not in tables]
                own = tuple(variables[i] for i in tables if places[i] == index)
                request = ShardRequest(
                    shard=f"{self._run}/{number}",
                    replica=self.replica_index,
                    called=f"({self._task.name}, pid {self._task.info.pid} on {socket.gethostname()})",
                    rules=self.rules,
                    layout=Layout.of((n, a.shape, a.dtype) for n, a in mine),
                    optimizer=optimizer,
                    counts=index == 0 and (self.synchronous or len(self._servers) == 1),
                    first=index == 0,
                    initial=tuple(a for _, a in mine) if self.replica_index == 0 else None,
                    pids=tuple(one.pid if one.host == info.host else 0 for one in self._workers),
                    tables=own,
                )
                here = info.host == self._task.info.host and self._transport == "auto"
                peer = Peer(info.address, self._task.keys, name=info.name)
                prefix = self._prefix if here else None
                links.append(open_link(peer, request, prefix=prefix, check=self._check, lost=lost))
        except BaseException:
            for link in links:
                link.close()
            raise
        return ServedReplica(
            links, places, self.rules, replica=self.replica_index, optimizer=optimizer, tables=tables
        )

    def _require_supply(self) -> None:
        progress = current().progress
        steps = (progress.total or 0) - progress.step  # not above 0 where it is not known
        if 0 < steps * self.replicas < self.rules.needed:
            raise InvalidArgumentError(
                f"aggregate={self.rules.needed}: a step takes {self.rules.needed} gradients, and "
                f"{self.replicas} replicas with {steps} batches each never make so many; give a smaller one, "
                "or more epochs"
            )
