"""Ends calls that wait for other processes in native code: `shut_down_accepted`.

    before = set(sockets())          # of this process, when a run begins
    ...                              # a framework listens, accepts, and waits in a call
    shut_down_accepted(before)       # from another thread: the call fails, here and at the other end
    close_listeners(before)          # after the run: no other process can connect to what it has left

gloo, in PyTorch and in JAX, has no call that aborts a group. What ends its calls is the end of a connection:
in 2 ms, at both ends. Each pair of ranks has one that has accepted the connection, at a socket that was made
since the run began. Sockets from before, such as the task's own, are left alone. A rank that leaves alone has
to end those, too, that it has made itself: ``own``, which are known where they were made.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Collection, Iterator
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


def sockets() -> Iterator[int]:
    """Yield the inodes of this process's sockets."""
    return (inode for _, inode in _descriptors())


def made_since(before: set[int], own: str, servers: Collection[str]) -> set[int]:
    """Return the inodes of this process's connections but those in ``before``, and those of Servers.

    ``servers`` are the addresses of the tasks' Servers, of which one may be connected to at any time, and
    ``own`` is that of this task.
    """
    found = set()
    for inode, one in tcp_sockets(before):
        with suppress(OSError):  # it listens, or has ended
            (host, port), local = one.getpeername()[:2], one.getsockname()[1]
            if f"{host}:{port}" not in servers and local != int(own.rpartition(":")[2]):
                found.add(inode)
    return found


def shut_down_accepted(before: set[int], kept: int = 0, own: Collection[int] = ()) -> None:
    """Shut the connections down that listening sockets have accepted, except at the port ``kept``.

    Neither these sockets nor the connections are among those whose inodes are in ``before``. Connections with
    inodes in ``own`` are shut down, too, whichever end has made them.
    """
    ports = {one.getsockname()[1] for _, one in tcp_sockets(before) if _is_listening(one)} - {kept}
    if not (ports or own):
        return
    for inode, one in tcp_sockets(before):
        with suppress(OSError):  # the other end was quicker
            if (inode in own or one.getsockname()[1] in ports) and not _is_listening(one):
                one.shutdown(socket.SHUT_RDWR)


def close_listeners(before: set[int], kept: int = 0) -> None:
    """Close this process's listening TCP sockets, except at the port ``kept`` and inodes in ``before``.

    Their owners, such as a group of gloo that a module of the namespace keeps, may close their numbers later:
    each becomes that of a socket without an address.
    """
    for number, inode in _descriptors():
        if inode not in before and (one := _tcp_socket(number)) is not None:
            with one, socket.socket() as unused:
                if _is_listening(one) and one.getsockname()[1] != kept:
                    os.dup2(unused.fileno(), number, inheritable=False)


def tcp_sockets(before: set[int]) -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's TCP sockets but those with inodes in ``before``, each with its inode.

    Each is a duplicate, which is open until the next one is asked for.
    """
    for number, inode in _descriptors():
        if inode not in before and (one := _tcp_socket(number)) is not None:
            with one:
                yield inode, one


def _tcp_socket(number: int) -> socket.socket | None:
    """Return a duplicate of a descriptor that is a TCP socket; None if it is another one, or was closed."""
    with suppress(OSError):
        one = socket.socket(fileno=os.dup(number))
        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
            return one
        one.close()
    return None


def _descriptors() -> Iterator[tuple[int, int]]:
    """Yield the file descriptors of this process's sockets, with their inodes."""
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # it was closed after the listing
            about = os.fstat(int(name))
            if stat.S_ISSOCK(about.st_mode):
                yield int(name), about.st_ino


def _is_listening(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
