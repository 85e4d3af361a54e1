"""Takes from a process what macOS does not have. Python imports this module first, in every process.

It is a stand-in on Linux for a Mac, as strict as it can be without one: functions of the operating system and
of the C library are missing, limits on names are those of macOS, and to nbdist there is neither /proc nor
/dev/shm. Other packages keep these two folders, because psutil reads there on Linux what it asks the kernel
of a Mac for. ``NBDIST_STANDIN=record`` also writes each refused access to the standard error.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

FOLDERS = ("/proc", "/dev/shm")
MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        "pidfd_open", "memfd_create", "posix_fallocate", "posix_fadvise", "fdatasync", "waitid",
        "pipe2", "eventfd", "splice", "copy_file_range", "getxattr", "setxattr", "listxattr", "removexattr",
        "getrandom", "setns", "unshare", "O_TMPFILE", "O_PATH", "O_DIRECT", "P_PIDFD",
        *(name for name in dir(os) if name.startswith(("sched_", "SCHED_", "EFD_", "MFD_", "TFD_"))),
    ),
    socket: (
        "SO_PEERCRED", "SO_PASSCRED", "SCM_CREDENTIALS", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_USER_TIMEOUT",
        "TCP_KEEPIDLE", "TCP_QUICKACK", "MSG_NOSIGNAL", "SO_BINDTODEVICE", "AF_NETLINK",
    ),
    select: ("epoll",),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX"),
    mmap: ("MAP_POPULATE", "MADV_HUGEPAGE", "MADV_NOHUGEPAGE", "MADV_DONTFORK", "MADV_REMOVE"),
    resource: ("prlimit",),
}  # fmt: skip
SYMBOLS = {"prctl", "malloc_trim", "mallopt", "sched_getcpu", "memfd_create", "pidfd_open", "syscall"}
SOCKET_BYTES = 104
"""The longest path of a Unix socket, with the zero at its end."""
SHARED_CHARACTERS = 31
"""The longest name of POSIX shared memory."""
BETWEEN = {
    "os",
    "pathlib",
    "genericpath",
    "posixpath",
    "glob",
    "shutil",
    "tempfile",
    "io",
    "fnmatch",
    __name__,
}


def install() -> None:
    """Make this process like one on a Mac."""
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]  # a Mac's is of kqueue
    symbol = ctypes.CDLL.__getitem__

    def known(self: ctypes.CDLL, name: Any) -> Any:
        if name in SYMBOLS and of_nbdist():
            raise AttributeError(f"{name}: symbol not found")
        return symbol(self, name)

    ctypes.CDLL.__getitem__ = known  # type: ignore[method-assign]
    for name in ("stat", "lstat", "access", "readlink", "statvfs", "listdir", "scandir"):
        setattr(os, name, without_folders(getattr(os, name), False if name == "access" else None))
    sys.addaudithook(audit)


def of_nbdist() -> bool:
    """Return whether nbdist itself, and not another package, makes the present call."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in BETWEEN:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "nbdist"


def is_missing(path: object) -> bool:
    """Return whether a path lies in a folder that a Mac does not have."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    text = os.fsdecode(path)
    return any(text == folder or text.startswith(folder + "/") for folder in FOLDERS)


def missing(path: object) -> FileNotFoundError:
    if os.environ.get("NBDIST_STANDIN") == "record":
        os.write(2, f"stand-in: there is no {path!r}\n".encode())
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def without_folders(function: Callable[..., Any], answer: object) -> Callable[..., Any]:
    """Return a function of `os` to which FOLDERS do not exist where nbdist calls it."""

    def asked(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        if is_missing(path) and of_nbdist():
            if answer is not None:
                return answer
            raise missing(path)
        return function(path, *args, **kwargs)

    return asked


def audit(event: str, args: tuple[Any, ...]) -> None:
    """Refuse what a Mac refuses. Python calls it before each event."""
    if event == "open":
        if is_missing(args[0]) and of_nbdist():
            raise missing(args[0])
    elif event in ("socket.bind", "socket.connect"):
        address = args[1]
        if isinstance(address, str | bytes) and len(os.fsencode(address)) >= SOCKET_BYTES:
            raise OSError("AF_UNIX path too long")


def limit_shared_names() -> None:
    """Refuse names of POSIX shared memory that are too long for macOS."""
    import _posixshmem

    opened = _posixshmem.shm_open

    def shm_open(path: str, *args: Any, **kwargs: Any) -> Any:
        if len(path) > SHARED_CHARACTERS:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        return opened(path, *args, **kwargs)

    _posixshmem.shm_open = shm_open


install()
limit_shared_names()
