"""What a cluster.json says, to one who shows it and trusts no number in it. Decides only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_PID = 1 << 31
MOST_TASKS = 4096
LONGEST = 200  # characters of a name that is shown


@dataclass(frozen=True)
class TaskSeen:
    """A task as its cluster's file has it."""

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
    """The process that a cluster ends with, and its notebook."""

    host: str
    pid: int
    started: float
    session: str


@dataclass(frozen=True)
class Description:
    """What is shown of a cluster.json."""

    created: float | None
    workers: int
    ps: int
    launcher: str
    tasks: tuple[TaskSeen, ...]
    owner: Owner | None = None
    gpus: Mapping[int, str] = field(default_factory=dict)
    """By rank: the GPU that a task has been given, as CUDA names it on its host."""
    versions: Mapping[str, str] = field(default_factory=dict)


def parse_description(content: object) -> Description | None:
    """Return what a cluster.json says, or None if it is none; whatever it holds, nothing is raised.

    >>> parse_description({"tasks": [], "workers": 0}).launcher
    'local'
    >>> parse_description([1, 2]) is None
    True
    """
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list):
        return None
    parsed = [_task(entries) for entries in content["tasks"][:MOST_TASKS]]
    tasks = tuple(task for task in parsed if task is not None)
    if len(tasks) != len(parsed) or len({task.rank for task in tasks}) != len(tasks):
        return None
    asked, gpus, versions = (content.get(name) for name in ("asked", "gpus", "versions"))
    return Description(
        seconds(content.get("created")),
        whole(content.get("workers")) or sum(task.job == "worker" for task in tasks),
        whole(content.get("ps")) or sum(task.job == "ps" for task in tasks),
        text(asked.get("launcher") if isinstance(asked, dict) else None) or "local",
        tuple(sorted(tasks, key=lambda task: task.rank)),
        _owner(content.get("owner")),
        _gpus(gpus) if isinstance(gpus, dict) else {},
        {text(name): text(value) for name, value in versions.items()} if isinstance(versions, dict) else {},
    )


def whole(value: object, most: int = MOST_PID) -> int | None:
    """Return a whole number from 0 to below ``most``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        return None
    return value


def seconds(value: object) -> float | None:
    """Return a finite number of seconds; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        return None  # a NaN is not below either
    return float(value)


def text(value: object) -> str:
    """Return a text that is short enough to be shown; "" for anything else."""
    return value[:LONGEST] if isinstance(value, str) else ""


def _task(entries: object) -> TaskSeen | None:
    if not isinstance(entries, dict):
        return None
    index, rank, pid = (whole(entries.get(name)) for name in ("index", "rank", "pid"))
    job = text(entries.get("job"))
    if index is None or rank is None or not pid or not job:
        return None
    return TaskSeen(job, index, rank, text(entries.get("host")), pid, text(entries.get("device")) or None)


def _owner(entries: object) -> Owner | None:
    if not isinstance(entries, dict):
        return None
    pid, started = whole(entries.get("pid")), seconds(entries.get("started"))
    if not pid or started is None:
        return None
    return Owner(text(entries.get("host")), pid, started, text(entries.get("session")))


def _gpus(entries: Mapping[Any, object]) -> dict[int, str]:
    found = {}
    for key, value in entries.items():
        if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10 and text(value):
            found[int(key)] = text(value)
    return found
