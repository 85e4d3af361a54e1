"""A rank's letters to the next rank of a ring and from the one before, and what it learns of both.

Data comes from the rank before only, in order. That a rank is in trouble is told to all of them directly, and
passed on by those who hear it; a rank that has gone is noticed by both of its neighbours.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.wire.collective.base import Broken, Member, Trouble
from nbdist.wire.collective.calls import compare
from nbdist.wire.collective.lookout import LOOK_EVERY, Lookout
from nbdist.wire.frames import Array
from nbdist.wire.post import Address, Inbox, Letter, Outbox

DATA, TROUBLE, LEFT = 1, 2, 3  # kinds of letters
LOOK_SECONDS = LOOK_EVERY  # between two looks at the neighbours' connections
GRACE_SECONDS = 0.5  # in which a neighbour whose connection ended can still be heard to have left in peace


class Neighbours:
    """The ranks before and after this one."""

    def __init__(self, member: Member, inbox: Inbox, addresses: Sequence[Address]) -> None:
        self._member, self._inbox, self._addresses = member, inbox, addresses
        self._before, self._after = (member.rank - 1) % member.size, (member.rank + 1) % member.size
        self._outboxes: dict[int, Outbox] = {}
        for rank in (self._after, self._before):
            if rank != member.rank and rank not in self._outboxes:
                self._outboxes[rank] = self._open(rank)
        self.lookout = Lookout()
        self.also: Callable[[], None] = lambda: None
        """What else is looked at from time to time, and raises if there is no point in waiting."""
        self.doing: Callable[[], str] = lambda: "forming the group"
        self._sending = threading.Lock()
        self._pieces: deque[Letter] = deque()
        self._heard: Trouble | None = None  # from another rank, or from another thread of this one
        self._told = False
        self._left: dict[int, int] = {}  # by rank: how many calls it has finished
        self._lost: dict[int, float] = {}  # by rank: since when its connection is gone
        self._text, self._sequence, self._finished = "", 0, 0
        self._deadline: float | None = None
        self._first_sent = self._first_received = True

    def begin(self, text: str, sequence: int, timeout: float | None) -> None:
        """Begin a call."""
        self._text, self._sequence = text, sequence
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._first_sent = self._first_received = True
        self.check()
        for rank in self._left:
            raise Broken(self._has_left(rank))

    def finish(self) -> None:
        """Note that the call is done."""
        self._finished = self._sequence

    def send(self, edge: int, value: Array) -> None:
        """Send a piece to the rank after; it may be changed once this returns."""
        meta = {"call": self._text} if self._first_sent else None
        self._first_sent = False
        try:
            with self._sending:
                self._outboxes[self._after].send(
                    DATA, self._member.incarnation, self._sequence, edge, [value.view(np.uint8)], meta
                )
        except UnavailableError as error:
            self._listen_once_more(self._after)
            raise Broken(self._is_gone(self._after, error)) from None

    def receive(self, edge: int) -> Array:
        """Return the next piece from the rank before, as bytes; raise Broken when it will not come.

        It has to be the one of number `edge`: another means that the connection was lost in between.
        """
        while not self._pieces:
            if self._heard is not None:
                raise Broken(self._heard)
            self.lookout()
            letter = self._inbox.next(LOOK_SECONDS)
            if letter is None:
                self._look()
            else:
                self._sort(letter)
            # The rank before sends in order: what it has not sent by the time it leaves it never will.
            if not self._pieces:
                for rank, finished in self._left.items():
                    if rank == self._before or finished < self._sequence:
                        raise Broken(self._has_left(rank))
        letter = self._pieces.popleft()
        # First, for only a call's first letter says what call it is: that one may be what was lost.
        if (letter.step, letter.edge) != (self._sequence, edge):
            raise Broken(self._lacks(edge, letter))
        if self._first_received:
            self._compare(str(letter.meta.get("call")))
            self._first_received = False
        return letter.arrays[0]

    def check(self) -> None:
        """Raise Broken if another rank has told of trouble; never waits."""
        while (letter := self._inbox.next(0)) is not None:
            self._sort(letter)
        if self._heard is not None:
            raise Broken(self._heard)

    def peek(self) -> str:
        """Return "waits" if the rank before has begun a call that this one has not, "left" if a rank has."""
        self.check()
        return "waits" if self._pieces else "left" if self._left else ""

    def tell(self, trouble: Trouble) -> None:
        """Tell all ranks, once; from any thread."""
        if self._told:
            return
        passed_on = self._heard == trouble
        self._heard = self._heard or trouble
        self._inbox.wake()
        others = [rank for rank in range(self._member.size) if rank != self._member.rank]
        others.sort(key=lambda rank: rank not in self._outboxes)  # first those who are connected
        with self._sending:
            for rank in others:
                if rank not in self._outboxes and passed_on:
                    continue
                with suppress(UnavailableError):
                    self._tell_one(rank, trouble)
            self._told = True  # now, for an interrupt may have cut off an earlier attempt

    def _tell_one(self, rank: int, trouble: Trouble) -> None:
        meta = {"kind": trouble.kind, "text": trouble.text}
        order = (TROUBLE, self._member.incarnation, self._sequence, self._member.rank)
        if rank in self._outboxes:
            with suppress(UnavailableError):
                self._outboxes[rank].send(*order, meta=meta)
                return
            # The connection was lost, but the rank may live, and wait for what was on its way to it.
            self._outboxes[rank].close()
        self._outboxes[rank] = self._open(rank)
        self._outboxes[rank].send(*order, meta=meta)

    def leave(self) -> None:
        """Tell both neighbours that this rank makes no more calls."""
        with self._sending:
            for rank in {self._before, self._after} & self._outboxes.keys():
                with suppress(UnavailableError):
                    self._outboxes[rank].send(
                        LEFT, self._member.incarnation, self._finished, self._member.rank
                    )

    def close(self) -> None:
        """Close all connections; what was sent last still arrives."""
        with self._sending:
            for outbox in self._outboxes.values():
                outbox.close()
        self._inbox.close()

    def _open(self, rank: int) -> Outbox:
        member = self._member
        assert member.keys is not None
        return Outbox(
            self._addresses[rank],
            member.keys,
            host_identity=member.hosts[member.rank],
            transport="socket",
            prefix=member.prefix,
            name=member.names[rank],
        )

    def _sort(self, letter: Letter) -> None:
        if letter.plan != self._member.incarnation:
            return  # of another group
        if letter.kind == DATA:
            self._pieces.append(letter)
        elif letter.kind == TROUBLE:
            told = Trouble(str(letter.meta.get("kind")), str(letter.meta.get("text")))
            self._heard = self._heard or told
        elif letter.kind == LEFT:
            self._left[letter.edge] = letter.step

    def _compare(self, text: str) -> None:
        calls = {self._before: text, self._member.rank: self._text}
        trouble = compare(calls, self._sequence, self._member.called)
        if trouble:
            self.check()  # a rank that broke off is a better reason
            raise Broken(Trouble("InvalidArgumentError", trouble))

    def _look(self) -> None:
        """Raise Broken if a neighbour has gone, or the time is up."""
        self.also()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise Broken(
                Trouble(
                    "DeadlineExceededError",
                    f"{self._member.called[self._before]} sent nothing in time: {self.doing()}",
                )
            )
        for rank in (self._before, self._after):
            if rank in self._left:  # in peace, or it would have been raised
                continue
            try:
                self._outboxes[rank].check()
            except UnavailableError as error:
                if now - self._lost.setdefault(rank, now) >= GRACE_SECONDS:
                    raise Broken(self._is_gone(rank, error)) from None

    def _listen_once_more(self, rank: int) -> None:
        """Learn why a neighbour takes nothing any more, if it has said so: a reason comes before its end."""
        until = time.monotonic() + GRACE_SECONDS
        while (seconds := until - time.monotonic()) > 0:
            letter = self._inbox.next(seconds)
            if letter is not None:
                self._sort(letter)
            if self._heard is not None:
                raise Broken(self._heard)
            if rank in self._left:
                raise Broken(self._has_left(rank))

    def _lacks(self, edge: int, letter: Letter) -> Trouble:
        self.check()  # a rank that broke off is a better reason
        return Trouble(
            "DataLossError",
            f"piece {edge} of {self.doing()} is missing, piece {letter.edge} came instead: the "
            f"connection from {self._member.called[self._before]} was lost in between; form another group",
        )

    def _has_left(self, rank: int) -> Trouble:
        return Trouble(
            "UnavailableError", f"{self._member.called[rank]} has left: {self.doing()} waits for it"
        )

    def _is_gone(self, rank: int, error: UnavailableError) -> Trouble:
        return Trouble(
            "UnavailableError",
            f"{self._member.called[rank]} is gone; it was cut off: {self.doing()}: {error}",
        )
