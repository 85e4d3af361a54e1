"""The clusters of this user in the sidebar: those of nbdist, and those that ipyparallel started.

They are read from files, supervisors' sockets and the process table. A reader creates and removes nothing,
because another process may start or stop a cluster at the same time. Unchanged files are not read again.

A pid in a file proves nothing: the process may have ended and the pid may be in use again. A pid in the
present status of its supervisor is certain (the supervisor has not reaped it). Without that, a process counts
as the task's only if it started before the file was written (`processes`).
"""

from __future__ import annotations

import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nbdist.cluster.description import FILE, LONGEST, ClusterDescription, read_description
from nbdist.cluster.folder import FOLDER, VALID_ID, busy_tasks, is_alive
from nbdist.cluster.host_status import host_rows
from nbdist.cluster.hub import own_versions
from nbdist.cluster.launchers.registry import LAUNCHERS
from nbdist.cluster.supervisor.client import describe_exit
from nbdist.errors import NbdistError
from nbdist.json_values import text
from nbdist.lab.actions.status import attach_code
from nbdist.lab.readers.files import Item, Mark, find_home, mark_of
from nbdist.lab.readers.ipyparallel import FoundCluster, ParallelClusters, profile_of
from nbdist.lab.readers.processes import Processes
from nbdist.lab.readers.supervisor import HostUsage, SupervisorConnection, SupervisorStatus
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity

PATIENCE_SECONDS = 0.2  # for the replies of all supervisors together


