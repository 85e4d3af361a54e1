"""What a run has logged and printed before a client came: from the folder, and from the tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nbdist.metrics.log import MAGIC, logs_in, parse
from nbdist.metrics.store import RunStore
from nbdist.runs.output import TAIL_LIMIT, tail_of
from nbdist.wire.frames import Frame

LOG = re.compile(r"metrics-(\d+)")


def fill(store: RunStore, folder: Path, answers: Mapping[int, Frame]) -> list[str]:
    """Put the points of a run's logs into ``store``; returns what is missing, in words.

    ``answers`` are what tasks have said when they were asked to tell all that follows, by rank: of their logs
    that much is read as stood there then, and what waited for a full disk comes from the answer. Other logs
    are read to their end.
    """
    notes = []
    for path in logs_in(folder):
        found = LOG.match(path.name)
        answer = answers.get(int(found[1])) if found else None
        state = answer.meta["state"] if answer is not None else ""
        if state == "waiting":  # its body begins at this moment, and tells all of it
            continue
        size, waits = -1, b""
        if answer is not None and answer.meta.get("log") == path.name:
            size, waits = int(answer.meta["size"]), answer.arrays[1].tobytes()
        with path.open("rb") as file:
            data = file.read(size)
        if 0 <= len(data) < size:
            notes.append(f"{path} has {len(data):,} bytes and should have {size:,}: points are missing")
        _read(store, data + waits)
    there = {path.name for path in logs_in(folder)}
    for answer in answers.values():
        if "log" in answer.meta and answer.meta["log"] not in there:  # the disk was full from the start
            _read(store, answer.arrays[1].tobytes())
            if answer.meta["size"]:
                notes.append(f"{folder / answer.meta['log']} is not here: points are missing")
    return notes


def printed(folder: Path, rank: int) -> str:
    """Return the end of what a task printed, from the run's folder; "" if it printed nothing."""
    path = folder / f"output-{rank:04d}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4 * TAIL_LIMIT))  # no character has more bytes
            return tail_of(file.read().decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""


def said(answer: Frame) -> str:
    """Return the end of what a task has printed so far, from its answer."""
    return answer.arrays[0].tobytes().decode("utf-8", "replace")


def last_words(store: RunStore) -> str:
    """Return when the last points were logged, and at which steps.

    >>> last_words(RunStore())
    'nothing was logged'
    """
    ends = []
    for replica in store.replicas:
        points = [last for name in store.series if (last := store.last(replica, name)) is not None]
        ends.append((replica, max(point.time for point in points), max(point.step for point in points)))
    if not ends:
        return "nothing was logged"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(max(at for _, at, _ in ends)))
    steps = ", ".join(f"step {step:,} of replica {replica}" for replica, _, step in ends[:4])
    return f"its log ends on {when} with {steps}{', ...' * (len(ends) > 4)}"


def _read(store: RunStore, data: bytes) -> None:
    if not data.startswith(MAGIC):  # it was only just made, or is damaged at its very start
        return
    log = parse(data, len(MAGIC))
    points = log.points
    for series in np.unique(points["series"]):
        one = points[points["series"] == series]
        name = log.names.get(int(series), f"series {series}")
        store.extend(log.replica or 0, name, one["step"], one["value"], one["time"])
