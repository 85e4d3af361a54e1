"""Calls with large values: they go over the desks in pieces that stay in cache, through two slots in turn.

One slot is filled while the other is read. For a sum every rank combines its share of the items, and hands
the result out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.calls import Call, combine, flat
from nbdist.wire.collective.desk import LINE, Desk
from nbdist.wire.collective.rows import Row
from nbdist.wire.collective.turns import Turns
from nbdist.wire.frames import Array


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
