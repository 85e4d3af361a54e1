"""`Task`: the role of this process in its cluster; `TaskInfo`: what others know of a task."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError, NoTaskError
from nbdist.json_values import mapping, text, whole
from nbdist.runtime.server import Server
from nbdist.runtime.spec import ClusterSpec
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer

LONGEST = 200  # characters of a text in a file
MOST_PID = 1 << 31


@dataclass(frozen=True)
class TaskInfo:
    """A task as the others see it, one entry of the roster.

    - ``job``, ``index``: its place in the ClusterSpec, such as ("worker", 1)
    - ``rank``: its number in the cluster, 0 or more, which is its engine's id
    - ``host``: the identity of its host; two tasks with the same one can share memory
    - ``pid``: its process; ``address``: its Server, as "127.0.0.1:4711"
    - ``device``: the device that it computes on, "CPU:0" or "GPU:0"
    - ``incarnation``: a random number that is new in each process of the task
    - ``node``: the name of its host in the cluster; "" for the client's own
    - ``cores``: those that its process is bound to, such as "0-7"; "" if it is not bound
    """

    job: str
    index: int
    rank: int
    host: str
    pid: int
    address: str
    device: str
    incarnation: int
    node: str = ""
    cores: str = ""

    @property
    def name(self) -> str:
        """The task's name, such as /job:worker/task:1."""
        return f"/job:{self.job}/task:{self.index}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and frames."""
        return dict(vars(self))  # asdict() would copy each deeply, which a short cell notices

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> TaskInfo:
        """Return what `to_dict` described."""
        return cls(**entries)

    @classmethod
    def parse(cls, entries: object) -> TaskInfo | None:
        """Return the task in a file of any version; None without a job, an index and a rank. Never raises.

        >>> TaskInfo.parse({"job": "worker", "index": 1, "rank": 1, "colour": "blue"}).name
        '/job:worker/task:1'
        """
        found = mapping(entries)
        job, index, rank = (
            text(found.get("job"), LONGEST),
            whole(found.get("index")),
            whole(found.get("rank")),
        )
        if not job or index is None or rank is None:
            return None
        host, address, device, node, cores = (
            text(found.get(name), LONGEST) for name in ("host", "address", "device", "node", "cores")
        )
        pid, incarnation = whole(found.get("pid"), MOST_PID) or 0, whole(found.get("incarnation")) or 0
        return cls(job, index, rank, host, pid, address, device, incarnation, node, cores)


__all__ = ["Roster", "Task", "TaskInfo", "acting_as", "current", "host_identity", "set_current"]
Roster = tuple[TaskInfo, ...]  # ordered by rank, the same on every task


class Task:
    """This process's task: its name, its Server, and connections to the others.

    In a body it is ``nb.task``. Runs on a task; elsewhere ``nb.task`` raises NoTaskError. ``info`` is its
    entry in the ``roster`` of all tasks, ``server`` its Server, ``cluster`` the ClusterSpec.

        if nb.task.is_chief:
            nb.task.peer(1).call("ping")
    """

    def __init__(
        self, info: TaskInfo, roster: Roster, server: Server, keys: ClusterKeys, cluster_id: str = "local"
    ) -> None:
        self.cluster_id = cluster_id
        self.info = info
        self.roster = roster
        self.server = server
        self.keys = keys
        self.cluster = roster_spec(roster)
        self._connections = threading.local()

    @property
    def job(self) -> str:
        """The name of this task's job."""
        return self.info.job

    @property
    def index(self) -> int:
        """The task's index in its job."""
        return self.info.index

    @property
    def rank(self) -> int:
        """The task's rank in the cluster, which is its engine's id."""
        return self.info.rank

    @property
    def name(self) -> str:
        """The task's name, such as /job:worker/task:1."""
        return self.info.name

    @property
    def device(self) -> str:
        """The device the task computes on, such as CPU:0 or GPU:0."""
        return self.info.device

    @property
    def target(self) -> str:
        """The address of this task, for ``nb.Session(nb.task.target)``."""
        return self.server.target

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief: the chief job's task if there is one, else worker 0."""
        return self.info == chief_of_roster(self.roster)

    @property
    def segment_prefix(self) -> str:
        """The prefix of the names of this cluster's shared segments; they are removed with the cluster."""
        return segment_prefix(self.cluster_id)

    def peer(self, rank: int) -> Peer:
        """Return this thread's connection to the task of a rank, made at its first use.

        Raises InvalidArgumentError for an unknown rank.
        """
        peers: dict[int, Peer] = self._connections.__dict__.setdefault("peers", {})
        other = find_rank(self.roster, rank)
        if rank in peers and peers[rank].address != other.address:  # it was replaced
            peers.pop(rank).close()
        if rank not in peers:
            peers[rank] = Peer(other.address, self.keys, name=other.name)
        return peers[rank]

    def update_roster(self, roster: Roster) -> None:
        """Use the roster of a membership change; may be called on any thread."""
        self.roster, self.cluster = roster, roster_spec(roster)

    def close(self) -> None:
        """Close this thread's connections and the Server."""
        for peer in self._connections.__dict__.pop("peers", {}).values():
            peer.close()
        self.server.close()

    def __repr__(self) -> str:
        return f"<Task {self.name} rank {self.rank} on {self.device}>"


_current: Task | None = None
_here: ContextVar[Task | None] = ContextVar("nbdist's task of this thread", default=None)


def current() -> Task:
    """Return the task of this thread or process; NoTaskError if there is none."""
    task = _here.get() or _current
    if task is None:
        raise NoTaskError(
            "this process is not a task of a cluster; run the code on the tasks (%%distribute, nbdist.launch "
            "or cluster.run), or start a cluster with nbdist.start_cluster(workers=2)"
        )
    return task


@contextmanager
def acting_as(task: Task) -> Iterator[Task]:
    """Make `task` the current one of this thread alone, inside a `with`."""
    token = _here.set(task)
    try:
        yield task
    finally:
        _here.reset(token)


def set_current(task: Task | None) -> None:
    """Make `task` this process's own; None forgets it."""
    global _current
    _current = task


def find_rank(roster: Roster, rank: int) -> TaskInfo:
    """Return the task of a rank; InvalidArgumentError if there is none."""
    for info in roster:
        if info.rank == rank:
            return info
    raise InvalidArgumentError(f"no task has rank {rank!r}; the ranks are {[info.rank for info in roster]}")


def chief_of_roster(roster: Roster) -> TaskInfo | None:
    """Return the chief: the chief job's first task if there is one, else the first worker."""
    for job in ("chief", "master", "worker"):
        tasks = sorted((info for info in roster if info.job == job), key=lambda info: info.index)
        if tasks:
            return tasks[0]
    return None


def roster_spec(roster: Roster) -> ClusterSpec:
    """Return the ClusterSpec of a roster."""
    jobs: dict[str, dict[int, str]] = {}
    for info in roster:
        jobs.setdefault(info.job, {})[info.index] = info.address
    return ClusterSpec(jobs)


def segment_prefix(cluster_id: str) -> str:
    """Return the prefix of the names of a cluster's shared segments."""
    return f"nbdist-{cluster_id}"
