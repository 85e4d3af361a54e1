"""`RunFiles`: the files of a run on one host, for a client that copies them: local, or behind a Server.

    files = LocalFiles(spool_path("261120-091512-mnist"))
    for entry in files.entries():
        data = files.read(entry, at=0)

Names are relative paths. ``..``, absolute paths, hidden names and links are refused on both sides, and a
piece has at most `PIECE` bytes.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    StorageError,
)
from nbdist.metrics.event_file import make_private
from nbdist.metrics.log import write_whole
from nbdist.metrics.run_folder import ARTIFACTS
from nbdist.numbers import is_whole
from nbdist.run.files.place import RESUMED, RunPlace
from nbdist.wire.rpc.frame import Frame

PIECE = 1 << 20  # bytes that are read or written at once
MOST_ENTRIES = 2_000  # in one list
MOST_LISTED = 8 << 20  # bytes of one list
MOST_DEPTH, LONGEST_NAME = 8, 1_000  # of a name: parts, characters
MOST_BYTES = 1 << 44  # of a file
HELD_SECONDS = 60.0  # for which a file stays open that is being copied, though it has lost its name
COPY = ".copy"
"""The end of the hidden name of a file that is being copied."""
GROWS = re.compile(
    r"(.*/)?((metrics|events)-\d{1,9}(\.\d{1,9})?\.log|output-\d{1,9}\.log|[^/]*\.tfevents\.[^/]*)"
)
"""The names of files that their writers only append to; others are replaced as a whole."""


class Entry(NamedTuple):
    """A file: its name, its bytes, when it was written (ns since 1970), and a number of this very file."""

    name: str
    size: int
    time: int
    number: int

    @property
    def grows(self) -> bool:
        """Whether its writer appends to it; an artifact may be replaced, whatever its name.

        >>> [Entry(name, 1, 1, 1).grows for name in ("metrics-0000.log", "artifacts/metrics-0000.log")]
        [True, False]
        """
        return GROWS.fullmatch(self.name) is not None and not self.name.startswith(f"{ARTIFACTS}/")


@dataclass(frozen=True)
class Listing:
    """A page of a folder's files, by name. ``spool`` identifies the folder, in whichever task it is read."""

    entries: list[Entry]
    spool: str = ""
    more: bool = False
    """Whether there are files with later names."""
    shared: bool = False
    """Whether the task sees the client's own folder, so that there is nothing to copy."""


class RunFiles(Protocol):
    """The files of a run on one host."""

    def page(self, under: str = "", after: str = "") -> Listing:
        """Return the files below ``under`` whose names follow ``after``: so many as fit into a page."""

    def read(self, entry: Entry, at: int, most: int = PIECE) -> bytes:
        """Return bytes of a file, from ``at`` on: fewer than ``most`` at its end.

        A file that has lost its name since the first piece was read is read to its end. Raises NotFoundError
        if another one, or none, has the name.
        """

    def put(self, name: str, at: int, data: bytes, size: int, modified: int) -> None:
        """Write a piece of a new file of ``size`` bytes; the last one gives it its name.

        Raises ResourceExhaustedError on a full disk, StorageError for another error of it.
        """


def entries_of(files: RunFiles, under: str = "") -> Iterator[Entry]:
    """Yield all files below ``under``, page by page."""
    page = files.page(under)
    yield from page.entries
    while page.more and page.entries:
        page = files.page(under, page.entries[-1].name)
        yield from page.entries


def check_name(name: object) -> str:
    """Return the name of a file below a run's folder; InvalidArgumentError for one that leads out of it.

    >>> check_name("checkpoints/step-5/model.safetensors")
    'checkpoints/step-5/model.safetensors'
    >>> check_name("../keys")
    Traceback (most recent call last):
    nbdist.errors.InvalidArgumentError: '../keys' is not the name of a file in a run's folder
    """
    if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and "\0" not in name:
        parts = name.split("/")
        if len(parts) <= MOST_DEPTH and all(part and not part.startswith(".") for part in parts):
            return name
    raise InvalidArgumentError(f"{name!r:.100} is not the name of a file in a run's folder")


