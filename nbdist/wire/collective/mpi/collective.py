"""Collectives of ranks in one MPI world, on one host or several; MPI carries the values, NumPy combines them.

    small    every rank sends its value to all others and combines all of them itself
    large    every rank combines its share of the items, in pieces, and sends the result to all others

MPI's own Allreduce is not used: its collectives cannot be broken off, it knows no float16, and it leaves open
in which order ranks are added, so that results may differ between ranks, and from run to run. Here every item
is combined in the order of ranks and, where large, on one rank only, so that all have the same bits: those
that kind "shm" gives.

`auto` does not take MPI. On one host shared memory is faster (measured: bench P6); on several hosts nobody
knows before the group is formed whether all ranks are of one world, and to ask them would start MPI in
processes that were not meant to use it. It is taken where it is named.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.call import REDUCING, Call, Row, combine, compare, flat
from nbdist.wire.collective.mpi.transport import BACK, Far, Lanes, sweep
from nbdist.wire.collective.mpi.world import enter_world, world_ranks
from nbdist.wire.collective.shm.sync import Watch
from nbdist.wire.rpc.frame import Array

HEAD = 16  # bytes at the beginning of a letter: incarnation and call
EAGER = 1 << 16  # up to here a value travels in the letter that says which call it is for,
LETTERS = 1 << 19  # as long as all letters that a rank gets have no more bytes
TEXT_BYTES = 512
KNOWN_LETTERS = 256


class MpiCollective(Collective):
    """A rank of a group in an MPI world."""

    kind = "mpi"
    over_network = True

    def __init__(self, member: Member, lanes: Lanes) -> None:
        super().__init__(member.rank, member.called, member.check)
        self._lanes, self._timeout = lanes, member.timeout
        lanes.lookout = self.lookout
        self._eager = min(EAGER, LETTERS // self.size)
        self._letters = [lanes.row(HEAD + self._eager) for _ in range(self.size)]
        self._head = self._letters[self.rank][:HEAD].view(np.int64)
        self._head[0] = self._incarnation = member.incarnation
        self._heads = [letter[:HEAD].view(np.int64) for letter in self._letters]
        self._small: dict[Call, list[Array]] = {}
        self._large = Pieces(lanes, self.rank, self.size)

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank has died."""
        super().check()
        try:
            self._lanes.hear()
            self._lanes.check_alive()
        except Broken as broken:
            raise broken.trouble.error() from None

    def meet(self, timeout: float, far: Sequence[str]) -> None:
        """Wait until all ranks have joined; `far` is where those on other hosts are reached."""
        self._timeout, timeout_of_calls = timeout, self._timeout
        self.barrier()
        try:
            self._lanes.far.meet(far, self._lanes.look)
        except BaseException as error:
            self._failed(error)
            if isinstance(error, Broken):
                raise error.trouble.error() from None
            raise
        self.barrier()
        self.sequence, self._timeout = 0, timeout_of_calls
        self._lanes.doing = lambda: self.doing

    def _perform(self, call: Call, x: Array, out: Array) -> None:
        self._lanes.begin(self.sequence, self._timeout)
        if call.nbytes <= self._eager:
            self._small_call(call, x, out)
            return
        self._exchange(call, HEAD)
        if call.what in REDUCING:
            self._large.reduce(call, x, out)
        else:
            self._large.gather(call, x, out)

    def _small_call(self, call: Call, x: Array, out: Array) -> None:
        values = self._small.get(call)
        if values is None:
            if len(self._small) >= KNOWN_LETTERS:
                self._small.clear()
            places = [letter[HEAD : HEAD + call.nbytes] for letter in self._letters]
            values = self._small[call] = [place.view(call.work).reshape(call.shape) for place in places]
        gives = call.what != "broadcast" or call.root == self.rank
        if gives:
            np.copyto(values[self.rank], x)
        self._exchange(call, HEAD + call.nbytes if gives else HEAD)
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

    def _exchange(self, call: Call, nbytes: int) -> None:
        """Send this rank's letter to all and wait for theirs; no call goes on that is not the same on all."""
        begun = time.perf_counter()
        lanes, own = self._lanes, self._letters[self.rank][:nbytes]
        key = self._head[1] = call.digest ^ self._incarnation
        for rank in lanes.others:
            lanes.receive(self._letters[rank], rank)
        for rank in lanes.others:
            lanes.send(own, rank)
        lanes.finish()
        self.waited += time.perf_counter() - begun
        for head in self._heads:
            if head[1] != key:
                self._disagree(call)

    def _disagree(self, call: Call) -> None:
        """Learn what the others call, as all do now; raise what is wrong."""
        if any(head[0] != self._incarnation for head in self._heads):
            raise Broken(Trouble("UnavailableError", f"a letter of another group came to {self.doing}"))
        lanes = self._lanes
        texts = [lanes.row(TEXT_BYTES) for _ in range(self.size)]
        for text in texts:
            text[:] = 0
        raw = call.text.encode()[:TEXT_BYTES]
        texts[self.rank][: len(raw)] = np.frombuffer(raw, np.uint8)
        for rank in lanes.others:
            lanes.receive(texts[rank], rank)
            lanes.send(texts[self.rank], rank)
        lanes.finish()
        calls = {
            rank: text.tobytes().rstrip(b"\0").decode(errors="ignore") for rank, text in enumerate(texts)
        }
        trouble = compare(calls, self.sequence, self.called)
        raise Broken(Trouble("InvalidArgumentError", trouble))

    def _spread(self, trouble: Trouble) -> None:
        self._lanes.notices.tell(trouble)

    def _leave(self) -> None:
        self._lanes.notices.leave(self.sequence)

    def _release(self) -> None:
        self._lanes.close()


class MpiSeat(Seat):
    """A rank's place in the MPI world, before the others are known."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._world = enter_world()
        self._far = Far(member)
        sweep()

    @property
    def card(self) -> dict[str, Any]:
        """Which world this rank is of, and where in it."""
        return {
            "incarnation": self._member.incarnation,
            "world": self._world.name,
            "place": self._world.comm.rank,
            "pid": os.getpid(),
            "far": self._far.address,
        }

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others in the world."""
        member, world = self._member, self._world
        try:
            same_group(member, cards)
            places = world_ranks(member, cards)
        except BaseException:
            self.close()
            raise
        here = [rank for rank, host in enumerate(member.hosts) if host == member.hosts[member.rank]]
        watch = Watch({rank: cards[rank]["pid"] for rank in here})
        group = MpiCollective(member, Lanes(world.mpi, world.comm, member, places, watch, self._far))
        group.notes += [
            f"the end of {member.called[rank]} will not be noticed: its process is not seen here"
            for rank in range(member.size)
            if rank in watch.unseen() or (rank not in here and member.keys is None)
        ]
        try:
            group.meet(timeout, [card["far"] for card in cards])
        except BaseException:
            group.close()
            raise
        return group

    def close(self) -> None:
        """Take no more connections; the world is there as long as the process."""
        self._far.close()


#     Large values on their way through MPI: in pieces, by way of memory that is the group's own.
#
#     pieces = Pieces(lanes, rank, size)
#     pieces.reduce(call, x, out)         # every rank combines its share of the items
#     pieces.gather(call, x, out)         # all-gather and broadcast
#
# Two turns of memory take turns, so that the pieces of one round travel while those of the last are combined.
# Pieces are small enough to stay in cache between being copied and being sent.

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
