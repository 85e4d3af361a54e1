"""One run in full: the content of its run.json, its files, and the bundle for the curves of its page."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from nbdist.errors import NbdistError, NotAllowedError, NotFoundError
from nbdist.json_values import listed, mapping, object_in, text, whole
from nbdist.lab.readers.files import check_id, find_home, open_regular, read_bounded
from nbdist.lab.readers.run_curves import load_store
from nbdist.lab.readers.run_record import (
    MAX_PROGRESS_BYTES,
    ended_replicas,
    parse_progress,
)
from nbdist.lab.readers.runs import Item, Runs
from nbdist.metrics.run_events import read_events
from nbdist.metrics.run_folder import LONGEST
from nbdist.metrics.store import RunStore, training_seconds
from nbdist.run.devices import ReplicaDevice, device_warning, trained_on
from nbdist.run.displays import DISPLAYS_FOLDER, in_order, rank_of
from nbdist.run.options import Options
from nbdist.run.record import ACTIVE, RunRecord
from nbdist.terminal.transcript import Transcript
from nbdist.ui.flags import DISTRIBUTE_FLAGS
from nbdist.ui.formatting import jsonable, shorten
from nbdist.ui.frozen.run import run_data, run_output
from nbdist.ui.frozen.summary import Summary, marks_of
from nbdist.ui.gpus import gpus_over_time
from nbdist.ui.input_pipeline import input_shown
from nbdist.ui.widgets.run_feed import Available, Chart, chosen, epochs_of, plan_charts

LIMIT = 200_000  # bytes of a bundle; larger than in a notebook, because it is not saved
LONGEST_CODE = 200_000
LONGEST_OUTPUT = 20_000  # bytes at the end of each task's output
MOST_OUTPUTS = 16  # tasks
BUNDLED = re.compile(r"(metrics-|progress-|events|run\.json)[^/]*$")  # the files that a bundle depends on


def run_details(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return a run's item with its code, seed, versions, options, the names of its tasks, and its files.

    Raises `NotFoundError`, `InvalidArgumentError`.
    """
    item = (runs or Runs()).item(run_id)
    record, files = record_in(item), list_files(run_id)
    return {
        **item,
        "code": shorten(record.code, LONGEST_CODE),
        "first_line": first_line(record),
        "output": outputs(Path(item["folder"]), record),
        "displays": displays(files, record),
        "seed": record.seed,
        "versions": jsonable(record.versions),
        "options": jsonable(record.options),
        "tasks": list(record.task_names),
        "files": files,
    }


def first_line(record: RunRecord) -> str:
    """Return the first line of a cell that repeats this run; "" if its body is a function.

    >>> first_line(RunRecord("r", code="x = 1", options={"strategy": "ps", "seed": 7}))
    '%%distribute --strategy ps --seed 7'
    """
    if record.function or re.fullmatch(r"[\w.<>]+", record.code.strip()):  # the name of a function
        return ""
    defaults = {one.name: one.default for one in fields(Options)}
    parts = ["%%distribute"]
    for name, flag in DISTRIBUTE_FLAGS.items():
        value = record.options.get(flag.option)
        if value is None or value == defaults.get(flag.option) or flag.option == "name":
            continue
        if flag.option == "synchronous" and not record.options.get("strategy"):
            continue  # a plain cell
        if flag.read is None:
            parts += [name] if value == flag.value else []
        elif not isinstance(value, bool) and value not in ([], ()):
            argument = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            parts.append(f"{name} {argument}")
    return " ".join(parts)


def outputs(folder: Path, record: RunRecord) -> list[dict[str, str]]:
    """Return the "task" and the end of the "text" of each task's output, if it has any.

    Carriage returns are applied; of terminal codes only colours are kept.
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
            task = "/job:client/task:0" if record.in_graph else record.name_of(rank)
            transcript = Transcript()
            transcript.append(text)
            found.append({"task": task, "text": transcript.text()})
    return found


def displays(files: Sequence[dict[str, Any]], record: RunRecord) -> list[dict[str, Any]]:
    """Return those of a run's files that have displayed objects, by time, with their "task"."""
    there = {one["path"].removeprefix(f"{DISPLAYS_FOLDER}/").removesuffix(".json"): one for one in files}
    return [{**there[key], "task": record.name_of(rank_of(key))} for key in in_order(there)]


