"""Shared memory between tasks of one host, and doorbells that wake them.

    segment = Segment.create("nbdist-c1", 1 << 20)      # one task creates it,
    other = Segment.open(segment.name)                  # another of the same user opens it
    bell = Doorbell.create("nbdist-c1")                 # the receiving task
    Ringer(bell.name).ring(b"\\x01\\x00")                 # the sending task

Both are files that only their owner may open (mode 0600) under random names: a segment in the host's
memory file system, a doorbell as a named pipe. A sender writes the segment before the pipe and a receiver
reads the pipe before the segment; the pipe's lock in the kernel orders these memory accesses.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import select
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)

ZEROS = bytes(1 << 20)
ALONE = "nbdist-alone"  # prefix of the segments of processes outside clusters


def shared_folder() -> Path:
    """Return the folder of segments and doorbells: the host's memory file system if it has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def remove_all(prefix: str) -> list[str]:
    """Remove the shared files with a prefix that a cluster's tasks left behind; return their names.

    Removes files of this user only.
    """
    removed = []
    for path in shared_folder().glob(f"{prefix}-*"):
        with suppress(FileNotFoundError):  # its process may remove it now
            if path.lstat().st_uid == os.getuid():
                path.unlink()
                removed.append(path.name)
    return removed


def own_prefix() -> str:
    """Return the prefix of this process' segments, for a process outside clusters.

    If such a process is killed, the next one removes its segments: see `remove_abandoned`.
    """
    return f"{ALONE}-{_pid_namespace()}-{secrets.token_hex(6)}"


def remove_abandoned() -> list[str]:
    """Remove segments of processes outside clusters that ended without removing them.

    Only segments of this user and of this process' PID namespace, because a PID has no meaning in another
    namespace. Returns their names.
    """
    removed = []
    for path in shared_folder().glob(f"{ALONE}-{_pid_namespace()}-*-*-*"):
        pid = path.name.split("-")[-2]
        with suppress(OSError):  # another process may remove it now
            if pid.isdigit() and path.lstat().st_uid == os.getuid() and not _is_alive(int(pid)):
                path.unlink()
                removed.append(path.name)
    return removed


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _pid_namespace() -> str:
    try:
        return f"{os.stat('/proc/self/ns/pid').st_ino:x}"
    except OSError:  # not Linux: there is only one
        return "0"


def _new_path(prefix: str) -> Path:
    # The creator's pid is in the name, so that the files of ended processes can be found.
    return shared_folder() / f"{prefix}-{os.getpid()}-{secrets.token_hex(8)}"


def require_plain(name: object) -> None:
    """Raise NotAllowedError unless ``name`` is a plain file name, without a path."""
    if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or "\0" in name:
        raise NotAllowedError(f"{name!r} is not a plain name of a shared file")


def _existing_path(name: str, kind: str, is_kind: Callable[[int], bool]) -> Path:
    require_plain(name)
    path = shared_folder() / name
    try:
        info = path.lstat()
    except FileNotFoundError:
        raise NotFoundError(
            f"shared file {name!r} no longer exists: the task that created it has ended"
        ) from None
    if info.st_uid != os.getuid() or stat.S_ISLNK(info.st_mode) or info.st_mode & 0o077:
        raise NotAllowedError(f"users other than its owner may open shared file {name!r}; it is not trusted")
    if not is_kind(info.st_mode):
        raise NotAllowedError(f"{name!r} is not a {kind}")
    return path


