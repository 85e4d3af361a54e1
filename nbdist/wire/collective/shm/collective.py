"""Collectives of ranks on one host, through memory that all of them see.

whole    small values, and sums of two ranks: everyone's stands on the desks, and every rank combines it
pieces   large values: in pieces that stay in cache, and every rank combines its share
lent     arrays that stand in shared memory themselves
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError, ResourceExhaustedError, UnavailableError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.call import REDUCING, Call, Row, combine, compare, flat
from nbdist.wire.collective.shm.segment import BROKEN, EAGER, LEFT, LINE, Desk, eager_bytes, piece_bytes
from nbdist.wire.collective.shm.sync import Meeting, Turns, Watch
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import Doorbell, Segment, open_bell, shared_folder


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


#     Calls in which every rank sees everyone's whole value, or piece after piece of it: one meeting for each.
#
# Small values go so, for a meeting is what they cost; and between two ranks all sums do, for to combine the
# whole costs less than to hand the halves out: each value is written once and read once by the other.

KNOWN_PLACES = 256
NEAR = 1 << 14  # bytes that are in the first-level cache in any case
PAIR_PIECE = 1 << 19  # bytes; what both ranks touch should stay in cache


class Whole:
    """Does them for one rank."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._rank = turns, turns.rank
        self._places: dict[Call, list[list[Array]]] = {}
        self._pairs: dict[np.dtype[Any], list[list[Array]]] = {}

    def do(self, call: Call, x: Array, out: Array) -> None:
        """Do a call whose values stand on the desks as they are."""
        places = self._places.get(call)
        if places is None:
            if len(self._places) >= KNOWN_PLACES:
                self._places.clear()
            places = self._places[call] = _places(self._turns.desks, call.work, call.shape)
        values = places[self._turns.sent % 2]
        if call.what != "broadcast" or call.root == self._rank:
            np.copyto(values[self._rank], x)
        self._turns.begin(call)
        if call.what == "all_reduce" and call.work == call.result:
            if call.nbytes > NEAR and self._rank < 2 and x.dtype == call.work:
                # The own value from where it came: one row less to go through. From the third rank on it
                # may be overwritten before its turn.
                values = [*values[: self._rank], x, *values[self._rank + 1 :]]
            combine(call, values, out)
        elif call.what in REDUCING:
            rows = slice(*call.rows(self._rank)) if call.what == "reduce_scatter" else ...
            parts = [value[rows] for value in values]
            result = np.empty_like(parts[0])
            combine(call, parts, result)
            np.copyto(out, result, casting="same_kind")
        elif call.what == "all_gather":
            for rank, value in enumerate(values):
                np.copyto(out[rank, ...], value)
        elif call.what == "broadcast":
            np.copyto(out, values[call.root])

    def reduce_pair(self, call: Call, x: Array, out: Array) -> None:
        """All-reduce of large values between two ranks: each combines everything, piece by piece."""
        given, taken = flat(call, x), Row(call, out, x)
        length = PAIR_PIECE // call.work.itemsize
        slots = self._pairs.get(call.work)
        if slots is None:
            slots = self._pairs[call.work] = _places(self._turns.desks, call.work, (length,))
        direct = taken.items.dtype == call.work
        for at in range(0, call.count, length):
            end = min(call.count, at + length)
            pieces = [slot[: end - at] for slot in slots[self._turns.sent % 2]]
            np.copyto(pieces[self._rank], given[at:end])
            if at == 0:
                self._turns.begin(call)
            else:
                self._turns.put()
                self._turns.await_put()
            pieces[self._rank] = given[at:end]  # from where it came: one row less to go through
            result = taken.items[at:end] if direct else np.empty(end - at, call.work)
            combine(call, pieces, result)
            if not direct:
                np.copyto(taken.items[at:end], result, "same_kind")
        taken.finish()


