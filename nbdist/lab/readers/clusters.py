"""The clusters of this user as the sidebar lists them: ours, and those of ipyparallel's own.

From files and processes only, and nothing is made or removed: somebody may start or stop a cluster at this
moment. What has not changed since the last look is not read again.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import FOLDER, VALID_ID, is_alive, runs_on
from nbdist.cluster.hub import own_versions
from nbdist.cluster.launchers.registry import LAUNCHERS
from nbdist.cluster.supervisor.client import describe_exit
from nbdist.errors import NbdistError
from nbdist.lab.actions.status import attach_code
from nbdist.lab.readers.cluster_file import Description, Owner, TaskSeen, parse_description
from nbdist.lab.readers.files import look_home
from nbdist.lab.readers.ipyparallel import Found, ParallelClusters, profile_of
from nbdist.lab.readers.processes import Processes
from nbdist.lab.readers.supervisor import SupervisorConnection, SupervisorStatus
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import read_private

PATIENCE_SECONDS = 0.2  # for all supervisors together that do not answer at once
Item = dict[str, Any]


class Clusters:
    """Lists clusters; made once and looked at again and again, by one thread at a time.

    ``runs_on`` tells of runs that go on on a cluster beside those that its tasks tell of themselves: those
    that a notebook drives (in-graph).

    clusters = Clusters()
    [item["id"] for item in clusters.look()]
    """

    def __init__(self, runs_on: Callable[[str], Iterable[str]] = lambda cluster_id: ()) -> None:
        self._runs_on = runs_on
        self.problem: str | None = None
        """Why nbdist's folder cannot be used, or written to; None if it can. Known after a look."""
        self.seen: dict[str, Seen] = {}
        """What the last look has shown of our clusters, by id."""
        self._folder = Path()
        self._found: dict[str, Found] = {}
        self._processes = Processes()
        self._watched: dict[str, Watched] = {}
        self._parallel = ParallelClusters(self._processes)

    def look(self) -> list[Item]:
        """Return the items as they are now, newest first, ready for JSON; a bad file never raises."""
        folder = self._look_at_ours()
        found = self._parallel.look()
        kept = {one.supervisor_folder for each in found for one in each.cluster.sets if one.supervisor_folder}
        ours = {
            f"{folder}/{seen.id}": our_item(seen, self._versions, self._runs_on(seen.id))
            for seen in self.seen.values()
            if seen.state != "starting" or f"{folder}/{seen.id}" not in kept
        }
        others = [each for each in found if not each.cluster.by_nbdist]  # those of another NBDIST_HOME too
        self._found = {f"ipp:{profile_of(each.path)}:{each.cluster.id}": each for each in others}
        living = {f"{folder}/{seen.id}" for seen in self.seen.values() if seen.state != "stale"}
        items = [*ours.values(), *(self._parallel.item(each, living.__contains__) for each in others)]
        self._processes.forget_unused()
        return sorted(items, key=lambda item: (item["created"], item["id"]), reverse=True)

    def one(self, cluster_id: str) -> Seen | None:
        """Return what the last look has shown of one cluster, also of one of ipyparallel's own."""
        if cluster_id in self._found:
            return seen_parallel(cluster_id, self._found[cluster_id])
        return self.seen.get(cluster_id)

    def close(self) -> None:
        """Disconnect from all supervisors; a later look connects again."""
        for watched in self._watched.values():
            watched.close()
        self._watched.clear()

    def _look_at_ours(self) -> Path:
        home, self.problem = look_home()
        folder = home / "clusters" if home is not None else Path("/nowhere")
        names, problem = cluster_folders(folder)
        self.problem = self.problem or problem
        gone = self._watched.keys() if folder != self._folder else self._watched.keys() - set(names)
        for name in list(gone):
            self._watched.pop(name).close()
        self._folder = folder
        deadline = time.monotonic() + PATIENCE_SECONDS
        self.seen = {}
        for name in names:
            if name not in self._watched:
                self._watched[name] = Watched(folder / name, self._processes)
            seen = self._watched[name].look(max(0.0, min(PATIENCE_SECONDS / 4, deadline - time.monotonic())))
            if seen is not None:
                self.seen[name] = seen
        return folder

    @cached_property
    def _versions(self) -> Mapping[str, str]:
        return own_versions()