class Clusters:
    """Lists clusters; one thread at a time may poll.

    ``runs_on`` returns the active runs on a cluster that its tasks do not know: in-graph runs, whose bodies
    are in a notebook's process.

    clusters = Clusters()
    [item["id"] for item in clusters.poll()]
    """

    def __init__(self, runs_on: Callable[[str], Iterable[str]] = lambda cluster_id: ()) -> None:
        self._runs_on = runs_on
        self.problem: str | None = None
        """Why NBDIST_HOME cannot be used or written to, as of the last poll; None if it can."""
        self.seen: dict[str, ClusterStatus] = {}
        """The status of nbdist's clusters by id, as of the last poll."""
        self._folder = Path()
        self._found: dict[str, FoundCluster] = {}
        self._processes = Processes()
        self._watched: dict[str, ClusterWatcher] = {}
        self._parallel = ParallelClusters(self._processes)

    def poll(self) -> list[Item]:
        """Return the current items, newest first, ready for JSON; a bad file raises no error."""
        folder = self._poll_nbdist()
        found = self._parallel.poll()
        kept = {one.supervisor_folder for each in found for one in each.cluster.sets if one.supervisor_folder}
        ours = {
            f"{folder}/{seen.id}": nbdist_item(seen, self._versions, self._runs_on(seen.id))
            for seen in self.seen.values()
            if seen.state != "starting" or f"{folder}/{seen.id}" not in kept
        }
        others = [each for each in found if not each.cluster.by_nbdist]  # also those of another NBDIST_HOME
        self._found = {f"ipp:{profile_of(each.path)}:{each.cluster.id}": each for each in others}
        living = {f"{folder}/{seen.id}" for seen in self.seen.values() if seen.state != "stale"}
        items = [*ours.values(), *(self._parallel.item(each, living.__contains__) for each in others)]
        self._processes.forget_unused()
        return sorted(items, key=lambda item: (item["created"], item["id"]), reverse=True)

    def one(self, cluster_id: str) -> ClusterStatus | None:
        """Return the status of one cluster, of nbdist or of ipyparallel, as of the last poll."""
        if (found := self._found.get(cluster_id)) is None:
            return self.seen.get(cluster_id)
        engines = enumerate(found.cluster.pids)
        tasks = tuple(TaskInfo("engine", n, n, host_identity(), pid, "", "", 0) for n, pid in engines)
        description = ClusterDescription(None, len(tasks), 0, found.cluster.launcher, tasks)
        return ClusterStatus(cluster_id, "running", found.written, description, written=found.written)

    def ask_usage(self, cluster_id: str) -> Mapping[str, HostUsage]:
        """Return what other hosts of a cluster and their tasks use, by host; request newer figures."""
        watched = self._watched.get(cluster_id)
        return {} if watched is None else watched.ask_usage()

    def close(self) -> None:
        """Disconnect from all supervisors; a later poll connects again."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()

    def _poll_nbdist(self) -> Path:
        home, self.problem = find_home()
        folder = home / "clusters" if home is not None else Path("/nowhere")
        names, problem = cluster_folders(folder)
        self.problem = self.problem or problem
        removed = self._watched.keys() if folder != self._folder else self._watched.keys() - set(names)
        for name in list(removed):
            self._watched.pop(name).close()
        self._folder = folder
        deadline = time.monotonic() + PATIENCE_SECONDS
        self.seen = {}
        for name in names:
            if name not in self._watched:
                self._watched[name] = ClusterWatcher(folder / name, self._processes)
            seen = self._watched[name].poll(max(0.0, min(PATIENCE_SECONDS / 4, deadline - time.monotonic())))
            if seen is not None:
                self.seen[name] = seen
        return folder

    @cached_property
    def _versions(self) -> Mapping[str, str]:
        return own_versions()


def cluster_folders(folder: Path) -> tuple[list[str], str | None]:
    """Return the names of cluster folders, and a problem if they cannot be listed; links are not followed."""
    try:
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return [], f"{folder} is a link, and links are not followed; remove it"
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # no cluster was ever started
        return [], None
    except OSError as error:
        return [], f"{folder} cannot be read: {error.strerror}"
    return [name for name in names if VALID_ID.fullmatch(name)], None


# One nbdist cluster, read from its folder, its supervisor and its processes.

SETTLED_NS = 1_000_000_000  # a more recent change may be followed by another in the same clock tick
REMARK = re.compile(r"\] (DEBUG|INFO|WARNING) \| ")  # a log line without an error


@dataclass(frozen=True)
class ClusterStatus:
    """The status of a cluster at one poll."""

    id: str
    state: str
    """starting, running, stopping, failed (its file cannot be read) or stale (its supervisor is dead)."""
    created: float
    description: ClusterDescription | None = None
    dead: Mapping[int, str] = field(default_factory=dict)
    """By rank: how its task ended."""
    confirmed: frozenset[int] = frozenset()
    """The pids in the supervisor's present status, which are certainly the tasks'."""
    busy: Mapping[int, str] = field(default_factory=dict)
    """By rank: the run of the task; without in-graph runs, whose bodies are in a notebook."""
    owner_alive: bool = False
    hosts: tuple[Item, ...] = ()
    """The hosts of a cluster on other hosts than this one."""
    ends: float | None = None
    """When the job of these hosts ends, in seconds since 1970."""
    unused_ends: float | None = None
    """When the cluster ends if nothing uses it, in seconds since 1970, as a full minute."""
    written: float = 0.0
    """The time of the file that names the processes; a younger process has reused its pid."""
    error: str | None = None

    @property
    def runs(self) -> list[str]:
        """The runs on it now, each once."""
        return list(dict.fromkeys(self.busy.values()))


class ClusterWatcher:
    """Follows one cluster's folder; unchanged files are not read again."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self._file, self._busy_folder = f"{folder}/{FILE}", f"{folder}/{FOLDER}"
        self._processes = processes
        self._supervisor = SupervisorConnection(folder)
        self._stamp: Mark | None = None
        self._read: ClusterDescription | str = ""
        self._busy: tuple[int, frozenset[int], dict[int, str]] | None = None

    def poll(self, patience: float) -> ClusterStatus | None:
        """Return the status; None if there is no cluster. ``patience``: seconds to wait for its supervisor.

        It removes nothing of a dead cluster: a new cluster may already use the folder.
        """
        reported = self._supervisor.read(patience)
        alive = self._supervisor.connected or is_alive(self.folder)
        try:
            status = os.lstat(self._file)
        except OSError:
            return self._starting() if alive else None
        description = self._describe(status)
        if isinstance(description, str):
            return (
                ClusterStatus(self.folder.name, "failed", status.st_mtime, error=description)
                if alive
                else None
            )
        created, written = description.created or status.st_mtime, status.st_mtime
        if not alive:
            error = "its cluster process and its tasks have ended: killed, or this computer was restarted"
            return ClusterStatus(
                self.folder.name, "stale", created, description, written=written, error=error
            )
        if reported is not None and reported.tasks is not None:
            description = description.now(reported.tasks)
        dead = self._dead(description, reported, written)
        living = frozenset(task.rank for task in description.tasks if task.rank not in dead)
        return ClusterStatus(
            self.folder.name,
            "stopping" if reported is not None and reported.stopping else "running",
            created,
            description,
            dead,
            frozenset(() if reported is None else reported.pids.values()),
            self._busy_runs(living),
            bool(description.owner) and self._owner_lives(description.owner),
            host_items(description, reported, self._supervisor.usage()),
            None if reported is None else reported.ends,
            None if reported is None else full_minute(reported.unused_ends),
            written,
        )

    def ask_usage(self) -> Mapping[str, HostUsage]:
        """Return what other hosts and their tasks use, by host; request newer figures."""
        self._supervisor.ask_usage()
        return self._supervisor.usage()

    def close(self) -> None:
        """Disconnect from the supervisor."""
        self._supervisor.close()

    def _starting(self) -> ClusterStatus | None:
        try:
            return ClusterStatus(self.folder.name, "starting", os.lstat(self.folder / "lock").st_mtime)
        except OSError:  # it was just removed
            return None

    def _describe(self, status: os.stat_result) -> ClusterDescription | str:
        stamp = mark_of(status)
        if stamp != self._stamp:
            try:
                self._read = read_description(self.folder)
            except NbdistError as error:
                self._read = str(error)
            except OSError as error:
                self._read = f"{self._file} cannot be read: {error}"
            self._stamp = stamp
        return self._read

    def _dead(
        self, description: ClusterDescription, reported: SupervisorStatus | None, written: float
    ) -> dict[int, str]:
        """Return how tasks ended, from the supervisor's status, or from the process table without a reply."""
        if reported is not None:
            return describe_deaths(description.tasks, reported)
        here = [task for task in description.tasks if task.host == host_identity()]
        ended = [task for task in here if self._processes.find(task.pid, written) is None]
        return {
            task.rank: "its process has ended; the cause is unknown: the cluster process does not answer"
            for task in ended
        }

    def _owner_lives(self, owner: Mapping[str, Any]) -> bool:
        """Return whether the owner may be alive; an owner on another host counts as alive."""
        here = owner["host"] == host_identity()
        return not here or self._processes.find(owner["pid"], owner["started"]) is not None

    def _busy_runs(self, living: frozenset[int]) -> dict[int, str]:
        """Return the run of each task; read again when a busy file was created or removed."""
        try:
            changed = os.stat(self._busy_folder).st_mtime_ns
        except OSError:
            return {}
        if self._busy is not None and self._busy[:2] == (changed, living):
            return self._busy[2]
        found = {rank: run for rank, run in busy_tasks(self.folder).items() if rank in living}
        settled = time.time_ns() - changed > SETTLED_NS
        self._busy = (changed, living, found) if settled else None
        return found


