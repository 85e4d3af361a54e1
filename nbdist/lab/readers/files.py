"""Reads files that other processes write: regular files only, no links, in bounded pieces.

The server must not hang on a pipe, follow a link out of the home, or load a file of unlimited size. So files
are opened with O_NOFOLLOW and O_NONBLOCK, checked by fstat(2) on the descriptor, and read up to a limit.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from nbdist.errors import DataLossError, InvalidArgumentError, NbdistError, NotAllowedError
from nbdist.home import check_place, check_private, home_path
from nbdist.json_values import object_in
from nbdist.metrics.framing import LogFormat
from nbdist.metrics.log import LARGEST
from nbdist.metrics.run_folder import is_id

# O_NONBLOCK: open(2) of a pipe would block.
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
Mark = tuple[int, int, int]
Item = dict[str, Any]


def open_regular(path: str | Path, folder: int | None = None) -> tuple[int, os.stat_result]:
    """Return (descriptor, status) of a regular file, in an open ``folder`` if that is given.

    Raises OSError, also for a link; NotAllowedError for a folder, a pipe or a device.
    """
    descriptor = os.open(path, READING, dir_fd=folder)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotAllowedError(f"{os.fspath(path)} is not a regular file")
    return descriptor, status


def read_bounded(path: Path, most: int) -> bytes:
    """Return a file's content, at most ``most + 1`` bytes: more than ``most`` means that it is cut off."""
    descriptor, _ = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most + 1)


def read_object(path: Path, most: int) -> Mapping[str, Any]:
    """Return the JSON object in a file of at most ``most`` bytes; {} if it cannot be read or has none."""
    with suppress(OSError, NbdistError):
        data = read_bounded(path, most)
        return object_in(data) if len(data) <= most else {}
    return {}


def mark_of(status: os.stat_result) -> Mark:
    """Return a stamp that changes when a file is written or replaced."""
    return status.st_mtime_ns, status.st_size, status.st_ino


# NBDIST_HOME, opened for reading only: nothing is created.


def find_home() -> tuple[Path | None, str | None]:
    """Return (home, problem): the home if it exists and is private, and why it cannot be used or written to.

    A home that does not exist is not a problem if it can be created.
    """
    try:
        home = home_path()
        check_place(home)
        check_private(home)
    except NotAllowedError as error:
        return None, str(error)
    except FileNotFoundError:
        return None, why_not_creatable(home)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" of a user without a home
        return None, f"nbdist's folder cannot be used: {error}; set NBDIST_HOME to a folder that you own"
    if not os.access(home, os.W_OK | os.X_OK):
        return home, f"{home} cannot be written to; set NBDIST_HOME to a folder that you may write to"
    return home, None


def why_not_creatable(home: Path) -> str | None:
    """Return why a missing folder cannot be created; None if it can."""
    above = next((folder for folder in home.parents if folder.exists()), None)
    if above is not None and above.is_dir() and os.access(above, os.W_OK | os.X_OK):
        return None
    return f"{home} cannot be created in {above}; set NBDIST_HOME to a folder that you may write to"


# The items of all runs or sweeps, newest first, from their folders, which are listed only after a change.

RACY = 2_000_000_000  # nanoseconds within which a folder may change without a new mtime


class FolderCache(Protocol):
    """What was read of one folder: its ``item``, None before there is one; ``removed`` if it is not there."""

    item: Item | None
    removed: bool


C = TypeVar("C", bound=FolderCache)


class FolderItems(Generic[C]):
    """Lists the items of the newest ``most`` folders in a folder of NBDIST_HOME, called ``name``.

    ``make`` returns the cache of one of them; ``problems`` are the messages of the last poll. Ids sort by
    time. Links and names that are not ids are omitted. A subclass holds ``_lock`` while it calls a method.
    """

    def __init__(self, name: str, most: int, make: Callable[[Path], C]) -> None:
        self.problems: list[str] = []
        self._cache: dict[str, C] = {}
        self._lock = threading.Lock()
        self._name, self._most, self._make = name, most, make
        self._folder: Path | None = None
        self._older = 0
        self._names: list[str] = []
        self._listed: tuple[str, int, int] | None = None

    def _open(self) -> tuple[Path | None, list[str]]:
        """Return the folder, None if there is no home that can be used, and why; forget those of another."""
        home, why = find_home()
        folder = None if home is None else home / self._name
        if folder != self._folder:
            self._cache, self._folder = {}, folder
        return folder, [why] if home is None and why else []

    def _one(self, folder: Path, name: str) -> C:
        """Return the cache of a folder."""
        found = self._cache.get(name)
        return self._make(folder / name) if found is None or found.removed else found

    def _read(self, read: Callable[[Path, C], object]) -> list[Item]:
        """Return the items once ``read`` has read each cache: the newest first."""
        folder, self.problems = self._open()
        if folder is None:
            return []
        try:
            names = self._list(folder)
        except OSError as error:
            self.problems = [f"the {self._name} cannot be listed: {error}"]
            return []
        self._cache = {name: self._one(folder, name) for name in names}
        for one in self._cache.values():
            read(folder, one)
        if self._older:
            self.problems = [f"{self._older:,} older {self._name} are not shown"]
        return sorted(self._items(), key=lambda item: (item["created"], item["id"]), reverse=True)

    def _items(self) -> list[Item]:
        """Return the items as of the last poll."""
        return [one.item for one in self._cache.values() if one.item is not None and not one.removed]

    def _list(self, folder: Path) -> list[str]:
        try:
            status = os.stat(folder)
        except FileNotFoundError:
            self._names, self._listed, self._older = [], None, 0
            return self._names
        seen = str(folder), status.st_mtime_ns, status.st_ino
        if seen != self._listed:
            with os.scandir(folder) as entries:
                found = [one.name for one in entries if is_id(one.name) and one.is_dir(follow_symlinks=False)]
            found.sort(reverse=True)
            self._names, self._older = found[: self._most], max(0, len(found) - self._most)
            self._listed = None if racy(status) else seen
        return self._names