def run_bundle(run_id: str, runs: Runs | None = None, titles: Sequence[str] = ()) -> dict[str, Any]:
    """Return a run's curves and summary: the content of ``application/vnd.nbdist.run+json``.

    As in a frozen output (`nbdist.ui.frozen.run`), with more points, and with the charts from which a page
    can choose. ``titles`` are those that it has chosen, none for the default ones. With long logs it may be
    some seconds old. Raises InvalidArgumentError if the run has no such charts.
    """
    item = (runs or Runs()).item(run_id)
    bundled = (one for one in list_files(run_id) if BUNDLED.match(one["path"]))
    files = {one["path"]: (one["bytes"], one["modified"]) for one in bundled}
    home, _ = find_home()
    stamp = item["note"], sorted(files.items())
    key, state = (run_id, *titles), (str(home), item["status"])
    return _bundles.get(key, stamp, state, lambda: bundle_of(item, record_in(item), titles))


def bundle_of(item: Item, record: RunRecord, titles: Sequence[str] = ()) -> dict[str, Any]:
    """Return the bundle of a run with these charts, from its logs."""
    store, charts, summary = shown_of(item, record, titles)
    return {**run_data(store, charts, summary, LIMIT), "available": Available().news(store.series, now=0.0)}


def run_saved(run_id: str, runs: Runs | None = None) -> dict[str, Any]:
    """Return the output of a run as a notebook saves it, without a picture, and whether the run is over.

    It takes the place of a live view whose kernel has ended or did not replace it.
    """
    item = (runs or Runs()).item(run_id)
    record = record_in(item)
    store, charts, summary = shown_of(item, record)
    printed = {one["task"]: one["text"] for one in outputs(Path(item["folder"]), record)}
    data = run_output(store, charts, replace(summary, outputs=printed, error=item["error"] or None))
    return {"over": item["status"] not in ACTIVE, "data": data}


def shown_of(
    item: Item, record: RunRecord, titles: Sequence[str] = ()
) -> tuple[RunStore, list[Chart], Summary]:
    """Return a run's points, its charts and its summary, from its logs; ``titles`` as in `run_bundle`."""
    try:
        store, left_out = load_store(item["folder"])
    except OSError as error:
        raise NotFoundError(f"run {item['id']} was just deleted: {error.strerror}") from None
    wanted = [name for name in listed(record.options.get("live")) if isinstance(name, str)]
    usual = plan_charts(store.series, wanted or None) or plan_charts(store.series)
    charts = plan_charts(store.series, chosen(list(titles), store.series)) if titles else usual
    return store, charts, summary_of(item, record, store, list(dict.fromkeys([*usual, *charts])), left_out)


