"""The clusters that ipyparallel or its panel started, from the files in the IPython profiles.

ipyparallel's own reader is not used: it starts threads for every cluster, and rewrites the files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.description import LONGEST, MOST_TASKS
from nbdist.cluster.hub import default_profile
from nbdist.errors import NotAllowedError
from nbdist.json_values import mapping, text, whole
from nbdist.lab.readers.files import Item, Mark, mark_of, open_regular
from nbdist.lab.readers.processes import Processes
from nbdist.runtime.task import MOST_PID

MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class FoundCluster:
    """A cluster file, its content, and the time of its last change."""

    path: Path
    cluster: ParallelCluster
    written: float


class ParallelClusters:
    """Lists the cluster files of all profiles; an unchanged file is not read again."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._read: dict[Path, tuple[Mark, ParallelCluster | None]] = {}

    def poll(self) -> list[FoundCluster]:
        """Return the clusters; incomplete files and files of other users are skipped."""
        before, self._read = self._read, {}
        found = []
        for path in cluster_files():
            with suppress(OSError):
                status = os.lstat(path)
                stamp = mark_of(status)
                known = before.get(path)
                cluster = known[1] if known is not None and known[0] == stamp else read_parallel(path)
                self._read[path] = (stamp, cluster)
                if cluster is not None:
                    found.append(FoundCluster(path, cluster, status.st_mtime))
        return found

    def item(self, found: FoundCluster, supervisor_alive: Callable[[str], bool]) -> Item:
        """Return the item of a cluster; ``supervisor_alive`` tells it of a cluster folder of nbdist."""
        one = found.cluster
        pids = [pid for pid in (one.controller, *one.pids) if pid is not None]
        alive = frozenset(pid for pid in pids if self._processes.find(pid, found.written) is not None)
        engines = sum(
            one.count * supervisor_alive(one.supervisor_folder)
            if one.supervisor_folder
            else one.count - sum(pid not in alive for pid in one.pids)
            for one in one.sets
        )
        return parallel_item(found.path, one, alive, engines, found.written)


def cluster_files() -> Iterator[Path]:
    """Yield the cluster files of all IPython profiles of this user."""
    # RuntimeError: HOME is not set.
    with suppress(OSError, RuntimeError), os.scandir(default_profile().parent) as profiles:
        for profile in profiles:
            if profile.name.startswith("profile_"):
                with suppress(OSError), os.scandir(os.path.join(profile.path, "security")) as files:
                    for file in files:
                        if file.name.startswith("cluster-") and file.name.endswith(".json"):
                            yield Path(file.path)


def read_parallel(path: Path) -> ParallelCluster | None:
    """Return the content of a cluster file; None if it is incomplete, too large, a link or another user's."""
    with suppress(OSError, ValueError, RecursionError, NotAllowedError):
        descriptor, status = open_regular(path)
        with open(descriptor, "rb") as file:
            if status.st_uid == os.geteuid() and not status.st_mode & 0o002 and status.st_size <= MOST_BYTES:
                return parse_parallel(json.loads(file.read(MOST_BYTES + 1)), id_of(path))
    return None


OURS = (
    "nbdist.cluster.ipyparallel_launcher.LocalTaskLauncher",
    "nbdist.cluster.local.LocalTaskLauncher",  # written by earlier versions
    "nbdist",
)
"""nbdist's engine launcher: its class, and its entry point (written when ipyparallel updates a file)."""


REMOTE = ("hostname", "location", "job_id")
"""Keys in the state of launchers without a local process."""


BEGUN = re.compile(r"(\d{10})-\w+")  # the ids that ipyparallel makes begin with the time


@dataclass(frozen=True)
class EngineSet:
    """One set of engines: their number, and the pids of local ones."""

    count: int
    pids: tuple[int, ...] = ()
    supervisor_folder: str = ""


@dataclass(frozen=True)
class ParallelCluster:
    """The content of a cluster file, as far as it is shown."""

    id: str
    launcher: str
    controller: int | None
    """The controller's pid; None if it is unknown or on another host."""
    sets: tuple[EngineSet, ...] = ()
    by_nbdist: bool = False
    """Whether nbdist started it and wrote the file for ipyparallel: its profile is the cluster's folder."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The pids of local engines."""
        return tuple(pid for one in self.sets for pid in one.pids)


