"""What a body prints, on its way to the client and to a file, without ever slowing the body."""

from __future__ import annotations

import errno
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import BinaryIO

WAITING_LIMIT = 1 << 20  # characters that may wait for the next flush
FILE_LIMIT = 64 << 20  # bytes that one task's output file may grow to
TAIL_LIMIT = 200_000  # characters that who comes late is given


class Output:
    """What a body prints, until it is taken."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._size = 0
        self._cut = 0
        self._written = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self.taken = 0  # characters
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        self._path = path
        self._file: BinaryIO | None = None  # made for the first text: most trials of a sweep print nothing

    def write(self, text: str) -> int:
        """Take text; what exceeds the limit before the next flush is counted, not kept."""
        with self._lock:
            room = WAITING_LIMIT - self._size
            kept = text[: max(room, 0)]
            self._cut += len(text) - len(kept)
            if kept:
                self._waiting.append(kept)
                self._size += len(kept)
        return len(text)

    def take(self) -> str:
        """Return what was printed since the last time, having written it to the file."""
        with self._lock:
            text, cut = "".join(self._waiting), self._cut
            self._waiting, self._size, self._cut = [], 0, 0
        if cut:
            text += f"\n[{cut:,} characters were printed faster than they can be shown, and dropped]\n"
        if text and self._written < FILE_LIMIT:
            data = text.encode("utf-8", "replace")
            self._written += len(data)
            try:
                if self._file is None:
                    self._file = open(self._path, "ab", opener=_private)  # noqa: SIM115 - `finish` closes it
                self._file.write(data)
                self._file.flush()
            except OSError:  # a full disk never stops a body; the client still gets the text
                self._written = FILE_LIMIT
        if text:
            self.taken += len(text)
            self._tail.append(text)
            self._tail_size += len(text)
            while self._tail_size - len(self._tail[0]) >= TAIL_LIMIT:
                self._tail_size -= len(self._tail.popleft())
        return text

    def tail(self) -> str:
        """Return the end of all that was taken so far, from the file or not: at most 200,000 characters."""
        return tail_of("".join(self._tail))

    def finish(self) -> None:
        """Close the file; what a full disk does not take is lost there, not in the notebook."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()


def tail_of(text: str, limit: int = TAIL_LIMIT) -> str:
    r"""Return the last ``limit`` characters of a text, from the start of a line.

    >>> tail_of("one\ntwo\nthree\n", limit=9)
    'three\n'
    """
    if len(text) < limit:
        return text
    text = text[-limit:]
    return text[text.find("\n") + 1 :]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o600)


class Screen(io.TextIOBase):
    """Stands in for sys.stdout and sys.stderr of a task while a body runs.

    There is one for all runs: a logging handler or a thread that holds on to it prints to the run of the
    moment, and between runs to the task's log. It cannot be closed.
    """

    output: Output | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a plain attribute
        """The encoding that libraries ask for."""
        return "utf-8"

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Hand the text on."""
        output = self.output
        if output is not None:
            return output.write(text)
        return sys.__stdout__.write(text) if sys.__stdout__ is not None else len(text)

    def close(self) -> None:
        """Do nothing: the next body prints too."""


SCREEN = Screen()


@contextmanager
def printing_to(output: Output) -> Iterator[None]:
    """Have everything that this process prints go to ``output``, inside a ``with``."""
    SCREEN.output = output
    try:
        with redirect_stdout(SCREEN), redirect_stderr(SCREEN):
            yield
    finally:
        SCREEN.output = None