def _reserved(path: Path, size: int) -> mmap.mmap:
    """Create a file and map it, with all of its pages allocated: a full file system is an error here.

    Without the allocation, the first write to a page that the system cannot provide raises SIGBUS.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # macOS: what is written is allocated
            for at in range(0, size, len(ZEROS)):
                os.pwrite(fd, ZEROS[: size - at], at)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


class Segment:
    """Bytes that tasks of one host share. ``create`` returns the owner of the file, ``open`` does not."""

    def __init__(self, path: Path, memory: mmap.mmap, owner: bool) -> None:
        self.name, self.owner = path.name, owner
        self._path, self._memory = path, memory
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(memory, np.uint8)

    @classmethod
    def create(cls, prefix: str, size: int) -> Segment:
        """Make a segment of ``size`` zero bytes; ResourceExhaustedError if memory is full."""
        path = _new_path(prefix)
        try:
            return cls(path, _reserved(path, max(size, 1)), owner=True)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
                raise ResourceExhaustedError(
                    f"{path.parent} has no room for {size:,} bytes of shared memory: {error.strerror}"
                ) from None
            raise

    @classmethod
    def open(cls, name: str, writable: bool = True) -> Segment:
        """Open a segment that a task of the same user created."""
        path = _existing_path(name, "segment", stat.S_ISREG)
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW)
        try:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return cls(path, mmap.mmap(fd, os.fstat(fd).st_size, access=access), owner=False)
        finally:
            os.close(fd)

    def array(self, dtype: Any, count: int, offset: int) -> np.ndarray[Any, Any]:
        """Return ``count`` items of ``dtype`` at a byte offset, as a view."""
        size = np.dtype(dtype).itemsize * count
        return self.bytes[offset : offset + size].view(dtype)

    def close(self) -> None:
        """Close the segment; its owner removes the file. Views stay valid."""
        if self.owner:
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SharedFile:
    """A file in shared memory that its creator writes without mapping it, and that others map.

    ``write`` uses ``pwrite`` instead of a mapping: so the kernel does not fill new pages with zeros first,
    and a full file system is an error of the call.
    """

    def __init__(self, prefix: str, size: int) -> None:
        self._path = _new_path(prefix)
        self.name, self.size = self._path.name, size
        room = os.statvfs(self._path.parent)
        if size > room.f_bavail * room.f_frsize:
            raise ResourceExhaustedError(
                f"{self._path.parent} has no room for {size:,} bytes of shared memory: "
                f"{room.f_bavail * room.f_frsize:,} are free"
            )
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(self._fd, max(size, 1))
        except BaseException:
            self.close()
            raise

    def write(self, pieces: Iterable[tuple[int, memoryview]]) -> None:
        """Write pieces, each at its offset; ResourceExhaustedError if memory runs out."""
        for at, data in pieces:
            if at < 0 or at + data.nbytes > self.size:
                raise InvalidArgumentError(
                    f"{data.nbytes} bytes at {at} are not in a file of {self.size} bytes"
                )
            left = data.cast("B")
            try:
                while left.nbytes:
                    written = os.pwrite(self._fd, left, at)
                    left, at = left[written:], at + written
            except OSError as error:
                raise ResourceExhaustedError(
                    f"{self._path.parent} has no room for {self.size:,} bytes of shared memory: "
                    f"{error.strerror}"
                ) from None

    def close(self) -> None:
        """Remove the file; mappings of it stay valid. May be called twice."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


class Doorbell:
    """The reading end of a named pipe: short messages wake the task that waits on it."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        os.mkfifo(path, 0o600)
        self.name, self._path = path.name, path
        try:
            # Open it for writing too, so that a read never returns end-of-file when no task has it open.
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    @classmethod
    def create(cls, prefix: str) -> Doorbell:
        """Make a doorbell that only tasks of this user can ring."""
        return cls(_new_path(prefix))

    def fileno(self) -> int:
        """Return the non-blocking descriptor, for the caller's own poll."""
        return self._fd

    def wait(self, seconds: float) -> bytes:
        """Wait for messages and return up to 4,096 bytes of them; empty after ``seconds``."""
        try:
            return os.read(self._fd, 4096)
        except BlockingIOError:
            pass
        if not self._poll.poll(seconds * 1000):
            return b""
        try:
            return os.read(self._fd, 4096)
        except BlockingIOError:
            return b""

    def ring_self(self, message: bytes) -> None:
        """Wake the waiting thread of this task."""
        os.write(self._fd, message)

    def close(self) -> None:
        """Remove the doorbell."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def open_bell(name: str) -> int:
    """Open a doorbell of a task of the same user for writing; return its descriptor, non-blocking."""
    path = _existing_path(name, "doorbell", stat.S_ISFIFO)
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise UnavailableError(f"no task reads doorbell {name!r}: {error.strerror}") from None


class Ringer:
    """The writing end of another task's doorbell."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._fd = open_bell(name)

    def ring(self, message: bytes) -> None:
        """Send a short message; it arrives whole (at most PIPE_BUF, 4,096 bytes)."""
        try:
            with self._lock:
                if self._fd >= 0:
                    os.write(self._fd, message)
        except (BrokenPipeError, BlockingIOError) as error:
            raise UnavailableError(f"the reader of a doorbell has died or is stopped: {error}") from None

    def has_reader(self) -> bool:
        """Return whether a task still has the reading end open; sends nothing."""
        with self._lock:
            if self._fd < 0:
                return False
            poll = select.poll()
            poll.register(self._fd, 0)  # POLLERR, a pipe without a reader, is always reported
            return not poll.poll(0)

    def close(self) -> None:
        """Close the writing end; may be called while another thread rings."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
