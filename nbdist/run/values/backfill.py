"""Backfill: the points, output and timeline of a run from before a client attached, from its folder and its
tasks.

A task's answer to a subscription (run.backfill) has the size of its log at that moment, and the bytes that a
full disk has not taken. `backfill_store` reads each log up to that size; later points arrive as messages. So
every point arrives exactly once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import numpy as np

from nbdist.errors import DataLossError, FailedPreconditionError, NbdistError, NotFoundError
from nbdist.metrics.framing import DOUBT
from nbdist.metrics.log import FORMAT, LARGEST, damage, logs_in, parse, replica_of
from nbdist.metrics.run_folder import read_run, run_folder
from nbdist.metrics.store import RunStore
from nbdist.metrics.timeline import Timeline
from nbdist.metrics.timeline_parts import (
    Part,
    has_parts,
    joined,
    read_parts,
    shift_by_asking,
    shift_by_day,
    step_intervals,
    step_window,
)
from nbdist.run.history import runs
from nbdist.run.task.reporting import TAIL_LIMIT, tail_of
from nbdist.runtime.task import TaskInfo, host_identity
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

PIECE = 8 << 20
MOST_TORN = LARGEST + PIECE  # what is longer, and no whole frame, is damaged
SILENT_SECONDS = 2.0  # after which the client subscribes again: a task with a body sends ten times a second
LOG = re.compile(r"metrics-(\d+)")


def backfill_store(store: RunStore, folder: Path, answers: Mapping[int, Frame]) -> list[str]:
    """Add the points of a run's logs to ``store``; return messages about missing points.

    ``answers`` are the tasks' backfills by rank. The log of a task that has answered is read up to the size
    in its answer, other logs to their end.
    """
    notes = []
    for path in logs_in(folder):
        found = LOG.match(path.name)
        answer = answers.get(int(found[1])) if found else None
        state = answer.meta["state"] if answer is not None else ""
        if state in ("waiting", "expired"):  # its body has not begun: all points arrive as messages
            continue
        size, waits = path.stat().st_size, b""
        if answer is not None and answer.meta.get("log") == path.name:
            announced, size = size, int(answer.meta["size"])
            waits = answer.arrays[1].tobytes()
            if announced < size:
                notes.append(f"{path} has {announced:,} bytes and should have {size:,}: points are missing")
        with path.open("rb") as file:
            notes += _read(store, path, chain(_pieces(file, size), [waits]))
    there = {path.name for path in logs_in(folder)}
    for answer in answers.values():
        if "log" in answer.meta and answer.meta["log"] not in there:  # the disk was full from the start
            notes += _read(store, folder / answer.meta["log"], [answer.arrays[1].tobytes()])
            if answer.meta["size"]:
                notes.append(f"{folder / answer.meta['log']} is not here: points are missing")
    return notes


def add_since(store: RunStore, path: Path, answer: Frame, after: int) -> list[str]:
    """Add the points of a task's log after its first ``after`` bytes to ``store``.

    Returns messages about missing points.
    """
    waits = [answer.arrays[1].tobytes()]
    if not path.exists():
        return _read(store, path, waits, after)
    with path.open("rb") as file:
        return _read(store, path, chain(_pieces(file, int(answer.meta["size"])), waits), after)


@dataclass
class StreamPosition:
    """How much of one worker's stream has arrived: bytes of its log, characters of its output.

    >>> position = StreamPosition(0.0)
    >>> position.is_silent(1.0), position.is_silent(2.5), position.is_silent(3.0), position.is_silent(5.0)
    (False, True, False, True)
    """

    last: float = field(default_factory=time.monotonic)
    """When the last message arrived, or the client last subscribed."""
    log_bytes: int = 0
    printed: int = 0

    def advance(self, message: Frame, now: float) -> None:
        """Move past a message."""
        self.last = now
        self.log_bytes = message.meta.get("at", self.log_bytes)
        self.printed = message.meta.get("printed", self.printed)

    def is_silent(self, now: float) -> bool:
        """Whether nothing arrived for so long that the client subscribes again; True restarts the clock."""
        if now - self.last < SILENT_SECONDS:
            return False
        self.last = now
        return True

    def fill_gap(self, answer: Frame, store: RunStore, log: Path, say: Callable[[str], object]) -> None:
        """Add the points and the output between this position and a task's answer to the new subscription.

        ``log`` is the task's, or a copy.
        """
        for note in add_since(store, log, answer, self.log_bytes):
            say(f"{note}\n")
        missing = int(answer.meta["printed"]) - self.printed
        if missing > 0:
            say(answer.arrays[0].tobytes().decode("utf-8", "replace")[-missing:])


def printed(folder: Path, rank: int) -> str:
    """Return the end of a task's output from the run's folder; "" if there is none."""
    path = folder / f"output-{rank:04d}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4 * TAIL_LIMIT))  # no character has more bytes
            return tail_of(file.read().decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""


def log_end(store: RunStore) -> str:
    """Return a description of the last points: when they were logged, and at which steps.

    >>> log_end(RunStore())
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
    """Add the points of one log after its first ``after`` bytes; return messages about lost data."""
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
    problem = damage(str(path), damaged, len(rest)) if begun else wrong
    return [problem] if problem else []


