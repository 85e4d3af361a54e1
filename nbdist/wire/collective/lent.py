"""Arrays that a group lends: they stand in shared memory, so that an all-reduce in place copies half as much.

x = group.lend((1000, 100), np.float32)      # on every rank
group.all_reduce(x, "mean", out=x)           # its share comes from all, the rest from one other each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import ResourceExhaustedError
from nbdist.wire.collective.calls import Call, combine
from nbdist.wire.collective.desk import LINE, piece_bytes
from nbdist.wire.collective.turns import Turns
from nbdist.wire.frames import Array
from nbdist.wire.shm import Segment, shared_folder

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
