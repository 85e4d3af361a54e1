"""The metrics log of one task: an append-only file of checked frames (see `framing`).

    kinds  = 0 header (JSON: replica), 1 name (id u2, UTF-8 text), 2 points (packed POINT records)

A reader stops at an incomplete frame (the writer is at work, or died there), and skips a damaged one.
Names are in the file before the points that use them. No pickle.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError
from nbdist.metrics.framing import LogFormat

LARGEST = 64 << 20  # no frame is longer; a length above it is damage, not a reason to take memory
FORMAT = LogFormat("metrics", 2, b"NBM2", LARGEST)
MAGIC = FORMAT.magic
HEADER, NAME, POINTS = 0, 1, 2
PIECE = 4 << 20  # bytes that `log_parts` reads at once
LOG_NAME = re.compile(r"metrics-\d{1,9}(\.\d{1,9})?\.log")

# A batch of metric points on its way from a task to the driver.

POINT = np.dtype([("series", "<u2"), ("step", "<u4"), ("value", "<f8"), ("time", "<f8")])
"""One metric point; ``time`` is in seconds since 1970."""
Points = NDArray[np.void]


@dataclass
class LogPart:
    """The content that `read_log` read; pass ``offset`` to the next call to continue from there.

    ``torn`` is the number of bytes at the end that make no whole frame, ``damaged`` of those skipped before
    it.
    """

    names: dict[int, str] = field(default_factory=dict)
    points: Points = field(default_factory=lambda: np.empty(0, POINT))
    replica: int | None = None
    offset: int = 0
    torn: int = 0
    damaged: int = 0


def read_log(path: Path, offset: int = 0, most: int = -1) -> LogPart:
    """Read a metrics log from ``offset`` on, also while its task is writing it; at most so many bytes.

    Names and replica are those of this part: a reader that continues from an offset keeps the earlier ones.
    Raises `DataLossError` if the file is not a metrics log, or has another version.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(most)
    start = FORMAT.start(data, str(path)) if offset == 0 else 0
    if start is None:
        return LogPart(torn=len(data))
    part = parse(data, start)
    part.offset += offset
    return part


def log_parts(path: Path, end: int | None = None) -> Iterator[LogPart]:
    """Yield a metrics log in parts, so that a long one takes little memory.

    Each part has all names so far, and the replica. ``end`` is the byte to stop at, None for the file's end;
    what follows the last whole frame before it is ``torn`` in the last part.
    """
    size = path.stat().st_size if end is None else end
    offset, piece, names, replica = 0, PIECE, dict[int, str](), None
    while offset < size:
        most = min(piece, size - offset)
        part = read_log(path, offset, most)
        if part.offset == offset and offset + most < size:  # a frame that is longer than the piece
            piece *= 2
            continue
        names |= part.names
        replica = part.replica if replica is None else replica
        part.names, part.replica = names, replica
        yield part
        if part.offset == offset:
            return
        offset, piece = part.offset, PIECE


def parse(data: bytes, start: int = 0) -> LogPart:
    """Return what the frames in ``data`` say from ``start`` on; never raises on damage, counts it."""
    part = LogPart()
    pieces: list[Points] = []
    frames = FORMAT.frames(data, start)
    for kind, payload in frames:
        try:
            if kind == POINTS:
                pieces.append(np.frombuffer(payload, POINT))
            elif kind == NAME:
                part.names[int.from_bytes(payload[:2], "little")] = payload[2:].decode()
            elif kind == HEADER:
                part.replica = _replica(payload)
        except (ValueError, LookupError, TypeError, RecursionError):
            frames.refuse()
    part.points = np.concatenate(pieces) if pieces else part.points
    part.offset, part.torn, part.damaged = frames.offset, frames.torn, frames.damaged
    return part


def damage(name: str, damaged: int, torn: int = 0) -> str:
    """Return a sentence on the bytes lost from the log ``name``; "" if none were.

    >>> damage("metrics-0000.log", 1117)
    'metrics-0000.log is damaged: 1,117 bytes, which are at most 50 points, were dropped'
    """
    parts = []
    if damaged:
        most = damaged // POINT.itemsize
        parts.append(f"{damaged:,} bytes, which are at most {most:,} points, were dropped")
    if torn:
        parts.append(f"{torn:,} bytes at its end are an incomplete record")
    return f"{name} is damaged: {'; '.join(parts)}" if parts else ""


def log_path(folder: Path, replica: int) -> Path:
    """Return where the log of ``replica`` stands in a run folder."""
    return folder / f"metrics-{replica:04d}.log"


