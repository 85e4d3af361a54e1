"""Follows a file of checked frames that grows: a metrics log, the log of a sweep; a bounded piece at a time.

tail = Tail(path, FORMAT, parse)
while (part := tail.read()) is not None:     # until all that stands there now is read
    ...
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from nbdist.errors import DataLossError, NotAllowedError
from nbdist.lab.opening import open_regular
from nbdist.metrics.framing import LogFormat
from nbdist.metrics.log import LARGEST

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