class LocalFiles:
    """The files of a run in a folder of this host, which may not be there; ``spool`` identifies it."""

    def __init__(self, folder: Path, spool: str = "") -> None:
        self.folder, self.spool = folder, spool
        self._held: dict[int, tuple[int, float]] = {}  # number of a file: its descriptor, last read when
        self._drafts: dict[str, Path] = {}

    def page(self, under: str = "", after: str = "") -> Listing:
        """Return a page of the files."""
        found: list[Entry] = []
        base = f"{check_name(under)}/" if under else ""
        for entry in self._walk(base, MOST_DEPTH, after):
            if len(found) == MOST_ENTRIES:
                return Listing(found, self.spool, more=True)
            found.append(entry)
        return Listing(found, self.spool)

    def _walk(self, base: str, depth: int, after: str) -> Iterator[Entry]:
        """Yield the files below ``base``, whose names end with "/", in the order of the whole names."""
        try:
            with os.scandir(self.folder / base) as found:
                there = [(one.name + "/" * one.is_dir(follow_symlinks=False), one) for one in found]
        except OSError:  # it is not there, or was removed just now
            return
        for key, one in sorted(there, key=lambda pair: pair[0]):
            name = base + key
            if one.name.startswith(".") or one.is_symlink() or (not base and one.name == RESUMED):
                continue
            if key.endswith("/"):
                if depth > 1 and not (name <= after and not after.startswith(name)):
                    yield from self._walk(name, depth - 1, after)
            elif name > after:
                with suppress(OSError):  # it was removed just now
                    status = one.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and len(name) <= LONGEST_NAME:
                        yield Entry(name, status.st_size, status.st_mtime_ns, status.st_ino)

    def read(self, entry: Entry, at: int, most: int = PIECE) -> bytes:
        """Return bytes of a file."""
        if not (is_whole(at, 0) and is_whole(most, 1) and most <= PIECE):
            raise InvalidArgumentError(f"a piece is of 1 to {PIECE:,} bytes, got {most!r:.40} at {at!r:.40}")
        check_name(entry.name)
        self._let_go()
        descriptor = self._open(entry)
        try:
            data = os.pread(descriptor, most, at)
        except OSError as error:
            self._close(entry.number)
            raise DataLossError(f"{self.folder / entry.name} cannot be read: {error.strerror}") from None
        if entry.grows or at + len(data) >= entry.size or len(data) < most:
            self._close(entry.number)
        return data

    def put(self, name: str, at: int, data: bytes, size: int, modified: int) -> None:
        """Write a piece of a new file."""
        path = self.folder / check_name(name)
        if not (is_whole(at, 0) and is_whole(size, 0) and at + len(data) <= size <= MOST_BYTES):
            raise InvalidArgumentError(
                f"a piece at {at!r:.40} does not fit into a file of {size!r:.40} bytes"
            )
        try:
            self._put(path, at, data, size, modified)
        except OSError as error:
            self.give_up(name)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ResourceExhaustedError(
                    f"{path} cannot be written: {error.strerror}; make room there"
                ) from None
            raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None

    def _put(self, path: Path, at: int, data: bytes, size: int, modified: int) -> None:
        name = path.relative_to(self.folder).as_posix()
        if at == 0:
            self.give_up(name)
            make_private(path.parent)
            self._drafts[name] = path.with_name(f".{path.name}.{secrets.token_hex(4)}{COPY}")
        elif name not in self._drafts:
            raise InvalidArgumentError(f"the first piece of {name} has not come")
        draft = self._drafts[name]
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if at == 0 else 0)
        descriptor = os.open(draft, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size != at:
                raise InvalidArgumentError(f"a piece of {name} is missing before byte {at:,}")
            write_whole(descriptor, data, at)
            if at + len(data) == size:
                os.utime(descriptor, ns=(modified, modified))
                if not name.endswith(".json"):  # what is written every second may be lost with the power
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if at + len(data) == size:
            os.replace(draft, path)
            del self._drafts[name]

    def give_up(self, name: str) -> None:
        """Remove the draft of a file whose last piece does not come."""
        draft = self._drafts.pop(name, None)
        if draft is not None:
            with suppress(OSError):
                draft.unlink()

    def close(self) -> None:
        """Close the files that are being copied."""
        for number in list(self._held):
            self._close(number)

    def _open(self, entry: Entry) -> int:
        """Return a descriptor of the file that an entry is of; folders on the way may be no links."""
        if entry.number in self._held:
            descriptor, _ = self._held[entry.number]
            self._held[entry.number] = descriptor, time.monotonic()
            return descriptor
        *above, last = entry.name.split("/")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            at = os.open(self.folder, flags | os.O_DIRECTORY)
            try:
                for part in above:
                    below = os.open(part, flags | os.O_DIRECTORY, dir_fd=at)
                    os.close(at)
                    at = below
                descriptor = os.open(last, flags, dir_fd=at)
            finally:
                os.close(at)
        except OSError as error:
            raise NotFoundError(f"{self.folder / entry.name} cannot be read: {error.strerror}") from None
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_ino != entry.number:
            os.close(descriptor)
            raise NotFoundError(f"{self.folder / entry.name} was replaced")
        self._held[entry.number] = descriptor, time.monotonic()
        return descriptor

    def _close(self, number: int) -> None:
        if number in self._held:
            os.close(self._held.pop(number)[0])

    def _let_go(self) -> None:
        """Close the files of clients that have ended in the middle."""
        now = time.monotonic()
        for number, (_, read) in list(self._held.items()):
            if now - read > HELD_SECONDS:
                self._close(number)

    def __del__(self) -> None:
        self.close()


class RemoteFiles:
    """The files of a run that a task has on its host, by calls of its Server (see `service`).

    ``ask(kind, meta, arrays)`` calls the task and returns its answer. With ``states`` it has states of
    trainings only, also those that the task has in the client's own folder.
    """

    def __init__(
        self, place: RunPlace, ask: Callable[[str, dict[str, Any], list[Any]], Frame], states: bool = False
    ) -> None:
        self._place: dict[str, Any] = place.to_meta() | ({"states": True} if states else {})
        self._ask = ask

    def page(self, under: str = "", after: str = "") -> Listing:
        """Return a page of the files."""
        answer = self._ask("files.list", {**self._place, "under": under, "after": after}, [])
        if answer.meta["shared"]:
            return Listing([], shared=True)
        try:
            if answer.arrays[0].nbytes > MOST_LISTED:
                raise ValueError(f"it has {answer.arrays[0].nbytes:,} bytes")
            rows = json.loads(answer.arrays[0].tobytes())
            entries = [Entry(check_name(name), int(size), int(at), int(no)) for name, size, at, no in rows]
        except (ValueError, TypeError, LookupError) as error:
            raise DataLossError(f"that is no list of files: {error}") from None
        return Listing(entries, str(answer.meta["spool"]), bool(answer.meta["more"]))

    def read(self, entry: Entry, at: int, most: int = PIECE) -> bytes:
        """Return bytes of a file."""
        meta = {**self._place, "entry": list(entry), "at": at, "most": most}
        data: bytes = self._ask("files.read", meta, []).arrays[0].tobytes()
        if len(data) > most:
            raise DataLossError(f"{entry.name}: a piece of {len(data):,} bytes came for one of {most:,}")
        return data

    def put(self, name: str, at: int, data: bytes, size: int, modified: int) -> None:
        """Write a piece of a new file."""
        meta = {**self._place, "name": name, "at": at, "size": size, "time": modified}
        self._ask("files.put", meta, [np.frombuffer(data, np.uint8)])


def copy(entry: Entry, name: str, files: RunFiles, to: LocalFiles, between: Callable[[], object]) -> None:
    """Copy a file that is written as a whole to ``name``, which it has once it is whole.

    ``between`` is called between two pieces. Raises NotFoundError if it was replaced since it was listed.
    """
    at = 0
    try:
        while True:
            data = files.read(entry, at)
            if not data and at < entry.size:
                raise NotFoundError(f"{entry.name} was cut")
            to.put(name, at, data, entry.size, entry.time)
            at += len(data)
            if at >= entry.size:
                return
            between()
    finally:
        to.give_up(name)


def send(path: Path, name: str, to: RunFiles) -> None:
    """Send a file of the client to a host, unless it has it; raises OSError and what ``put`` raises."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        under = name.rpartition("/")[0]
        there = (one for one in entries_of(to, under) if one.name == name)
        if any((one.size, one.time) == (status.st_size, status.st_mtime_ns) for one in there):
            return
        at = 0
        while True:
            data = file.read(PIECE)
            to.put(name, at, data, status.st_size, status.st_mtime_ns)
            at += len(data)
            if at >= status.st_size:
                return
            if not data:
                raise DataLossError(f"{path} became shorter while it was sent")
