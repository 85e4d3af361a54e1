"""Which of a cluster's engines have a run on them: small files in the cluster's folder, one per process.

The engines make and remove them, the keeper and later clients look: no message need reach a busy engine.
Only Python's own library is needed here, for the keeper imports it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = "busy"


@contextmanager
def busy_with(cluster: Path, run: str) -> Iterator[None]:
    """Say that this process works on a run, inside a ``with``; says nothing where there is no such folder."""
    path = cluster / FOLDER / str(os.getpid())
    try:
        with suppress(OSError):  # a full disk never stops a body
            if cluster.is_dir():
                path.parent.mkdir(mode=0o700, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
                descriptor = os.open(path, flags, 0o600)
                try:
                    os.write(descriptor, run.encode())
                finally:
                    os.close(descriptor)
        yield
    finally:
        with suppress(OSError):
            path.unlink()


def runs_on(cluster: Path, living: Collection[int]) -> list[str]:
    """Return the runs that the processes of these ids work on; the word of one that has died is void."""
    found: dict[str, None] = {}
    for pid in sorted(living):
        with suppress(OSError, UnicodeDecodeError):
            run = (cluster / FOLDER / str(pid)).read_text()
            if run:
                found[run] = None
    return list(found)


def is_busy(cluster: Path, living: Collection[int]) -> bool:
    """Return whether any of these processes works on a run."""
    return any((cluster / FOLDER / str(pid)).exists() for pid in living)
