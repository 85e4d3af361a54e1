"""The notebook's process as a task of the cluster: /job:client/task:0, for as long as a run needs it.

The cluster's own tasks do not know of it. A run whose body is here is followed like any other: its news come
from this task's Server, and whoever follows it reaches all tasks through :class:`WithClient`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.errors import NbdistError, UnavailableError
from nbdist.runs.agent import Agent
from nbdist.runs.reach import Replacement
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo, host_identity, segment_prefix
from nbdist.wire.rpc.client import Peer

DEVICE = "CPU:0"


class ClientTask(Task):
    """This process as a task of a cluster, with a Server of its own; its rank follows the cluster's last."""

    def __init__(self, cluster: Cluster) -> None:
        server = Server(
            {"client": ["127.0.0.1:0"]}, keys=cluster.keys, segment_prefix=segment_prefix(cluster.id)
        )
        rank = 1 + max(info.rank for info in cluster.tasks)
        info = TaskInfo(
            "client", 0, rank, host_identity(), os.getpid(), server.address, DEVICE, server.incarnation
        )
        super().__init__(info, (*cluster.tasks, info), server, cluster.keys, cluster.id)
        self.agent = Agent(self)

    @property
    def is_chief(self) -> bool:
        """True: the client has the only body there is."""
        return True

    def close(self) -> None:
        """Close the Server, and what runs keep here."""
        self.agent.close()
        super().close()


class WithClient:
    """A cluster's tasks and the client, for who follows a run; ``interrupt`` reaches the client's body."""

    def __init__(self, cluster: Cluster, client: ClientTask, interrupt: Callable[[], bool]) -> None:
        self._cluster, self._client, self._interrupt = cluster, client, interrupt
        self._connections = threading.local()
        self._peers: weakref.WeakSet[Peer] = weakref.WeakSet()
        self._closed = False

    @property
    def tasks(self) -> list[TaskInfo]:
        """The cluster's tasks and the client's."""
        return [*self._others(self._cluster.tasks), self._client.info]

    def peer(self, rank: int) -> Peer:
        """Return this thread's own connection to a task."""
        if rank != self._client.rank:
            return self._cluster.peer(rank)
        if self._closed:
            raise UnavailableError(f"{self._client.name} has ended with its run")
        found: Peer | None = getattr(self._connections, "peer", None)
        if found is None:
            found = self._connections.peer = Peer(
                self._client.info.address, self._client.keys, name=self._client.name
            )
            self._peers.add(found)
        return found

    def signal(self, rank: int, signum: int) -> bool:
        """Interrupt a task; the client's body by an exception, for the process is the notebook's."""
        return self._interrupt() if rank == self._client.rank else self._cluster.signal(rank, signum)

    def replace(self, tasks: list[TaskInfo]) -> Replacement:
        """Begin to replace tasks of the cluster."""
        return self._cluster.replace(tasks)

    def dead(self) -> list[TaskInfo]:
        """Return the tasks that are gone."""
        return self._others(self._cluster.dead())

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""
        return self._cluster.controller_died()

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task of the cluster, with how it ended."""
        return [row for row in self._cluster.status() if row["rank"] != self._client.rank]

    def _others(self, tasks: list[TaskInfo]) -> list[TaskInfo]:
        """Leave out a worker that the cluster has got meanwhile, under the rank that the client has here."""
        return [info for info in tasks if info.rank != self._client.rank]

    def close(self) -> None:
        """Close the connections to the client; those to the cluster are the cluster's."""
        self._closed = True
        for peer in list(self._peers):
            with suppress(NbdistError):
                peer.close()