def parse_parallel(content: object, cluster_id: str) -> ParallelCluster | None:
    """Return the cluster in a cluster file, None if it is invalid. Never raises.

    >>> parse_parallel({"cluster": {}, "engines": {"class": "mpi", "sets": {"a": {"n": 4}}}}, "x").sets
    (EngineSet(count=4, pids=(), supervisor_folder=''),)
    """
    if not isinstance(content, dict) or not isinstance(content.get("cluster"), dict):
        return None
    engines, state = mapping(content.get("engines")), mapping(mapping(content.get("controller")).get("state"))
    name = text(engines.get("class"), LONGEST) or "local"
    sets = tuple(_set(one) for one in _dicts(engines.get("sets")))
    folder = text(content["cluster"].get("profile_dir"), LONGEST)
    by_nbdist = name in OURS and bool(folder) and any(one.supervisor_folder == folder for one in sets)
    return ParallelCluster(cluster_id, "nbdist" if name in OURS else name, _pid(state), sets, by_nbdist)


def parallel_item(
    path: Path, one: ParallelCluster, alive: frozenset[int], engines: int, created: float
) -> Item:
    """Return the item of an ipyparallel cluster; ``alive`` are its living pids."""
    profile = profile_of(path)
    stale = one.controller is not None and one.controller not in alive
    if one.controller is None and one.pids and not engines:
        stale = True
    what = f"its controller (pid {one.controller})" if one.controller is not None else "all its engines"
    error = f"{what} ended without removing its file; stop the cluster to remove it" if stale else None
    why = "ipyparallel cannot do this; start a cluster with %cluster start instead"
    begun = BEGUN.fullmatch(one.id)
    quoted = json.dumps(str(path))  # a JSON string is a Python literal too
    return {
        "id": f"ipp:{profile}:{one.id}",
        "kind": "ipyparallel",
        "title": f"{one.id or 'default'} ({profile})",
        "state": "stale" if stale else "running",
        "launcher": one.launcher,
        "workers": engines,
        "ps": 0,
        "engines": engines,
        "created": float(begun[1]) if begun else created,
        "owner": None,
        "detached": False,
        "dead": [f"engine:{number}" for number, pid in enumerate(one.pids) if pid not in alive and not stale],
        "runs": [],
        "hosts": [],
        "ends": None,
        "unused_ends": None,
        "attach": f"import ipyparallel as ipp\nrc = ipp.Cluster.from_file({quoted}).connect_client_sync()",
        "can": {"stop": True, "grow": False, "shrink": False, "restart": False},
        "why": {"grow": why, "shrink": why, "restart": why},
        "lines": [],
        "error": error,
    }


def profile_of(path: Path) -> str:
    """Return the IPython profile of a cluster file.

    >>> profile_of(Path("/home/me/.ipython/profile_mpi/security/cluster-a.json"))
    'mpi'
    """
    return path.parent.parent.name.removeprefix("profile_")


def id_of(path: Path) -> str:
    """Return the id in a cluster file's name.

    >>> id_of(Path("cluster-1763683200-abcd.json"))
    '1763683200-abcd'
    """
    return path.name.removeprefix("cluster-").removesuffix(".json")


def _set(state: Mapping[str, Any]) -> EngineSet:
    each = list(_dicts(state.get("engines")))
    pids = tuple(pid for one in each if (pid := _pid(one)) is not None)
    count = len(each) if each else whole(state.get("n"), MOST_TASKS) or 0
    return EngineSet(
        count,
        pids,
        text(state.get("supervisor_folder"), LONGEST) or text(state.get("keeper_folder"), LONGEST),
    )


def _pid(state: Mapping[str, Any]) -> int | None:
    if any(name in state for name in REMOTE):
        return None
    return whole(state.get("pid"), MOST_PID) or None


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    return (one for one in list(mapping(value).values())[:MOST_TASKS] if isinstance(one, dict))
