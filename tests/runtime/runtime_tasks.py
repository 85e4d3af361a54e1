"""Servers on threads of this process, as one cluster; and ops that wait or fail when a test says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tiers import matrix
from waiting import PATIENCE

from nbdist.graph.op import OPS, Op
from nbdist.graph.tensor import Graph, Tensor, record
from nbdist.graph.variables import global_variables_initializer
from nbdist.runtime.server import Server
from nbdist.runtime.session import cluster
from nbdist.runtime.session.session import Session
from nbdist.runtime.spec import ClusterSpec
from nbdist.wire.keys import ClusterKeys

PS, ONE, TWO = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


def way(transport: str, *, outside: bool) -> ParameterSet:
    where = "outside" if outside else "inside"
    return pytest.param({"transport": transport, "outside": outside}, id=f"{transport}-{where}")


WAYS = matrix(
    [way("auto", outside=False), way("socket", outside=True)],
    rest=[way("auto", outside=True), way("socket", outside=False)],
)
all_ways = pytest.mark.parametrize("tasks", WAYS, indirect=True)
"""Through shared memory and over sockets, with a client that is one of the tasks and with one that is not."""
one_way = pytest.mark.parametrize("tasks", matrix(WAYS[:1], rest=WAYS[1:]), indirect=True)
"""The second tier has the other ways: for what a task decides, and a transport only carries."""


@dataclass(frozen=True)
class Tasks:
    """A cluster of Servers. Sessions run in the worker that they are given as target, or ``outside``."""

    servers: dict[str, Server]
    keys: ClusterKeys
    transport: Any = "auto"

    @property
    def target(self) -> str:
        return self["worker0"].target

    def __getitem__(self, name: str) -> Server:
        return self.servers[name]

    def session(self, graph: Graph | None = None, target: str = "", **options: Any) -> Session:
        """Return a session on these tasks with no more arguments than it needs."""
        options = {"transport": self.transport, "report": lambda line: None, "timeout": 20.0, **options}
        return Session(target or self.target, graph, **options)

    def variables(self, container: str | None = None, ready: bool | None = None) -> set[str]:
        """Return the names of the variables that live on all tasks."""
        return {name for s in self.servers.values() for name in s.sessions.store.names(container, ready)}


def open_tasks(workers: int = 2, ps: int = 1, transport: str = "auto", outside: bool = False) -> Tasks:
    """Start Servers; if ``outside``, sessions take them for other processes'."""
    keys = ClusterKeys.create()
    wanted = [("ps", n) for n in range(ps)] + [("worker", n) for n in range(workers)]
    servers = {f"{job}{n}": Server({job: {n: "127.0.0.1:0"}}, job, n, keys=keys) for job, n in wanted}
    jobs: dict[str, dict[int, str]] = {}
    for server in servers.values():
        jobs.setdefault(server.job, {})[server.index] = server.address
    for server in servers.values():
        server.cluster = ClusterSpec(jobs)
        if outside:
            cluster._here.pop(server.target)
    return Tasks(servers, keys, transport)


def begin(session: Session) -> None:
    """Initialise all variables."""
    session.run(global_variables_initializer(session.graph))


@contextmanager
def interrupted_when(reached: threading.Event) -> Iterator[None]:
    """Interrupt the main thread in the block, as ctrl-C does, once something is reached."""

    def interrupt() -> None:
        assert reached.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    helper.join()


def executor_threads() -> list[str]:
    """Return the names of the threads that serve sessions in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nbdist session")]


Put = Callable[[Tensor, "Gate"], Tensor]


class Gate:
    """An op that passes a value on when the test opens it; ``reached`` is set when it runs."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def __call__(self, x: Any) -> Any:
        self.reached.set()
        assert self._open.wait(PATIENCE), "the test did not open its gate"
        return x.copy()


@contextmanager
def gates() -> Iterator[Callable[[Tensor, Gate], Tensor]]:
    """Yield a function that puts a gate behind a tensor, while it is in the table of ops."""
    placed: list[Gate] = []
    OPS["gate"] = Op("gate", forward=lambda xp, x, number: placed[number](x), spec=lambda x, number: x)

    def put(x: Tensor, gate: Gate) -> Tensor:
        placed.append(gate)
        return record("gate", x, number=len(placed) - 1)

    try:
        yield put
    finally:
        for gate in placed:
            gate.open()
        del OPS["gate"]
