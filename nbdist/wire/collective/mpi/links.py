"""The TCP connections of an MPI world to ranks of other hosts: made at once, by ports that are closed then.

    links.connect(mpi, comm, before)     # all ranks do so, when MPI has started
    links.is_lost(rank)                  # whether the process of a rank of the world has ended

libfabric's "tcp" connects two ranks at their first message, and listens as long as the process lives: every
process that reaches such a port could become a rank's peer at any time. So all ranks connect while the
cluster starts, and nothing listens afterwards.

MPI reports neither the end of a rank nor the loss of its connection. Worse, a send to such a rank does not
return: libfabric connects again, in vain, inside of `MPI_Isend`. So a duplicate of each socket is
kept, whose state the kernel knows at once, and is looked at before each send.
"""

from __future__ import annotations

import ipaddress
import select
import socket
from contextlib import suppress
from typing import Any

from nbdist.wire.sockets import close_listeners, tcp_sockets

TAG = 1
ROW = 18  # bytes: an IPv6 address, or an IPv4 address and zeros, and a port
ENDED = getattr(select, "POLLRDHUP", 0)  # the other end has closed it; errors are polled for in any case
HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL | ENDED


class Links:
    """One rank's connections to the ranks of other hosts; none for a world on one host."""

    def __init__(self) -> None:
        self._sockets: dict[int, list[socket.socket]] = {}

    def connect(self, mpi: Any, comm: Any, before: set[int]) -> None:
        """Connect this rank of a communicator to all others, and close the ports by which they did that.

        ``before`` are the inodes of the sockets that this process had before MPI. Waits for all ranks.
        """
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        incoming = [comm.Irecv(bytearray(1), rank, TAG) for rank in others]
        mpi.Request.Waitall(incoming + [comm.Isend(bytearray(1), rank, TAG) for rank in others])
        comm.Barrier()
        close_listeners(before)
        # Each rank tells all others which ends are its own: a connection to one of them is one to that rank.
        own, connected = [], dict[bytes, list[socket.socket]]()
        for _, one in tcp_sockets(before):
            with suppress(OSError):  # it has ended
                connected.setdefault(packed(one.getpeername()), []).append(one.dup())
                own.append(packed(one.getsockname()))
        row = b"".join(own[: comm.size]).ljust(ROW * comm.size, b"\0")
        rows = bytearray(len(row) * comm.size)
        comm.Allgather(row, rows)
        for at in range(0, len(rows), ROW):
            if kept := connected.pop(bytes(rows[at : at + ROW]), None):
                self._sockets.setdefault(at // len(row), []).extend(kept)
        for kept in connected.values():  # to no rank, or through a network that changes addresses
            for one in kept:
                one.close()

    def is_lost(self, rank: int) -> bool:
        """Return whether a rank of the communicator has closed its connections to this one. Never waits."""
        sockets = self._sockets.get(rank)
        if sockets is None:
            return False
        poller = select.poll()
        for one in sockets:
            poller.register(one, ENDED)
        return sum(bool(event & HUNG_UP) for _, event in poller.poll(0)) == len(sockets)


def packed(address: tuple[Any, ...]) -> bytes:
    """Return a socket's address as bytes.

    >>> packed(("127.0.0.1", 258)).hex()
    '7f0000010000000000000000000000000102'
    """
    host, port = ipaddress.ip_address(address[0].partition("%")[0]).packed, int(address[1])
    return host.ljust(ROW - 2, b"\0") + port.to_bytes(2, "big")