def cluster_folders(folder: Path) -> tuple[list[str], str | None]:
    """Return the names of what can be clusters' folders, and why none can be seen; links are not followed."""
    try:
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return [], f"{folder} is a link, which is not followed; remove it"
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # there has never been a cluster
        return [], None
    except OSError as error:
        return [], f"{folder} cannot be read: {error.strerror}"
    return [name for name in names if VALID_ID.fullmatch(name)], None


def seen_parallel(cluster_id: str, found: Found) -> Seen:
    """Return a cluster of ipyparallel's own as one of tasks: its engines are those."""
    tasks = tuple(
        TaskSeen("engine", number, number, host_identity(), pid, None)
        for number, pid in enumerate(found.cluster.pids)
    )
    description = Description(None, len(tasks), 0, found.cluster.launcher, tasks)
    return Seen(cluster_id, "running", found.written, description, written=found.written)


# One nbdist cluster, read from its folder, its supervisor and its processes.

SETTLED_NS = 1_000_000_000  # a folder that changed more recently than this may change within the same tick
MOST_BYTES = 4 << 20  # of a cluster.json; the largest cluster has a twentieth
REMARK = re.compile(r"\] (DEBUG|INFO|WARNING) \| ")  # a line that an engine logs also when all is well


@dataclass(frozen=True)
class Seen:
    """What one look at a cluster has shown."""

    id: str
    state: str
    """starting, running, stopping, failed (its file cannot be read) or stale (its supervisor is dead)."""
    created: float
    description: Description | None = None
    dead: Mapping[int, str] = field(default_factory=dict)
    """By rank: how its task has ended."""
    vouched: frozenset[int] = frozenset()
    """The pids in the supervisor's present status: they are certainly those of the tasks."""
    busy: Mapping[int, str] = field(default_factory=dict)
    """By pid: the run that the task's process works on; no in-graph run, whose body is in a notebook."""
    owner_alive: bool = False
    written: float = 0.0
    """When the file was, which names the processes: one that is younger is another."""
    error: str | None = None

    @property
    def runs(self) -> list[str]:
        """The runs on it now, each once."""
        return list(dict.fromkeys(self.busy.values()))


class Watched:
    """Follows one folder; what has not changed is not read again."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder = folder
        self._file, self._busy_folder = f"{folder}/cluster.json", f"{folder}/{FOLDER}"
        self._processes = processes
        self._supervisor = SupervisorConnection(folder)
        self._stamp: tuple[int, int, int] | None = None
        self._read: Description | str = ""
        self._busy: tuple[int, frozenset[int], dict[int, str]] | None = None

    def look(self, patience: float) -> Seen | None:
        """Return what there is now; None if there is nothing to show. ``patience`` is for its supervisor.

        Only reads: what a dead cluster has left is not removed here, where it could be a new one's already.
        """
        reported = self._supervisor.read(patience)
        alive = self._supervisor.connected or is_alive(self.folder)
        try:
            status = os.lstat(self._file)
        except OSError:
            return self._starting() if alive else None
        description = self._describe(status)
        if isinstance(description, str):
            return Seen(self.folder.name, "failed", status.st_mtime, error=description) if alive else None
        created, written = description.created or status.st_mtime, status.st_mtime
        if not alive:
            gone = "its cluster process and its tasks have ended: killed, or this computer was restarted"
            return Seen(self.folder.name, "stale", created, description, written=written, error=gone)
        if reported is not None and reported.tasks is not None:
            description = description.now(reported.tasks)
        dead = self._dead(description, reported, written)
        living = frozenset(task.pid for task in description.tasks if task.rank not in dead)
        return Seen(
            self.folder.name,
            "stopping" if reported is not None and reported.stopping else "running",
            created,
            description,
            dead,
            frozenset(() if reported is None else reported.pids.values()),
            self._works(living),
            description.owner is not None and self._lives(description.owner),
            written,
        )

    def close(self) -> None:
        """Disconnect from the supervisor."""
        self._supervisor.close()

    def _starting(self) -> Seen | None:
        try:
            return Seen(self.folder.name, "starting", os.lstat(self.folder / "lock").st_mtime)
        except OSError:  # it went at this moment
            return None

    def _describe(self, status: os.stat_result) -> Description | str:
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            self._read = read_description(self.folder, status.st_size)
            self._stamp = stamp
        return self._read

    def _dead(
        self, description: Description, reported: SupervisorStatus | None, written: float
    ) -> dict[int, str]:
        """Return the dead tasks: by the supervisor's status, or by the processes if it does not answer."""
        if reported is not None:
            return deaths(description.tasks, reported)
        here = [task for task in description.tasks if task.host == host_identity()]
        gone = [task for task in here if self._processes.find(task.pid, written) is None]
        return {
            task.rank: "its process has ended; the cause is unknown: the cluster process does not answer"
            for task in gone
        }

    def _lives(self, owner: Owner) -> bool:
        """Return whether the owner may still be there; one of another host counts as alive."""
        return owner.host != host_identity() or self._processes.find(owner.pid, owner.started) is not None

    def _works(self, living: frozenset[int]) -> dict[int, str]:
        """Return which run each process works on; read anew when a file has come or gone."""
        try:
            changed = os.stat(self._busy_folder).st_mtime_ns
        except OSError:
            return {}
        if self._busy is not None and self._busy[:2] == (changed, living):
            return self._busy[2]
        found = {pid: run for pid in sorted(living) for run in runs_on(self.folder, [pid])}
        settled = time.time_ns() - changed > SETTLED_NS
        self._busy = (changed, living, found) if settled else None
        return found


