"""The two ways from a replica to a parameter shard: memory that both tasks see, and a socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.runtime.layout import Layout
from nbdist.runtime.links import LOOK_SECONDS, Link
from nbdist.runtime.mailbox import ANSWER, COUNT, GLOBAL_STEP, RING, SLOTS, VERSION, Mailbox
from nbdist.runtime.rules import Rules
from nbdist.runtime.tables import no_rows
from nbdist.wire.peers import Peer
from nbdist.wire.shm import Doorbell, Ringer, Segment

Array = np.ndarray[Any, Any]

NO_IDS = np.zeros(0, np.int64)
TRIES = 16  # to read between two updates, before the server is asked to wait with the next


class SharedLink(Link):
    """Through shared memory: a pull is one copy, a push is eight bytes through a pipe."""

    kind = "shared memory"

    def __init__(
        self,
        layout: Layout,
        check: Callable[[], None],
        *,
        control: Peer,
        shard: str,
        opened: dict[str, Any],
        bell: Doorbell,
        replica: int,
        rules: Rules,
    ) -> None:
        super().__init__(layout, check)
        self._mailbox = Mailbox(Segment.open(opened["segment"]), layout, rules.replicas)
        self._locking = rules.locking
        self._ringer, self._bell = Ringer(opened["bell"]), bell
        self._control, self._shard, self._replica = control, shard, replica
        number = opened["number"]
        self._push_rings = [RING.pack(number, replica, slot) for slot in range(SLOTS)]
        self._count_ring = RING.pack(number, replica, COUNT)
        self._headers = self._mailbox.headers[replica]
        self._looked = time.monotonic()

    def pull(self) -> None:
        """Read the newest parameters, their version and the global step; with locking, of one moment."""
        if self._locking:
            found = self._mailbox.read_whole(self.parameters, TRIES)
            if found is not None:
                self.version, self.global_step = found
                return
            self._check()  # a reader that comes out of step with a busy server is not left to starve
            self.fetch()
            return
        counters = self._mailbox.counters
        self.version = int(counters[VERSION])  # before the copy: what comes in between counts as missed
        self.global_step = int(counters[GLOBAL_STEP])
        np.copyto(self.parameters, self._mailbox.parameters)

    def gradient(self, slot: int) -> Array:
        """Return the slot's bytes in the shared segment."""
        return self._mailbox.gradients[self._replica][slot]

    def push(self, slot: int) -> None:
        """Ring for the slot."""
        self._headers[slot][0] = self.version
        self._ring(self._push_rings[slot])

    def count(self) -> None:
        """Count one update of all shards in the global step."""
        self._counts += 1
        self._ring(self._count_ring)

    def _ring(self, message: bytes) -> None:
        try:
            self._ringer.ring(message)
        except UnavailableError:
            raise UnavailableError(
                f"{self._control.name} at {self._control.address} takes no more gradients: its process is "
                "dead or frozen"
            ) from None

    def _receive(self) -> None:
        message = self._bell.wait(LOOK_SECONDS)
        now = time.monotonic()
        if not message or now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._check()
            while (frame := self._control.receive(0)) is not None:  # raises if the server has ended
                self._heed(frame)
        for what, slot in ANSWER.iter_unpack(message):
            self._note(what, slot, int(self._headers[slot][1]))

    def _newest(self) -> int:
        return int(self._mailbox.counters[VERSION])

    @property
    def _peer_of_shard(self) -> tuple[Peer, str, int]:
        return self._control, self._shard, self._replica

    def close(self) -> None:
        """Let go of the shared files and the connection."""
        self._ringer.close()
        self._bell.close()
        self._control.close()


class SocketLink(Link):
    """Through an authenticated socket, for replicas on other hosts."""

    kind = "socket"

    def __init__(
        self,
        layout: Layout,
        check: Callable[[], None],
        *,
        peer: Peer,
        shard: str,
        replica: int,
        tables: Sequence[Array] = (),
    ) -> None:
        super().__init__(layout, check)
        self._peer, self._shard, self._replica = peer, shard, replica
        self._slots = [layout.buffer() for _ in range(SLOTS)]
        self._seen = 0
        self.tables = list(tables)

    def pull(self) -> None:
        """Ask for the newest parameters and the wanted rows, their version and the global step."""
        self._ask([self._wanted.pop(number, NO_IDS) for number in range(len(self.tables))])

    def gradient(self, slot: int) -> Array:
        """Return the slot's bytes, in this process."""
        return self._slots[slot]

    def push(self, slot: int) -> None:
        """Send the gradient, and the gradient of the tables' rows if :meth:`take` received one."""
        meta = {"shard": self._shard, "replica": self._replica, "token": slot, "version": self.version}
        rows, self._rows = self._rows or [no_rows(table) for table in self.tables], ()
        parts = [part for one in rows for part in (one.indices, one.values)]
        self._peer.send("ps.push", meta, (self._slots[slot], *parts))

    def count(self) -> None:
        """Count one update of all shards in the global step."""
        self._peer.call("ps.count", {"shard": self._shard})

    def _receive(self) -> None:
        frame = self._peer.receive(LOOK_SECONDS)
        if frame is None or frame.kind == "ps.there":
            self._check()
        elif frame.kind == "ps.applied":
            self._seen = max(self._seen, frame.meta["version"])
            self._note(frame.meta["what"], frame.meta["token"], frame.meta["staleness"])
        else:
            self._heed(frame)

    def _newest(self) -> int:
        return max(self._seen, self.version)

    @property
    def _peer_of_shard(self) -> tuple[Peer, str, int]:
        return self._peer, self._shard, self._replica

    def close(self) -> None:
        """Close the connection."""
        self._peer.close()
