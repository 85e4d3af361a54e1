"""What a run has logged and printed before a client came: from the folder, and from the tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from nbdist.errors import DataLossError
from nbdist.metrics.framing import DOUBT
from nbdist.metrics.log import FORMAT, LARGEST, damage, logs_in, parse, replica_of
from nbdist.metrics.store import RunStore
from nbdist.runs.output import TAIL_LIMIT, tail_of
from nbdist.wire.rpc.frame import Frame

PIECE = 8 << 20
MOST_TORN = LARGEST + PIECE  # what is longer, and no whole frame, is damaged
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
        size, waits = path.stat().st_size, b""
        if answer is not None and answer.meta.get("log") == path.name:
            told, size = size, int(answer.meta["size"])
            waits = answer.arrays[1].tobytes()
            if told < size:
                notes.append(f"{path} has {told:,} bytes and should have {size:,}: points are missing")
        with path.open("rb") as file:
            notes += _read(store, path, chain(_pieces(file, size), [waits]))
    there = {path.name for path in logs_in(folder)}
    for answer in answers.values():
        if "log" in answer.meta and answer.meta["log"] not in there:  # the disk was full from the start
            notes += _read(store, folder / answer.meta["log"], [answer.arrays[1].tobytes()])
            if answer.meta["size"]:
                notes.append(f"{folder / answer.meta['log']} is not here: points are missing")
    return notes


def add_since(store: RunStore, folder: Path, answer: Frame, after: int) -> list[str]:
    """Put the points of a task's log into ``store`` that follow its first ``after`` bytes.

    Returns messages about missing points.
    """
    path = folder / answer.meta["log"]
    waits = [answer.arrays[1].tobytes()]
    if not path.exists():
        return _read(store, path, waits, after)
    with path.open("rb") as file:
        return _read(store, path, chain(_pieces(file, int(answer.meta["size"])), waits), after)


def printed(folder: Path, rank: int) -> str:
    """Return the end of what a task printed, from the run's folder; "" if it printed nothing."""
    path = folder / f"output-{rank:04d}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4 * TAIL_LIMIT))  # no character has more bytes
            return tail_of(file.read().decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""


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


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield a file's first ``size`` bytes, a piece at a time: a log may be larger than the memory."""
    while size > 0 and (piece := file.read(min(size, PIECE))):
        size -= len(piece)
        yield piece


def _cut(pieces: Iterable[bytes], at: int) -> Iterator[bytes]:
    """Yield the pieces, with one that reaches over position ``at`` cut in two."""
    start = 0
    for piece in pieces:
        inside = at - start
        yield from (piece[:inside], piece[inside:]) if 0 < inside < len(piece) else (piece,)
        start += len(piece)


def _read(store: RunStore, path: Path, pieces: Iterable[bytes], after: int = 0) -> list[str]:
    """Put the points of one log after its first bytes into the store; returns messages about lost data."""
    rest, begun, wrong, read, damaged = b"", False, "", 0, 0
    replica = replica_of(path)
    names: dict[int, str] = {}
    for piece in _cut(pieces, after):
        rest += piece
        read += len(piece)
        if not begun:
            try:
                start = FORMAT.start(rest, str(path))
            except DataLossError as error:
                wrong = str(error)
                if len(rest) > DOUBT:
                    break
                continue
            if start is None:
                continue
            rest, begun = rest[start:], True
        log = parse(rest)
        damaged += log.damaged
        if log.torn <= MOST_TORN:
            rest = rest[log.offset :]
        else:
            rest, damaged = b"", damaged + log.torn
        names.update(log.names)
        replica = replica if log.replica is None else log.replica
        if read <= after:  # only the names matter
            damaged = 0
            continue
        for series in np.unique(log.points["series"]):
            one = log.points[log.points["series"] == series]
            name = names.get(int(series), f"series {series}")
            store.extend(replica, name, one["step"], one["value"], one["time"])
    said = damage(str(path), damaged, len(rest)) if begun else wrong
    return [said] if said else []
