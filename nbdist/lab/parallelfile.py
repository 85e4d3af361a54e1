"""What a cluster file of ipyparallel says, `security/cluster-*.json` of a profile. Decides only.

ipyparallel writes it when its controller has started and again when engines come or go; what its launchers
know is in it in their own forms. Pids of launchers that start on other hosts (ssh) mean nothing here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.lab.clusterfile import MOST_TASKS, text, whole

Item = dict[str, Any]
OURS = ("nbdist.cluster.ipyparallel_launcher.LocalTaskLauncher", "nbdist")
"""The class of our engine launcher, and its entry point: ipyparallel writes that when it updates a file."""
REMOTE = ("hostname", "location", "job_id")
"""What a launcher knows whose process is not one of this host, or not a process at all."""
BEGUN = re.compile(r"(\d{10})-\w+")  # the ids that ipyparallel makes begin with the time


@dataclass(frozen=True)
class Engines:
    """One set of engines: how many, and those whose processes can be looked for here."""

    count: int
    pids: tuple[int, ...] = ()
    keeper_folder: str = ""


@dataclass(frozen=True)
class ParallelCluster:
    """What is shown of a cluster of ipyparallel's own."""

    id: str
    launcher: str
    controller: int | None
    """The controller's pid; None if it is not a process of this host, or is not known."""
    sets: tuple[Engines, ...] = ()
    by_nbdist: bool = False
    """Whether nbdist started it, and wrote the file for ipyparallel: its profile is its own folder."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The engines whose processes are known."""
        return tuple(pid for one in self.sets for pid in one.pids)


def parse_parallel(content: object, cluster_id: str) -> ParallelCluster | None:
    """Return what a cluster file says, or None if it is none; whatever it holds, nothing is raised.

    >>> parse_parallel({"cluster": {}, "engines": {"class": "mpi", "sets": {"a": {"n": 4}}}}, "x").sets
    (Engines(count=4, pids=(), keeper_folder=''),)
    """
    if not isinstance(content, dict) or not isinstance(content.get("cluster"), dict):
        return None
    engines, state = _dict(content.get("engines")), _dict(_dict(content.get("controller")).get("state"))
    name = text(engines.get("class")) or "local"
    sets = tuple(_set(one) for one in _dicts(engines.get("sets")))
    folder = text(content["cluster"].get("profile_dir"))
    by_nbdist = name in OURS and bool(folder) and any(one.keeper_folder == folder for one in sets)
    return ParallelCluster(cluster_id, "nbdist" if name in OURS else name, _pid(state), sets, by_nbdist)


def parallel_item(
    path: Path, one: ParallelCluster, living: frozenset[int], engines: int, created: float
) -> Item:
    """Return the item of a cluster of ipyparallel's own; ``living`` are those of its pids that live."""
    profile = profile_of(path)
    gone = one.controller is not None and one.controller not in living
    if one.controller is None and one.pids and not engines:
        gone = True
    what = f"its controller (pid {one.controller})" if one.controller is not None else "all its engines"
    error = f"{what} has ended without removing its file; stop it to have that done" if gone else None
    why = "ipyparallel has no such thing; a cluster that %cluster start brings up does"
    begun = BEGUN.fullmatch(one.id)
    quoted = json.dumps(str(path))  # which is a text in Python too
    return {
        "id": f"ipp:{profile}:{one.id}",
        "kind": "ipyparallel",
        "title": f"{one.id or 'default'} ({profile})",
        "state": "stale" if gone else "running",
        "launcher": one.launcher,
        "workers": engines,
        "ps": 0,
        "engines": engines,
        "created": float(begun[1]) if begun else created,
        "owner": None,
        "detached": False,
        "dead": [f"engine:{number}" for number, pid in enumerate(one.pids) if pid not in living and not gone],
        "runs": [],
        "attach": f"import ipyparallel as ipp\nrc = ipp.Cluster.from_file({quoted}).connect_client_sync()",
        "can": {"stop": True, "grow": False, "shrink": False, "restart": False},
        "why": {"grow": why, "shrink": why, "restart": why},
        "lines": [],
        "error": error,
    }


def profile_of(path: Path) -> str:
    """Return the name of the profile that a cluster file is of.

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


def _set(state: Mapping[str, Any]) -> Engines:
    each = list(_dicts(state.get("engines")))
    pids = tuple(pid for one in each if (pid := _pid(one)) is not None)
    count = len(each) if each else whole(state.get("n"), MOST_TASKS) or 0
    return Engines(count, pids, text(state.get("keeper_folder")))


def _pid(state: Mapping[str, Any]) -> int | None:
    if any(name in state for name in REMOTE):
        return None
    return whole(state.get("pid")) or None


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    return (one for one in list(_dict(value).values())[:MOST_TASKS] if isinstance(one, dict))
