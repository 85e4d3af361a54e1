"""The files of a run's folder, and nothing else: what a page may list and save.

A path is walked one folder at a time from the run's own folder, each opened relative to the one before, and
no link is followed at any of them: so there is no moment at which somebody could put a link in its place. A
hard link is a file like any other: only who may read a file can make one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from nbdist.errors import InvalidArgumentError, NotAllowedError, NotFoundError
from nbdist.lab.folderlist import is_id
from nbdist.lab.homefolder import look_home
from nbdist.lab.opening import open_regular

MOST_LISTED = 2_000  # files
DEEPEST = 8  # folders within folders
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def list_files(run_id: str) -> list[dict[str, Any]]:
    """Return the "path", "bytes" and "modified" (seconds since 1970) of a run's files, by path.

    At most 2,000; links, pipes and hidden files are left out. Raises `NotFoundError`, `InvalidArgumentError`.
    """
    found: list[dict[str, Any]] = []
    with run_descriptor(run_id) as folder:
        for root, folders, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
            inside = root.removeprefix(".").removeprefix("/")
            deep = inside.count("/") + 1 >= DEEPEST
            folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
            for name in sorted(names):
                try:
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                except OSError:  # it has just gone
                    continue
                if not stat.S_ISREG(status.st_mode) or name.startswith(".") or not is_text(inside + name):
                    continue
                if len(found) >= MOST_LISTED:
                    return sorted(found, key=lambda one: str(one["path"]))
                path = f"{inside}/{name}" if inside else name
                found.append({"path": path, "bytes": status.st_size, "modified": status.st_mtime})
    return sorted(found, key=lambda one: str(one["path"]))


def open_file(run_id: str, path: str) -> tuple[BinaryIO, int]:
    """Return (file, size) of an ordinary file in a run's folder, by its path there ("checkpoints/1.npz").

    Raises `NotAllowedError` for what could lead elsewhere, or is no ordinary file; `NotFoundError`.
    """
    *folders, name = parts_of(path)
    with run_descriptor(run_id) as here:
        held = os.dup(here)
        try:
            for folder in folders:
                refuse_odd(held, folder, stat.S_ISDIR, path)
                inner = opened(folder, FOLDER | os.O_NOFOLLOW, held, path)
                os.close(held)
                held = inner
            refuse_odd(held, name, stat.S_ISREG, path)
            try:
                descriptor, status = open_regular(name, held)
            except OSError as error:
                raise refused(error, path) from None
        finally:
            os.close(held)
    return os.fdopen(descriptor, "rb"), status.st_size


def parts_of(path: str) -> list[str]:
    """Return the names in a path; raises `NotAllowedError` for one that could lead elsewhere.

    >>> parts_of("tensorboard/worker-0/events")
    ['tensorboard', 'worker-0', 'events']
    """
    parts = path.split("/")
    if len(parts) > DEEPEST + 1 or not is_text(path) or any(part == "" or part[0] == "." for part in parts):
        raise NotAllowedError(
            f"{path!r:.200} is no path of a file in a run's folder: names with / between them, none hidden"
        )
    return parts


@contextmanager
def run_descriptor(run_id: str) -> Iterator[int]:
    """Give a descriptor of a run's own folder, inside a ``with``."""
    if not is_id(run_id):
        raise InvalidArgumentError(
            f"{run_id!r:.100} is no run id: letters, digits, '-', '_', '.', at most 80"
        )
    home, why = look_home()
    if home is None:
        raise NotFoundError(why or f"no run {run_id!r}: nbdist has no folder yet")
    try:
        runs = os.open(home / "runs", FOLDER)
        try:
            found = os.open(run_id, FOLDER | os.O_NOFOLLOW, dir_fd=runs)
        finally:
            os.close(runs)
    except OSError:  # a link as well
        raise NotFoundError(f"no run {run_id!r} in {home / 'runs'}") from None
    try:
        yield found
    finally:
        os.close(found)


def refuse_odd(folder: int, name: str, right: Any, path: str) -> None:
    """Raise unless a name in a folder is of the ``right`` kind: a device is not even opened."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise refused(error, path) from None
    if not right(status.st_mode):
        what = "is a link, and none is followed" if stat.S_ISLNK(status.st_mode) else "is no ordinary file"
        raise NotAllowedError(f"{path!r} cannot be had: {name!r} {what}")


def opened(name: str, flags: int, folder: int, path: str) -> int:
    """Return a descriptor of what stands in an open folder."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise refused(error, path) from None


def refused(error: OSError, path: str) -> Exception:
    """Return what to raise for what the system says."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return NotFoundError(f"there is no {path!r} in the run's folder")
    return NotAllowedError(f"{path!r} cannot be had: {error.strerror}")


def is_text(name: str) -> bool:
    """Return whether a name can be written in JSON and an address."""
    return "\0" not in name and all(not 0xD800 <= ord(letter) < 0xE000 for letter in name)
