"""One process compiles a program's kernels, and the others of its host take them from CuPy's cache.

    program = compiled_once(program, "784-100-10, batches of 64")    # for its first call
    program(x, into)

CuPy compiles a kernel at its first call and keeps the machine code in the folder CUPY_CACHE_DIR, which all
tasks of a user share (`nbdist.cluster.gpus.kernel_cache`). Eight workers that begin the same training would
each compile the same 30 to 60 kernels, because none of them finds what the others are about to write.

So the first call of a program holds an exclusive lock on a file of the cache. A process that does not get it
waits for a shared lock, which all that wait get at once when the first has compiled, and then loads what it
wrote. The wait is bounded: a process that waits longer compiles for itself. No call waits for another rank
while it holds the lock, because gradients are reduced on threads of their own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

WAIT_SECONDS = 30.0  # for another process to compile the kernels of a program
POLL_SECONDS = 0.02
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # of a network file system: each process compiles
LOCKS = 64  # files; programs that share one wait for each other, which costs time only
P = ParamSpec("P")
R = TypeVar("R")


def compiled_once(
    program: Callable[P, R], key: str, check: Callable[[], object] = lambda: None
) -> Callable[P, R]:
    """Return a program whose call compiles its kernels in one process of the host at a time.

    ``key`` is a text that is the same in all processes that compile the same kernels; ``check`` is called
    during a wait and may raise. Without a CUPY_CACHE_DIR it is the program itself: the kernels would be in
    a folder that nbdist does not own.
    """
    folder = os.environ.get("CUPY_CACHE_DIR")
    if not folder:
        return program
    path = Path(folder) / f"compiling-{zlib.crc32(key.encode()) % LOCKS}.lock"

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with first_or_after(path, check):
            return program(*args, **kwargs)

    return call


@contextmanager
def first_or_after(
    path: Path, check: Callable[[], object] = lambda: None, seconds: float = WAIT_SECONDS
) -> Iterator[bool]:
    """Enter the block as the first process, which is True, or when the first one has left it.

    A process that has waited for so many ``seconds`` enters, too.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:  # a cache that can only be read: no process compiles for another
        yield False
        return
    try:
        first = _locked(lock, fcntl.LOCK_EX)
        until = time.monotonic() + seconds
        while not first and not _locked(lock, fcntl.LOCK_SH) and time.monotonic() < until:
            check()
            time.sleep(POLL_SECONDS)
        if not first:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a later program of this host may be compiled at once
        yield first
    finally:
        os.close(lock)  # which releases it


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
