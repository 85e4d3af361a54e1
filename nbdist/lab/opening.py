"""Opens files that somebody else wrote, and may be writing: ordinary files only, no links, a bounded part."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from nbdist.errors import NotAllowedError

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
