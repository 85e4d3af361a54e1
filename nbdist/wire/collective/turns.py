"""How far the ranks of one host are: what each has put on its desk, over all calls, and how they wait for it.

    turns.begin(call)           # the first piece is on the desk; return when everyone's is, of the same call
    turns.put()                 # another piece is
    turns.await_put()           # until everyone's is

SENT counts pieces put on a desk, REDUCED those combined; a slot is chosen by the count modulo 2. A slot is
never overwritten too early, for a rank puts a piece into one only after it has seen that all ranks are past
the step that read the slot's last piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from nbdist.wire.collective.base import Broken, Trouble
from nbdist.wire.collective.calls import Call, compare
from nbdist.wire.collective.desk import DIGEST, REDUCED, SENT, Desk
from nbdist.wire.collective.meeting import Meeting


class Turns:
    """The steps of one rank, and its way to wait for the others'."""

    def __init__(self, rank: int, desks: Sequence[Desk], meeting: Meeting, called: Sequence[str]) -> None:
        self.rank, self.desks = rank, desks
        self.sent = self.reduced = 0
        self.waited = 0.0
        """Seconds that went by until all ranks had come to a call."""
        self.sequence: Callable[[], int] = lambda: 0
        """Which call of the group this is, for people."""
        self._meeting, self._called = meeting, called
        self._own = desks[rank].words
        self._others = [desk.words for desk in desks if desk is not desks[rank]]
        self._said = [0, 0]  # the digest of the call whose text stands in each place

    def begin(self, call: Call) -> None:
        """Say that this rank's first piece is there and of which call, wait for all, compare."""
        turn = self.sent % 2
        digest = call.digest
        if self._said[turn] != digest:
            self.desks[self.rank].write_text(turn, call.text)
            self._own[DIGEST + turn] = self._said[turn] = digest
        self.sent += 1
        self._meeting.post(SENT, self.sent)
        begun = time.perf_counter()
        self._meeting.until(SENT, self.sent)
        self.waited += time.perf_counter() - begun
        for words in self._others:
            if words[DIGEST + turn] != digest:
                self._meeting.check()  # a rank that broke off is a better reason
                texts = {rank: desk.read_text(turn) for rank, desk in enumerate(self.desks)}
                raise Broken(Trouble("InvalidArgumentError", compare(texts, self.sequence(), self._called)))

    def put(self) -> None:
        """Say that another piece is on this rank's desk."""
        self.sent += 1
        self._meeting.post(SENT, self.sent)

    def await_put(self) -> None:
        """Wait until all ranks have put as many pieces as this one."""
        self._meeting.until(SENT, self.sent)

    def put_reduced(self) -> None:
        """Say that this rank has combined another piece."""
        self.reduced += 1
        self._meeting.post(REDUCED, self.reduced)

    def await_reduced(self, count: int) -> None:
        """Wait until all ranks have combined `count` pieces, over all calls."""
        self._meeting.until(REDUCED, count)

    def waits_elsewhere(self) -> bool:
        """Whether another rank has put a piece that this one has not."""
        return any(words[SENT] > self.sent for words in self._others)
