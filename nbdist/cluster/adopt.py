"""A notebook's clusters after its kernel was restarted: one is adopted, the others are ended.

A kernel's restart kills the client, not the cluster: the supervisor keeps it until its orphan timeout.
Without adoption the restarted notebook would start a second cluster, and the first would hold cores, GPUs and
perhaps a run that no view displays.

``%cluster start`` therefore calls `start_or_adopt`. ``cluster.json`` names the owner: host, pid, start time
of the process (a pid alone may be reused) and notebook (JPY_SESSION_NAME, which survives a restart). A
cluster is abandoned if its owner has died and was a kernel of this notebook. Of the abandoned clusters

    one with a run                          is adopted as it is, so that the run can be followed
    else one of the requested shape         is adopted
    all others without a run                are ended

Adopting attaches to the cluster and writes this process as its owner. Clusters of other notebooks, and
detached clusters, which have no owner, are left as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import STOP_SECONDS, Cluster
from nbdist.cluster.description import ClusterDescription, read_description
from nbdist.cluster.folder import (
    clusters_folder,
    is_alive,
    is_process_alive,
    living,
    remove_traces,
    runs_on,
)
from nbdist.cluster.hub import own_versions
from nbdist.cluster.late_hosts import describe_awaited
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.launchers.registry import AUTO, DEFAULT_LAUNCHER, all_settings, choose_launcher
from nbdist.cluster.supervisor.client import SupervisorClient, end_frozen
from nbdist.cluster.time_limits import SAVE_BEFORE, parse_seconds
from nbdist.errors import DeadlineExceededError, NbdistError, UnavailableError

Report = Callable[[str], object]
LOOK_SECONDS = 0.05  # between two looks whether a cluster has ended
SHAPE = {"workers": 2, "ps": 0, "data": 0}
REQUESTED = {
    "launcher": DEFAULT_LAUNCHER,
    "gpus": "auto",
    "gpu_memory": None,
    "threads": None,
    "memory": None,
    "idle": None,
    "save_before": SAVE_BEFORE,
    "requeue": False,
    "orphan_timeout": None,
    **{name: setting.default for name, (setting, _) in all_settings().items()},
}
"""The defaults of `start_cluster` that a cluster has to match."""


@dataclass(frozen=True)
class AbandonedCluster:
    """A cluster of this notebook with a dead owner: its description, and the runs that use it."""

    id: str
    description: ClusterDescription
    runs: tuple[str, ...] = ()
    same_versions: bool = True


def start_or_adopt(*, report: Report = print, tunnel: str | None = None, **options: Any) -> Cluster:
    """Return an abandoned cluster of this notebook if there is one of the requested shape, else a new one.

    ``options`` are those of `start_cluster`. An abandoned cluster of another shape is ended, unless
    a run uses it: then it is adopted as it is. With ``tunnel``, a host that ssh reaches, the cluster's head
    is there (`nbdist.cluster.tunnel`), and none is adopted.
    """
    adopted = adopt(options, report) if tunnel is None else None
    return start_cluster(report=report, tunnel=tunnel, **options) if adopted is None else adopted


def adopt(wanted: Mapping[str, Any] | None, report: Report = print) -> Cluster | None:
    """Adopt an abandoned cluster of this notebook and end the others; ``wanted`` None accepts any shape.

    Returns None if there is none to adopt.
    """
    found = abandoned_clusters()
    kept = choose(found, wanted)
    adopted = None
    if kept is not None:
        try:
            adopted = Cluster.attach(kept.id)
            adopted.take_ownership()
        except NbdistError as error:  # it is ending
            report(f"cluster {kept.id}, which this notebook left behind, cannot be adopted: {error}")
    for left in found:
        if left is not kept and (not left.runs or not left.same_versions):
            end(clusters_folder() / left.id)
            report(f"cluster {left.id}, which this notebook left behind, was ended: {why_not(left, wanted)}")
    if adopted is not None and kept is not None:
        report(f"cluster {kept.id} from before the kernel's restart is running and is used again")
        if (why := why_not(kept, wanted)) and kept.runs:
            report(f"{why}; %cluster stop ends the cluster and its runs")
        report_runs(adopted, report)
    return adopted


def choose(found: list[AbandonedCluster], wanted: Mapping[str, Any] | None) -> AbandonedCluster | None:
    """Return the cluster to adopt: one with a run, else one of the requested shape, else None."""
    usable = [cluster for cluster in found if cluster.same_versions]
    working = [cluster for cluster in usable if cluster.runs]
    fitting = [cluster for cluster in usable if not why_not(cluster, wanted)]
    return next(iter([*working, *fitting]), None)


def why_not(cluster: AbandonedCluster, wanted: Mapping[str, Any] | None) -> str:
    """Return why a cluster does not fit the options ``wanted``; "" if it does.

    >>> abandoned = ClusterDescription(None, workers=2, ps=1, launcher="local", tasks=())
    >>> why_not(AbandonedCluster("a", abandoned), {"workers": 3, "ps": 1})
    'it has 2 workers and not 3'
    """
    if not cluster.same_versions:
        return "it runs other versions than this process"
    if wanted is None:
        return ""
    if wanted.get("cluster_id") not in (None, cluster.id):
        return f"its id is not {wanted['cluster_id']!r}"
    spec, _ = choose_launcher(str(wanted.get("launcher", AUTO)), wanted)
    wanted = {**wanted, "launcher": spec.name}
    for name in ("idle", "save_before"):
        if (asked := wanted.pop(name, None)) is not None:
            wanted[name] = parse_seconds(name, asked)
    if wanted.get("orphan_timeout") is None:  # no particular one: that of the cluster will do
        wanted["orphan_timeout"] = cluster.description.asked.get("orphan_timeout")
    usual_shape = {**SHAPE, "workers": sum(cluster.description.slots.values()) or SHAPE["workers"]}
    for name, usual in usual_shape.items():
        has, asked = getattr(cluster.description, name), wanted.get(name)
        asked = usual if asked is None else asked
        if has != asked:
            return f"it has {has} {name} and not {asked}"
    for name, default in REQUESTED.items():
        has, asked = cluster.description.asked.get(name, default), wanted.get(name, default)
        asked = list(asked) if isinstance(asked, tuple) else asked  # as a file has it
        if has != asked:
            return f"its {name.replace('_', ' ')} is {has!r} and not {asked!r}"
    return ""


def abandoned_clusters() -> list[AbandonedCluster]:
    """Return the running clusters of this notebook with a dead owner, the newest first."""
    session = os.environ.get("JPY_SESSION_NAME")
    if not session:
        return []
    found = []
    for name in reversed(living()):
        folder = clusters_folder() / name
        with suppress(NbdistError, OSError):  # it is starting or ending
            description = read_description(folder)
            owner = description.owner
            if owner.get("session") == session and not is_process_alive(owner):
                same = description.versions == own_versions()
                found.append(AbandonedCluster(name, description, tuple(_runs(folder)), same))
    return found


def report_runs(cluster: Cluster, report: Report = print) -> Cluster:
    """Report which runs use a cluster and how to follow them, and which hosts are awaited; return it."""
    if awaited := cluster.awaited_hosts:
        report(describe_awaited(awaited))
    for run in runs_on(cluster.folder):
        report(f"run {run} is under way on it; to follow it: nb.attach({run!r})")
    return cluster


def end(folder: Path, by: str = "") -> None:
    """End a cluster that this process is not connected to, and remove its files and shared memory.

    The cluster's clients receive ``by`` as the reason. A frozen cluster process is killed. Raises
    UnavailableError for a cluster that lives and cannot be reached: its head is on another host.
    """
    tunnel = ""
    with suppress(NbdistError):  # it has not been described yet, or ends at this moment
        tunnel = read_description(folder).tunnel
    try:
        supervisor = SupervisorClient.connect(folder)
    except (UnavailableError, DeadlineExceededError) as error:
        if isinstance(error, DeadlineExceededError) and not tunnel:
            end_frozen(folder)
        until = time.monotonic() + STOP_SECONDS
        while is_alive(folder):  # unless it was killed, or ends at this moment
            if time.monotonic() > until:
                there = f"{tunnel}, behind a tunnel" if tunnel else "another host, which shares this folder"
                raise UnavailableError(
                    f"cluster {folder.name} was not stopped: it lives, and its process does not answer; it "
                    f"starts, or is on {there}: try again, or stop it there"
                ) from None
            time.sleep(LOOK_SECONDS)
    else:
        if tunnel:
            supervisor.lead_through(tunnel)
        supervisor.end(STOP_SECONDS, by)
    remove_traces(folder, folder.name)


def _runs(folder: Path) -> list[str]:
    SupervisorClient.connect(folder).close()  # raises if it does not answer
    return runs_on(folder)
