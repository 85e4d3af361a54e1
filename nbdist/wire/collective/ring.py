"""Collectives between hosts: each rank sends to the next one only, over an authenticated socket.

    round   2 (n - 1) letters: n - 1 to combine the n pieces, each on its way round, n - 1 to hand them out

A large array is several rounds, of which a few are under way at once, so that a piece travels while another
is combined (Patarasuk and Yuan 2009). Every rank's result needs letters of all others, and a rank passes
nothing on before its neighbour is known to make the same call: so nobody finishes a call on which not all
agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.calls import REDUCING, Call, flat
from nbdist.wire.collective.neighbours import Neighbours
from nbdist.wire.collective.rows import Row
from nbdist.wire.frames import Array
from nbdist.wire.post import Address, Inbox
from nbdist.wire.shm import shared_folder

PIECE_BYTES = 1 << 18
UNDER_WAY = 4  # rounds


class RingCollective(Collective):
    """A rank of a ring."""

    kind = "ring"

    def __init__(self, member: Member, neighbours: Neighbours) -> None:
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
        nothing = np.empty(0, np.uint8)
        self._neighbours.send(0, nothing)
        for step in range(1, self.size):
            self._neighbours.receive()
            if step < self.size - 1:
                self._neighbours.send(step, nothing)

    def _pass_on(self, call: Call, x: Array, out: Array) -> None:
        """Send the root's pieces round, up to the rank before it."""
        length = max(1, PIECE_BYTES // max(1, call.work.itemsize))
        place = (self.rank - call.root) % self.size
        value = np.ascontiguousarray(x, call.work) if place == 0 else np.empty(call.shape, call.work)
        row = value.reshape(-1)
        for number, at in enumerate(range(0, call.count, length)):
            if place > 0:
                row[at : at + length] = self._neighbours.receive()[1].view(call.work)
            if place < self.size - 1:
                self._neighbours.send(number, row[at : at + length])
        np.copyto(out, value)

    def _spread(self, trouble: Trouble) -> None:
        self._neighbours.tell(trouble)

    def _leave(self) -> None:
        self._neighbours.leave()

    def _release(self) -> None:
        self._neighbours.close()


class _Passage:
    """One reduce-scatter, all-gather or both on their way round the ring.

    Piece p starts where it is not needed next: in step s a rank receives piece (rank - 1 - s) modulo n.
    """

    def __init__(self, group: RingCollective, call: Call, given: Array, taken: Array) -> None:
        self._call, self._given, self._taken = call, given, taken
        self._neighbours, self._rank, self._size = group._neighbours, group.rank, group.size
        self._reduces, self._hands_out = call.what in REDUCING, call.what != "reduce_scatter"
        if call.what in ("all_gather", "barrier"):
            self._shares = [(rank * call.count, (rank + 1) * call.count) for rank in range(self._size)]
        else:
            self._shares = call.shares(8)
        self._length = max(1, PIECE_BYTES // max(1, call.work.itemsize))
        self._last = (self._size - 1) * (self._reduces + self._hands_out) - 1
        # A reduced piece ends its way on the rank that it belongs to, or just before it is handed out.
        self._shift = 1 if call.what == "reduce_scatter" else 0

    def run(self) -> None:
        longest = max(high - low for low, high in self._shares)
        rounds = max(1, -(-longest // self._length))
        begun = 0
        missing = [self._last + 1] * rounds
        while begun < min(UNDER_WAY, rounds):
            self._begin(begun)
            begun += 1
        left = rounds * (self._last + 1)
        while left:
            edge, raw = self._neighbours.receive()
            number, step = divmod(edge, self._last + 1)
            self._take(number, step, raw.view(self._call.work))
            left -= 1
            missing[number] -= 1
            if not missing[number] and begun < rounds:
                self._begin(begun)
                begun += 1

    def _begin(self, number: int) -> None:
        own = self._piece(number, (self._rank - self._shift) % self._size)
        if not self._reduces:
            at = self._rank * self._call.count
            own = slice(own.start - at, own.stop - at)
            self._taken[own.start + at : own.stop + at] = self._given[own]
        self._send(number, 0, self._given[own])

    def _take(self, number: int, step: int, value: Array) -> None:
        call, size = self._call, self._size
        where = self._piece(number, (self._rank - 1 - step - self._shift) % size)
        if self._reduces and step < size - 1:
            value = call.ufunc(value, self._given[where])
            if step == size - 2:
                if call.op == "mean":
                    np.true_divide(value, call.divisor, out=value)
                value = value.astype(call.result, copy=False)
                low = self._shares[self._rank][0] if self._shift else 0
                self._taken[where.start - low : where.stop - low] = value
                value = value.astype(call.work, copy=False)
        else:
            np.copyto(self._taken[where], value, casting="same_kind")
        if step < self._last:
            self._send(number, step + 1, value)

    def _send(self, number: int, step: int, value: Array) -> None:
        self._neighbours.send(number * (self._last + 1) + step, value)

    def _piece(self, number: int, share: int) -> slice:
        low, high = self._shares[share]
        at = min(high, low + number * self._length)
        return slice(at, min(high, at + self._length))


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