def summary_of(
    item: Item, record: RunRecord, store: RunStore, charts: list[Chart], more: list[str]
) -> Summary:
    """Return the summary of a run, as of now."""
    contents = progress_files(Path(item["folder"]), record)
    said = {i: report for i, content in enumerate(contents) if (report := parse_progress(content))}
    written = list(map(object_in, contents))
    if record.options.get("framework") is None:
        seconds = training_seconds(store, max((one.rested for one in said.values()), default=0.0))
    else:  # its loop logs what and when it likes
        seconds = max((sum(one.spent.values()) for one in said.values()), default=0.0)
    end = time.time() if item["status"] in ACTIVE else item["ended"]
    rate = item["steps_per_second"]
    if rate is None and item["step"] and seconds and not record.resumed_from:
        rate = item["step"] / seconds
    ended = ended_replicas(said, item["status"] == "finished")
    finals = {name: values[-1] for chart in charts for name in chart.names
              if len(values := store.aggregate(name, ended_replicas=ended)[1])}  # fmt: skip
    alone = item["replicas"] == 1 or record.synchronous
    recorded = [one for entries in record.devices if (one := ReplicaDevice.from_config(entries))]
    devices = recorded or devices_now(record, written)
    workers = [record.name_of(rank) for rank in record.workers]
    return Summary(
        run_id=item["id"],
        title=item["name"],
        state=item["status"],
        tasks=workers or list(record.task_names),
        step=item["step"],
        epoch=last_epoch(store),
        seconds=seconds or None,
        elapsed=None if end is None else max(0.0, end - item["created"] - item["paused"]),
        steps_per_second=rate,
        unit="steps" if alone else "updates",
        metrics={name: float(value) for name, value in finals.items()},
        marks=marks_of(read_events(Path(item["folder"]))),
        remarks=[
            *([f"continues run {record.resumed_from}"] if record.resumed_from else []),
            *more,
        ],
        replicas=[
            {"state": said[i].state, "step": said[i].step} if i in said else {}
            for i in range(len(record.workers))
        ],
        ended_replicas=ended,
        trained_on=trained_on(devices),
        warning=device_warning(devices),
        input=input_shown(dict(enumerate(mapping(one.get("input")) for one in written)), workers),
        gpus=gpus_over_time(store, {i: one.known_gpu for i, one in enumerate(devices)}),
    )


def last_epoch(store: RunStore) -> int | None:
    """Return the epoch that has begun last; None of a loop without epochs."""
    found = epochs_of(store)
    return None if found is None else int(found[1][-1])


def progress_files(folder: Path, record: RunRecord) -> list[bytes]:
    """Return the content of each replica's progress file; empty if there is none."""
    found = []
    for number, rank in enumerate(record.workers):
        try:
            file = f"progress-{number if record.in_graph else rank:04d}.json"
            found.append(read_bounded(folder / file, MAX_PROGRESS_BYTES))
        except (OSError, NbdistError):
            found.append(b"")
    return found


def devices_now(record: RunRecord, written: Sequence[Mapping[str, Any]]) -> list[ReplicaDevice]:
    """Return where the replicas of a run train, from what is ``written`` in their progress files."""
    found = []
    for rank, said in zip(record.workers, written, strict=True):
        name = record.name_of(rank)
        gpu, task = mapping(said.get("gpu")), record.members.get(rank)
        entries = {
            "task": name,
            "devices": listed(said.get("devices")),
            "assigned": (task.device if task is not None else "") or "CPU:0",
            "gpu": text(gpu.get("id")),
            "model": text(gpu.get("model")),
            "total": whole(gpu.get("total")) or 0,
            "cores": whole(said.get("cores")) or 0,
            "host": task.host if task is not None else "",
        }
        found.append(ReplicaDevice.from_config(entries) or ReplicaDevice(name))
    return found


def record_in(item: Item) -> RunRecord:
    """Return the record in the run.json of a listed run."""
    home, _ = find_home()
    assert home is not None  # the item was read from it
    content = b""
    if item["status"] != "damaged":
        try:
            content = read_bounded(home / "runs" / item["id"] / "run.json", LONGEST)
        except OSError as error:
            raise NotFoundError(f"run {item['id']} was just deleted: {error.strerror}") from None
    return RunRecord.parse(item["id"], content, item["created"])


# A cache of what is expensive to compute from logs, for pages that poll.

SHARE = 0.05  # of a core that one bundle may take while its logs grow
Bundle = dict[str, Any]


