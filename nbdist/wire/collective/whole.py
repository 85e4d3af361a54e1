"""Calls in which every rank sees everyone's whole value, or piece after piece of it: one meeting for each.

Small values go so, for a meeting is what they cost; and between two ranks all sums do, for to combine the
whole costs less than to hand the halves out: each value is written once and read once by the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.calls import REDUCING, Call, combine, flat
from nbdist.wire.collective.desk import Desk
from nbdist.wire.collective.rows import Row
from nbdist.wire.collective.turns import Turns
from nbdist.wire.frames import Array

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
