"""What a replica's connection to one parameter shard promises, over whichever way it goes.

    link = open_link(peer, shard="run/0", replica=0, ...)
    link.pull()                        # newest parameters into link.parameters
    ... write a gradient into link.gradient(slot) ...
    link.push(slot)                    # on its way; up to SLOTS at once
    staleness = link.wait(slot)        # applied

linkkinds.py has the two ways, shared memory and a socket; linkopening.py makes one or the other. Both keep
one contract (tests/runtime/test_runtime_links.py) and meet the same shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.runtime.layout import Layout
from nbdist.runtime.mailbox import APPLIED, COUNTED, STOPPED
from nbdist.wire.messages import error_from
from nbdist.wire.peers import Peer

Array = np.ndarray[Any, Any]

LOOK_SECONDS = 0.2  # how often a waiting replica looks whether its run was aborted


class Stopped(Exception):
    """Another replica has left a synchronous step, so that it cannot complete."""


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
        self._check = check
        self._staleness: dict[int, int] = {}
        self._counts = 0

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
    def close(self) -> None:
        """Let go of sockets and shared files; safe in any state."""

    @property
    @abstractmethod
    def _peer_of_shard(self) -> tuple[Peer, str, int]:
        """The connection, the shard's name and the replica's number."""

    def leave(self) -> dict[str, int]:
        """Say that this replica is done, and wait until all are; then the parameters here are the final ones.

        Returns the shard's counts: updates, global_step, dropped.
        """
        peer, shard, replica = self._peer_of_shard
        peer.send("ps.leave", {"shard": shard, "replica": replica})
        while True:
            frame = peer.receive(LOOK_SECONDS)
            if frame is None:
                self._check()
            elif frame.kind == "error":
                raise error_from(frame)
            elif frame.kind == "ps.left":
                if frame.arrays:
                    np.copyto(self.parameters, frame.arrays[0])
                else:
                    self.pull()
                self.global_step = frame.meta["global_step"]
                return dict(frame.meta)

    def wait(self, slot: int) -> int:
        """Wait until the gradient in a slot is applied; return its staleness, in updates.

        Raises Stopped when a synchronous step is broken up, AbortedError when the run is aborted.
        """
        while slot not in self._staleness:
            self._receive()
        staleness = self._staleness.pop(slot)
        if staleness < 0:
            raise Stopped
        return staleness

    def wait_counted(self) -> None:
        """Wait until every ``count`` has arrived."""
        while self._counts:
            self._receive()

    def _note(self, what: int, slot: int, staleness: int) -> None:
        if what == COUNTED:
            self._counts -= 1
        elif what in (APPLIED, STOPPED):
            self._staleness[slot] = staleness if what == APPLIED else -1
