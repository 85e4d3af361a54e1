"""The runs of this user, read from their folders; no kernel and no task receives a request.

    runs = Runs(Path.home())
    items = runs.poll()         # call it repeatedly

A poll must be cheap, because it repeats twice a second with hundreds of runs, also on a slow disk. Three
caches make it so: `FolderItems` lists the folder of all runs only if its mtime changed; `RunCache` (one per
run) rereads only changed files, and a finished run costs one `stat`; `Curves` reads only appended bytes of
logs, at most `LOG_BYTES` per poll over all runs, so that a large log delays no other run.

An mtime proves nothing if a file changes twice within the clock's resolution. So a folder that changed less
than two seconds ago (`racy`) is read again at the next poll, as Git does with its index.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from nbdist.checkpoint.manager import STATE_FILE
from nbdist.cluster.description import living_incarnations
from nbdist.errors import NotAllowedError, NotFoundError
from nbdist.lab.readers import files, run_record
from nbdist.lab.readers.run_curves import Budget, Curves
from nbdist.metrics.event_file import FOLDER as TENSORBOARD
from nbdist.metrics.run_folder import BODY, LONGEST
from nbdist.run.history import LABELS, Labels, disk_bytes, read_labels
from nbdist.run.record import ACTIVE, RunRecord

MAX_RUNS = 200  # the newest runs are listed
LOG_BYTES = 4 << 20  # of all logs together, per poll
Item = files.Item
Liveness = Callable[[], Mapping[str, frozenset[int]]]
"""Returns the tasks of living clusters, as of one poll: see `living_incarnations`."""


class Runs(files.FolderItems["RunCache"]):
    """Lists runs; may be used from any thread.

    ``root`` is the root of Jupyter's file browser, for the paths of run folders in it.
    """

    def __init__(self, root: Path | None = None) -> None:
        super().__init__("runs", MAX_RUNS, partial(RunCache, root=root))

    def poll(self) -> list[Item]:
        """Return the newest runs, newest first, as plain JSON; an unchanged item is the same object.

        No content of a folder raises an error.
        """
        budget, living = Budget(LOG_BYTES), cache(living_incarnations)
        with self._lock:
            return self._read(
                lambda folder, run: run.poll(partial(living, folder.parent / "clusters"), budget)
            )

    def item(self, run_id: str) -> Item:
        """Return one run's current item, also of a run too old for the list; raises `NotFoundError`."""
        with self._lock:
            folder, _ = self._open()
            files.check_id("run", run_id)
            if folder is not None:
                run = self._one(folder, run_id)
                run.poll(partial(living_incarnations, folder.parent / "clusters"), Budget(LOG_BYTES))
                if run.item is not None and not run.removed:
                    return run.item
            raise NotFoundError(f"no run {run_id!r} in {folder or 'NBDIST_HOME, which does not exist'}")

    def tasks_of(self, run_id: str) -> dict[int, Item]:
        """Return the progress of a run's replicas by the rank of their task, as of the last poll.

        Each has "state", "step", "steps_per_second" and "straggler" (its step time relative to the others, or
        None).
        """
        with self._lock:
            run = self._cache.get(run_id)
            if run is None or run.record is None:
                return {}
            workers = run.record.workers
            by_replica = run.progress.by_replica()
            return {workers[index] if workers else index: one for index, one in by_replica.items()}

    def on_cluster(self, cluster_id: str) -> list[str]:
        """Return the active runs on a cluster, including in-graph ones, as of the last poll."""
        with self._lock:
            items = self._items()
            return [one["id"] for one in items if one["cluster"] == cluster_id and one["status"] in ACTIVE]


def damaged(run_id: str, why: str, changed: float) -> RunRecord:
    """Return the record of a run with an unreadable run.json."""
    return RunRecord(run_id, status="damaged", created=changed, error=f"run.json is damaged: {why}")


