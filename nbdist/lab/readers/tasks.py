"""The tasks of one cluster in the sidebar, from files and processes; no task receives a request."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.errors import NbdistError
from nbdist.lab.readers.clusters import Clusters, ClusterStatus
from nbdist.lab.readers.runs import Runs
from nbdist.lab.readers.supervisor import HostUsage
from nbdist.metrics.process_usage import GpuMonitor, Load, LoadMonitor, Usage
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity

NOT_REPORTED = "its host has not reported its CPU and memory yet"
Item = dict[str, Any]
TaskProgress = dict[int, dict[str, Any]]


class ClusterTasks:
    """Lists the tasks of a cluster; one thread at a time may poll.

    ``clusters`` is a reader that the caller polls just before; without it, `poll` polls one of its own.
    """

    def __init__(self, runs: Runs, clusters: Clusters | None = None) -> None:
        self._runs = runs
        self._clusters = clusters or Clusters()
        self._polls_clusters = clusters is None
        self._monitors: dict[str, tuple[LoadMonitor, GpuMonitor]] = {}

    def poll(self, cluster_id: str) -> list[Item]:
        """Return the rows of a cluster's tasks by rank, ready for JSON; [] for an unknown cluster."""
        if self._polls_clusters:
            self._clusters.poll()
        seen = self._clusters.one(cluster_id)
        if seen is None or seen.description is None:
            return []
        if cluster_id not in self._monitors:
            still = {one: kept for one, kept in self._monitors.items() if self._clusters.one(one) is not None}
            self._monitors = {**still, cluster_id: (LoadMonitor(), GpuMonitor())}
        loads, gpus = self._monitors[cluster_id]
        description, here = seen.description, host_identity()
        local = [task for task in description.tasks if task.host == here]
        others = [task for task in description.tasks if task.host != here]
        taken = {task.rank: _load_of(task, seen, loads) for task in local}
        loads.forget_others({task.pid for task in local})
        assigned = {task.pid: description.gpu_of(task) for task in local if taken[task.rank] is not None}
        used, problem = gpus.poll({pid: gpu for pid, gpu in assigned.items() if gpu is not None})
        usage = {task.rank: TaskUsage(taken[task.rank], used.get(task.pid), problem) for task in local}
        there = self._clusters.ask_usage(cluster_id) if others else {}
        usage |= {task.rank: usage_there(task, there.get(task.node)) for task in others}
        progress = {run: self._progress(run) for run in [*seen.runs, *self._runs.on_cluster(cluster_id)]}
        return [_row(cluster_id, task, seen, usage[task.rank], progress) for task in description.tasks]

    def _progress(self, run: str) -> TaskProgress:
        try:
            return self._runs.tasks_of(run)
        except NbdistError:  # a sweep, whose trials have no steps; or a run that was just removed
            return {}


@dataclass(frozen=True)
class TaskUsage:
    """What a task's process uses."""

    load: Load | None
    """None if the process has ended; without figures if its host has not reported them."""
    gpu: Usage | None = None
    problem: str | None = None
    """Why its GPU cannot be measured."""
    here: bool = True
    reported: bool = True


def usage_there(task: TaskInfo, host: HostUsage | None) -> TaskUsage:
    """Return what a task on another host uses, by what that has reported of the task's process."""
    if host is None or task.pid not in host.loads:
        return TaskUsage(Load(), here=False, reported=False)
    return TaskUsage(host.loads[task.pid], host.gpus.get(task.pid), host.problem, here=False)


def _load_of(task: TaskInfo, seen: ClusterStatus, loads: LoadMonitor) -> Load | None:
    """Return the load of a task's process; None if it has ended."""
    if task.rank in seen.dead or seen.state == "stale":
        return None
    return loads.poll(task.pid, None if task.pid in seen.confirmed else seen.written)


def run_of(task: TaskInfo, seen: ClusterStatus, progress: Mapping[str, TaskProgress]) -> str | None:
    """Return the run that a task works on: from its busy file, or an in-graph run with it as a replica.

    The body of an in-graph run is in the notebook's process, so its tasks have no busy file.
    """
    driven = (run for run in progress if run not in seen.runs and task.rank in progress[run])
    return seen.busy.get(task.rank) or next(driven, None)


def _row(
    cluster: str,
    task: TaskInfo,
    seen: ClusterStatus,
    usage: TaskUsage,
    progress: Mapping[str, TaskProgress],
) -> Item:
    load, dead = usage.load, seen.dead.get(task.rank)
    if dead is None and load is None:
        dead = seen.error or "its process has ended"
    alive, run = dead is None, run_of(task, seen, progress)
    note = None if usage.reported else NOT_REPORTED
    if usage.problem is not None and usage.gpu is None and task.device.startswith("GPU"):
        note = f"its GPU cannot be measured: {usage.problem}"
    reached = progress.get(run, {}).get(task.rank, {}) if run is not None else {}
    return {
        "cluster": cluster,
        "rank": task.rank,
        "name": task.name,
        "job": task.job,
        "index": task.index,
        "host": task.node or (socket.gethostname() if usage.here else f"another host ({task.host[:8]})"),
        "pid": task.pid,
        "device": task.device or None,
        "state": task_state(alive, load, run, reached.get("state")),
        "cpu": load.cpu if alive and load is not None else None,
        "memory": load.memory if alive and load is not None else None,
        "gpu": usage.gpu if alive else None,
        "run": run,
        "step": reached.get("step"),
        "steps_per_second": reached.get("steps_per_second"),
        "straggler": reached.get("straggler"),
        "note": note if alive else dead,
    }


BUSY_PERCENT = 50.0
"""CPU use from which a task without a run counts as busy, for example with an ipyparallel cell."""


def task_state(alive: bool, load: Load | None, run: str | None, progress: object) -> str:
    """Return a task's state.

    >>> task_state(True, Load(cpu=3), None, None), task_state(True, Load(cpu=99), None, None)
    ('idle', 'busy')
    >>> task_state(True, Load(), "a_run", "paused"), task_state(True, Load(frozen=True), "a_run", "paused")
    ('paused', 'frozen')
    """
    if not alive:
        return "dead"
    if load is not None and load.frozen:
        return "frozen"
    if run is not None:
        return progress if isinstance(progress, str) and progress else "busy"
    return "busy" if load is not None and (load.cpu or 0) >= BUSY_PERCENT else "idle"
