"""Collectives between hosts: each rank sends to the next one only, over an authenticated socket.

    round   2 (n - 1) letters: n - 1 to combine the n pieces, each on its way round, n - 1 to hand them out

A large array is several rounds, of which a few are under way at once, so that a piece travels while another
is combined (Patarasuk and Yuan 2009). Every rank's result needs letters of all others, and a rank passes
nothing on before its neighbour is known to make the same call: so nobody finishes a call on which not all
agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.calls import Call, flat
from nbdist.wire.collective.lookout import Lookout
from nbdist.wire.collective.neighbours import Neighbours
from nbdist.wire.collective.rows import Row
from nbdist.wire.collective.schedule import BEGIN, RingSchedule, places
from nbdist.wire.frames import Array
from nbdist.wire.post import Address, Inbox
from nbdist.wire.shm import shared_folder


class Transport(Protocol):
    """How a rank of a ring reaches the next one: `Neighbours`, or a stand-in."""

    doing: Callable[[], str]
    also: Callable[[], None]
    lookout: Lookout

    def begin(self, text: str, sequence: int, timeout: float | None) -> None:
        """Begin a call that all ranks describe by `text`."""

    def send(self, edge: int, value: Array) -> None:
        """Send letter `edge` of the call to the rank after."""

    def receive(self, edge: int) -> Array:
        """Return letter `edge` from the rank before, as bytes; raise Broken if it does not come."""

    def finish(self) -> None:
        """Note that the call is done."""

    def check(self) -> None:
        """Raise Broken if another rank has told of trouble; never wait."""

    def tell(self, trouble: Trouble) -> None:
        """Tell all ranks, once; from any thread."""

    def leave(self) -> None:
        """Tell the neighbours that this rank makes no more calls."""

    def close(self) -> None:
        """Let go of everything."""


class RingCollective(Collective):
    """A rank of a ring."""

    kind = "ring"

    def __init__(self, member: Member, neighbours: Transport) -> None:
        super().__init__(member.rank, member.called, member.check)
        neighbours.lookout = self.lookout
        self._neighbours = neighbours
        neighbours.doing = lambda: self.doing
        self._timeout = member.timeout

    def check(self) -> None:
        """Raise the reason if the group is broken, as far as letters have come that say so."""
        super().check()
        try:
            self._neighbours.check()
        except Broken as broken:
            raise broken.trouble.error() from None

    def peek(self) -> str:
        """Return whether the rank before "waits" in a call that this one has not begun, or one has "left"."""
        return self._neighbours.peek() if isinstance(self._neighbours, Neighbours) else ""

    def also_watch(self, check: Callable[[], None]) -> None:
        """Call `check` from time to time while this rank waits; what it raises ends the wait."""
        self._neighbours.also = check

    def _perform(self, call: Call, x: Array, out: Array) -> None:
        self._neighbours.begin(call.text, self.sequence, self._timeout)
        if self.size == 1:
            np.copyto(out, x, casting="same_kind")  # an all-gather's first axis is 1 long
        elif call.what == "broadcast":
            self._agree()
            self._pass_on(call, x, out)
        else:
            taken = Row(call, out, x)
            _Passage(self, call, flat(call, x), taken.items).run()
            taken.finish()
        self._neighbours.finish()

    def _agree(self) -> None:
        """Go once round: every rank's call is compared with its neighbour's before anyone goes on."""
        nothing, begun = np.empty(0, np.uint8), time.perf_counter()
        self._neighbours.send(0, nothing)
        for step in range(1, self.size):
            self._neighbours.receive(step - 1)
            self.waited += (time.perf_counter() - begun) * (step == 1)
            if step < self.size - 1:
                self._neighbours.send(step, nothing)

    def _pass_on(self, call: Call, x: Array, out: Array) -> None:
        """Send the root's pieces round, up to the rank before it."""
        place, pieces = places(call, self.rank)
        value = np.ascontiguousarray(x, call.work) if place == 0 else np.empty(call.shape, call.work)
        row = value.reshape(-1)
        # Their numbers follow those of the agreement, so that none is taken for one of it that was lost.
        for number, piece in enumerate(pieces, self.size - 1):
            if place > 0:
                row[piece] = self._neighbours.receive(number).view(call.work)
            if place < self.size - 1:
                self._neighbours.send(number, row[piece])
        np.copyto(out, value)

    def _spread(self, trouble: Trouble) -> None:
        self._neighbours.tell(trouble)

    def _leave(self) -> None:
        self._neighbours.leave()

    def _release(self) -> None:
        self._neighbours.close()


