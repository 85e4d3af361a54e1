"""The runs of this user, from their folders alone: no kernel and no task is asked for anything.

runs = Runs(Path.home())
items = runs.look()         # call it again and again: what has not changed is not read again
"""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbdist.errors import InvalidArgumentError, NotAllowedError, NotFoundError
from nbdist.lab.readers.files import (
    FolderList,
    Mark,
    ReplacedError,
    is_id,
    look_home,
    mark_of,
    racy,
    read_bounded,
)
from nbdist.lab.readers.liveness import Living
from nbdist.lab.readers.run_curves import Budget, Curves
from nbdist.lab.readers.run_record import (
    GOING,
    LONGEST,
    Pace,
    Record,
    Seen,
    Word,
    browse_path,
    damaged,
    item_of,
    record_of,
    word_of,
)
from nbdist.lab.readers.run_record import LONGEST_PROGRESS as LONGEST_WORD
from nbdist.metrics.tensorboard import FOLDER as TENSORBOARD
from nbdist.run.history import LABELS, Labels, disk_bytes, read_labels

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


# The cache of one run's folder: a poll reads only what is new.
#
#     the folder's time       changes when run.json, a progress file or a log is made or replaced
#     run.json                what the run is (run_record.py)
#     progress-0000.json, ... the progress of its replicas (run_record.py)
#     metrics-0000.log, ...   its curve (run_curves.py); logs grow in place
#
# A poll of a run that has ended and is read to its end costs one `stat`.

PROGRESS = re.compile(r"progress-(\d{1,9})\.json")
QUIET_SECONDS = 15.0  # without a word, after which bodies that are over count as left alone
MOST_FILES = 10_000  # of a run's folder that are looked at
LONG = 32 << 20  # bytes of logs that take some time to be read
NO_CURVE: tuple[list[int], list[float]] = ([], [])


def browsed(folder: Path, root: Path | None) -> str | None:
    """Return where Jupyter's file browser shows a folder, by its own path or where links lead; or None."""
    found = browse_path(folder, root)
    if found is None and root is not None:
        with suppress(OSError, RuntimeError):  # RuntimeError: links that lead in a circle
            found = browse_path(folder.resolve(), root.resolve())
    return found


