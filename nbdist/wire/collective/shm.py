"""Collectives of ranks on one host, through memory that all of them see.

    small    every rank puts its value on its desk, waits for all, and combines them itself: one meeting
    large    every rank combines its share of the items; pieces go through two slots in turn, so that one is
             filled while the other is read, and both stay in cache

Why slots are never overwritten too early: a rank puts a piece into a slot only after it has seen that all
ranks are past the step that read the slot's last piece. SENT counts pieces put on a desk, over all calls,
REDUCED those combined; a slot is chosen by the count modulo 2.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NbdistError, UnavailableError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.calls import REDUCING, Call, combine, compare, flat
from nbdist.wire.collective.desk import BROKEN, DIGEST, EAGER, LEFT, LINE, REDUCED, SENT, Desk
from nbdist.wire.collective.lent import Loan, read_cards
from nbdist.wire.collective.meeting import Meeting
from nbdist.wire.collective.rows import Row
from nbdist.wire.collective.watch import Watch
from nbdist.wire.frames import Array
from nbdist.wire.shm import Doorbell, open_bell

KNOWN_PLACES = 256


class ShmCollective(Collective):
    """A rank of a group on one host."""

    kind = "shm"

    def __init__(self, member: Member, desks: Sequence[Desk], meeting: Meeting) -> None:
        super().__init__(member.rank, member.called, member.check)
        self._desks, self._meeting = desks, meeting
        meeting.lookout = self.lookout
        self._timeout = member.timeout
        self._own = desks[self.rank].words
        self._others = [desks[rank].words for rank in range(self.size) if rank != self.rank]
        self._sent = self._reduced = 0
        self._said = [0, 0]  # the digest of the call whose text stands in each place
        self._small: dict[Call, list[list[Array]]] = {}
        self._rows: dict[np.dtype[Any], _Rows] = {}
        self._prefix = member.prefix
        self._loans: dict[int, tuple[int, Loan]] = {}  # by where the array begins
        self._lent_calls: dict[tuple[Call, int], Call] = {}

    def meet(self, timeout: float) -> None:
        """Wait until all ranks have joined, then take the files' names away: nothing can be left behind."""
        self._meeting.deadline = time.monotonic() + timeout
        try:
            self._put(self._current)
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
        row = loan.rows[self.rank]
        self._loans[_begin(row)] = (len(self._loans), loan)
        return row.reshape(tuple(shape))

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank has died."""
        super().check()
        try:
            self._meeting.check()
        except Broken as broken:
            raise broken.trouble.error() from None

    def peek(self) -> str:
        """Return whether another rank "waits" in a call that this one has not begun, or has "left"."""
        if any(words[SENT] > self._sent for words in self._others):
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
        if call.nbytes <= EAGER:
            self._small_call(call, x, out)
        elif call.what == "all_reduce" and (loan := self._loan_of(x, out)) is not None:
            self._reduce_lent(call, *loan)
        elif call.what in REDUCING:
            self._reduce(call, x, out)
        else:
            self._gather(call, x, out)

    def _small_call(self, call: Call, x: Array, out: Array) -> None:
        places = self._small.get(call)
        if places is None:
            if len(self._small) >= KNOWN_PLACES:
                self._small.clear()
            places = self._small[call] = [
                [desk.eager(turn, call.work, call.shape) for desk in self._desks] for turn in (0, 1)
            ]
        values = places[self._sent % 2]
        if call.what != "broadcast" or call.root == self.rank:
            np.copyto(values[self.rank], x)
        self._put(call)
        if call.what == "all_reduce" and call.work == call.result:
            combine(call, values, out)
        elif call.what in REDUCING:
            rows = slice(*call.rows(self.rank)) if call.what == "reduce_scatter" else ...
            parts = [value[rows] for value in values]
            result = np.empty_like(parts[0])
            combine(call, parts, result)
            np.copyto(out, result, casting="same_kind")
        elif call.what == "all_gather":
            for rank, value in enumerate(values):
                np.copyto(out[rank, ...], value)
        elif call.what == "broadcast":
            np.copyto(out, values[call.root])

    def _reduce(self, call: Call, x: Array, out: Array) -> None:
        """Reduce-scatter, then perhaps all-gather; step i takes out piece i - 2 and puts in piece i."""
        given, taken = flat(call, x), Row(call, out, x)
        rows = self._rows_of(call.work)
        shares, length, own = call.shares(LINE), rows.length, self.rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        low, high = shares[own]
        base = low if not gathers else 0  # a rank that gets its share alone has room for that only
        reduced = self._reduced
        for step in range(rounds + 2 if gathers else rounds + 1):
            if gathers and step >= 2:
                self._meeting.until(REDUCED, reduced + step - 1)
                turn = (reduced + step - 2) % 2
                for rank, (at, end) in _pieces(shares, step - 2, length):
                    if rank != own:
                        np.copyto(taken.items[at:end], rows.reduced[rank][turn][: end - at], "same_kind")
            if 1 <= step <= rounds:
                if step > 1:
                    self._meeting.until(SENT, self._sent)
                at, end = low + (step - 1) * length, min(high, low + step * length)
                if at < end:
                    parts = [pieces[(self._sent - 1) % 2][own][: end - at] for pieces in rows.pieces]
                    parts[own] = given[at:end]
                    result = rows.reduced[own][self._reduced % 2][: end - at]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                self._reduced += 1
                self._meeting.post(REDUCED, self._reduced)
            if step < rounds:
                slots = rows.pieces[own][self._sent % 2]
                for rank, (at, end) in _pieces(shares, step, length):
                    if rank != own:
                        np.copyto(slots[rank][: end - at], given[at:end])
                if step == 0:
                    self._put(call)
                else:
                    self._sent += 1
                    self._meeting.post(SENT, self._sent)
        taken.finish()

    def _reduce_lent(self, call: Call, number: int, loan: Loan) -> None:
        """All-reduce in place of arrays that every rank sees: combine the own share, copy the others'."""
        lent = self._lent_calls.get((call, number))
        if lent is None:
            lent = self._lent_calls[call, number] = replace(call, loan=number)
        shares, own, rows = call.shares(LINE), loan.rows[self.rank], loan.rows
        length = self._rows_of(call.work).length
        self._put(lent)
        low, high = shares[self.rank]
        scratch = np.empty(min(length, high - low), call.work)
        for at in range(low, high, length):
            end = min(high, at + length)
            # From the third rank on, the own part is read after the result is begun.
            result = own[at:end] if self.rank < 2 else scratch[: end - at]
            combine(call, [row[at:end] for row in rows], result)
            if self.rank >= 2:
                np.copyto(own[at:end], result)
        self._reduced += 1
        self._meeting.post(REDUCED, self._reduced)
        self._meeting.until(REDUCED, self._reduced)
        for rank, (low, high) in enumerate(shares):
            if rank != self.rank:
                np.copyto(own[low:high], rows[rank][low:high])
        self._sent += 1
        self._meeting.post(SENT, self._sent)  # only when all have read it may this rank's array change
        self._meeting.until(SENT, self._sent)

    def _loan_of(self, x: Array, out: Array) -> tuple[int, Loan] | None:
        """Return which lent array a call in place is about, if any."""
        if not self._loans or x.size == 0:
            return None
        found = self._loans.get(_begin(x))
        if found is None or _begin(out) != _begin(x) or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return None
        row = found[1].rows[self.rank]
        return found if row.dtype == x.dtype == out.dtype and row.size == x.size else None

    def _gather(self, call: Call, x: Array, out: Array) -> None:
        """All-gather or broadcast: each piece goes through all the slots of one turn, in a row."""
        given, taken = flat(call, x), Row(call, out, x)
        rows = self._rows_of(call.work)
        everyone = range(self.size) if call.what == "all_gather" else (call.root,)
        for at in range(0, call.count, rows.length):
            end = min(call.count, at + rows.length)
            if self.rank in everyone:
                np.copyto(rows.pieces[self.rank][self._sent % 2][0][: end - at], given[at:end])
            if at == 0:
                self._put(call)
            else:
                self._sent += 1
                self._meeting.post(SENT, self._sent)
                self._meeting.until(SENT, self._sent)
            for number, rank in enumerate(everyone):
                start = number * call.count + at
                value = rows.pieces[rank][(self._sent - 1) % 2][0][: end - at]
                np.copyto(taken.items[start : start + end - at], value)
        taken.finish()

    def _put(self, call: Call) -> None:
        """Say that this rank's first piece is there and of which call, wait for all, compare."""
        turn = self._sent % 2
        if self._said[turn] != call.digest:
            self._desks[self.rank].write_text(turn, call.text)
            self._own[DIGEST + turn] = self._said[turn] = call.digest
        self._sent += 1
        self._meeting.post(SENT, self._sent)
        begun = time.perf_counter()
        self._meeting.until(SENT, self._sent)
        self.waited += time.perf_counter() - begun
        for words in self._others:
            if words[DIGEST + turn] != call.digest:
                self._meeting.check()  # a rank that broke off is a better reason
                texts = {rank: desk.read_text(turn) for rank, desk in enumerate(self._desks)}
                raise Broken(Trouble("InvalidArgumentError", compare(texts, self.sequence, self.called)))

    def _rows_of(self, dtype: np.dtype[Any]) -> _Rows:
        rows = self._rows.get(dtype)
        if rows is None:
            rows = self._rows[dtype] = _Rows(self._desks, dtype)
        return rows

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


def _begin(x: Array) -> int:
    return int(x.__array_interface__["data"][0])


class _Rows:
    """Views of all desks' slots, for one dtype."""

    def __init__(self, desks: Sequence[Desk], dtype: np.dtype[Any]) -> None:
        self.pieces = [desk.pieces(dtype) for desk in desks]  # by rank, turn, share
        self.reduced = [desk.reduced(dtype) for desk in desks]  # by rank, turn
        self.length = desks[0].piece // dtype.itemsize


def _pieces(shares: list[tuple[int, int]], step: int, length: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the ranks whose share has a `step`-th piece, and where it is."""
    return [
        (rank, (low + step * length, min(high, low + (step + 1) * length)))
        for rank, (low, high) in enumerate(shares)
        if low + step * length < high
    ]
