"""Starts a body in the notebook's own process, where it drives one tower per worker.

notebook process                                 workers, parameter servers
main thread    follows the run, shows it
body's thread  model.fit: one graph, one session ──► pieces of the graph, step by step
Server thread  news of the body, ten times a second
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.graph.scopes import Graph
from nbdist.graph.tensor import default_graph
from nbdist.metrics.event_file import events_folder
from nbdist.metrics.log import Batch
from nbdist.metrics.run_events import EventLog, events_path
from nbdist.run.in_graph.thread import BodyThread, Gate, printing_here
from nbdist.run.in_graph.towers import Towers
from nbdist.run.task.agent import Agent
from nbdist.run.task.body import RunSpec, check_fetched, make_context, perform, trained_model, under_way
from nbdist.run.task.reporting import ActiveRun, Output
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo, acting_as, host_identity, segment_prefix
from nbdist.train import context as contexts
from nbdist.train.context import Context
from nbdist.train.strategy import Strategy
from nbdist.train.summaries import RunSummaries
from nbdist.wire.rpc.client import Peer


class InGraph:
    """A body in this process: ``tasks`` and ``body`` are what a run follows, ``workers`` where it is.

    Made before the body starts; ``close`` in any case, on the thread that has made it.
    """

    def __init__(
        self,
        cluster: Cluster,
        spec: RunSpec,
        body: str | Callable[[], Any],
        towers: Sequence[TaskInfo],
        servers: Sequence[TaskInfo],
    ) -> None:
        self._ending, self._left = threading.Lock(), False
        self._client = client = ClientTask(cluster)
        try:
            self.workers = [client.info]
            spec = replace(spec, ranks=(client.rank,))
            self._run = spec.run
            live = _live(cluster, client, spec, towers, servers)
            gate = Gate()
            environment = _body_environment(live.context, client, live.output, default_graph(), gate)

            def collect(fetch: Sequence[str], found: dict[str, Any]) -> dict[str, Any]:
                check_fetched(fetch, found)  # results are as they are: they never leave the process
                return {"values": dict(found), "model": trained_model(live.context, found)}

            def run() -> dict[str, Any]:
                with under_way(live, client.agent):
                    return perform(spec, body, live, client.agent, environment, collect)

            self.body = BodyThread(client.rank, run, self._body_ended, f"nbdist body of {spec.run}")
            self.tasks = WithClient(cluster, client, gate.interrupt)
        except BaseException:
            client.close()
            raise

    def start(self) -> None:
        """Start the body, after subscribing to its run, so that no message is missed."""
        peer = self.tasks.peer(self._client.rank)
        for kind in ("run.reserve", "run.subscribe"):
            peer.call(kind, {"run": self._run})
        self.body.start()

    def close(self) -> None:
        """End what is left of the run here; a body that cannot be stopped does it when it ends."""
        self.tasks.close()
        with self._ending:
            self._left = self.body.begun and not self.body.done()
        if not self._left:
            self._client.close()

    def _body_ended(self) -> None:
        with self._ending:
            left = self._left
        if left:
            self._client.close()


class ActiveTowerRun(ActiveRun):
    """A run while its body drives towers: each is a replica, and the body prints for all."""

    def __init__(self, run: str, context: Context, towers: Towers, output: Output) -> None:
        super().__init__(run, context, towers.first, output)
        self.towers = towers

    def replicas(self, ended: bool = False) -> list[tuple[int, dict[str, Any], Batch | None]]:
        """Return (replica, progress, new points) of each tower."""
        return self.towers.replicas(ended)

    def troubles(self, ended: bool) -> list[str]:
        """Return what the disk has refused so far, of all towers, and at the end losses."""
        return self.towers.troubles(ended)

    def number(self, rank: int, replica: int) -> int:
        """Return a tower's own number."""
        return replica

    def last_epochs(self) -> dict[int, dict[str, float]]:
        """Return the means of each tower's last epoch."""
        return self.towers.last_epochs()

    def close(self) -> None:
        """Close the logs."""
        if self.context.summaries is not None:
            self.context.summaries.close()
        self.towers.close()
        self.close_events()
        self.output.finish()


