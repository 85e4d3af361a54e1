"""The clusters that ipyparallel or its panel has started, from the files in the IPython profiles.

ipyparallel itself is not imported: it would start threads for every cluster, and rewrite their files.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.hub import default_profile
from nbdist.lab.parallelfile import ParallelCluster, id_of, parallel_item, parse_parallel
from nbdist.lab.processes import Processes

MOST_BYTES = 4 << 20
Item = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """A cluster file, what it says, and when it was written."""

    path: Path
    cluster: ParallelCluster
    written: float


class ParallelClusters:
    """Looks at the cluster files of every profile; a file that has not changed is not read again."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._read: dict[Path, tuple[tuple[int, int, int], ParallelCluster | None]] = {}

    def look(self) -> list[Found]:
        """Return what there is; a file that is torn, or somebody else's, is passed over."""
        before, self._read = self._read, {}
        found = []
        for path in cluster_files():
            with suppress(OSError):
                status = os.lstat(path)
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                known = before.get(path)
                cluster = known[1] if known is not None and known[0] == stamp else read_parallel(path)
                self._read[path] = (stamp, cluster)
                if cluster is not None:
                    found.append(Found(path, cluster, status.st_mtime))
        return found

    def item(self, found: Found, kept: Callable[[str], bool]) -> Item:
        """Return the item of one; ``kept`` tells whether the keeper of a folder of ours lives."""
        one = found.cluster
        pids = [pid for pid in (one.controller, *one.pids) if pid is not None]
        living = frozenset(pid for pid in pids if self._processes.find(pid, found.written) is not None)
        engines = sum(
            one.count * kept(one.keeper_folder)
            if one.keeper_folder
            else one.count - sum(pid not in living for pid in one.pids)
            for one in one.sets
        )
        return parallel_item(found.path, one, living, engines, found.written)


def cluster_files() -> Iterator[Path]:
    """Yield the cluster files of all IPython profiles of this user."""
    with suppress(OSError, RuntimeError), os.scandir(default_profile().parent) as profiles:  # no HOME
        for profile in profiles:
            if profile.name.startswith("profile_"):
                with suppress(OSError), os.scandir(os.path.join(profile.path, "security")) as files:
                    for file in files:
                        if file.name.startswith("cluster-") and file.name.endswith(".json"):
                            yield Path(file.path)


def read_parallel(path: Path) -> ParallelCluster | None:
    """Return what a cluster file says; None for one that is torn, too large, a link or another user's."""
    with suppress(OSError, ValueError, RecursionError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if ours and not status.st_mode & 0o002 and status.st_size <= MOST_BYTES:
                return parse_parallel(json.loads(file.read(MOST_BYTES + 1)), id_of(path))
    return None
