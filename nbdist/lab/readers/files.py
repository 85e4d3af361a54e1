"""Opens files that somebody else wrote, and may be writing: ordinary files only, no links, a bounded part."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from nbdist.errors import DataLossError, NotAllowedError
from nbdist.home import check_private, home_path
from nbdist.metrics.framing import LogFormat
from nbdist.metrics.log import LARGEST

READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would block who opens it
Mark = tuple[int, int, int]


def open_regular(path: str | Path, folder: int | None = None) -> tuple[int, os.stat_result]:
    """Return (descriptor, status) of an ordinary file, in an open ``folder`` if that is given.

    Raises OSError, for a link as well; NotAllowedError for a folder, a pipe, a device.
    """
    descriptor = os.open(path, READING, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotAllowedError(f"{os.fspath(path)} is no ordinary file")
    return descriptor, status


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file's content, at most ``most + 1`` bytes; who gets more than ``most`` has a part of it."""
    descriptor, _ = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1)


def mark_of(status: os.stat_result) -> Mark:
    """Return what differs when a file was written or replaced."""
    return status.st_mtime_ns, status.st_size, status.st_ino


# nbdist's home as one sees it who only looks: nothing is made there.


def look_home() -> tuple[Path | None, str | None]:
    """Return the home if it is there and can be trusted, and why it cannot be used or written, if so.

    A home that is not there yet is no problem as long as it can be made.
    """
    try:
        home = home_path()
        check_private(home)
    except NotAllowedError as error:
        return None, str(error)
    except FileNotFoundError:
        return None, why_not_made(home)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" of a user who has no home
        return None, f"nbdist's folder cannot be used: {error}; set NBDIST_HOME to a folder of your own"
    if not os.access(home, os.W_OK | os.X_OK):
        return home, f"{home} cannot be written to; set NBDIST_HOME to a folder that you may write to"
    return home, None


def why_not_made(home: Path) -> str | None:
    """Return why a folder that is not there cannot be made; None if it can."""
    above = next((folder for folder in home.parents if folder.exists()), None)
    if above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return None
    return f"{home} cannot be made in {above}; set NBDIST_HOME to a folder that you may write to"


# The folders of all runs, or of all sweeps: their names, newest first, read only if they changed.

RACY = 2_000_000_000  # nanoseconds within which a folder may change and keep its time
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


class FolderList:
    """Names of the newest ``most`` folders in a folder; ``older`` is how many more there are.

    Names are ids, which sort by time. Links and what has no id's name are left out.
    """

    def __init__(self, most: int) -> None:
        self.older = 0
        self._most = most
        self._names: list[str] = []
        self._seen: tuple[str, int, int] | None = None

    def look(self, folder: Path) -> list[str]:
        """Return the names, the newest first; none if there is no such folder. Raises OSError."""
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            self._names, self._seen, self.older = [], None, 0
            return self._names
        seen = str(folder), status.st_mtime_ns, status.st_ino
        if seen != self._seen:
            with os.scandir(folder) as entries:
                found = [one.name for one in entries if is_id(one.name) and one.is_dir(follow_symlinks=False)]
            found.sort(reverse=True)
            self._names, self.older = found[: self._most], max(0, len(found) - self._most)
            self._seen = None if racy(status) else seen
        return self._names


def is_id(name: str) -> bool:
    """Return whether a name can be that of a run or of a sweep.

    >>> is_id("261120-091512-mnist"), is_id("../x"), is_id(".draft"), is_id("a..b")
    (True, False, False, False)
    """
    return _ID.fullmatch(name) is not None and ".." not in name


def racy(status: os.stat_result) -> bool:
    """Return whether something changed so lately that the next change may bear the same time."""
    return abs(time.time_ns() - status.st_mtime_ns) < RACY


# Follows a file of checked frames that grows: a metrics log, the log of a sweep; a bounded piece at a
# time.
#
# tail = Tail(path, FORMAT, parse)
# while (part := tail.read()) is not None:     # until all that stands there now is read
#     ...

PIECE = 1 << 20
MOST_TORN = LARGEST + PIECE  # what is longer, and no whole frame, is damage


class Part(Protocol):
    """What a parser found in a piece: whole frames up to ``offset``."""

    @property
    def offset(self) -> int:
        """Where the first byte stands that was not understood yet."""

    @property
    def damaged(self) -> int:
        """How many bytes were stepped over."""


P = TypeVar("P", bound=Part)


class ReplacedError(Exception):
    """Another file stands there now, or a shorter one: what was read of it is void."""


class Tail(Generic[P]):
    """Reads one file from where the last read ended.

    ``size`` is how many bytes it had then, ``offset`` how many of them are understood, ``damaged`` how many
    were stepped over. What cannot be read as such a file at all is said in ``wrong``, and left alone.
    """

    def __init__(self, path: Path, format: LogFormat, parse: Callable[[bytes, int], P]) -> None:
        self.path = path
        self.offset = self.size = self.damaged = 0
        self.wrong = ""
        self._format, self._parse = format, parse
        self._seen = 0  # up to here it was looked at, understood or not
        self._piece = PIECE
        self._inode: int | None = None

    def read(self) -> P | None:
        """Return what the next piece says, about 1 MB or one frame; None if nothing is new.

        Raises `ReplacedError` if it is not the file any more that was read before, and OSError.
        """
        if self.wrong:
            return None
        try:
            descriptor, status = open_regular(self.path)
        except NotAllowedError as error:
            self.wrong = str(error)
            return None
        try:
            if self._inode not in (None, status.st_ino) or status.st_size < self.offset:
                raise ReplacedError
            self._inode, self.size = status.st_ino, status.st_size
            if self.size <= self._seen:
                return None
            data = os.pread(descriptor, self._piece, self.offset)
        finally:
            os.close(descriptor)
        return self._take(data)

    @property
    def left(self) -> int:
        """How many bytes stood there at the last read that were not looked at."""
        return 0 if self.wrong else max(0, self.size - self._seen)

    @property
    def torn(self) -> int:
        """How many bytes at the end make no whole frame, as far as it was looked at."""
        return 0 if self.wrong else self._seen - self.offset

    def _take(self, data: bytes) -> P | None:
        start: int | None = 0
        if self.offset == 0:
            try:
                start = self._format.start(data, self.path.name)
            except DataLossError as error:
                self._seen, self.wrong = len(data), str(error)
                return None
            if start is None:  # its writer has just created it
                self._seen = len(data)
                return None
        part = self._parse(data, start or 0)
        self._seen = self.offset + len(data)
        if part.offset == start and self._seen < self.size:  # the frame is longer than the piece
            if len(data) < MOST_TORN:
                self._seen, self._piece = self.offset, 4 * len(data)
            else:
                self.offset, self._piece = self._seen, PIECE
                self.damaged += len(data)
            return part
        self.offset += part.offset
        self.damaged += part.damaged
        if self._seen < self.size:
            self._seen = self.offset  # what is cut off here goes on in the next piece
        self._piece = PIECE
        return part