ANSWER_SECONDS = 2.0
T = TypeVar("T", bound=Timeline)


class Reachable(Protocol):
    """Connects to tasks, as a Cluster does."""

    def peer(self, rank: int) -> Peer:
        """Return a connection to a task."""


def collect(run: str, folder: Path, cluster: Reachable, tasks: Sequence[TaskInfo], over: bool) -> Timeline:
    """Return the recorded timeline of a run, on this process's clock; it may be empty.

    A run that is ``over`` is read from its folder. Tasks without a file there, and all tasks of a run that is
    under way, are asked; those that do not answer are left out. Runs in the client.
    """
    parts = {part.task: part for part in read_parts(folder)} if over else {}
    for info in tasks:
        if info.name not in parts and (part := _asked(cluster, info, run)) is not None:
            parts[info.name] = part
    shifts = shifts_by_day(parts.values())
    elsewhere = {info.host: info for info in tasks if info.name in parts and shifts[info.host]}
    for host, info in elsewhere.items():
        with suppress(NbdistError):  # it does not answer: use the times of day
            shifts[host] = shift_by_asking(partial(_clock_of, cluster.peer(info.rank)))
    return joined(parts.values(), [info.name for info in tasks], shifts)


def shifts_by_day(parts: Iterable[Part]) -> dict[str, float]:
    """Return the shift of each host's clock to this process's: 0 for this host."""
    own, clock, day = host_identity(), time.perf_counter(), time.time()
    return {part.host: 0.0 if part.host == own else shift_by_day(part, clock, day) for part in parts}


def _clock_of(peer: Peer) -> float:
    return float(peer.call("run.hello", timeout=ANSWER_SECONDS).meta["clock"])


def _asked(cluster: Reachable, info: TaskInfo, run: str) -> Part | None:
    try:
        reply = cluster.peer(info.rank).call("run.timeline", {"run": run}, timeout=ANSWER_SECONDS)
    except NbdistError:  # the task or the cluster has ended
        return None
    return Part.decode(reply.arrays[0].tobytes())


def steps_of(
    timeline: Timeline, kind: type[T], run: str, title: str, step: int | None, steps: int, over: bool = True
) -> T:
    """Return the part of a run's timeline that shows some steps of every task, as ``kind``."""
    if not step_intervals(timeline):
        raise FailedPreconditionError(
            f"run {run} has no timeline: no training step is on record. "
            + ("Call model.fit(...) in the body" if over else "Ask again when it has begun to train")
        )
    window = step_window(timeline, step, steps)
    shown = timeline.between(window.begin, window.end)
    return kind(shown.spans, shown.tasks, title=f"{title or run} · {window.name}", left_out=shown.left_out)


def stored(run: str | None, step: int | None, steps: int, kind: type[T]) -> T:
    """Return some steps of a run that is over, from its folder; None is the latest run that has any.

    Clocks of other hosts are aligned by the time of day. Raises NotFoundError if there is no such run.
    """
    if run is None:
        run = next((one.id for one in runs() if has_parts(run_folder(one.id))), None)
        if run is None:
            raise NotFoundError("no run has a timeline; nb.runs() lists the runs there are")
    record = read_run(run)
    parts = read_parts(run_folder(run))
    there = {task for part in parts for task in part.timeline.tasks}  # a client's has others'
    tasks = [task for task in record.cluster.get("tasks", ()) if task in there]
    return steps_of(joined(parts, tasks, shifts_by_day(parts)), kind, run, record.name, step, steps)
