"""`RunRecord`: a run as its run.json describes it, with its cluster; nothing in the file raises an error.

record = RunRecord.of(read_run("261120-091512-mnist"))
[record.name_of(rank) for rank in record.workers]       # ['/job:worker/task:0', '/job:worker/task:1']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from nbdist.cluster.description import living_incarnations
from nbdist.cluster.folder import clusters_folder, is_process_alive, owner_in
from nbdist.json_values import listed, mapping, text, whole
from nbdist.metrics.run_folder import RunFile, parse_run
from nbdist.run.replication import replication_of
from nbdist.runtime.task import TaskInfo

ACTIVE = ("preparing", "running", "paused")


@dataclass(frozen=True, repr=False)
class RunRecord(RunFile):
    """The content of a run.json, and what can be known from its ``cluster``: invalid entries are left out."""

    @classmethod
    def of(cls, run: RunFile) -> RunRecord:
        """Return the record of a run."""
        return cls(**{one.name: getattr(run, one.name) for one in fields(RunFile)})

    @classmethod
    def parse(cls, run_id: str, data: bytes, changed: float) -> RunRecord:
        """Return the record in a run.json; see `nbdist.metrics.run_folder.parse_run`."""
        return cls.of(parse_run(run_id, data, changed)[0])

    @property
    def active(self) -> bool:
        """Whether it has not ended according to its run.json."""
        return self.status in ACTIVE

    @property
    def in_graph(self) -> bool:
        """Whether the notebook's process runs all towers."""
        return replication_of(self.options).in_client

    @property
    def synchronous(self) -> bool:
        """Whether its replicas update synchronously."""
        return self.options.get("synchronous") is True

    @property
    def strategy(self) -> str | None:
        """Its strategy, or the framework with whose own distribution it trains; None for a plain cell."""
        named = text(self.options.get("framework")) or text(self.options.get("strategy"))
        return named or (replication_of(self.options).name if self.in_graph else None)

    @property
    def cluster_id(self) -> str | None:
        """The id of its cluster; None if unknown."""
        return text(self.cluster.get("id")) or None

    @cached_property
    def task_names(self) -> tuple[str, ...]:
        """Names of its cluster's tasks."""
        return tuple(one for one in listed(self.cluster.get("tasks")) if isinstance(one, str))

    @cached_property
    def members(self) -> Mapping[int, TaskInfo]:
        """Its cluster's tasks by rank; a record of an early version has only their names."""
        tasks = map(TaskInfo.parse, listed(self.cluster.get("members")))
        return {task.rank: task for task in tasks if task is not None}

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """Ranks of its replicas, in order."""
        ranks = [rank for one in listed(self.cluster.get("workers")) if (rank := whole(one)) is not None]
        return tuple(dict.fromkeys(ranks))

    @cached_property
    def owner(self) -> Mapping[str, Any]:
        """The process that started it; empty if unknown."""
        return owner_in(mapping(self.cluster.get("owner")))

    def name_of(self, rank: int) -> str:
        """Return the name of a member, such as /job:worker/task:1."""
        return self.members[rank].name if rank in self.members else f"rank {rank}"

    def can_continue(self, living: Mapping[str, frozenset[int]]) -> bool:
        """Return whether the processes that drive it may be alive.

        ``living`` are the incarnations of the tasks of each cluster, by its id, as of
        `nbdist.cluster.description.living_incarnations`: a later cluster may have taken the name. The body of
        an in-graph run is in the process that started it. A process on another host counts as alive.
        """
        if self.in_graph and self.owner:
            return is_process_alive(self.owner)
        incarnations = living.get(self.cluster_id or "")
        if incarnations is None:
            return False
        known = {one.incarnation for one in self.members.values()} - {0}
        return not incarnations or not known or bool(incarnations & known)


def is_under_way(run: RunFile) -> bool:
    """Return whether a run has not ended, and the cluster or process that drives it is alive."""
    return bool(under_way_of([run]))


def under_way_of(runs: Iterable[RunFile]) -> list[RunRecord]:
    """Return those runs that are under way; all clusters are looked at once, if a run needs it."""
    active = [one for one in map(RunRecord.of, runs) if one.active]
    living = living_incarnations(clusters_folder()) if active else {}
    return [one for one in active if one.can_continue(living)]