def check_id(what: str, name: str) -> None:
    """Raise InvalidArgumentError for a name that is not the id of ``what``, a run or a sweep."""
    if not is_id(name):
        raise InvalidArgumentError(
            f"{name!r:.100} is not a {what} id (1 to 80 letters, digits, '-', '_' and '.')"
        )


def racy(status: os.stat_result) -> bool:
    """Return whether the next change may have the same mtime, because the last one is too recent."""
    return abs(time.time_ns() - status.st_mtime_ns) < RACY


# Follows a growing file of checksummed frames (a metrics log, a sweep's log) in bounded pieces.
#
#     tail = Tail(path, FORMAT, parse)
#     while (part := tail.read()) is not None:     # until the file's present end
#         ...
#
# A piece may end within a frame, because of its size or because the writer has not finished. The parser
# returns the offset after the last whole frame, and the next read starts there. If a frame is longer than a
# piece, the piece grows fourfold, up to the largest possible frame; more bytes without a whole frame are
# damage, and skipped.

PIECE = 1 << 20
MAX_TORN = LARGEST + PIECE  # more bytes without a whole frame are damage


class ParsedPiece(Protocol):
    """The result of a parser: the whole frames of a piece up to ``offset``."""

    @property
    def offset(self) -> int:
        """The position after the last whole frame."""

    @property
    def damaged(self) -> int:
        """The number of skipped bytes."""


P = TypeVar("P", bound=ParsedPiece)


class ReplacedError(Exception):
    """The file was replaced or truncated: what was read of it is invalid."""


class Tail(Generic[P]):
    """Reads one file from where the last read ended.

    ``size`` is its size at the last read, ``offset`` the end of the parsed frames, ``damaged`` the number of
    skipped bytes. ``error`` tells why the file is not in this format; then it is not read again.
    """

    def __init__(self, path: Path, format: LogFormat, parse: Callable[[bytes, int], P]) -> None:
        self.path = path
        self.offset = self.size = self.damaged = 0
        self.error = ""
        self._format, self._parse = format, parse
        self._scanned = 0  # the end of the bytes given to the parser
        self._piece = PIECE
        self._inode: int | None = None

    def read(self) -> P | None:
        """Return the frames of the next piece (about 1 MB, or one frame); None at the end of the file.

        Raises `ReplacedError` if the file was replaced or truncated, and OSError.
        """
        if self.error:
            return None
        try:
            descriptor, status = open_regular(self.path)
        except NotAllowedError as error:
            self.error = str(error)
            return None
        try:
            if self._inode not in (None, status.st_ino) or status.st_size < self.offset:
                raise ReplacedError
            self._inode, self.size = status.st_ino, status.st_size
            if self.size <= self._scanned:
                return None
            data = os.pread(descriptor, self._piece, self.offset)
        finally:
            os.close(descriptor)
        return self._take(data)

    @property
    def left(self) -> int:
        """The number of unread bytes as of the last read."""
        return 0 if self.error else max(0, self.size - self._scanned)

    @property
    def torn(self) -> int:
        """The number of bytes after the last whole frame."""
        return 0 if self.error else self._scanned - self.offset

    def _take(self, data: bytes) -> P | None:
        start: int | None = 0
        if self.offset == 0:
            try:
                start = self._format.start(data, self.path.name)
            except DataLossError as error:
                self._scanned, self.error = len(data), str(error)
                return None
            if start is None:  # its writer has just created it
                self._scanned = len(data)
                return None
        part = self._parse(data, start or 0)
        self._scanned = self.offset + len(data)
        if part.offset == start and self._scanned < self.size:  # the frame is longer than the piece
            if len(data) < MAX_TORN:
                self._scanned, self._piece = self.offset, 4 * len(data)
            else:
                self.offset, self._piece = self._scanned, PIECE
                self.damaged += len(data)
            return part
        self.offset += part.offset
        self.damaged += part.damaged
        if self._scanned < self.size:
            self._scanned = self.offset  # the cut-off frame continues in the next piece
        self._piece = PIECE
        return part
