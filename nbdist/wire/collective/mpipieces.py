"""Large values on their way through MPI: in pieces, by way of memory that is the group's own.

    pieces = Pieces(lanes, rank, size)
    pieces.reduce(call, x, out)         # every rank combines its share of the items
    pieces.gather(call, x, out)         # all-gather and broadcast

Two turns of memory take turns, so that the pieces of one round travel while those of the last are combined.
Pieces are small enough to stay in cache between being copied and being sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.calls import Call, combine, flat
from nbdist.wire.collective.lanes import BACK, Lanes
from nbdist.wire.collective.rows import Row
from nbdist.wire.frames import Array

LINE = 64
ROUND_BYTES = 1 << 20  # of all pieces that a rank sends in one round
SMALLEST_PIECE = 1 << 14

Shares = list[tuple[int, int]]


class Pieces:
    """What one rank of a group sends and receives of large values; all ranks have agreed on the call."""

    def __init__(self, lanes: Lanes, rank: int, size: int) -> None:
        self._lanes, self._rank, self._size = lanes, rank, size
        self._nbytes = max(SMALLEST_PIECE, ROUND_BYTES // size // LINE * LINE)
        self._slabs: list[Array] = []
        self._rows: dict[np.dtype[Any], _Rows] = {}

    def reduce(self, call: Call, x: Array, out: Array) -> None:
        """Reduce-scatter, then perhaps all-gather: round i is sent before round i - 1 is combined."""
        given, taken, rows = flat(call, x), Row(call, out, x), self._rows_of(call.work)
        shares, length, lanes, own = call.shares(LINE), rows.length, self._lanes, self._rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        base = 0 if gathers else shares[own][0]  # a rank that gets its share alone has room for that only
        sent, handed = [0], [0]  # how many messages of each round
        for step in range(rounds + 2 if gathers else rounds + 1):
            if step < rounds:
                sent.append(self._send_shares(given, shares, step, rows))
            if 1 <= step <= rounds:
                lanes.finish(sent[step])
                at, end = piece(shares[own], step - 1, length)
                result = rows.back[(step - 1) % 2][own][: end - at]
                if at < end:
                    parts = [row[: end - at] for row in rows.come[(step - 1) % 2]]
                    parts[own] = given[at:end]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                if gathers:
                    handed.append(self._hand_out(shares, step - 1, rows))
            if gathers and step >= 2:
                lanes.finish(handed[step - 1])
                for rank in lanes.others:
                    at, end = piece(shares[rank], step - 2, length)
                    np.copyto(taken.items[at:end], rows.back[step % 2][rank][: end - at], "same_kind")
        taken.finish()

    def gather(self, call: Call, x: Array, out: Array) -> None:
        """All-gather or broadcast: every giver's pieces go to all, one round after the other."""
        given, taken, rows = flat(call, x), Row(call, out, x), self._rows_of(call.work)
        lanes, length, whole = self._lanes, rows.length, (0, call.count)
        givers = range(self._size) if call.what == "all_gather" else (call.root,)
        rounds, counts = -(-call.count // length), list[int]()
        for step in range(rounds + 1):
            if step < rounds:
                at, end = piece(whole, step, length)
                before, come = lanes.count, rows.come[step % 2]
                for rank in givers:
                    if rank != self._rank:
                        lanes.receive(come[rank][: end - at], rank)
                if self._rank in givers:
                    np.copyto(come[self._rank][: end - at], given[at:end])
                    for rank in lanes.others:
                        lanes.send(come[self._rank][: end - at], rank)
                counts.append(lanes.count - before)
            if step:
                lanes.finish(counts[step - 1])
                at, end = piece(whole, step - 1, length)
                for number, rank in enumerate(givers):
                    start = number * call.count + at
                    value = rows.come[(step - 1) % 2][rank][: end - at]
                    np.copyto(taken.items[start : start + end - at], value)
        taken.finish()

    def _send_shares(self, given: Array, shares: Shares, step: int, rows: _Rows) -> int:
        """Send each rank its piece of this round, and receive the own one from all; how many messages."""
        lanes, turn = self._lanes, step % 2
        before = lanes.count
        at, end = piece(shares[self._rank], step, rows.length)
        for rank in lanes.others if at < end else ():
            lanes.receive(rows.come[turn][rank][: end - at], rank)
        for rank in lanes.others:
            at, end = piece(shares[rank], step, rows.length)
            if at < end:
                row = rows.go[turn][rank][: end - at]
                np.copyto(row, given[at:end])
                lanes.send(row, rank)
        return lanes.count - before

    def _hand_out(self, shares: Shares, step: int, rows: _Rows) -> int:
        """Send the own combined piece to all, and receive theirs; how many messages."""
        lanes, back = self._lanes, rows.back[step % 2]
        before = lanes.count
        for rank in lanes.others:
            at, end = piece(shares[rank], step, rows.length)
            if at < end:
                lanes.receive(back[rank][: end - at], rank, BACK)
        at, end = piece(shares[self._rank], step, rows.length)
        for rank in lanes.others if at < end else ():
            lanes.send(back[self._rank][: end - at], rank, BACK)
        return lanes.count - before

    def _rows_of(self, dtype: np.dtype[Any]) -> _Rows:
        rows = self._rows.get(dtype)
        if rows is None:
            self._slabs = self._slabs or [self._lanes.row(2 * self._size * self._nbytes) for _ in range(3)]
            rows = self._rows[dtype] = _Rows(self._slabs, self._size, self._nbytes, dtype)
        return rows


class _Rows:
    """Where pieces stand, by turn and rank: those that go out, those that come in, and combined ones."""

    def __init__(self, slabs: Sequence[Array], size: int, nbytes: int, dtype: np.dtype[Any]) -> None:
        self.length = nbytes // dtype.itemsize

        def cut(slab: Array) -> list[list[Array]]:
            starts = [nbytes * number for number in range(2 * size)]
            rows = [np.ndarray(self.length, dtype, slab.data, start) for start in starts]
            return [rows[:size], rows[size:]]

        self.go, self.come, self.back = map(cut, slabs)


def piece(share: tuple[int, int], step: int, length: int) -> tuple[int, int]:
    """Return from where to where the `step`-th piece of a share goes; nothing is left after the last.

    >>> [piece((10, 25), step, 10) for step in range(3)]
    [(10, 20), (20, 25), (25, 25)]
    """
    low, high = share
    return min(high, low + step * length), min(high, low + (step + 1) * length)