def host_items(
    description: ClusterDescription, reported: SupervisorStatus | None, usage: Mapping[str, HostUsage]
) -> tuple[Item, ...]:
    """Return the hosts of a cluster, ready for JSON; none for a cluster on this host, or if it is unknown."""
    if reported is None or not any([description.slots, reported.hosts]):
        return ()
    rows = host_rows(reported.hosts, description.slots, description.tasks, {}, None, reported.lost)
    shown = ("name", "address", "cores", "state")
    return tuple(
        {
            **{key: row[key] for key in shown},
            "gpus": None if row["gpus"] is None else len(row["gpus"]),
            "tasks": len(row["tasks"]),
            "machine": dict(usage[row["name"]].machine) if row["name"] in usage else None,
        }
        for row in rows
    )


def describe_deaths(tasks: tuple[TaskInfo, ...], reported: SupervisorStatus) -> dict[int, str]:
    """Return how each task without a process ended, by rank."""
    ended = [task.rank for task in tasks if task.rank not in reported.pids]
    return {rank: describe_death(reported.exits.get(rank, {"by": "its process has ended"})) for rank in ended}


def describe_death(how: Mapping[str, Any]) -> str:
    """Return how a process ended, with the last line of its log that may be the cause.

    >>> describe_death({"code": 1, "signal": None, "log": "one\\nValueError: no\\n"})
    'exited with code 1; its log ends with: ValueError: no'
    >>> describe_death({"code": None, "signal": 9, "log": "[IPEngine.3] WARNING | no debugpy"})
    'killed by SIGKILL'
    """
    try:
        words = describe_exit({"code": None, "signal": None, **how})
    except (TypeError, ValueError):  # a supervisor of another version
        words = "its process has ended"
    log = how.get("log")
    lines = log.splitlines() if isinstance(log, str) else []
    telling = [line.strip() for line in lines if line.strip() and not REMARK.search(line)]
    last = telling[-1][-200:] if telling else ""
    return f"{words}; its log ends with: {last}" if last else words


