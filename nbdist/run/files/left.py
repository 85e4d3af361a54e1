"""`Left`: what a run has left on hosts whose cluster ended before a client had copied it.

    for line in Left(record).fetch(cluster, prepare):   # a cluster that is there now, on some of these hosts
        print(line)

A spool belongs to a run, not to a cluster: the tasks of any cluster on its host serve it. `copy_all` keeps
spools from being left: the head of a cluster that ends, because no client or nothing uses it, calls it first,
and so does what ends a cluster from outside. `copy_ended` is the same for a client that stops it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nbdist.cluster.cluster import Cluster, Members
from nbdist.cluster.description import read_description
from nbdist.cluster.folder import runs_on
from nbdist.cluster.remnants import KEPT_DAYS
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import NbdistError
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


class Left:
    """What a run whose tasks have ended may have left on their hosts."""

    def __init__(self, record: RunFile) -> None:
        self._record, self._looked = record, set[str]()

    def fetch(
        self, cluster: Cluster | None, prepare: Callable[[Cluster], object], own: bool = False
    ) -> list[str]:
        """Copy what the hosts of a cluster have of the run, and remove it there.

        ``cluster`` is None if there is none, and the run's ``own`` or another one; ``prepare`` gives its
        tasks their agents. Returns sentences about what is missing, or may be.
        """
        place = marked(run_folder(self._record.id))
        if not place.token or not (own or _was_elsewhere(place, self._record)):
            return []
        missing: list[str] = []
        if cluster is not None and cluster.controller_died() is None:
            with suppress(NbdistError):  # of a task that is frozen, say
                prepare(cluster)
            dead = {info.rank for info in cluster.dead()}
            living = [info for info in cluster.tasks if info.rank not in dead]
            # It gives up hosts that do not answer.
            missing = Mirror.of(place, cluster).collect((info.rank for info in living), math.inf)
            self._looked = set() if missing else {info.node for info in living}
        return [*missing, *([sentence] if (sentence := self.sentence()) else [])]

    def sentence(self) -> str:
        """Return the sentence that names the hosts which may have files, and how they are fetched.

        It is empty for a run whose end a client has seen, and for one whose outcomes are all here.
        """
        place, lacking = marked(run_folder(self._record.id)), self._lacking()
        infos = [info for info in members_of(self._record) if info.rank in lacking]
        nodes = {info.node: None for info in infos if info.node not in self._looked}
        if self._record.status in ENDED or not nodes or not _was_elsewhere(place, self._record):
            return ""
        return (
            f"The tasks of run {self._record.id} ended before a client had copied all that they wrote. What "
            f"{', '.join(filter(None, nodes)) or 'other hosts'} may have of it is on their disks for "
            f"{KEPT_DAYS} days: start a cluster on them, and call nb.attach({self._record.id!r}), which "
            "copies it"
        )

    def has_end(self) -> bool:
        """Whether the outcome of the run's chief may be among it: then the run's end is not known."""
        return bool(self.sentence()) and _ranks(self._record)[0] in self._lacking()

    def _lacking(self) -> list[int]:
        """Return the ranks whose outcomes are not here."""
        folder = run_folder(self._record.id)
        return [rank for rank in _ranks(self._record) if not outcome_path(folder, rank).exists()]


def copy_all(folder: Path) -> list[str]:
    """Copy what no client has copied of the runs of a cluster; return sentences about what is missing.

    ``folder`` is the cluster's. Runs in a process of its head, which is on the host of the runs' folders, or
    finds none there, and in one that ends a cluster without being its client. Of a run that is under way the
    spools stay.
    """
    cluster, busy, missing = _Observed(folder), runs_on(folder), list[str]()
    for record in runs():
        place = marked(run_folder(record.id))
        own = record.kind == "run" and record.cluster.get("id") == folder.name
        if own and place.token and record.status not in ENDED:
            dead = {info.rank for info in cluster.dead()}
            living = [info.rank for info in cluster.tasks if info.rank not in dead]
            mirror = Mirror(place, lambda: cluster.tasks, cluster.dead, cluster.peer)
            missing += mirror.collect(living, math.inf, drop=record.id not in busy)
    return missing


def copy_ended(cluster: Cluster, prepare: Callable[[Cluster], object]) -> list[str]:
    """Copy what no client has copied of the runs of a cluster that have ended, before the cluster is stopped.

    ``prepare`` gives its tasks their agents. Returns sentences about what is missing.
    """
    busy, missing = runs_on(cluster.folder), list[str]()
    for record in runs():
        own = record.kind == "run" and record.cluster.get("id") == cluster.id
        if own and record.status not in ENDED and record.id not in busy:
            missing += Left(record).fetch(cluster, prepare, own=True)
    return missing


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


def _ranks(record: RunFile) -> list[int]:
    return [rank for rank in listed(record.cluster.get("workers")) if is_whole(rank, 0)]


def _was_elsewhere(place: RunPlace, record: RunFile) -> bool:
    """Whether tasks of a run may have written on other disks than the client's."""
    folder, hosts = Path(place.root), any(info.node for info in members_of(record))
    unseen = hosts and not all(log_path(folder, rank).exists() for rank in _ranks(record))
    return bool(place.token) and ((folder / COPIES).exists() or unseen)
