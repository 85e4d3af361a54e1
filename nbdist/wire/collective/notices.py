"""What a rank of an MPI group tells all others beside its calls: that the group is broken, that it leaves.

    notices.tell(Trouble("AbortedError", "rank 1 aborted: ..."))
    notices.take(); notices.trouble; notices.left

Any thread may use them, while another one is in a call. One receive is always open for the next notice, from
whichever rank.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbdist.wire.collective.base import Member, Trouble
from nbdist.wire.frames import Array

ROOM = 2048  # bytes of the longest
HEAD = 24  # three words: incarnation, kind, number
TROUBLE, LEFT = 1, 2  # kinds
TRIES = 32  # tests whether a notice is on its way before nobody waits for that


class Notices:
    """One rank's notices to all others of a communicator, and theirs.

    `places` are the ranks there; `row` has ROOM bytes, and is kept as long as this is open.
    """

    def __init__(
        self, mpi: Any, comm: Any, member: Member, places: Sequence[int], tag: int, row: Array
    ) -> None:
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self._places, self._incarnation = list(places), member.incarnation
        self._others = [place for rank, place in enumerate(places) if rank != member.rank]
        self.trouble: Trouble | None = None
        """Why the group is broken, as far as this rank has heard."""
        self.left: dict[int, int] = {}
        """By rank that has left: how many calls it has finished."""
        self._told_trouble = self._told_left = False
        self._sent: list[tuple[list[Any], Array]] = []
        self._taking = threading.Lock()
        self._status = mpi.Status()
        self._row = row
        self._next = self._receive()

    def take(self) -> None:
        """Take in what has come; never waits, and leaves it to another thread that does so already."""
        if self._taking.acquire(blocking=False):
            try:
                while self._next.Test(self._status):
                    self._note(self._places.index(self._status.Get_source()))
                    self._next = self._receive()
            finally:
                self._taking.release()

    def tell(self, trouble: Trouble) -> None:
        """Tell all ranks that the group is broken, if they do not know."""
        self.trouble = self.trouble or trouble
        if not self._told_trouble:
            self._send(TROUBLE, 0, self.trouble.pack(ROOM - HEAD))
            self._told_trouble = True  # now, for an interrupt may have cut off an earlier attempt

    def leave(self, finished: int) -> None:
        """Tell all ranks that this one makes no more calls; `finished` are those that it has made."""
        if not self._told_left:
            self._send(LEFT, finished, b"")
            self._told_left = True

    def are_sent(self) -> bool:
        """Return whether MPI is through with all that this rank has told."""
        return all(not request or request.Test() for requests, _ in self._sent for request in requests)

    def close(self) -> None:
        """Receive no more."""
        self._next.Cancel()
        self._next.Wait()

    def _receive(self) -> Any:
        return self._comm.Irecv([self._row, self._mpi.BYTE], self._mpi.ANY_SOURCE, self._tag)

    def _note(self, rank: int) -> None:
        incarnation, kind, number = (int(word) for word in self._row[:HEAD].view(np.int64))
        if incarnation != self._incarnation:
            return  # of another group
        if kind == LEFT:
            self.left[rank] = number
        elif self.trouble is None:
            length = self._status.Get_count(self._mpi.BYTE)
            self.trouble = Trouble.unpack(self._row[HEAD:length].tobytes())
            self._told_trouble = True  # by the rank that told this one

    def _send(self, kind: int, number: int, text: bytes) -> None:
        words = np.array([self._incarnation, kind, number], np.int64)
        row = np.frombuffer(words.tobytes() + text, np.uint8)
        requests: list[Any] = []
        self._sent.append((requests, row))  # first, so that the row stays, whatever comes between
        for place in self._others:
            with suppress(self._mpi.Exception):  # it is gone
                requests.append(self._comm.Isend([row, self._mpi.BYTE], place, self._tag))
        for _ in range(TRIES):
            if self._mpi.Request.Testall(requests):
                break
            os.sched_yield()
