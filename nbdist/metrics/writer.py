"""Appends to a task's own files, and stays calm when the disk is full."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path

from nbdist.metrics.batch import Points
from nbdist.metrics.log import HEADER, MAGIC, POINTS, frame, name_frame

PATIENCE = 16 << 20  # bytes kept for a disk that is full, before the oldest points are given up


class Appending:
    """A file of its own that grows; never raises for what the disk does: says it once, and counts."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self.lost = 0
        self._say = say
        self._said = False
        self._backlog: deque[tuple[bytes, int]] = deque()  # (what to write, how many points are in it)
        self._held = 0
        self._good = 0  # the file is whole up to here
        self._descriptor: int | None = None
        self._closed = False
        self._worth = True  # the wait for the disk at the end

    def keep(self, data: bytes, points: int = 0) -> None:
        """Hold back what is to be written, and how many points it has; too much of it, and the oldest go."""
        self._backlog.append((data, points))
        self._held += len(data)
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
    def end(self) -> int:
        """How many bytes were appended so far, those that wait for the disk among them."""
        return self._good + self._held

    def position(self) -> tuple[int, bytes]:
        """Return how many bytes stand in the file, and those that wait for the disk and follow them."""
        return self._good, b"".join(data for data, _ in self._backlog)

    def retry(self) -> None:
        """Write what is held back, oldest first; what does not go in stays for the next call."""
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
                f"metrics cannot be written to {self.path}: {error.strerror or error}. "
                f"Training goes on; up to {PATIENCE >> 20} MB of points wait in memory for the disk, "
                "older ones are lost and counted."
            )


class LogWriter(Appending):
    """Appends frames to one task's metrics log."""

    def __init__(self, path: Path, replica: int, say: Callable[[str], None]) -> None:
        super().__init__(path, say)
        self._named, self._worth = 0, False  # until there is a point in it
        self.keep(MAGIC + frame(HEADER, json.dumps({"replica": replica}).encode()))
        self.retry()

    def append(self, names: list[str], points: Points) -> None:
        """Append the names that are new and the points."""
        known = len(names)  # looked at once: another thread may add names meanwhile
        if known > self._named:
            self.keep(b"".join(name_frame(series, names[series]) for series in range(self._named, known)))
            self._named, self._worth = known, True
        self.keep(frame(POINTS, points.tobytes()), len(points))
        self.retry()


def open_new(path: Path) -> tuple[Path, int]:
    """Open a log that nobody has written yet (0600): ``path``, or the next free name if a dead task left
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
        os.ftruncate(descriptor, offset)  # no half frame stays behind; giving space back works on a full disk
        raise
