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

from nbdist.errors import DeadlineExceededError
from nbdist.wire.collective.base import Broken, Collective, Member, Seat, Trouble, same_group
from nbdist.wire.collective.calls import REDUCING, Call, combine, compare, flat
from nbdist.wire.collective.lanes import BACK, Lanes, sweep
from nbdist.wire.collective.mpiworld import HOW, enter_world, world_name, world_ranks
from nbdist.wire.collective.rows import Row
from nbdist.wire.collective.watch import Watch
from nbdist.wire.frames import Array

LINE = 64
TAGS_OF_GROUPS = 32768  # the least that MPI has
HEAD = 16  # bytes at the beginning of a letter: incarnation and call
EAGER = 1 << 16  # up to here a value travels in the letter that says which call it is for
PIECES = 1 << 20  # bytes of all pieces that a rank sends in one round
SMALLEST_PIECE = 1 << 14
TEXT_BYTES = 512
KNOWN_LETTERS = 256


class MpiCollective(Collective):
    """A rank of a group in an MPI world."""

    kind = "mpi"

    def __init__(self, member: Member, lanes: Lanes) -> None:
        super().__init__(member.rank, member.called, member.check)
        self._lanes, self._timeout = lanes, member.timeout
        lanes.lookout = self.lookout
        self._letters = [lanes.row(HEAD + EAGER) for _ in range(self.size)]
        self._head = self._letters[self.rank][:HEAD].view(np.int64)
        self._head[0] = self._incarnation = member.incarnation
        self._heads = [letter[:HEAD].view(np.int64) for letter in self._letters]
        self._small: dict[Call, list[Array]] = {}
        self._slabs: list[Array] = []
        self._pieces: dict[np.dtype[Any], _Pieces] = {}

    def check(self) -> None:
        """Raise the reason if the group is broken, or a rank has died."""
        super().check()
        try:
            self._lanes.hear()
            self._lanes.check_alive()
        except Broken as broken:
            raise broken.trouble.error() from None

    def meet(self, timeout: float) -> None:
        """Wait until all ranks have joined."""
        self._timeout, timeout_of_calls = timeout, self._timeout
        self.barrier()
        self.sequence, self._timeout = 0, timeout_of_calls
        self._lanes.doing = lambda: self.doing

    def _perform(self, call: Call, x: Array, out: Array) -> None:
        self._lanes.begin(self.sequence, self._timeout)
        if call.nbytes <= EAGER:
            self._small_call(call, x, out)
            return
        self._exchange(call, HEAD)
        if call.what in REDUCING:
            self._reduce(call, x, out)
        else:
            self._gather(call, x, out)

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

    def _reduce(self, call: Call, x: Array, out: Array) -> None:
        """Reduce-scatter, then perhaps all-gather: round i is sent before round i - 1 is combined."""
        given, taken, pieces = flat(call, x), Row(call, out, x), self._pieces_for(call)
        shares, length, lanes, own = call.shares(LINE), pieces.length, self._lanes, self.rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        base = 0 if gathers else shares[own][0]  # a rank that gets its share alone has room for that only
        sent, handed = [0], [0]  # how many messages of each round
        for step in range(rounds + 2 if gathers else rounds + 1):
            if step < rounds:
                sent.append(self._send_shares(given, shares, step, pieces))
            if 1 <= step <= rounds:
                lanes.finish(sent[step])
                at, end = _piece(shares[own], step - 1, length)
                result = pieces.back[(step - 1) % 2][own][: end - at]
                if at < end:
                    parts = [row[: end - at] for row in pieces.come[(step - 1) % 2]]
                    parts[own] = given[at:end]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                if gathers:
                    handed.append(self._hand_out(shares, step - 1, pieces))
            if gathers and step >= 2:
                lanes.finish(handed[step - 1])
                for rank in lanes.others:
                    at, end = _piece(shares[rank], step - 2, length)
                    np.copyto(taken.items[at:end], pieces.back[step % 2][rank][: end - at], "same_kind")
        taken.finish()

    def _send_shares(self, given: Array, shares: list[tuple[int, int]], step: int, pieces: _Pieces) -> int:
        """Send each rank its piece of this round, and receive the own one from all; how many messages."""
        lanes, turn = self._lanes, step % 2
        before = lanes.count
        at, end = _piece(shares[self.rank], step, pieces.length)
        for rank in lanes.others if at < end else ():
            lanes.receive(pieces.come[turn][rank][: end - at], rank)
        for rank in lanes.others:
            at, end = _piece(shares[rank], step, pieces.length)
            if at < end:
                row = pieces.go[turn][rank][: end - at]
                np.copyto(row, given[at:end])
                lanes.send(row, rank)
        return lanes.count - before

    def _hand_out(self, shares: list[tuple[int, int]], step: int, pieces: _Pieces) -> int:
        """Send the own combined piece to all, and receive theirs; how many messages."""
        lanes, back = self._lanes, pieces.back[step % 2]
        before = lanes.count
        for rank in lanes.others:
            at, end = _piece(shares[rank], step, pieces.length)
            if at < end:
                lanes.receive(back[rank][: end - at], rank, BACK)
        at, end = _piece(shares[self.rank], step, pieces.length)
        for rank in lanes.others if at < end else ():
            lanes.send(back[self.rank][: end - at], rank, BACK)
        return lanes.count - before

    def _gather(self, call: Call, x: Array, out: Array) -> None:
        """All-gather or broadcast: every giver's pieces go to all, one round after the other."""
        given, taken, pieces = flat(call, x), Row(call, out, x), self._pieces_for(call)
        lanes, length = self._lanes, pieces.length
        everyone = range(self.size) if call.what == "all_gather" else (call.root,)
        rounds, counts = -(-call.count // length), list[int]()
        for step in range(rounds + 1):
            if step < rounds:
                at, end = _piece((0, call.count), step, length)
                before, come = lanes.count, pieces.come[step % 2]
                for rank in everyone:
                    if rank != self.rank:
                        lanes.receive(come[rank][: end - at], rank)
                if self.rank in everyone:
                    np.copyto(come[self.rank][: end - at], given[at:end])
                    for rank in lanes.others:
                        lanes.send(come[self.rank][: end - at], rank)
                counts.append(lanes.count - before)
            if step:
                lanes.finish(counts[step - 1])
                at, end = _piece((0, call.count), step - 1, length)
                for number, rank in enumerate(everyone):
                    value = pieces.come[(step - 1) % 2][rank][: end - at]
                    np.copyto(taken.items[number * call.count + at : number * call.count + end], value)
        taken.finish()

    def _pieces_for(self, call: Call) -> _Pieces:
        """Return the group's own memory for pieces, as items of the dtype that travels."""
        pieces = self._pieces.get(call.work)
        if pieces is None:
            nbytes = max(SMALLEST_PIECE, PIECES // self.size // LINE * LINE)
            self._slabs = self._slabs or [self._lanes.row(2 * self.size * nbytes) for _ in range(3)]
            pieces = self._pieces[call.work] = _Pieces(self._slabs, self.size, nbytes, call.work)
        return pieces

    def _spread(self, trouble: Trouble) -> None:
        self._lanes.tell(trouble)

    def _leave(self) -> None:
        self._lanes.leave(self.sequence)

    def _release(self) -> None:
        self._lanes.close()


class _Pieces:
    """Where pieces stand, by turn and rank: those that go out, those that come in, and combined ones."""

    def __init__(self, slabs: Sequence[Array], size: int, nbytes: int, dtype: np.dtype[Any]) -> None:
        self.length = nbytes // dtype.itemsize

        def cut(slab: Array) -> list[list[Array]]:
            starts = [nbytes * number for number in range(2 * size)]
            rows = [np.ndarray(self.length, dtype, slab.data, start) for start in starts]
            return [rows[:size], rows[size:]]

        self.go, self.come, self.back = map(cut, slabs)


class MpiSeat(Seat):
    """A rank's place in the MPI world, before the others are known."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._mpi = enter_world()
        sweep()

    @property
    def card(self) -> dict[str, Any]:
        """Which world this rank is of, and where in it."""
        world = self._mpi.COMM_WORLD
        return {
            "incarnation": self._member.incarnation,
            "world": world_name(os.environ),
            "world_size": world.size,
            "world_rank": world.rank,
            "pid": os.getpid(),
        }

    def join(self, cards: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Meet the others in the world, and form a communicator of their own with them."""
        member, world = self._member, self._mpi.COMM_WORLD
        same_group(member, cards)
        places = world_ranks(member, cards)
        # To make a communicator blocks until all have come, so they meet before that.
        lanes = self._lanes(world, places, cards)
        try:
            MpiCollective(member, lanes).meet(timeout)
        except DeadlineExceededError as error:
            raise DeadlineExceededError(f"{error}; {HOW}") from None
        finally:
            lanes.close()
        part = world.group.Incl(places)
        comm = world.Create_group(part, member.incarnation % TAGS_OF_GROUPS)
        part.Free()
        group = MpiCollective(member, self._lanes(comm, range(member.size), cards))
        try:
            group.meet(timeout)
        except BaseException:
            group.close()
            raise
        group.notes += self._unseen
        return group

    def close(self) -> None:
        """Give up nothing: the world is there as long as the process."""

    def _lanes(self, comm: Any, places: Sequence[int], cards: Sequence[dict[str, Any]]) -> Lanes:
        member = self._member
        here = member.hosts[member.rank]
        watch = Watch({rank: card["pid"] for rank, card in enumerate(cards) if member.hosts[rank] == here})
        self._unseen = [
            f"the end of {member.called[rank]} will not be noticed: its process is not seen here"
            for rank in range(member.size)
            if rank in watch.unseen() or member.hosts[rank] != here
        ]
        return Lanes(self._mpi, comm, member.rank, places, member.called, member.incarnation, watch)


def _piece(share: tuple[int, int], step: int, length: int) -> tuple[int, int]:
    """Return from where to where the `step`-th piece of a share goes; nothing is left after the last."""
    low, high = share
    return min(high, low + step * length), min(high, low + (step + 1) * length)
