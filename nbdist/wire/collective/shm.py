"""Collectives of ranks on one host, through memory that all of them see.

whole    small values, and sums of two ranks: everyone's stands on the desks, and every rank combines it
pieces   large values: in pieces that stay in cache, and every rank combines its share
lent     arrays that stand in shared memory themselves
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError, UnavailableError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.calls import REDUCING, Call, compare
from nbdist.wire.collective.desk import BROKEN, EAGER, LEFT, Desk, eager_bytes
from nbdist.wire.collective.lent import Loan, Loans, read_cards
from nbdist.wire.collective.meeting import Meeting
from nbdist.wire.collective.pieces import Pieces
from nbdist.wire.collective.turns import Turns
from nbdist.wire.collective.watch import Watch
from nbdist.wire.collective.whole import Whole
from nbdist.wire.frames import Array
from nbdist.wire.shm import Doorbell, open_bell


class ShmCollective(Collective):
    """A rank of a group on one host."""

    kind = "shm"

    def __init__(self, member: Member, desks: Sequence[Desk], meeting: Meeting) -> None:
        super().__init__(member.rank, member.called, member.check)
        self._desks, self._meeting = desks, meeting
        meeting.lookout = self.lookout
        self._timeout, self._prefix = member.timeout, member.prefix
        self._others = [desks[rank].words for rank in range(self.size) if rank != self.rank]
        self._eager = eager_bytes(self.size)
        self._turns = Turns(self.rank, desks, meeting, self.called)
        self._turns.sequence = lambda: self.sequence
        self._whole, self._pieces = Whole(self._turns), Pieces(self._turns)
        self._loans = Loans(self._turns)

    def meet(self, timeout: float) -> None:
        """Wait until all ranks have joined, then take the files' names away: nothing can be left behind."""
        self._meeting.deadline = time.monotonic() + timeout
        try:
            self._turns.begin(self._current)
        except Broken as broken:
            raise broken.trouble.error() from None
        except BaseException as error:
            self._failed(error)
            raise
        self._meeting.doing = lambda: self.doing
        for desk in self._desks:
            desk.remove_name()
        self._meeting.remove_name()

    def lend(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of zeros in shared memory; an ordinary one, and a note, where there is no room."""
        loan = Loan(self._prefix, tuple(shape), np.dtype(dtype).newbyteorder("="))
        try:
            cards = read_cards(self.all_gather(loan.card))
            trouble = compare(
                {rank: asked for rank, (_, asked) in enumerate(cards)}, self.sequence, self.called
            )
            if trouble:
                self.break_with(Trouble("InvalidArgumentError", trouble))
                raise InvalidArgumentError(trouble)
            opened = loan.open([name for name, _ in cards], self.rank)
            self.barrier()
        finally:
            loan.remove_name()
        if not opened:
            self.notes.append(f"lent arrays are ordinary ones: {loan.trouble or 'another rank has no room'}")
            return super().lend(shape, dtype)
        self._loans.add(loan)
        return loan.rows[self.rank].reshape(tuple(shape))

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank has died."""
        super().check()
        try:
            self._meeting.check()
        except Broken as broken:
            raise broken.trouble.error() from None

    def peek(self) -> str:
        """Return whether another rank "waits" in a call that this one has not begun, or has "left"."""
        if self._turns.waits_elsewhere():
            return "waits"
        return "left" if any(words[LEFT] for words in self._others) else ""

    def also_watch(self, check: Callable[[], None]) -> None:
        """Call `check` from time to time while this rank waits; what it raises ends the wait."""
        self._meeting.also = check

    def _perform(self, call: Call, x: Array, out: Array) -> None:
        self._meeting.deadline = None if self._timeout is None else time.monotonic() + self._timeout
        for words in self._others:
            if words[BROKEN]:
                self._meeting.check()
        reduces = call.what == "all_reduce"
        if call.nbytes <= EAGER:
            self._whole.do(call, x, out)
        elif reduces and (loan := self._loans.find(x, out)) is not None:
            self._loans.reduce(call, *loan)
        elif call.nbytes <= self._eager:
            self._whole.do(call, x, out)
        elif reduces and self.size == 2:
            self._whole.reduce_pair(call, x, out)
        elif call.what in REDUCING:
            self._pieces.reduce(call, x, out)
        else:
            self._pieces.gather(call, x, out)
        self.waited = self._turns.waited

    def _spread(self, trouble: Trouble) -> None:
        self._meeting.tell(trouble)

    def _leave(self) -> None:
        self._meeting.leave()

    def _release(self) -> None:
        self._meeting.close()


class ShmSeat(Seat):
    """A rank's desk and bell, before the others are known."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._desk = Desk.create(member.prefix, member.size)
        try:
            self._bell = Doorbell.create(member.prefix)
        except BaseException:
            self._desk.segment.close()
            raise

    @property
    def card(self) -> dict[str, Any]:
        """The names of the desk and the bell, and whose they are."""
        return {
            "incarnation": self._member.incarnation,
            "desk": self._desk.segment.name,
            "bell": self._bell.name,
            "pid": os.getpid(),
        }

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Open the others' desks and bells, and wait for all."""
        member = self._member
        ringers: dict[int, int] = {}
        try:
            same_group(member, cards)
            desks = [
                self._desk if rank == member.rank else Desk.open(card["desk"], member.size)
                for rank, card in enumerate(cards)
            ]
            for rank, card in enumerate(cards):
                if rank != member.rank:
                    ringers[rank] = open_bell(card["bell"])
        except BaseException as error:
            for descriptor in ringers.values():
                os.close(descriptor)
            self.close()
            if isinstance(error, (NbdistError, OSError)):
                raise UnavailableError(f"the group cannot be formed: {error}") from error
            raise
        watch = Watch({rank: card["pid"] for rank, card in enumerate(cards)})
        meeting = Meeting(member.rank, desks, member.called, self._bell, ringers, watch)
        group = ShmCollective(member, desks, meeting)
        group.notes += [
            f"the end of {member.called[rank]} will not be noticed: its process is not seen here"
            for rank in watch.unseen()
        ]
        try:
            group.meet(timeout)
        except BaseException:
            group.close()
            self.close()
            raise
        return group

    def close(self) -> None:
        """Remove the desk and the bell."""
        self._desk.segment.close()
        self._bell.close()