def replica_of(path: Path) -> int:
    """Return the replica of a log by its file name, for a log with a damaged header.

    >>> replica_of(Path("metrics-0003.1.log"))
    3
    """
    return int(path.name.removeprefix("metrics-").split(".")[0])


def logs_in(folder: Path) -> list[Path]:
    """Return the logs of a run folder; a replaced task's second log follows its first."""
    logs = (path for path in folder.glob("metrics-*.log") if LOG_NAME.fullmatch(path.name))
    return sorted(logs, key=lambda path: (path.name.split(".")[0], len(path.name), path.name))


def _replica(payload: bytes) -> int:
    replica = json.loads(payload)["replica"]
    if not isinstance(replica, int) or not 0 <= replica < 1 << 16:
        raise ValueError(replica)
    return replica


# The writer of a task's files; a full disk stops the log and not the training.

PATIENCE = 16 << 20  # bytes kept for a disk that is full, before the oldest points are given up


class Appending:
    """A file of its own that grows; never raises for errors of the disk: reports one once, and counts."""

    def __init__(self, path: Path, say: Callable[[str], object], what: str = "metrics") -> None:
        self.path = path
        self.lost = 0
        self._say, self._what = say, what
        self._said = False
        self._backlog: deque[tuple[bytes, int]] = deque()  # (what to write, how many points are in it)
        self._held = 0
        self._good = 0  # the file is whole up to here
        self._descriptor: int | None = None
        self._closed = False
        self._worth = True  # the wait for the disk at the end

    def keep(self, data: bytes, points: int = 0) -> None:
        """Hold back what is to be written, and how many points it has.

        Too much of it is written at once; what a full disk does not take is dropped, the oldest first.
        """
        self._backlog.append((data, points))
        self._held += len(data)
        if self._held > PATIENCE:
            self.retry()
        index = 0
        while self._held > PATIENCE and index < len(self._backlog):
            old, count_ = self._backlog[index]
            if count_ == 0:  # names and the header are small, and points mean nothing without them
                index += 1
                continue
            del self._backlog[index]
            self._held -= len(old)
            self.lost += count_

    @property
    def waits(self) -> bool:
        """Whether something waits for the disk."""
        return bool(self._backlog)

    @property
    def end(self) -> int:
        """How many bytes were appended so far, those that wait for the disk among them."""
        return self._good + self._held

    def position(self) -> tuple[int, bytes]:
        """Return how many bytes stand in the file, and those that wait for the disk and follow them."""
        return self._good, b"".join(data for data, _ in self._backlog)

    def retry(self) -> None:
        """Write what is held back, oldest first; the rest is kept for the next call."""
        try:
            if self._descriptor is None:
                if self._closed:
                    return
                self.path, self._descriptor = open_new(self.path)
            while self._backlog:
                data, _ = self._backlog[0]
                write_whole(self._descriptor, data, self._good)
                self._good += len(data)
                self._held -= len(data)
                self._backlog.popleft()
        except OSError as error:
            self._trouble(error)

    def missing(self) -> int:
        """Try once more, and return how many points the file still lacks."""
        self.retry()
        return self.lost + sum(points for _, points in self._backlog)

    def close(self) -> None:
        """Write what is held back, bring it to the disk and close."""
        self.retry()
        self._closed = True
        self.lost += sum(points for _, points in self._backlog)
        self._backlog.clear()
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                if self._worth:
                    os.fsync(descriptor)
            except OSError as error:
                self._trouble(error)
            os.close(descriptor)

    def _trouble(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            self._say(
                f"{self._what} cannot be written to {self.path}: {error.strerror or error}. "
                f"Training continues; up to {PATIENCE >> 20} MB of points wait in memory for the disk, "
                "older ones are lost and counted."
            )


class LogWriter(Appending):
    """Appends frames to one task's metrics log, which is made for the first points: plain cells have none."""

    def __init__(self, path: Path, replica: int, say: Callable[[str], None]) -> None:
        super().__init__(path, say)
        self._named, self._worth = 0, False  # until there is a point in it
        self.keep(MAGIC + FORMAT.frame(HEADER, json.dumps({"replica": replica}).encode()))
        if os.path.lexists(path):  # an earlier process's: from now on this one has a name of its own
            super().retry()

    def retry(self) -> None:
        """Write what is held back once there are points, oldest first; the rest is kept for the next call."""
        if self._worth:
            super().retry()

    def append(self, names: list[str], points: Points) -> None:
        """Append the names that are new and the points."""
        known = len(names)  # read once: another thread may add names at any time
        if known > self._named:
            new = ((series, names[series].encode()) for series in range(self._named, known))
            self.keep(b"".join(FORMAT.frame(NAME, id_.to_bytes(2, "little") + name) for id_, name in new))
            self._named, self._worth = known, True
        self.keep(FORMAT.frame(POINTS, points.tobytes()), len(points))
        self.retry()


def open_new(path: Path) -> tuple[Path, int]:
    """Open a log that has no writer yet (0600): ``path``, or the next free name if a dead task left
    its log.

    One writer per file: a task that was taken for dead and comes back cannot tear its successor's log.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    for number in count():
        candidate = path if number == 0 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        try:
            return candidate, os.open(candidate, flags, 0o600)
        except FileExistsError:
            continue
    raise AssertionError("count() has no end")


def write_whole(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of ``data`` at ``offset``, or leave the file as it was and raise `OSError`."""
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], offset + written)
    except OSError:
        os.ftruncate(descriptor, offset)  # leaves no partial frame; this works on a full disk
        raise