class BundleCache:
    """The last few bundles by name; may be used from any thread.

    An unchanged bundle is not computed again. One that changes all the time is computed at intervals of its
    computing time divided by `SHARE`, but at once after a change of state.

    >>> bundles = BundleCache()
    >>> bundles.get("r1", stamp=1, state="running", make=lambda: {"step": 1})
    {'step': 1}
    >>> bundles.get("r1", stamp=1, state="running", make=lambda: {"step": 2})
    {'step': 1}
    >>> bundles.get("r1", stamp=2, state="finished", make=lambda: {"step": 3})
    {'step': 3}
    """

    def __init__(self, most: int = 4, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._entries: OrderedDict[Hashable, tuple[object, object, Bundle, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: Hashable, stamp: object, state: object, make: Callable[[], Bundle]) -> Bundle:
        """Return the cached bundle if its stamp matches, or if it is recent with this state; else make it."""
        with self._lock:
            cached = self._entries.get(name)
            if cached is not None:
                seen, of_state, bundle, due = cached
                if of_state == state and (seen == stamp or self._clock() < due):
                    self._entries.move_to_end(name)
                    return bundle
        began = self._clock()
        bundle = make()
        ended = self._clock()
        with self._lock:
            self._entries[name] = stamp, state, bundle, ended + (ended - began) / SHARE
            self._entries.move_to_end(name)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return bundle


_bundles = BundleCache()

# The files of a run's folder, which a page may list and download.
#
# A path from a request must not lead out of the folder. It is walked one folder at a time with openat(2) and
# O_NOFOLLOW, each folder opened relative to the descriptor of the one before: between a check and an open
# no other process can replace a part of the path by a link. Hard links are allowed, because the kernel
# (protected_hardlinks) lets users create them only to files that they may access.

MOST_LISTED = 2_000  # files
DEEPEST = 8  # folders within folders
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def list_files(run_id: str) -> list[dict[str, Any]]:
    """Return the "path", "bytes" and "modified" (seconds since 1970) of a run's files, by path.

    At most 2,000; links, pipes and hidden files are omitted. Raises `NotFoundError`, `InvalidArgumentError`.
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
                except OSError:  # it was just deleted
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

    Raises `NotAllowedError` for a path that could leave the folder and for special files; `NotFoundError`.
    """
    *folders, name = parts_of(path)
    with run_descriptor(run_id) as here:
        current = os.dup(here)
        try:
            for folder in folders:
                check_kind(current, folder, stat.S_ISDIR, path)
                inner = os.open(folder, FOLDER | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = inner
            check_kind(current, name, stat.S_ISREG, path)
            descriptor, status = open_regular(name, current)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"there is no {path!r} in the run's folder") from None
        except OSError as error:
            raise NotAllowedError(f"{path!r} cannot be read: {error.strerror}") from None
        finally:
            os.close(current)
    return os.fdopen(descriptor, "rb"), status.st_size


def parts_of(path: str) -> list[str]:
    """Return the names in a path; raises `NotAllowedError` for a path that could leave the folder.

    >>> parts_of("tensorboard/worker-0/events")
    ['tensorboard', 'worker-0', 'events']
    """
    parts = path.split("/")
    if len(parts) > DEEPEST + 1 or not is_text(path) or any(part == "" or part[0] == "." for part in parts):
        raise NotAllowedError(
            f"{path!r:.200} is not a path of a file in a run's folder: names separated by /, none hidden"
        )
    return parts


@contextmanager
def run_descriptor(run_id: str) -> Iterator[int]:
    """Open a run's folder and yield its descriptor."""
    check_id("run", run_id)
    home, why = find_home()
    if home is None:
        raise NotFoundError(why or f"no run {run_id!r}: NBDIST_HOME does not exist yet")
    try:
        runs = os.open(home / "runs", FOLDER)
        try:
            found = os.open(run_id, FOLDER | os.O_NOFOLLOW, dir_fd=runs)
        finally:
            os.close(runs)
    except OSError:  # also for a link
        raise NotFoundError(f"no run {run_id!r} in {home / 'runs'}") from None
    try:
        yield found
    finally:
        os.close(found)


def check_kind(folder: int, name: str, right: Any, path: str) -> None:
    """Raise unless a name in a folder is of the ``right`` kind; checked before opening, for devices."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not right(status.st_mode):
        what = (
            "is a link, and links are not followed"
            if stat.S_ISLNK(status.st_mode)
            else "is not a regular file"
        )
        raise NotAllowedError(f"{path!r} cannot be read: {name!r} {what}")


def is_text(name: str) -> bool:
    """Return whether a name is valid in JSON and in a URL (no NUL, no lone surrogates)."""
    return "\0" not in name and all(not 0xD800 <= ord(letter) < 0xE000 for letter in name)