def _places(desks: Sequence[Desk], dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[list[Array]]:
    return [[desk.eager(turn, dtype, shape) for desk in desks] for turn in (0, 1)]


#     Calls with large values: they go over the desks in pieces that stay in cache, through two slots in turn.
#
# One slot is filled while the other is read. For a sum every rank combines its share of the items, and hands
# the result out.


class Slots:
    """Views of all desks' slots, for one dtype."""

    def __init__(self, desks: Sequence[Desk], dtype: np.dtype[Any]) -> None:
        self.pieces = [desk.pieces(dtype) for desk in desks]
        """By rank, turn and share."""
        self.reduced = [desk.reduced(dtype) for desk in desks]
        """By rank and turn."""
        self.length = desks[0].piece // dtype.itemsize


class Pieces:
    """Does them for one rank."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._rank = turns, turns.rank
        self._slots: dict[np.dtype[Any], Slots] = {}

    def slots(self, dtype: np.dtype[Any]) -> Slots:
        """Return the slots of all desks for items of a dtype."""
        slots = self._slots.get(dtype)
        if slots is None:
            slots = self._slots[dtype] = Slots(self._turns.desks, dtype)
        return slots

    def reduce(self, call: Call, x: Array, out: Array) -> None:
        """Reduce-scatter, then perhaps all-gather; step i takes out piece i - 2 and puts in piece i."""
        given, taken = flat(call, x), Row(call, out, x)
        turns, slots = self._turns, self.slots(call.work)
        shares, length, own = call.shares(LINE), slots.length, self._rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        low, high = shares[own]
        base = low if not gathers else 0  # a rank that gets its share alone has room for that only
        reduced = turns.reduced
        for step in range(rounds + 2 if gathers else rounds + 1):
            if gathers and step >= 2:
                turns.await_reduced(reduced + step - 1)
                turn = (reduced + step - 2) % 2
                for rank, (at, end) in _cut(shares, step - 2, length):
                    if rank != own:
                        np.copyto(taken.items[at:end], slots.reduced[rank][turn][: end - at], "same_kind")
            if 1 <= step <= rounds:
                if step > 1:
                    turns.await_put()
                at, end = low + (step - 1) * length, min(high, low + step * length)
                if at < end:
                    parts = [pieces[(turns.sent - 1) % 2][own][: end - at] for pieces in slots.pieces]
                    parts[own] = given[at:end]
                    result = slots.reduced[own][turns.reduced % 2][: end - at]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                turns.put_reduced()
            if step < rounds:
                places = slots.pieces[own][turns.sent % 2]
                for rank, (at, end) in _cut(shares, step, length):
                    if rank != own:
                        np.copyto(places[rank][: end - at], given[at:end])
                if step == 0:
                    turns.begin(call)
                else:
                    turns.put()
        taken.finish()

    def gather(self, call: Call, x: Array, out: Array) -> None:
        """All-gather or broadcast: each piece goes through all the slots of one turn, in a row."""
        given, taken = flat(call, x), Row(call, out, x)
        turns, slots = self._turns, self.slots(call.work)
        everyone = range(call.size) if call.what == "all_gather" else (call.root,)
        for at in range(0, call.count, slots.length):
            end = min(call.count, at + slots.length)
            if self._rank in everyone:
                np.copyto(slots.pieces[self._rank][turns.sent % 2][0][: end - at], given[at:end])
            if at == 0:
                turns.begin(call)
            else:
                turns.put()
                turns.await_put()
            for number, rank in enumerate(everyone):
                start = number * call.count + at
                value = slots.pieces[rank][(turns.sent - 1) % 2][0][: end - at]
                np.copyto(taken.items[start : start + end - at], value)
        taken.finish()


def _cut(shares: list[tuple[int, int]], step: int, length: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the ranks whose share has a `step`-th piece, and where it is."""
    return [
        (rank, (low + step * length, min(high, low + (step + 1) * length)))
        for rank, (low, high) in enumerate(shares)
        if low + step * length < high
    ]


#     Arrays that a group lends: they stand in shared memory, so that an all-reduce in place copies half as
# much.
#
# x = group.lend((1000, 100), np.float32)      # on every rank
# group.all_reduce(x, "mean", out=x)           # its share comes from all, the rest from one other each

CARD_BYTES = 512
NO_ROOM = "-"


class Loan:
    """One lent array, and those of the other ranks that go with it."""

    def __init__(self, prefix: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._count, self._dtype = shape, prod(shape), dtype
        self._segment: Segment | None = None
        self.trouble = ""
        try:
            self._segment = Segment.create(prefix, self._count * dtype.itemsize)
        except ResourceExhaustedError as error:
            self.trouble = str(error)
        self.rows: list[Array] = []
        """All ranks' arrays, as one row each."""

    @property
    def card(self) -> Array:
        """What the other ranks open, and what it is."""
        name = self._segment.name if self._segment is not None else NO_ROOM
        raw = f"{name} lend({self._shape}, {self._dtype})".encode()[:CARD_BYTES]
        return np.frombuffer(raw.ljust(CARD_BYTES, b"\0"), np.uint8)

    def open(self, names: Sequence[str], rank: int) -> bool:
        """Open the others' arrays; return False if some rank has no room."""
        if self._segment is None or NO_ROOM in names:
            return False
        segments = [self._segment if one == rank else Segment.open(name) for one, name in enumerate(names)]
        self.rows = [segment.array(self._dtype, self._count, 0) for segment in segments]
        return True

    def remove_name(self) -> None:
        """Take the file's name away: nothing stays when all have ended."""
        if self._segment is not None:
            (shared_folder() / self._segment.name).unlink(missing_ok=True)


class Loans:
    """The lent arrays of one rank, and what is reduced in them."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._rank = turns, turns.rank
        self._loans: dict[int, tuple[int, Loan]] = {}  # by where the array begins
        self._calls: dict[tuple[Call, int], Call] = {}

    def add(self, loan: Loan) -> None:
        """Note an array that all ranks have opened."""
        self._loans[_begin(loan.rows[self._rank])] = (len(self._loans), loan)

    def find(self, x: Array, out: Array) -> tuple[int, Loan] | None:
        """Return which lent array a call in place is about, if any."""
        if not self._loans or x.size == 0:
            return None
        found = self._loans.get(_begin(x))
        if found is None or _begin(out) != _begin(x) or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return None
        row = found[1].rows[self._rank]
        return found if row.dtype == x.dtype == out.dtype and row.size == x.size else None

    def reduce(self, call: Call, number: int, loan: Loan) -> None:
        """All-reduce in place of arrays that every rank sees: combine the own share, copy the others'."""
        lent = self._calls.get((call, number))
        if lent is None:
            lent = self._calls[call, number] = replace(call, loan=number)
        turns, rank = self._turns, self._rank
        shares, own, rows = call.shares(LINE), loan.rows[rank], loan.rows
        turns.begin(lent)
        low, high = shares[rank]
        length = piece_bytes(call.size) // call.work.itemsize
        scratch = np.empty(min(length, high - low), call.work)
        for at in range(low, high, length):
            end = min(high, at + length)
            # From the third rank on, the own part is read after the result is begun.
            result = own[at:end] if rank < 2 else scratch[: end - at]
            combine(call, [row[at:end] for row in rows], result)
            if rank >= 2:
                np.copyto(own[at:end], result)
        turns.put_reduced()
        turns.await_reduced(turns.reduced)
        for other, (low, high) in enumerate(shares):
            if other != rank:
                np.copyto(own[low:high], rows[other][low:high])
        turns.put()  # only when all have read it may this rank's array change
        turns.await_put()


def read_cards(cards: Array) -> list[tuple[str, str]]:
    """Return the name of each rank's segment, and what it asked for."""
    texts = [card.tobytes().rstrip(b"\0").decode() for card in cards]
    return [(name, asked) for name, _, asked in (text.partition(" ") for text in texts)]


def _begin(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