# The cache of one run's folder: a poll reads only what is new.
#
#     the folder's mtime      changes when run.json, a progress file or a log is created or replaced
#     run.json                what the run is (run_record.py)
#     progress-0000.json, ... the progress of its replicas (run_record.py)
#     metrics-0000.log, ...   its curve (run_curves.py); logs grow in place
#
# A poll of a run that has ended and is read to its end costs one `stat`.

PROGRESS = re.compile(r"progress-(\d{1,9})\.json")
MOST_FILES = 10_000  # of a run's folder
LONG = 32 << 20  # bytes of logs for which a note tells that reading takes some time
NO_CURVE: tuple[list[int], list[float]] = ([], [])


def find_browse_path(folder: Path, root: Path | None) -> str | None:
    """Return a folder's path in Jupyter's file browser, directly or with links resolved; or None."""
    found = run_record.browse_path(folder, root)
    if found is None and root is not None:
        with suppress(OSError, RuntimeError):  # RuntimeError: a loop of links
            found = run_record.browse_path(folder.resolve(), root.resolve())
    return found


class RunCache:
    """The cache of one run: ``item`` is its item in the panel, None before its first record.

    `poll` raises no error for any content of the folder; ``removed`` is True if the folder does not exist.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.removed = folder, False
        self.item: dict[str, Any] | None = None
        self.record: RunRecord | None = None
        self._browse = find_browse_path(folder, root)
        self._begin()

    def _begin(self) -> None:
        """Clear the cache."""
        self.progress = run_record.RunProgress(0, False)
        self._stamp: tuple[int, int] | None = None
        self._settled = False
        self._curves = Curves(self.folder)
        self._curve = NO_CURVE
        self._marks: dict[str, files.Mark] = {}
        self._reports: dict[int, run_record.ReplicaProgress] = {}
        self._last_report = 0.0
        self._tensorboard = self._has_state = self._has_body = False
        self._labels = Labels()

    def poll(self, liveness: Liveness, budget: Budget) -> None:
        """Read changed files, and logs within the budget."""
        try:
            status = os.stat(self.folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):  # a link, which is not followed
                raise NotADirectoryError
            stamp = status.st_mtime_ns, status.st_ino
            if stamp == self._stamp and self._settled:
                return
            if stamp != self._stamp:
                self._scan()
                self._stamp = None if files.racy(status) else stamp
            if self.record is not None:
                self._read_logs(budget)
                self._update(liveness)
        except (FileNotFoundError, NotADirectoryError):
            self.removed = True
        except OSError as error:  # transient: read it again at the next poll
            self._fail(f"{self.folder.name} cannot be read: {error.strerror or error}")

    def _scan(self) -> None:
        """List the folder; read changed run.json, labels and progress files."""
        logs, fresh = [], dict[str, os.stat_result]()
        self._has_state = self._has_body = False
        with os.scandir(self.folder) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                name = entry.name
                if name.startswith("metrics-"):
                    logs.append(name)
                elif name in ("run.json", LABELS) or PROGRESS.fullmatch(name):
                    with suppress(FileNotFoundError):  # it is being replaced
                        fresh[name] = entry.stat(follow_symlinks=False)
                elif name == BODY:
                    self._has_body = True
                elif STATE_FILE.fullmatch(name):
                    self._has_state = True
                elif name == TENSORBOARD:
                    self._tensorboard = entry.is_dir(follow_symlinks=False)
        self._curves.set_files(logs)
        if (status := fresh.pop("run.json", None)) is not None and self._is_new("run.json", status):
            self._read_record(status.st_mtime)
        if (status := fresh.pop(LABELS, None)) is not None and self._is_new(LABELS, status):
            self._labels = read_labels(self.folder)
        for name, status in fresh.items():
            if self._is_new(name, status) and (found := PROGRESS.fullmatch(name)):
                self._read_progress(name, int(found[1]), status.st_mtime)

    def _is_new(self, name: str, status: os.stat_result) -> bool:
        mark = files.mark_of(status)
        if self._marks.get(name) == mark:
            return False
        self._marks[name] = mark
        return True

    def _read_record(self, changed: float) -> None:
        run_id = self.folder.name
        try:
            record = RunRecord.parse(run_id, files.read_bounded(self.folder / "run.json", LONGEST), changed)
        except NotAllowedError as error:
            record = damaged(run_id, str(error), changed)
        except OSError as error:
            self._marks.pop("run.json", None)
            record = damaged(run_id, f"it cannot be read: {error.strerror}", changed)
        before, self.record = self.record, replace(record, code="")  # it may be long, and no item shows it
        if before is None or (before.workers, before.synchronous) != (record.workers, record.synchronous):
            self.progress = run_record.RunProgress(max(1, len(record.workers)), record.synchronous)
            for number, report in self._reports.items():
                self._add(number, report)

    def _read_progress(self, name: str, number: int, changed: float) -> None:
        try:
            report = run_record.parse_progress(
                files.read_bounded(self.folder / name, run_record.MAX_PROGRESS_BYTES)
            )
        except (OSError, NotAllowedError):
            self._marks.pop(name, None)
            return
        if report is not None:
            self._reports[number] = report
            self._last_report = max(self._last_report, changed)
            if self.record is not None:
                self._add(number, report)

    def _add(self, number: int, report: run_record.ReplicaProgress) -> None:
        index = self.index_of(number)
        if index is not None:
            self.progress.add(index, report, time.monotonic())

    def index_of(self, number: int) -> int | None:
        """Return the replica that writes the files of a number: a task's rank, or a tower's index."""
        assert self.record is not None
        if self.record.in_graph or not self.record.workers:
            return number
        return self.record.workers.index(number) if number in self.record.workers else None

    def _read_logs(self, budget: Budget) -> None:
        try:
            if self._curves.read(budget):
                over = self.record is not None and self.record.status == "finished"
                self._curve = self._curves.curve(run_record.ended_replicas(self._reports, over))
        except files.ReplacedError:
            paths, self._curves, self._curve = self._curves.paths, Curves(self.folder), NO_CURVE
            self._curves.set_files(paths)

    def _update(self, liveness: Liveness) -> None:
        record, curves = self.record, self._curves
        assert record is not None
        self.progress.advance(time.monotonic())
        reachable = record.active and record.can_continue(liveness())
        quiet = time.time() - self._last_report > run_record.QUIET_SECONDS
        notes: list[str] = []
        if curves.left:
            if curves.size > LONG:
                notes = [f"its logs are still being read: {curves.left / 1e6:,.0f} MB remain"]
        elif not (record.active and reachable):
            notes = curves.problems()
        folder_status = run_record.FolderStatus(
            folder=str(self.folder),
            browse=self._browse,
            tensorboard=self._tensorboard,
            reachable=reachable,
            quiet=quiet,
            metric=curves.metric,
            curve=self._curve,
            steps=len(curves.steps) or None,
            notes=notes,
            replicas=len(record.workers) or max(1, len(self._reports)),
            labels=self._labels,
            bytes=None if reachable else disk_bytes(self.folder),
            resumable=self._has_body and (self._has_state or bool(record.resumed_from)),
        )
        item = run_record.item_of(record, self.progress, folder_status)
        if item != self.item:
            self.item = item
        self._settled = not reachable and not curves.left

    def _fail(self, why: str) -> None:
        """Show an unreadable folder as damaged, and read it again at the next poll."""
        before = self.item
        self._begin()
        self.record = damaged(self.folder.name, why, 0.0 if before is None else before["created"])
        self.item = run_record.item_of(self.record, self.progress, run_record.FolderStatus(
            str(self.folder), self._browse, False, False, True, None, NO_CURVE, None, [], 1
        ))  # fmt: skip