class KnownRun:
    """One run: ``item`` is what the panel is told, None while there is nothing to tell.

    A `look` raises nothing for what stands in the folder; ``gone`` says that there is none any more.
    """

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        self.folder, self.gone = folder, False
        self.item: dict[str, Any] | None = None
        self.record: Record | None = None
        self._browse = browsed(folder, root)
        self._begin()

    def _begin(self) -> None:
        """Remember nothing."""
        self.pace = Pace(0, False)
        self._stamp: tuple[int, int] | None = None
        self._settled = False
        self._curves = Curves(self.folder)
        self._curve = NO_CURVE
        self._marks: dict[str, Mark] = {}
        self._words: dict[int, Word] = {}
        self._last_word = 0.0
        self._tensorboard = False
        self._labels = Labels()

    def look(self, living: Living, budget: Budget) -> None:
        """Look at what may have changed, and read logs as far as the budget goes."""
        try:
            status = os.stat(self.folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):  # a link leads elsewhere
                raise NotADirectoryError
            stamp = status.st_mtime_ns, status.st_ino
            if stamp == self._stamp and self._settled:
                return
            if stamp != self._stamp:
                self._scan()
                self._stamp = None if racy(status) else stamp
            if self.record is not None:
                self._read_logs(budget)
                self._tell(living)
        except (FileNotFoundError, NotADirectoryError):
            self.gone = True
        except OSError as error:  # it may be readable at the next look
            self._fail(f"{self.folder.name} cannot be read: {error.strerror or error}")

    def _scan(self) -> None:
        """Look at all files; read run.json and the progress files that are new."""
        logs, fresh = [], dict[str, os.stat_result]()
        with os.scandir(self.folder) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                name = entry.name
                if name.startswith("metrics-"):
                    logs.append(name)
                elif name in ("run.json", LABELS) or PROGRESS.fullmatch(name):
                    with suppress(FileNotFoundError):  # it is replaced at this moment
                        fresh[name] = entry.stat(follow_symlinks=False)
                elif name == TENSORBOARD:
                    self._tensorboard = entry.is_dir(follow_symlinks=False)
        self._curves.found(logs)
        if (status := fresh.pop("run.json", None)) is not None and self._is_new("run.json", status):
            self._read_record(status.st_mtime)
        if (status := fresh.pop(LABELS, None)) is not None and self._is_new(LABELS, status):
            self._labels = read_labels(self.folder)
        for name, status in fresh.items():
            if self._is_new(name, status) and (found := PROGRESS.fullmatch(name)):
                self._read_word(name, int(found[1]), status.st_mtime)

    def _is_new(self, name: str, status: os.stat_result) -> bool:
        mark = mark_of(status)
        if self._marks.get(name) == mark:
            return False
        self._marks[name] = mark
        return True

    def _read_record(self, changed: float) -> None:
        run_id = self.folder.name
        try:
            record = record_of(run_id, read_bounded(self.folder / "run.json", LONGEST), changed)
        except NotAllowedError as error:
            record = damaged(run_id, str(error), changed)
        except OSError as error:
            self._marks.pop("run.json", None)
            record = damaged(run_id, f"it cannot be read: {error.strerror}", changed)
        before, self.record = self.record, replace(record, code="")  # it may be long, and is shown elsewhere
        if before is None or (before.workers, before.synchronous) != (record.workers, record.synchronous):
            self.pace = Pace(max(1, len(record.workers)), record.synchronous)
            for number, word in self._words.items():
                self._hear(number, word)

    def _read_word(self, name: str, number: int, changed: float) -> None:
        try:
            word = word_of(read_bounded(self.folder / name, LONGEST_WORD))
        except (OSError, NotAllowedError):
            self._marks.pop(name, None)
            return
        if word is not None:
            self._words[number] = word
            self._last_word = max(self._last_word, changed)
            if self.record is not None:
                self._hear(number, word)

    def _hear(self, number: int, word: Word) -> None:
        index = self.index_of(number)
        if index is not None:
            self.pace.hear(index, word, time.monotonic())

    def index_of(self, number: int) -> int | None:
        """Return which replica writes the files of this number: that of a rank, or a tower's own."""
        assert self.record is not None
        if self.record.in_graph or not self.record.workers:
            return number
        return self.record.workers.index(number) if number in self.record.workers else None

    def _read_logs(self, budget: Budget) -> None:
        try:
            if self._curves.read(budget):
                self._curve = self._curves.curve()
        except ReplacedError:
            paths, self._curves, self._curve = self._curves.paths, Curves(self.folder), NO_CURVE
            self._curves.found(paths)

    def _tell(self, living: Living) -> None:
        record, curves = self.record, self._curves
        assert record is not None
        self.pace.pass_time(time.monotonic())
        reachable = record.goes_on and living.reaches(record)
        quiet = time.time() - self._last_word > QUIET_SECONDS
        notes: list[str] = []
        if curves.left:
            if curves.size > LONG:
                notes = [f"its logs are still being read: {curves.left / 1e6:,.0f} MB are left"]
        elif not (record.goes_on and reachable):
            notes = curves.complaints()
        seen = Seen(
            folder=str(self.folder),
            browse=self._browse,
            tensorboard=self._tensorboard,
            reachable=reachable,
            quiet=quiet,
            metric=curves.metric,
            curve=self._curve,
            last_step=curves.last_step,
            notes=notes,
            replicas=len(record.workers) or max(1, len(self._words)),
            labels=self._labels,
            bytes=None if reachable else disk_bytes(self.folder),
        )
        item = item_of(record, self.pace, seen)
        if item != self.item:
            self.item = item
        self._settled = not reachable and not curves.left

    def _fail(self, why: str) -> None:
        """Tell of a folder that cannot be read, and try it again at the next look."""
        before = self.item
        self._begin()
        self.record = damaged(self.folder.name, why, 0.0 if before is None else before["created"])
        self.item = item_of(self.record, self.pace, Seen(
            str(self.folder), self._browse, False, False, True, None, NO_CURVE, None, [], 1
        ))  # fmt: skip
