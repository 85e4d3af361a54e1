"""What a replica's connection to one parameter shard promises, over whichever way it goes.

    link = open_link(peer, ShardRequest(shard="run/0", replica=0, ...), ...)
    link.pull()                        # newest parameters into link.parameters
    ... write a gradient into link.gradient(slot) ...
    link.push(slot)                    # on its way; up to SLOTS at once
    staleness = link.wait(slot)        # applied; None if it was dropped

linkkinds.py has the two ways, shared memory and a socket; linkopening.py makes one or the other. Both keep
one contract (tests/runtime/test_runtime_links.py) and meet the same shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.runtime.accumulator import Rows
from nbdist.runtime.answers import COUNTED, DROPPED, REFUSED, STEPPED, STOPPED, TAKEN
from nbdist.runtime.layout import Layout
from nbdist.runtime.tables import chunks
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_from
from nbdist.wire.peers import Peer

Array = np.ndarray[Any, Any]

LOOK_SECONDS = 0.2  # how often a waiting replica looks whether its run was aborted


class Stopped(Exception):
    """So many replicas have left a synchronous step that it cannot complete."""


class Link(ABC):
    """One replica, one shard."""

    def __init__(self, layout: Layout, check: Callable[[], None]) -> None:
        self.layout = layout
        self.parameters = layout.buffer()
        """The replica's own copy of the shard, in bytes laid out as the shard is."""
        self.version = 0
        """How many updates the copy has seen."""
        self.global_step = 0
        self.note = ""
        self.lost: Callable[[list[int]], object] = lambda replicas: None
        """Called with the replicas that the server has found frozen; the others continue without them."""
        self.tables: list[Array] = []
        """The replica's own copies of the shard's tables; ``pull`` updates the wanted rows."""
        self._wanted: dict[int, Array] = {}
        self._rows: Sequence[Rows] = ()
        self._check = check
        self._settled: dict[int, tuple[int, int]] = {}
        self._taken: set[int] = set()
        self._counts = 0
        self._said_farewell = False

    kind: str

    @abstractmethod
    def pull(self) -> None:
        """Read the newest parameters, their version and the global step."""

    @abstractmethod
    def gradient(self, slot: int) -> Array:
        """Return the bytes that the next gradient is to be written to."""

    @abstractmethod
    def push(self, slot: int) -> None:
        """Send the gradient in a slot, as made from the parameters last pulled."""

    @abstractmethod
    def count(self) -> None:
        """Count one update of all shards in the global step."""

    @abstractmethod
    def _receive(self) -> None:
        """Wait a moment for answers and note them."""

    @abstractmethod
    def _newest(self) -> int:
        """Return the newest version of the shard that is known here, without asking."""

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and shared files; safe in any state."""

    @property
    @abstractmethod
    def _peer_of_shard(self) -> tuple[Peer, str, int]:
        """The connection, the shard's name and the replica's number."""

    def want(self, table: int, ids: Array) -> None:
        """Request the rows of a table that the next pull returns."""
        self._wanted[table] = np.unique(ids).astype(np.int64, copy=False)

    def take(self, rows: Sequence[Rows]) -> None:
        """Take the gradients of all tables, for the next push."""
        self._rows = rows

    def fetch(self) -> None:
        """Request the parameters as they are between two updates, their version, and the step.

        Tables are sent completely, part by part: some parts include updates by others during the transfer.
        """
        self._ask([])
        self.fetch_tables()

    def _ask(self, wanted: Sequence[Array]) -> None:
        """Request the parameters, and the wanted rows of the tables."""
        peer, shard, replica = self._peer_of_shard
        reply = peer.call("ps.pull", {"shard": shard, "replica": replica}, tuple(wanted))
        np.copyto(self.parameters, reply.arrays[0])
        for table, ids, rows in zip(self.tables, wanted, reply.arrays[1:]):
            table[ids] = rows
        self.version, self.global_step = reply.meta["version"], reply.meta["global_step"]

    def fetch_tables(self) -> None:
        """Pull the complete tables."""
        peer, shard, _ = self._peer_of_shard
        for number, table in enumerate(self.tables):
            for first, stop in chunks(table.shape, table.itemsize):
                meta = {"shard": shard, "table": number, "first": first, "stop": stop}
                table[first:stop] = peer.call("ps.table", meta).arrays[0]
                self._check()

    def set_rate(self, rate: float) -> None:
        """Have the shard learn at another rate from its next update on; returns when it does."""
        peer, shard, replica = self._peer_of_shard
        peer.call("ps.rate", {"shard": shard, "replica": replica, "learning_rate": rate})

    def wait(self, slot: int) -> int | None:
        """Wait until the gradient in a slot is applied; return its staleness in updates, None if dropped.

        Raises Stopped when a synchronous step is broken up, AbortedError when the run is aborted.
        """
        what, staleness = self.outcome(slot)
        return None if what == DROPPED else staleness

    def outcome(self, slot: int) -> tuple[int, int]:
        """Wait like :meth:`wait`; return what the shard answered, and the staleness."""
        while slot not in self._settled:
            self._receive()
        self._taken.discard(slot)
        what, staleness = self._settled.pop(slot)
        if what == STOPPED:
            raise Stopped
        return what, staleness

    def taken(self, slot: int) -> bool:
        """Wait only until the shard has said whether it takes a gradient or drops it.

        It says so where servers judge apart; :meth:`wait` may then be called in any case.
        """
        while slot not in self._settled and slot not in self._taken:
            self._receive()
        return slot not in self._settled or self._settled[slot][0] != DROPPED

    def reach(self, version: int) -> None:
        """Wait until the shard has had as many updates."""
        while self._newest() < version:
            self._receive()

    def wait_counted(self) -> None:
        """Wait until every ``count`` has arrived."""
        while self._counts:
            self._receive()

    def say_farewell(self) -> None:
        """Say that this replica is done, so that nobody waits for it; :meth:`leave` waits for the others."""
        if not self._said_farewell:
            self._said_farewell = True
            peer, shard, replica = self._peer_of_shard
            peer.send("ps.leave", {"shard": shard, "replica": replica})

    def leave(self) -> dict[str, Any]:
        """Say that this replica is done, and wait until all are; then the parameters here are the final ones.

        Returns the shard's counts: updates, global_step, dropped, and the tally of all replicas.
        """
        self.say_farewell()
        peer, shard, replica = self._peer_of_shard
        while True:
            frame = peer.receive(LOOK_SECONDS)
            if frame is None or frame.kind == "ps.there":
                self._check()
            elif frame.kind == "ps.left":
                if frame.arrays:
                    np.copyto(self.parameters, frame.arrays[0])
                else:
                    self.pull()
                if self.tables:
                    self.fetch_tables()
                    peer.call("ps.done", {"shard": shard, "replica": replica})
                self.global_step = frame.meta["global_step"]
                return dict(frame.meta)
            else:
                self._heed(frame)

    def _heed(self, frame: Frame) -> None:
        """Handle the server's messages beside its answers to gradients; raise the error that it sends."""
        if frame.kind == "error":
            raise error_from(frame)
        if frame.kind == "ps.lost":
            self.lost([int(replica) for replica in frame.meta["replicas"]])

    def _note(self, what: int, slot: int, staleness: int) -> None:
        if what == REFUSED:
            peer, _, replica = self._peer_of_shard
            raise refused(replica, peer.name)
        if what == COUNTED:
            self._counts -= 1
        elif what == TAKEN:
            self._taken.add(slot)
        elif what != STEPPED:
            self._settled[slot] = what, staleness


def refused(replica: int, server: str) -> UnavailableError:
    """Return the error of a replica that is back after it was frozen or cut off."""
    return UnavailableError(
        f"replica {replica} was frozen or cut off, and the others have continued without it: {server} "
        "refuses its gradients. Its task takes part again in the next run"
    )