NOT_RUNNING = {
    "starting": "it is starting",
    "stopping": "it is being stopped",
    "failed": "its cluster.json cannot be read",
    "stale": "its processes have ended",
}


def full_minute(moment: float | None) -> float | None:
    """Return the full minute of a moment that is known roughly, so that the item seldom changes.

    >>> full_minute(1090.0), full_minute(None)
    (1080.0, None)
    """
    return None if moment is None else math.floor(moment / 60) * 60.0


def nbdist_item(seen: ClusterStatus, here: Mapping[str, str], runs: Iterable[str] = ()) -> Item:
    """Return the item of an nbdist cluster; ``here`` are the versions in this environment.

    ``runs`` are active runs on it that its tasks do not know.
    """
    description = seen.description or ClusterDescription(None, 0, 0, "local", ())
    owner = description.owner
    session = text(owner.get("session"), LONGEST)
    can, why = accepted_commands(seen, here)
    return {
        "id": seen.id,
        "kind": "nbdist",
        "title": seen.id,
        "state": seen.state,
        "launcher": description.launcher,
        "workers": description.workers,
        "ps": description.ps,
        "engines": len(description.tasks) - len(seen.dead) if seen.state != "stale" else 0,
        "created": seen.created,
        "owner": None if not owner else {"pid": owner["pid"], "session": session, "alive": seen.owner_alive},
        "detached": not owner,
        "dead": [f"{task.job}:{task.index}" for task in description.tasks if task.rank in seen.dead],
        "runs": list(dict.fromkeys([*seen.runs, *runs])),
        "hosts": list(seen.hosts),
        "ends": seen.ends,
        "unused_ends": seen.unused_ends,
        "attach": attach_code(seen.id),
        "can": can,
        "why": why,
        "lines": [],
        "error": seen.error,
    }


def accepted_commands(seen: ClusterStatus, here: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, str]]:
    """Return which commands a cluster accepts, and why it refuses the others."""
    reason = NOT_RUNNING.get(seen.state)
    theirs = seen.description.versions if seen.description is not None else {}
    if reason is None and theirs != here:
        other = next((name for name in here if theirs.get(name) != here[name]), "nbdist")
        reason = (
            f"it runs {other} {theirs.get(other, '?')}, and the Jupyter server {here.get(other, '?')}: "
            "use a notebook with its environment"
        )
    why = {} if reason is None else {"grow": reason, "shrink": reason, "restart": reason}
    spec = None if seen.description is None else LAUNCHERS.get(seen.description.launcher)
    if spec is not None and spec.fixed_size:
        why.setdefault("grow", f"{spec.fixed_size}: start a new cluster")
        why.setdefault("shrink", f"{spec.fixed_size}: start a new cluster")
    if spec is not None and spec.not_replaced:
        why.setdefault("restart", f"{spec.not_replaced}: start a new cluster")
    if seen.description is not None and seen.description.workers < 2:
        why.setdefault("shrink", "its only worker, the chief, cannot be removed")
    if seen.state == "stopping":
        why["stop"] = NOT_RUNNING["stopping"]
    return {command: command not in why for command in ("stop", "grow", "shrink", "restart")}, why
