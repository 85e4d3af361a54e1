"""`fetch_left`: what a run has left on hosts whose cluster ended before a client had copied it.

    for line in fetch_left(record, cluster, prepare):   # a cluster that is there now, on some of these hosts
        print(line)

A spool belongs to a run, not to a cluster: the tasks of any cluster on its host serve it. `copy_all` keeps
spools from being left: the head of a cluster that ends, because no client or nothing uses it, calls it first.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

from nbdist.cluster.cluster import Cluster, Members
from nbdist.cluster.description import read_description
from nbdist.cluster.folder import runs_on
from nbdist.cluster.remnants import KEPT_DAYS
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.json_values import listed
from nbdist.metrics.log import log_path
from nbdist.metrics.run_folder import RunFile, run_folder
from nbdist.numbers import is_whole
from nbdist.run.files.mirror import COPIES, Mirror
from nbdist.run.files.place import RunPlace, marked
from nbdist.run.finish import ENDED
from nbdist.run.history import runs
from nbdist.run.resumable import members_of
from nbdist.run.values.outcome import outcome_path
from nbdist.runtime.task import TaskInfo, find_rank
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Peer


def fetch_left(record: RunFile, cluster: Cluster | None, prepare: Callable[[Cluster], object]) -> list[str]:
    """Copy what the hosts of a cluster have of a run whose own cluster has ended, and remove it there.

    ``cluster`` is None if there is none; ``prepare`` gives its tasks their agents. Returns sentences about
    what is missing, or may be.
    """
    place = marked(run_folder(record.id))
    if not _was_elsewhere(place, record):
        return []
    missing: list[str] = []
    if cluster is not None and cluster.controller_died() is None:
        prepare(cluster)
        dead = {info.rank for info in cluster.dead()}
        living = [info.rank for info in cluster.tasks if info.rank not in dead]
        missing = Mirror.of(place, cluster).collect(living, math.inf)  # it gives up hosts that do not answer
    return [*missing, *([sentence] if (sentence := what_is_left(record)) else [])]


def copy_all(folder: Path) -> None:
    """Copy what no client has copied of the runs of a cluster; print what is missing.

    ``folder`` is the cluster's. Runs in a process of its head, which is on the host of the runs' folders, or
    finds none there. Of a run that is under way the spools stay.
    """
    cluster, busy = _Observed(folder), runs_on(folder)
    for record in runs():
        place = marked(run_folder(record.id))
        own = record.kind == "run" and record.cluster.get("id") == folder.name
        if own and place.token and record.status not in ENDED:
            dead = {info.rank for info in cluster.dead()}
            living = [info.rank for info in cluster.tasks if info.rank not in dead]
            mirror = Mirror(place, lambda: cluster.tasks, cluster.dead, cluster.peer)
            for line in mirror.collect(living, math.inf, drop=record.id not in busy):
                print(line, flush=True)


class _Observed:
    """The tasks of a cluster, for a process that does not count as one of its clients."""

    def __init__(self, folder: Path) -> None:
        self._keys = ClusterKeys.load(folder / "keys")
        supervisor = SupervisorClient.connect(folder, observe=True)
        roster = read_description(folder).tasks
        self._members = Members(roster, self._keys, supervisor, lambda: None)
        self.dead = self._members.dead
        self._peers: dict[str, Peer] = {}
        self._making = threading.Lock()

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks of the cluster."""
        return self._members.now()

    def peer(self, rank: int) -> Peer:
        """Return the connection to a task, which all threads share."""
        info = find_rank(tuple(self.tasks), rank)
        with self._making:
            if info.address not in self._peers:
                self._peers[info.address] = Peer(info.address, self._keys, name=info.name)
            return self._peers[info.address]


def what_is_left(record: RunFile) -> str:
    """Return the sentence that names the hosts which may have files of a run, and how they are fetched.

    It is empty for a run whose end a client has seen, and for one whose outcomes are all here.
    """
    place, ranks = marked(run_folder(record.id)), _ranks(record)
    lacking = [rank for rank in ranks if not outcome_path(Path(place.root), rank).exists()]
    if record.status in ENDED or not lacking or not _was_elsewhere(place, record):
        return ""
    nodes = dict.fromkeys(info.node for info in members_of(record) if info.rank in lacking and info.node)
    hosts = ", ".join(nodes) or "other hosts"
    return (
        f"Cluster {record.cluster.get('id', '?')} ended before a client had copied all files of run "
        f"{record.id}. What {hosts} may have of it is on their disks for {KEPT_DAYS} days: start a cluster "
        f"on them, and call nb.attach({record.id!r}), which copies it"
    )


def lacks_its_end(record: RunFile) -> bool:
    """Whether the outcome of the run's chief may still be on a host."""
    ranks = _ranks(record)
    return bool(what_is_left(record)) and not outcome_path(run_folder(record.id), ranks[0]).exists()


def _ranks(record: RunFile) -> list[int]:
    return [rank for rank in listed(record.cluster.get("workers")) if is_whole(rank, 0)]


def _was_elsewhere(place: RunPlace, record: RunFile) -> bool:
    """Whether tasks of a run may have written on other disks than the client's."""
    folder, hosts = Path(place.root), any(info.node for info in members_of(record))
    unseen = hosts and not all(log_path(folder, rank).exists() for rank in _ranks(record))
    return bool(place.token) and ((folder / COPIES).exists() or unseen)
