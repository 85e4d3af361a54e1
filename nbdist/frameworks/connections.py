"""Ends calls that wait for other processes in native code: `shut_down_accepted`.

    before = set(listeners())        # of this process, when a run begins
    ...                              # a framework listens, accepts, and waits in a call
    shut_down_accepted(before)       # from another thread: the call fails, here and at the other end

gloo, in PyTorch and in JAX, has no call that aborts a group. What ends its calls is the end of a connection:
in 2 ms, at both ends. Each pair of ranks has one that has accepted the connection, from a socket that listens
since the run began. Sockets that listened before, such as the task's own, are left alone.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress

LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "failed to recv, got 0 bytes",
    "remote process exited",
)
"""Parts of the messages of gloo, PyTorch's store and NCCL about a connection that the other end closed."""


def is_lost_connection(error: BaseException) -> bool:
    """Return whether a framework's error says that another process has ended a connection.

    >>> is_lost_connection(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:24965"))
    True
    """
    return isinstance(error, (RuntimeError, ValueError)) and any(part in str(error) for part in LOST)


def listeners() -> Iterator[int]:
    """Yield the inodes of the sockets on which this process listens."""
    for inode, one in tcp_sockets():
        if _is_listening(one):
            yield inode


def shut_down_accepted(before: set[int], kept: int = 0) -> None:
    """Shut the connections down that listening sockets have accepted, except these sockets and this port.

    ``before`` has inodes of listening sockets.
    """
    ports = {
        one.getsockname()[1] for inode, one in tcp_sockets() if _is_listening(one) and inode not in before
    } - {kept}
    for _, one in tcp_sockets():
        with suppress(OSError):  # the other end was quicker
            if one.getsockname()[1] in ports and not _is_listening(one):
                one.shutdown(socket.SHUT_RDWR)


def tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's TCP sockets, each as a duplicate that is open until the next one is asked for."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # it was closed after the listing
            about = os.fstat(int(name))
            if not stat.S_ISSOCK(about.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    yield about.st_ino, one


def _is_listening(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
