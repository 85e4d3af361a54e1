"""One run in full: what its run.json says, its files, and its curves as a page draws them."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from nbdist.errors import InvalidArgumentError, NotAllowedError, NotFoundError
from nbdist.lab.readers.files import is_id, look_home, open_regular, read_bounded
from nbdist.lab.readers.run_curves import filled
from nbdist.lab.readers.run_record import GOING, LONGEST, Record, listed, record_of
from nbdist.lab.readers.runs import Item, Runs
from nbdist.metrics.store import RunStore
from nbdist.run.options import Options
from nbdist.ui.flags import DISTRIBUTE_FLAGS
from nbdist.ui.formatting import jsonable, shorten
from nbdist.ui.frozen.run import run_data
from nbdist.ui.frozen.summary import Summary
from nbdist.ui.transcript import Transcript
from nbdist.ui.widgets.run_feed import Chart, plan_charts

LIMIT = 200_000  # bytes of a bundle: it is stored in no notebook
LONGEST_CODE = 200_000
LONGEST_OUTPUT = 20_000  # bytes of each task's output: its end
MOST_OUTPUTS = 16  # tasks


def run_details(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's item with its code, seed, versions, options, the names of its tasks, and its files.

    Raises `NotFoundError`, `InvalidArgumentError`.
    """
    item = (runs or Runs()).item(run_id)
    record = record_in(item)
    return {
        **item,
        "code": shorten(record.code, LONGEST_CODE),
        "first_line": first_line(record),
        "output": outputs(Path(item["folder"]), record),
        "seed": record.seed,
        "versions": jsonable(record.versions),
        "options": jsonable(record.options),
        "tasks": list(record.tasks),
        "files": list_files(run_id),
    }


def first_line(record: Record) -> str:
    """Return the line that starts this run as a cell; "" for the body of a function.

    >>> first_line(Record("r", "finished", 0.0, code="x = 1", options={"strategy": "ps", "seed": 7}))
    '%%distribute --strategy ps --seed 7'
    """
    if re.fullmatch(r"[\w.<>]+", record.code.strip()):  # the name of a function
        return ""
    defaults = {one.name: one.default for one in fields(Options)}
    words = ["%%distribute"]
    for name, flag in DISTRIBUTE_FLAGS.items():
        value = record.options.get(flag.option)
        if value is None or value == defaults.get(flag.option) or flag.option == "name":
            continue
        if flag.option == "synchronous" and not record.options.get("strategy"):
            continue  # a plain cell
        if flag.read is None:
            words += [name] if value == flag.value else []
        elif not isinstance(value, bool) and value not in ([], ()):
            told = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words.append(f"{name} {told}")
    return " ".join(words)


def outputs(folder: Path, record: Record) -> list[dict[str, str]]:
    """Return the "task" and the end of the "text" of each task's output, if it has any.

    Carriage returns are applied; of terminal codes those of colours stay.
    """
    ranks = [0] if record.in_graph else list(record.workers)
    found = []
    for rank in ranks[:MOST_OUTPUTS]:
        try:
            descriptor, status = open_regular(folder / f"output-{rank:04d}.log")
        except (OSError, NotAllowedError):
            continue
        with os.fdopen(descriptor, "rb") as file:
            file.seek(max(0, status.st_size - LONGEST_OUTPUT))
            text = file.read(LONGEST_OUTPUT).decode("utf-8", "replace")
        if text:
            task = "/job:client/task:0" if record.in_graph else record.names.get(rank, f"rank {rank}")
            transcript = Transcript()
            transcript.append(text)
            found.append({"task": task, "text": transcript.text()})
    return found