@dataclass(frozen=True)
class Batch:
    """Points of one replica; ``names`` has the name of each series in it, by the replica's own ids.

    A batch is complete: a client that attaches late, or loses a batch, can still read the next one.
    ``dropped`` is how many points the replica has had to drop so far.

    >>> points = np.array([(0, 7, 0.5, 1e9)], POINT)
    >>> meta, arrays = Batch(3, {0: "loss"}, points).arrays()
    >>> [(n, s, v) for n, s, v, _ in Batch.from_arrays(meta, arrays).by_series()]
    [('loss', array([7], dtype=uint32), array([0.5]))]
    """

    replica: int
    names: dict[int, str]
    points: Points
    dropped: int = 0

    def arrays(self) -> tuple[dict[str, Any], list[NDArray[Any]]]:
        """Return (a dict for msgpack, five plain arrays: names, series u2, step u4, value f8, time f8).

        Names are text in JSON: ten thousand of them are more than the head of a message may hold.
        """
        meta = {"replica": self.replica, "dropped": self.dropped}
        names = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
        return meta, [names, *(np.ascontiguousarray(self.points[field]) for field in POINT.names or ())]

    @classmethod
    def from_arrays(cls, meta: dict[str, Any], arrays: Sequence[NDArray[Any]]) -> Batch:
        """Undo `arrays`; raises `InvalidArgumentError` if what came off the wire does not fit together."""
        try:
            replica, dropped = int(meta["replica"]), int(meta["dropped"])
            pairs = json.loads(arrays[0].tobytes()).items()
            names = {int(series): name for series, name in pairs}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgumentError(
                f"a metrics batch needs replica, dropped and names: {meta!r}"
            ) from error
        fields, columns = POINT.names or (), arrays[1:]
        shapes = [(column.dtype.str, column.shape) for column in columns]
        wanted = [(POINT[field].str, columns[0].shape if columns else ()) for field in fields]
        if shapes != wanted or columns[0].ndim != 1:
            raise InvalidArgumentError(
                f"a metrics batch has arrays {shapes}; expected u2, u4, f8, f8 of one length"
            )
        if not all(isinstance(name, str) and series >> 16 == 0 for series, name in names.items()):
            raise InvalidArgumentError("the names in a metrics batch are not text for numbers of 16 bits")
        points = np.empty(len(columns[0]), POINT)
        for name, column in zip(fields, columns, strict=True):
            points[name] = column
        if unnamed := set(np.unique(points["series"]).tolist()) - names.keys():
            raise InvalidArgumentError(
                f"a metrics batch names {len(names)} series and has points of another, {min(unnamed)}"
            )
        return cls(replica, names, points, dropped)

    def by_series(self) -> Iterator[tuple[str, NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]]]:
        """Yield (name, steps, values, times) for each series, points in the order they were added."""
        for index, steps, values, times in by_series(self.points):
            yield self.names[index], steps, values, times


def by_series(
    points: Points,
) -> Iterator[tuple[int, NDArray[np.uint32], NDArray[np.float64], NDArray[np.float64]]]:
    """Yield (series, steps, values, times) for each series that has points; cheap for very many of them."""
    if not len(points):
        return
    order = np.argsort(points["series"], kind="stable")
    series = points["series"][order]
    steps, values, times = (np.ascontiguousarray(points[field])[order] for field in ("step", "value", "time"))
    starts = np.flatnonzero(np.concatenate(([True], series[1:] != series[:-1]))).tolist()
    for start, end in zip(starts, [*starts[1:], len(points)], strict=True):
        yield int(series[start]), steps[start:end], values[start:end], times[start:end]
