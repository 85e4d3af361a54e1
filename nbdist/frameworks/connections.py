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

import socket
from collections.abc import Collection
from contextlib import suppress

from nbdist.wire.sockets import is_listening, tcp_sockets

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
    ports = {one.getsockname()[1] for _, one in tcp_sockets(before) if is_listening(one)} - {kept}
    if not (ports or own):
        return
    for inode, one in tcp_sockets(before):
        with suppress(OSError):  # the other end was quicker
            if (inode in own or one.getsockname()[1] in ports) and not is_listening(one):
                one.shutdown(socket.SHUT_RDWR)