def run_bundle(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's curves and summary: the content of ``application/vnd.nbdist.run+json``.

    As in a frozen output (`nbdist.ui.frozen.run`), with more points. It may be some seconds old where
    the logs are long.
    """
    item = (runs or Runs()).item(run_id)
    files = {
        one["path"]: (one["bytes"], one["modified"]) for one in list_files(run_id) if is_told(one["path"])
    }
    home, _ = look_home()
    mark = item["note"], sorted(files.items())
    return _bundles.get(run_id, mark, (str(home), item["status"]), lambda: bundle_of(item, record_in(item)))


def bundle_of(item: Item, record: Record) -> dict[str, Any]:
    """Return the bundle of a run, from its logs."""
    try:
        store, left_out = filled(item["folder"])
    except OSError as error:
        raise NotFoundError(f"run {item['id']} has just gone: {error.strerror}") from None
    wanted = [name for name in listed(record.options.get("live")) if isinstance(name, str)]
    charts = plan_charts(store.series, wanted or None) or plan_charts(store.series)
    return run_data(store, charts, summary_of(item, record, store, charts, left_out), LIMIT)


def summary_of(item: Item, record: Record, store: RunStore, charts: list[Chart], more: list[str]) -> Summary:
    """Return what a run has come to so far."""
    end = time.time() if item["status"] in GOING else item["ended"]
    seconds = max(0.0, end - item["created"]) if end is not None else None
    rate = item["steps_per_second"]
    if rate is None and item["step"] and seconds:
        rate = item["step"] / seconds
    finals = {name: values[-1] for chart in charts for name in chart.names
              if len(values := store.aggregate(name)[1])}  # fmt: skip
    alone = item["replicas"] == 1 or record.synchronous
    return Summary(
        run_id=item["id"],
        title=item["name"],
        state=item["status"],
        tasks=[record.names.get(rank, f"rank {rank}") for rank in record.workers] or list(record.tasks),
        step=item["step"],
        seconds=seconds,
        steps_per_second=rate,
        unit="steps" if alone else "updates",
        metrics={name: float(value) for name, value in finals.items()},
        remarks=[*([item["note"]] if item["note"] else []), *more],
    )


def record_in(item: Item) -> Record:
    """Return what the run.json of a listed run says."""
    home, _ = look_home()
    assert home is not None  # else there was no item
    content = b""
    if item["status"] != "damaged":
        try:
            content = read_bounded(home / "runs" / item["id"] / "run.json", LONGEST)
        except OSError as error:
            raise NotFoundError(f"run {item['id']} has just gone: {error.strerror}") from None
    return record_of(item["id"], content, item["created"])


def is_told(path: str) -> bool:
    """Return whether a bundle is made of what stands in a file."""
    return "/" not in path and path.startswith(("metrics-", "progress-", "run.json"))


# A memo of what is expensive to compute from logs, for pages that poll.

SHARE = 0.05  # of a core that one of them may take while its logs grow
Bundle = dict[str, Any]


class Bundles:
    """The last few that were made, by name; may be used from any thread.

    What has not changed is not made again. What changes all the time is made the more seldom the longer it
    takes, unless it has come to another state.

    >>> bundles = Bundles()
    >>> bundles.get("r1", mark=1, state="running", make=lambda: {"step": 1})
    {'step': 1}
    >>> bundles.get("r1", mark=1, state="running", make=lambda: {"step": 2})
    {'step': 1}
    >>> bundles.get("r1", mark=2, state="finished", make=lambda: {"step": 3})
    {'step': 3}
    """

    def __init__(self, most: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, mark: object, state: object, make: Callable[[], Bundle]) -> Bundle:
        """Return what was made of ``name`` at this mark, or not long ago in this state; or make it."""
        with self._lock:
            known = self._kept.get(name)
            if known is not None and known.serves(mark, state, self._clock()):
                self._kept.move_to_end(name)
                return known.made
        began = self._clock()
        made = make()
        ended = self._clock()
        with self._lock:
            self._kept[name] = _Kept(mark, state, made, ended + (ended - began) / SHARE)
            self._kept.move_to_end(name)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return made


@dataclass(frozen=True)
class _Kept:
    mark: object
    state: object
    made: Bundle
    due: float

    def serves(self, mark: object, state: object, now: float) -> bool:
        return self.state == state and (self.mark == mark or now < self.due)


_bundles = Bundles()

# The files of a run's folder, and nothing else: what a page may list and save.
#
# A path is walked one folder at a time from the run's own folder, each opened relative to the one before, and
# no link is followed at any of them: so there is no moment at which somebody could put a link in its place. A
# hard link is a file like any other: only who may read a file can make one.

MOST_LISTED = 2_000  # files
DEEPEST = 8  # folders within folders
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def list_files(run_id: str) -> list[dict[str, Any]]:
    """Return the "path", "bytes" and "modified" (seconds since 1970) of a run's files, by path.

    At most 2,000; links, pipes and hidden files are left out. Raises `NotFoundError`, `InvalidArgumentError`.
    """
    found: list[dict[str, Any]] = []
    with run_descriptor(run_id) as folder:
        for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
            inside = root.removeprefix(".").removeprefix("/")
            deep = inside.count("/") + 1 >= DEEPEST
            folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except OSError:  # it has just gone
                    continue
                if not stat.S_ISREG(status.st_mode) or name.startswith(".") or not is_text(inside + name):
                    continue
                if len(found) >= MOST_LISTED:
                    return sorted(found, key=lambda one: str(one["path"]))
                path = f"{inside}/{name}" if inside else name
                found.append({"path": path, "bytes": status.st_size, "modified": status.st_mtime})
    return sorted(found, key=lambda one: str(one["path"]))


def open_file(run_id: str, path: str) -> tuple[BinaryIO, int]:
    """Return (file, size) of an ordinary file in a run's folder, by its path there ("checkpoints/1.npz").

    Raises `NotAllowedError` for what could lead elsewhere, or is no ordinary file; `NotFoundError`.
    """
    *folders, name = parts_of(path)
    with run_descriptor(run_id) as here:
        held = os.dup(here)
        try:
            for folder in folders:
                refuse_odd(held, folder, stat.S_ISDIR, path)
                inner = opened(folder, FOLDER | os.O_NOFOLLOW, held, path)
                os.close(held)
                held = inner
            refuse_odd(held, name, stat.S_ISREG, path)
            try:
                descriptor, status = open_regular(name, held)
            except OSError as error:
                raise refused(error, path) from None
        finally:
            os.close(held)
    return os.fdopen(descriptor, "rb"), status.st_size


def parts_of(path: str) -> list[str]:
    """Return the names in a path; raises `NotAllowedError` for one that could lead elsewhere.

    >>> parts_of("tensorboard/worker-0/events")
    ['tensorboard', 'worker-0', 'events']
    """
    parts = path.split("/")
    if len(parts) > DEEPEST + 1 or not is_text(path) or any(part == "" or part[0] == "." for part in parts):
        raise NotAllowedError(
            f"{path!r:.200} is no path of a file in a run's folder: names with / between them, none hidden"
        )
    return parts


@contextmanager
def run_descriptor(run_id: str) -> Iterator[int]:
    """Give a descriptor of a run's own folder, inside a ``with``."""
    if not is_id(run_id):
        raise InvalidArgumentError(
            f"{run_id!r:.100} is no run id: letters, digits, '-', '_', '.', at most 80"
        )
    home, why = look_home()
    if home is None:
        raise NotFoundError(why or f"no run {run_id!r}: nbdist has no folder yet")
    try:
        runs = os.open(home / "runs", FOLDER)
        try:
            found = os.open(run_id, FOLDER | os.O_NOFOLLOW, dir_fd=runs)
        finally:
            os.close(runs)
    except OSError:  # a link as well
        raise NotFoundError(f"no run {run_id!r} in {home / 'runs'}") from None
    try:
        yield found
    finally:
        os.close(found)


def refuse_odd(folder: int, name: str, right: Any, path: str) -> None:
    """Raise unless a name in a folder is of the ``right`` kind: a device is not even opened."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise refused(error, path) from None
    if not right(status.st_mode):
        what = "is a link, and none is followed" if stat.S_ISLNK(status.st_mode) else "is no ordinary file"
        raise NotAllowedError(f"{path!r} cannot be had: {name!r} {what}")


def opened(name: str, flags: int, folder: int, path: str) -> int:
    """Return a descriptor of what stands in an open folder."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise refused(error, path) from None


def refused(error: OSError, path: str) -> Exception:
    """Return what to raise for what the system says."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(f"there is no {path!r} in the run's folder")
    return NotAllowedError(f"{path!r} cannot be had: {error.strerror}")


def is_text(name: str) -> bool:
    """Return whether a name can be written in JSON and an address."""
    return "\0" not in name and all(not 0xD800 <= ord(letter) < 0xE000 for letter in name)
