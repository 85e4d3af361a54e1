"""cluster.json: what clients and the sidebar know of a cluster; written whole, read without trusting it.

Another version, another program or a crash may have written the file, so invalid values are dropped, and only
a file that does not list tasks is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import VALID_ID, is_alive, owner_in, write_json
from nbdist.cluster.launchers.registry import DEFAULT_LAUNCHER
from nbdist.errors import DataLossError, NbdistError
from nbdist.json_values import listed, mapping, number, text, whole
from nbdist.runtime.task import TaskInfo
from nbdist.wire.keys import read_private

FILE = "cluster.json"
MOST_BYTES = 4 << 20  # of the file; the largest cluster has a twentieth
MOST_TASKS = 4096
LONGEST = 200  # characters of a name that is shown


@dataclass(frozen=True)
class ClusterDescription:
    """The content of a cluster.json; times are in seconds since 1970."""

    created: float | None
    workers: int
    ps: int
    launcher: str
    tasks: tuple[TaskInfo, ...]
    owner: Mapping[str, Any] = field(default_factory=dict)
    """The client process that the cluster ends after, and its notebook; empty for a detached cluster."""
    gpus: tuple[str, ...] = ()
    """The GPUs that it assigns, by their CUDA names on its host: numbers or UUIDs."""
    versions: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The options of `start_cluster` that it was started with."""
    data: int = 0
    """The number of data tasks; an earlier version writes none."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """How many workers each other host may have, by its name; empty for a cluster on one host."""
    tunnel: str = ""
    """The host that a tunnel of this one leads to, where its head runs; empty for a head on this host."""
    proxy: str = ""
    """The tunnel's SOCKS proxy on this host."""

    def gpu_of(self, task: TaskInfo) -> str | None:
        """Return the GPU assigned to a task: round-robin over the workers (see `cluster.resources`).

        >>> one = TaskInfo("worker", 2, 2, "here", 7, "", "GPU:0", 1)
        >>> ClusterDescription(None, 3, 0, "local", (one,), gpus=("4", "6")).gpu_of(one)
        '4'
        """
        if not self.gpus or task.job != "worker" or not task.device.startswith("GPU"):
            return None
        return self.gpus[task.index % len(self.gpus)]

    def now(self, tasks: tuple[TaskInfo, ...]) -> ClusterDescription:
        """Return the description with the present tasks, after membership changes."""
        counts = {job: sum(task.job == job for task in tasks) for job in ("worker", "ps", "data")}
        return replace(self, tasks=tasks, workers=counts["worker"], ps=counts["ps"], data=counts["data"])


def write_description(folder: Path, content: Mapping[str, Any]) -> None:
    """Write a cluster's cluster.json, whole or not at all."""
    write_json(folder / FILE, dict(content))


def change_description(folder: Path, **changes: Any) -> None:
    """Write entries of a cluster's cluster.json; all others stay, also those of a newer version."""
    write_description(folder, {**_content(folder), **changes})


def read_description(folder: Path) -> ClusterDescription:
    """Return the description of a cluster.

    Raises NotFoundError if the folder has none, NotAllowedError for a file that other users could have
    written, DataLossError if it does not describe a cluster.
    """
    description = parse_description(_content(folder))
    if description is None:
        raise _damage(folder)
    return description


def _content(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE
    data = read_private(path, MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise DataLossError(
            f"{path} is too large (over {MOST_BYTES:,} bytes) to be a cluster's; stop the cluster and start "
            "a new one"
        )
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"{path} cannot be read: {error}; stop the cluster and start a new one") from None
    if not isinstance(content, dict):
        raise _damage(folder)
    return content


def _damage(folder: Path) -> DataLossError:
    return DataLossError(f"{folder / FILE} does not describe a cluster; stop the cluster and start a new one")


def parse_description(content: object) -> ClusterDescription | None:
    """Return the description in a cluster.json, None if it does not list tasks. Never raises.

    >>> parse_description({"tasks": [], "workers": 0}).launcher
    'local'
    >>> parse_description([1, 2]) is None
    True
    """
    found = mapping(content)
    tasks = parse_tasks(found.get("tasks"))
    if tasks is None:
        return None
    asked, versions = mapping(found.get("asked")), mapping(found.get("versions"))
    tunnel = mapping(found.get("tunnel"))
    return ClusterDescription(
        number(found.get("created")),
        whole(found.get("workers")) or 0,
        whole(found.get("ps")) or 0,
        text(asked.get("launcher"), LONGEST) or DEFAULT_LAUNCHER,
        tasks,
        owner_in(found.get("owner")),
        tuple(name for one in listed(found.get("gpus")) if (name := text(one, LONGEST))),
        {name: text(value, LONGEST) for name, value in versions.items()},
        asked,
        whole(found.get("data")) or 0,
        {name: whole(count) or 0 for name, count in mapping(found.get("slots")).items()},
        text(tunnel.get("host"), LONGEST),
        text(tunnel.get("proxy"), LONGEST),
    )


def parse_tasks(entries: object) -> tuple[TaskInfo, ...] | None:
    """Return the tasks of a roster by rank, None if it is invalid. Never raises."""
    if not isinstance(entries, list) or len(entries) > MOST_TASKS:
        return None
    tasks = [task for task in map(TaskInfo.parse, entries) if task is not None and task.pid]
    if len({task.rank for task in tasks}) != len(entries):
        return None
    return tuple(sorted(tasks, key=lambda task: task.rank))


def living_incarnations(clusters: Path) -> dict[str, frozenset[int]]:
    """Return the incarnations of the tasks of each living cluster in a folder of clusters, by its id.

    They are empty if they are unknown, as while it starts or ends. A cluster whose lock cannot be looked at
    counts as living. Nothing is created or removed.
    """
    found: dict[str, frozenset[int]] = {}
    folders: list[Path] = []
    with suppress(FileNotFoundError):  # no cluster was ever started
        folders = [folder for folder in clusters.iterdir() if VALID_ID.fullmatch(folder.name)]
    for folder in folders:
        with suppress(OSError):
            if not is_alive(folder):
                continue
        found[folder.name] = frozenset()
        with suppress(NbdistError, OSError):
            found[folder.name] = frozenset(task.incarnation for task in read_description(folder).tasks)
    return found
