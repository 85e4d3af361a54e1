"""Whether ranks of an MPI group on other hosts are there: each rank keeps a connection to the next one.

    far = Far(member)                       # far.address goes to the others
    far.meet(addresses, check)
    far.gone()                              # the next rank's number, once it is not reached any more

MPI itself says nothing of a rank that has died. The ranks of its host see that its process is gone; where the
rank before it is on another host, that one loses this connection. Either tells all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nbdist.errors import UnavailableError
from nbdist.wire.collective.base import Member
from nbdist.wire.frames import Frame
from nbdist.wire.listener import Listener
from nbdist.wire.peers import Peer

HERE = "mpi.here"
GRACE_SECONDS = 0.5  # in which a rank whose connection ended can still be heard to have left in peace
WAIT_SECONDS = 0.05


class Far:
    """One rank's connection to the next, and from the one before, where those are on other hosts."""

    def __init__(self, member: Member) -> None:
        hosts, rank = member.hosts, member.rank
        self._member, self._next = member, (rank + 1) % member.size
        self._peer: Peer | None = None
        self._lost_at: float | None = None
        self._listener: Listener | None = None
        if member.keys is not None and hosts[rank - 1] != hosts[rank]:
            self._listener = Listener(member.keys, member.bind)

    @property
    def address(self) -> str:
        """Where the rank before reaches this one; "" if it does not have to."""
        return self._listener.address if self._listener is not None else ""

    def meet(self, addresses: Sequence[str], check: Callable[[], None]) -> None:
        """Connect to the next rank and be reached by the one before; `check` may raise to end that."""
        member, address = self._member, addresses[self._next]
        if member.keys is not None and address and member.size > 1:
            self._peer = Peer(address, member.keys, name=member.called[self._next])
            self._peer.send(HERE, {"incarnation": member.incarnation})
        while self._listener is not None:
            check()
            if self._listener.poll(WAIT_SECONDS):
                received = self._listener.receive()
                if received is not None and self._is_greeting(received[1]):
                    break

    def gone(self) -> int | None:
        """Return the next rank if it has not been reached for a while, else None; never waits."""
        if self._peer is None:
            return None
        try:
            self._peer.check()
        except UnavailableError:
            now = time.monotonic()
            self._lost_at = self._lost_at or now
            return self._next if now - self._lost_at >= GRACE_SECONDS else None
        self._lost_at = None
        return None

    def close(self) -> None:
        """Close both connections; safe to repeat."""
        if self._peer is not None:
            self._peer.close()
        if self._listener is not None:
            self._listener.close()

    def _is_greeting(self, frame: Frame) -> bool:
        return frame.kind == HERE and frame.meta.get("incarnation") == self._member.incarnation
