"""A notebook's cluster after its kernel was restarted: it is adopted or ended, and there are never two."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import STOP_SECONDS, Cluster
from nbdist.cluster.folder import clusters_folder, lives, living, read_description, remove_traces, runs_on
from nbdist.cluster.hub import own_versions
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.supervisor.client import KeeperLink, end_frozen
from nbdist.errors import DeadlineExceededError, NbdistError, UnavailableError

Report = Callable[[str], object]
SHAPE = {"workers": 2, "ps": 0}
ASKED = {"launcher": "local", "gpus": "auto", "gpu_memory": None, "threads": None, "memory": None}
"""What start_cluster takes an argument for when it is not given."""


@dataclass(frozen=True)
class Orphan:
    """A cluster that this notebook has left behind: what it is, and which runs go on there."""

    description: Mapping[str, Any]
    runs: tuple[str, ...] = ()
    same_versions: bool = True

    @property
    def id(self) -> str:
        """The cluster's id."""
        return str(self.description["id"])


def start_or_adopt(*, report: Report = print, **options: Any) -> Cluster:
    """Return a cluster: one that this notebook has left behind if it will do, else a new one.

    ``options`` are those of `start_cluster`. What is left behind and will not do is ended, unless a run goes
    on there: that cluster is adopted whatever its shape, for the run's sake.
    """
    adopted = adopt(options, report)
    return start_cluster(report=report, **options) if adopted is None else adopted


def adopt(wanted: Mapping[str, Any] | None, report: Report = print) -> Cluster | None:
    """Take over what this notebook has left behind, or end it; with ``wanted`` None any shape will do."""
    found = left_behind()
    kept = choose(found, wanted)
    adopted = None
    if kept is not None:
        try:
            adopted = Cluster.attach(kept.id)
            adopted.own()
        except NbdistError as error:  # it ends at this moment
            report(f"cluster {kept.id}, which this notebook left behind, cannot be adopted: {error}")
    for orphan in found:
        if orphan is not kept and (not orphan.runs or not orphan.same_versions):
            end(clusters_folder() / orphan.id)
            report(
                f"cluster {orphan.id}, which this notebook left behind, is ended: {why_not(orphan, wanted)}"
            )
    if adopted is not None and kept is not None:
        report(f"cluster {kept.id} is up still, from before the kernel was restarted, and is used again")
        if (why := why_not(kept, wanted)) and kept.runs:
            report(f"{why}; %cluster stop ends the cluster and its runs")
        announce(adopted, report)
    return adopted


def choose(found: list[Orphan], wanted: Mapping[str, Any] | None) -> Orphan | None:
    """Return the one to adopt: with a run that goes on, else one that fits; None if all are to be ended."""
    usable = [orphan for orphan in found if orphan.same_versions]
    working = [orphan for orphan in usable if orphan.runs]
    fitting = [orphan for orphan in usable if not why_not(orphan, wanted)]
    return next(iter([*working, *fitting]), None)


def why_not(orphan: Orphan, wanted: Mapping[str, Any] | None) -> str:
    """Return why a cluster is not what is wanted; "" if it is.

    >>> why_not(Orphan({"id": "a", "workers": 2, "ps": 1}), {"workers": 3, "ps": 1})
    'it has 2 workers and not 3'
    """
    if not orphan.same_versions:
        return "it runs other versions than this process"
    if wanted is None:
        return ""
    if wanted.get("cluster_id") not in (None, orphan.id):
        return f"its id is not {wanted['cluster_id']!r}"
    for name, usual in SHAPE.items():
        has, asked = orphan.description.get(name), wanted.get(name, usual)
        if has != asked:
            return f"it has {has} {name} and not {asked}"
    for name, default in ASKED.items():
        has, asked = orphan.description.get("asked", ASKED).get(name), wanted.get(name, default)
        if has != asked:
            return f"its {name.replace('_', ' ')} is {has!r} and not {asked!r}"
    return ""


def left_behind() -> list[Orphan]:
    """Return the living clusters of this notebook whose owner is gone, the newest first."""
    session = os.environ.get("JPY_SESSION_NAME")
    if not session:
        return []
    found = []
    for name in reversed(living()):
        folder = clusters_folder() / name
        with suppress(NbdistError, ValueError, OSError):  # it starts or ends at this moment
            description = read_description(folder)
            owner = description.get("owner", {})
            if owner.get("session") == session and not lives(owner):
                same = description["versions"] == own_versions()
                found.append(Orphan(description, tuple(_runs(folder)), same))
    return found


def announce(cluster: Cluster, report: Report = print) -> Cluster:
    """Say which runs are under way on a cluster, and how to follow them; returns the cluster."""
    for run in going_on(cluster):
        report(f"run {run} is under way on it; to follow it: nb.attach({run!r})")
    return cluster


def going_on(cluster: Cluster) -> list[str]:
    """Return the runs that go on on a cluster, whoever started them."""
    dead = {info.rank for info in cluster.dead()}
    return runs_on(cluster.folder, [info.pid for info in cluster.tasks if info.rank not in dead])


def end(folder: Path, by: str = "") -> None:
    """End a cluster that this process is not connected to, and remove its files and shared memory.

    The cluster's clients receive ``by`` as the reason. A frozen cluster process is killed.
    """
    try:
        link = KeeperLink.reach(folder)
    except UnavailableError:  # it ends at this moment, or its keeper was killed
        remove_traces(folder, folder.name)
        return
    except DeadlineExceededError:
        end_frozen(folder)
        remove_traces(folder, folder.name)
        return
    with suppress(UnavailableError, DeadlineExceededError):
        link.ask("stop", by=by)
    if not link.wait_gone(STOP_SECONDS):
        link.kill()
    link.close()
    remove_traces(folder, folder.name)


def _runs(folder: Path) -> list[str]:
    link = KeeperLink.reach(folder)
    try:
        return runs_on(folder, list(link.pids.values()))
    finally:
        link.close()