def deaths(tasks: tuple[TaskSeen, ...], reported: SupervisorStatus) -> dict[int, str]:
    """Return how each task has ended of which the supervisor has no process, by rank."""
    gone = [task.rank for task in tasks if task.rank not in reported.pids]
    return {rank: in_words(reported.exits.get(rank, {"by": "its process has ended"})) for rank in gone}


def in_words(how: Mapping[str, Any]) -> str:
    """Return how a process has ended, and the last line of its log that may be about it.

    >>> in_words({"code": 1, "signal": None, "log": "one\\nValueError: no\\n"})
    'exited with code 1; its log ends with: ValueError: no'
    >>> in_words({"code": None, "signal": 9, "log": "2026-11-21 01:29:40 [IPEngine.3] WARNING | no debugpy"})
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


def read_description(folder: Path, size: int) -> Description | str:
    """Return what a folder's cluster.json says, or why it cannot be shown."""
    path = folder / "cluster.json"
    if size > MOST_BYTES:
        return f"{path} is too large ({size:,} bytes) to be a cluster's; stop the cluster and start a new one"
    with suppress(RecursionError):
        try:
            description = parse_description(json.loads(read_private(path)))
        except NbdistError as error:  # another owner, others may read it, a link
            return str(error)
        except (ValueError, OSError) as error:
            return f"{path} cannot be read: {error}"
        if description is not None:
            return description
    return f"{path} is no description of a cluster; stop the cluster and start a new one"


NOT_RUNNING = {
    "starting": "it is starting",
    "stopping": "it is being stopped",
    "failed": "what it is cannot be read",
    "stale": "its processes have ended",
}


def our_item(seen: Seen, here: Mapping[str, str], runs: Iterable[str] = ()) -> Item:
    """Return the item of a cluster of ours; ``here`` are the versions that can talk to it.

    ``runs`` go on on it beside those that its tasks tell of.
    """
    description = seen.description or Description(None, 0, 0, "local", ())
    owner = description.owner
    can, why = possible(seen, here)
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
        "owner": None
        if owner is None
        else {"pid": owner.pid, "session": owner.session, "alive": seen.owner_alive},
        "detached": owner is None,
        "dead": [task.short for task in description.tasks if task.rank in seen.dead],
        "runs": list(dict.fromkeys([*seen.runs, *runs])),
        "attach": attach_code(seen.id),
        "can": can,
        "why": why,
        "lines": [],
        "error": seen.error,
    }


def possible(seen: Seen, here: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, str]]:
    """Return what can be done to a cluster, and why the rest cannot."""
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
    return {wish: wish not in why for wish in ("stop", "grow", "shrink", "restart")}, why
