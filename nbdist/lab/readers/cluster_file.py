"""Parses a cluster.json without trusting it: invalid values are dropped, nothing is raised. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nbdist.cluster.launchers.registry import DEFAULT_LAUNCHER
from nbdist.numbers import is_whole

MOST_PID = 1 << 31
MOST_TASKS = 4096
LONGEST = 200  # characters of a name that is shown


@dataclass(frozen=True)
class TaskEntry:
    """A task in a cluster's file."""

    job: str
    index: int
    rank: int
    host: str
    pid: int
    device: str | None

    @property
    def name(self) -> str:
        """The task's name, such as /job:worker/task:1."""
        return f"/job:{self.job}/task:{self.index}"

    @property
    def short(self) -> str:
        """The name that the magics take, such as worker:1."""
        return f"{self.job}:{self.index}"


@dataclass(frozen=True)
class Owner:
    """The client process that owns a cluster (the cluster ends after it), and its notebook."""

    host: str
    pid: int
    started: float
    session: str


@dataclass(frozen=True)
class ClusterDescription:
    """The content of a cluster.json, as far as it is shown."""

    created: float | None
    workers: int
    ps: int
    launcher: str
    tasks: tuple[TaskEntry, ...]
    owner: Owner | None = None
    gpus: tuple[str, ...] = ()
    """The GPUs that it assigns, by their CUDA names on its host: numbers or UUIDs."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def gpu_of(self, task: TaskEntry) -> str | None:
        """Return the GPU assigned to a task: round-robin over the workers (see `cluster.resources`).

        >>> one = TaskEntry("worker", 2, 2, "here", 7, "GPU:0")
        >>> ClusterDescription(None, 3, 0, "local", (one,), gpus=("4", "6")).gpu_of(one)
        '4'
        """
        if not self.gpus or task.job != "worker" or not (task.device or "").startswith("GPU"):
            return None
        return self.gpus[task.index % len(self.gpus)]

    def now(self, tasks: tuple[TaskEntry, ...]) -> ClusterDescription:
        """Return the description with the present tasks, after membership changes."""
        counts = {job: sum(task.job == job for task in tasks) for job in ("worker", "ps")}
        return replace(self, tasks=tasks, workers=counts["worker"], ps=counts["ps"])


def parse_description(content: object) -> ClusterDescription | None:
    """Return the description in a cluster.json, None if it is invalid. Never raises.

    >>> parse_description({"tasks": [], "workers": 0}).launcher
    'local'
    >>> parse_description([1, 2]) is None
    True
    """
    tasks = parse_tasks(content.get("tasks")) if isinstance(content, dict) else None
    if not isinstance(content, dict) or tasks is None:
        return None
    asked, gpus, versions = (content.get(name) for name in ("asked", "gpus", "versions"))
    return ClusterDescription(
        seconds(content.get("created")),
        whole(content.get("workers")) or 0,
        whole(content.get("ps")) or 0,
        text(asked.get("launcher") if isinstance(asked, dict) else None) or DEFAULT_LAUNCHER,
        tasks,
        _owner(content.get("owner")),
        tuple(name for one in gpus if (name := text(one))) if isinstance(gpus, list) else (),
        {text(name): text(value) for name, value in versions.items()} if isinstance(versions, dict) else {},
    )


def parse_tasks(entries: object) -> tuple[TaskEntry, ...] | None:
    """Return the tasks of a roster by rank, None if it is invalid. Never raises."""
    if not isinstance(entries, list) or len(entries) > MOST_TASKS:
        return None
    tasks = [task for task in map(_task, entries) if task is not None]
    if len({task.rank for task in tasks}) != len(entries):
        return None
    return tuple(sorted(tasks, key=lambda task: task.rank))


def whole(value: object, most: int = MOST_PID) -> int | None:
    """Return a whole number from 0 to below ``most``; None for anything else."""
    if not is_whole(value, 0, most - 1):
        return None
    return value


def seconds(value: object) -> float | None:
    """Return a finite number of seconds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        return None  # a NaN is not below either
    return float(value)


def text(value: object) -> str:
    """Return a text, shortened for display; "" for anything else."""
    return value[:LONGEST] if isinstance(value, str) else ""


def _task(entries: object) -> TaskEntry | None:
    if not isinstance(entries, dict):
        return None
    index, rank, pid = (whole(entries.get(name)) for name in ("index", "rank", "pid"))
    job = text(entries.get("job"))
    if index is None or rank is None or not pid or not job:
        return None
    return TaskEntry(job, index, rank, text(entries.get("host")), pid, text(entries.get("device")) or None)


def _owner(entries: object) -> Owner | None:
    if not isinstance(entries, dict):
        return None
    pid, started = whole(entries.get("pid")), seconds(entries.get("started"))
    if not pid or started is None:
        return None
    return Owner(text(entries.get("host")), pid, started, text(entries.get("session")))
