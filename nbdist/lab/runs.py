"""The runs of this user, from their folders alone: no kernel and no task is asked for anything.

runs = Runs(Path.home())
items = runs.look()         # call it again and again: what has not changed is not read again
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError, NotFoundError
from nbdist.lab.curves import Budget
from nbdist.lab.folderlist import FolderList, is_id
from nbdist.lab.homefolder import look_home
from nbdist.lab.knownrun import KnownRun
from nbdist.lab.living import Living
from nbdist.lab.record import GOING

MOST = 200  # runs that are looked at: the newest
BYTES = 4 << 20  # of logs that one look reads
Item = dict[str, Any]


class Runs:
    """Lists runs; may be used from any thread.

    ``root`` is where Jupyter's file browser begins, to say where a run's folder is in it. ``problems`` is
    what is to be said of the last look, in words.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.problems: list[str] = []
        self._root = root
        self._list = FolderList(MOST)
        self._known: dict[str, KnownRun] = {}
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def look(self) -> list[Item]:
        """Return the newest runs, newest first, as plain JSON; what has not changed is the same object.

        Never raises for what stands in the folders.
        """
        with self._lock:
            folder, living, self.problems = self._begin()
            if folder is None or living is None:
                return []
            try:
                names = self._list.look(folder)
            except OSError as error:
                self.problems = [f"the runs cannot be listed: {error}"]
                return []
            self._known = {name: self._run(folder, name) for name in names}
            budget = Budget(BYTES)
            for run in self._known.values():
                run.look(living, budget)
            if self._list.older:
                self.problems = [f"{self._list.older:,} older runs are not shown"]
            items = [run.item for run in self._known.values() if run.item is not None and not run.gone]
            return sorted(items, key=lambda item: (item["created"], item["id"]), reverse=True)

    def item(self, run_id: str) -> Item:
        """Return one run as it is now, also one that is too old to be listed; raises `NotFoundError`."""
        with self._lock:
            folder, living, _ = self._begin()
            if not is_id(run_id):
                raise InvalidArgumentError(
                    f"{run_id!r:.100} is no run id: letters, digits, '-', '_', '.', at most 80"
                )
            if folder is not None and living is not None:
                run = self._run(folder, run_id)
                run.look(living, Budget(BYTES))
                if run.item is not None and not run.gone:
                    return run.item
            raise NotFoundError(f"no run {run_id!r} in {folder or 'the home, which is not there'}")

    def tasks_of(self, run_id: str) -> dict[int, Item]:
        """Return what is known of a run's replicas, by the rank of their task, as of the last look.

        Each has "state", "step", "steps_per_second" and "straggler" (times the others' step, or None).
        """
        with self._lock:
            run = self._known.get(run_id)
            if run is None or run.record is None:
                return {}
            workers = run.record.workers
            told = run.pace.by_replica()
            return {workers[index] if workers else index: one for index, one in told.items()}

    def on_cluster(self, cluster_id: str) -> list[str]:
        """Return the runs that go on on a cluster, as of the last look, in-graph ones too."""
        with self._lock:
            items = [run.item for run in self._known.values() if run.item is not None and not run.gone]
            return [one["id"] for one in items if one["cluster"] == cluster_id and one["status"] in GOING]

    def _begin(self) -> tuple[Path | None, Living | None, list[str]]:
        home, why = look_home()
        if home is None:
            self._known, self._folder = {}, None
            return None, None, [why] if why else []
        folder = home / "runs"
        if folder != self._folder:
            self._known, self._folder = {}, folder
        return folder, Living(home), []

    def _run(self, folder: Path, name: str) -> KnownRun:
        run = self._known.get(name)
        return KnownRun(folder / name, self._root) if run is None or run.gone else run