class _Passage:
    """One reduce-scatter, all-gather or both on their way round the ring, as their schedule says."""

    def __init__(self, group: RingCollective, call: Call, given: Array, taken: Array) -> None:
        self._group, self._call, self._given, self._taken = group, call, given, taken
        self._neighbours, self._rank = group._neighbours, group.rank
        self._way = RingSchedule.of(call)

    def run(self) -> None:
        letters, begun = self._way.letters, time.perf_counter()
        waits = True  # for the first letter: that the rank before has come
        for number, step in self._way.moves():
            if step == BEGIN:
                self._begin(number)
                continue
            raw = self._neighbours.receive(number * letters + step)
            if waits:
                waits, self._group.waited = False, self._group.waited + time.perf_counter() - begun
            self._take(number, step, raw.view(self._call.work))

    def _begin(self, number: int) -> None:
        own = self._way.piece(number, self._way.sent(self._rank, 0))
        if not self._way.reduces:
            at = self._rank * self._call.count
            own = slice(own.start - at, own.stop - at)
            self._taken[own.start + at : own.stop + at] = self._given[own]
        self._send(number, 0, self._given[own])

    def _take(self, number: int, step: int, value: Array) -> None:
        call, way = self._call, self._way
        where = way.piece(number, way.received(self._rank, step))
        if way.reduces and step < way.size - 1:
            value = call.ufunc(value, self._given[where])
            if step == way.size - 2:
                if call.op == "mean":
                    np.true_divide(value, call.divisor, out=value)
                value = value.astype(call.result, copy=False)
                low = way.shares[self._rank][0] if way.shift else 0
                self._taken[where.start - low : where.stop - low] = value
                value = value.astype(call.work, copy=False)
        else:
            np.copyto(self._taken[where], value, casting="same_kind")
        if step < way.letters - 1:
            self._send(number, step + 1, value)

    def _send(self, number: int, step: int, value: Array) -> None:
        self._neighbours.send(number * self._way.letters + step, value)


class RingSeat(Seat):
    """A rank's inbox, before the others are known."""

    def __init__(self, member: Member) -> None:
        if member.keys is None:
            raise InvalidArgumentError("a ring needs the cluster's keys")
        self._member = member
        self._inbox = Inbox(member.keys, member.prefix, member.bind, host_identity=member.hosts[member.rank])
        # Letters come by socket; so nothing is left behind, whatever happens to this process.
        if self._inbox.address.bell:
            (shared_folder() / self._inbox.address.bell).unlink()

    @property
    def card(self) -> dict[str, Any]:
        """Where this rank's inbox is reached."""
        return {"incarnation": self._member.incarnation, "address": self._inbox.address.to_dict()}

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the ranks before and after, and wait until the ring is closed."""
        member = self._member
        try:
            same_group(member, cards)
            addresses = [Address.from_dict(card["address"]) for card in cards]
            group = RingCollective(member, Neighbours(member, self._inbox, addresses))
        except BaseException:
            self.close()
            raise
        group._timeout = timeout
        try:
            group.barrier()
        except BaseException:
            group.close()
            raise
        group.sequence, group._timeout = 0, member.timeout
        return group

    def close(self) -> None:
        """Close the inbox."""
        self._inbox.close()