def _live(
    cluster: Cluster,
    client: ClientTask,
    spec: RunSpec,
    towers: Sequence[TaskInfo],
    servers: Sequence[TaskInfo],
) -> ActiveTowerRun:
    folder = spec.place.folder()
    recorded = EventLog(events_path(folder, 0))
    context = make_context(spec, folder, client, client.agent.control(spec.run), events=recorded)
    events = [events_folder(folder, info.name) if spec.options.tensorboard else None for info in towers]
    reported = Towers(
        folder,
        len(towers),
        context,
        events,
        [info.name for info in towers],
        [info.device for info in towers],
    )
    context.towers = reported.context
    context.summaries = RunSummaries(reported.first, events_folder(folder, towers[0].name), context.step)
    context.strategy = in_graph_strategy(cluster, spec, towers, servers, context, reported)
    client.agent.traces.sources.append(lambda run: reported.spans(client.name) if run == spec.run else ())
    return ActiveTowerRun(spec.run, context, reported, Output(folder / "output-0000.log"))


def in_graph_strategy(
    cluster: Cluster,
    spec: RunSpec,
    towers: Sequence[TaskInfo],
    servers: Sequence[TaskInfo],
    context: Context,
    reported: Towers,
) -> Strategy:
    """Return the strategy that drives the towers, with variables on the servers if there are any."""
    from nbdist.distribute.in_graph.strategy import InGraphStrategy

    return InGraphStrategy(
        cluster.target,
        [f"{info.name}/device:{info.device}" for info in towers],
        [f"{info.name}/device:{info.device}" for info in servers],
        synchronous=bool(spec.options.synchronous),
        data=spec.options.data,
        check=context.control.check,
        on_tower=reported.on_tower,
        on_trace=reported.on_trace,
        transport=spec.options.transport,
    )


@contextmanager
def _body_environment(
    context: Context, client: ClientTask, output: Output, graph: Graph, gate: Gate
) -> Iterator[None]:
    """Give the body's thread what a body finds around it, and the notebook's other threads nothing of it."""
    with (
        acting_as(client),
        contexts.use_here(context),
        printing_here(output),
        graph.as_default(),  # the notebook's own: a thread would begin another
        gate,  # innermost: only the body itself can be interrupted
    ):
        yield


# The notebook's process as a task of the cluster, /job:client/task:0, while a run needs it.
#
# The cluster's own tasks do not list it. A run with its body here is followed like any other: its
# messages come from this task's Server, and its follower reaches all tasks through :class:`WithClient`.

DEVICE = "CPU:0"


class ClientTask(Task):
    """This process as a task of a cluster, with a Server of its own; its rank follows the cluster's last."""

    def __init__(self, cluster: Cluster) -> None:
        if cluster.keys.proxy:
            raise FailedPreconditionError(
                "with in-graph replication the tasks connect to this process, and a tunnel does not lead to "
                "it: use between-graph replication (--replication between-graph)"
            )
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
    """A cluster's tasks and the client, for a run's monitor; ``interrupt`` reaches the client's body."""

    def __init__(self, cluster: Cluster, client: ClientTask, interrupt: Callable[[], bool]) -> None:
        self._cluster, self._client, self._interrupt = cluster, client, interrupt
        self.replace, self.controller_died = cluster.replace, cluster.controller_died
        self.is_cut_off, self.stacks = cluster.is_cut_off, cluster.stacks
        self._connections = threading.local()
        self._peers: weakref.WeakValueDictionary[int, Peer] = weakref.WeakValueDictionary()
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
            self._peers[id(found)] = found
        return found

    def signal(self, rank: int, signum: int) -> bool:
        """Interrupt a task; the client's body by an exception, for the process is the notebook's."""
        return self._interrupt() if rank == self._client.rank else self._cluster.signal(rank, signum)

    def dead(self) -> list[TaskInfo]:
        """Return the tasks that have ended."""
        return self._others(self._cluster.dead())

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task of the cluster, with how it ended."""
        return [row for row in self._cluster.status() if row["rank"] != self._client.rank]

    def _others(self, tasks: list[TaskInfo]) -> list[TaskInfo]:
        """Leave out a worker that joined the cluster later, under the rank that the client has here."""
        return [info for info in tasks if info.rank != self._client.rank]

    def close(self) -> None:
        """Close the connections to the client; those to the cluster are the cluster's."""
        self._closed = True
        for found in self._peers.valuerefs():  # a list, made at once: other threads may add theirs
            with suppress(NbdistError):
                if (peer := found()) is not None:
                    peer.close()
