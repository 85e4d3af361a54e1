"""One of our clusters as its folder, its keeper and its processes show it, looked at again and again."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import FOLDER, is_alive, runs_on
from nbdist.cluster.supervisor.client import describe_exit
from nbdist.errors import NbdistError
from nbdist.lab.clusterfile import Description, Owner, TaskSeen, parse_description
from nbdist.lab.keeperword import KeeperWord, Word
from nbdist.lab.processes import Processes
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import read_private

SETTLED_NS = 1_000_000_000  # a folder that changed more recently than this may change within the same tick
MOST_BYTES = 4 << 20  # of a cluster.json; the largest cluster has a twentieth
REMARK = re.compile(r"\] (DEBUG|INFO|WARNING) \| ")  # a line that an engine logs also when all is well


@dataclass(frozen=True)
class Seen:
    """What one look at a cluster has shown."""

    id: str
    state: str
    """starting, running, stopping, failed (its file cannot be read) or stale (its keeper is gone)."""
    created: float
    description: Description | None = None
    dead: Mapping[int, str] = field(default_factory=dict)
    """By rank: how its task has ended."""
    vouched: frozenset[int] = frozenset()
    """The pids that the keeper itself has named just now: they are the tasks' own."""
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
        self._keeper = KeeperWord(folder)
        self._stamp: tuple[int, int, int] | None = None
        self._read: Description | str = ""
        self._busy: tuple[int, frozenset[int], dict[int, str]] | None = None

    def look(self, patience: float) -> Seen | None:
        """Return what there is now; None if there is nothing to show. ``patience`` is for its keeper.

        Only reads: what a dead cluster has left is not removed here, where it could be a new one's already.
        """
        word = self._keeper.hear(patience)
        alive = self._keeper.connected or is_alive(self.folder)
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
        if word is not None and word.tasks is not None:
            description = description.now(word.tasks)
        dead = self._dead(description, word, written)
        living = frozenset(task.pid for task in description.tasks if task.rank not in dead)
        return Seen(
            self.folder.name,
            "stopping" if word is not None and word.stopping else "running",
            created,
            description,
            dead,
            frozenset(() if word is None else word.pids.values()),
            self._works(living),
            description.owner is not None and self._lives(description.owner),
            written,
        )

    def close(self) -> None:
        """Hang up on the keeper."""
        self._keeper.close()

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

    def _dead(self, description: Description, word: Word | None, written: float) -> dict[int, str]:
        """Return who is dead: by the keeper's word, or by the processes where it does not answer."""
        if word is not None:
            return deaths(description.tasks, word)
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


def deaths(tasks: tuple[TaskSeen, ...], word: Word) -> dict[int, str]:
    """Return how each task has ended of which the keeper has no process, by rank."""
    gone = [task.rank for task in tasks if task.rank not in word.pids]
    return {rank: in_words(word.exits.get(rank, {"by": "its process has ended"})) for rank in gone}


def in_words(how: Mapping[str, Any]) -> str:
    """Return how a process has ended, and the last line of its log that may be about it.

    >>> in_words({"code": 1, "signal": None, "log": "one\\nValueError: no\\n"})
    'exited with code 1; its log ends with: ValueError: no'
    >>> in_words({"code": None, "signal": 9, "log": "2026-11-21 01:29:40 [IPEngine.3] WARNING | no debugpy"})
    'killed by SIGKILL'
    """
    try:
        words = describe_exit({"code": None, "signal": None, **how})
    except (TypeError, ValueError):  # a keeper of another version
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
