"""The tasks of one cluster as the sidebar lists them: from files and processes, no task is asked anything."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Protocol

from nbdist.errors import NbdistError
from nbdist.lab.clusterfile import TaskSeen
from nbdist.lab.clusters import Clusters
from nbdist.lab.loads import Loads
from nbdist.lab.taskitems import Load, task_item
from nbdist.lab.usage import Gpus, Usage
from nbdist.lab.watched import Seen
from nbdist.wire.hosts import host_identity

ELSEWHERE = "it is on another host: its CPU and memory cannot be read from here"
Item = dict[str, Any]
Told = dict[int, dict[str, Any]]


class TellsOfTasks(Protocol):
    """What knows how far the tasks of a run are, such as `Runs`."""

    def tasks_of(self, run_id: str, /) -> Told:
        """Return by rank: state, step, steps_per_second, straggler."""

    def on_cluster(self, cluster_id: str, /) -> list[str]:
        """Return the runs that go on on a cluster."""


class Tasks:
    """Lists tasks; made once and looked at again and again, by one thread at a time.

    ``clusters`` are those that somebody looks at already, just before; without them it looks itself.
    """

    def __init__(self, runs: TellsOfTasks, clusters: Clusters | None = None) -> None:
        self._runs = runs
        self._clusters = clusters or Clusters()
        self._looks_itself = clusters is None
        self._figures: dict[str, tuple[Loads, Gpus]] = {}

    def look(self, cluster_id: str) -> list[Item]:
        """Return the rows of a cluster's tasks by rank, ready for JSON; [] for one that is not there."""
        if self._looks_itself:
            self._clusters.look()
        seen = self._clusters.one(cluster_id)
        if seen is None or seen.description is None:
            return []
        if cluster_id not in self._figures:
            still = {one: kept for one, kept in self._figures.items() if self._clusters.one(one) is not None}
            self._figures = {**still, cluster_id: (Loads(), Gpus())}
        loads, gpus = self._figures[cluster_id]
        tasks = seen.description.tasks
        taken = {task.rank: look_at(loads, task, seen) for task in tasks if is_here(task)}
        loads.forget_others({task.pid for task in tasks})
        used, problem = gpus.look(wanted_gpus(seen, taken))
        told = {run: self._told(run) for run in [*seen.runs, *self._runs.on_cluster(cluster_id)]}
        return [_row(cluster_id, task, seen, taken, told, used, problem) for task in tasks]

    def _told(self, run: str) -> Told:
        try:
            return self._runs.tasks_of(run)
        except NbdistError:  # a sweep, whose trials tell nothing of the kind; or a run that was just removed
            return {}


def is_here(task: TaskSeen) -> bool:
    """Return whether a task's process is one of this host."""
    return task.host == host_identity()


def look_at(loads: Loads, task: TaskSeen, seen: Seen) -> Load | None:
    """Return what a task takes; None if it has ended."""
    if task.rank in seen.dead or seen.state == "stale":
        return None
    return loads.look(task.pid, None if task.pid in seen.vouched else seen.written)


def wanted_gpus(seen: Seen, taken: Mapping[int, Load | None]) -> dict[int, str]:
    """Return which GPU each living process of this host has been given, by pid."""
    wanted = {}
    for task in seen.description.tasks if seen.description is not None else ():
        gpu = seen.description.gpu_of(task) if seen.description is not None else None
        if gpu is not None and taken.get(task.rank) is not None:
            wanted[task.pid] = gpu
    return wanted


def run_of(task: TaskSeen, seen: Seen, told: Mapping[str, Told]) -> str | None:
    """Return the run that a task works on: its process says so, or an in-graph run that has it as a replica.

    The body of an in-graph run is in the notebook's process, so that the tasks themselves know of no run.
    """
    driven = (run for run in told if run not in seen.runs and task.rank in told[run])
    return seen.busy.get(task.pid) or next(driven, None)


def _row(
    cluster: str,
    task: TaskSeen,
    seen: Seen,
    taken: Mapping[int, Load | None],
    told: Mapping[str, Told],
    used: Mapping[int, Usage],
    problem: str | None,
) -> Item:
    here, load = task.rank in taken, taken.get(task.rank)
    dead = seen.dead.get(task.rank)
    if dead is None and here and load is None:
        dead = seen.error or "its process has ended"
    gpu, run = used.get(task.pid), run_of(task, seen, told)
    note = None if here else ELSEWHERE
    if here and problem is not None and gpu is None and (task.device or "").startswith("GPU"):
        note = f"no figures of its GPU: {problem}"
    return task_item(
        cluster,
        task,
        socket.gethostname() if here else f"another host ({task.host[:8]})",
        load=load,
        dead=dead,
        run=run,
        told=told.get(run, {}).get(task.rank) if run is not None else None,
        gpu=gpu,
        note=note,
    )
