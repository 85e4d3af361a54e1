"""The clusters of this user as the sidebar lists them: ours, and those of ipyparallel's own.

From files and processes only, and nothing is made or removed: somebody may start or stop a cluster at this
moment. What has not changed since the last look is not read again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from nbdist.cluster.folder import VALID_ID
from nbdist.cluster.hub import own_versions
from nbdist.lab.clusterfile import Description, TaskSeen
from nbdist.lab.clusteritems import our_item
from nbdist.lab.homefolder import look_home
from nbdist.lab.parallel import Found, ParallelClusters
from nbdist.lab.parallelfile import profile_of
from nbdist.lab.processes import Processes
from nbdist.lab.watched import Seen, Watched
from nbdist.wire.hosts import host_identity

PATIENCE_SECONDS = 0.2  # for all keepers together that do not answer at once
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
        kept = {one.keeper_folder for each in found for one in each.cluster.sets if one.keeper_folder}
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
        """Hang up on all keepers; another look begins anew."""
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
