"""The sockets that this process has opened since a moment, whichever library has: found, closed, replaced.

before = set(sockets())          # inodes
...                              # a library listens, connects and accepts
for inode, one in tcp_sockets(before): ...
close_listeners(before)          # no other process can connect any more
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress


def sockets() -> Iterator[int]:
    """Yield the inodes of this process's sockets."""
    return (inode for _, inode in _descriptors())


def close_listeners(before: set[int], kept: int = 0) -> None:
    """Close this process's listening TCP sockets, except at the port ``kept`` and inodes in ``before``.

    Their owners, such as a group of gloo that a module of the namespace keeps, may close their numbers later:
    each becomes that of a socket without an address.
    """
    for number, inode in _descriptors():
        if inode not in before and (one := _tcp_socket(number)) is not None:
            with one, socket.socket() as unused:
                if is_listening(one) and one.getsockname()[1] != kept:
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


def is_listening(one: socket.socket) -> bool:
    """Return whether a TCP socket accepts connections."""
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
