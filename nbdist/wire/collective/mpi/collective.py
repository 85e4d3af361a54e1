"""Collectives of ranks in one MPI world, on one host or several: MPI moves the values, NumPy combines them.

    small    every rank sends its value to all others and combines all of them itself
    large    every rank combines its share of the items, in chunks, and sends the result to all others

MPI's own Allreduce is not used: a collective of MPI cannot be cancelled, MPI has no float16, and the order of
additions is unspecified, so that results may differ between ranks and between runs. Here every item is
combined in the order of ranks and, for large values, on one rank only, so that all ranks have equal bits, the
same as with kind "shm".

`auto` does not choose MPI. On one host shared memory is faster (measured: bench P6). On several hosts it is
unknown before the group is formed whether all ranks are in one world, and a query would start MPI in
processes that do not use it. Choose it by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.wire.collective.base import (
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    check_same_group,
)
from nbdist.wire.collective.call import REDUCING, CollectiveCall, FlatOutput, combine, complete, flat
from nbdist.wire.collective.mpi.transport import RESULT, MpiTransport, RemoteLiveness, free_closed
from nbdist.wire.collective.mpi.world import enter_world, world_ranks
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.frame import Array

HEAD = 16  # bytes at the beginning of a call's first message: incarnation, digest of the call
EAGER = 1 << 16  # bytes; a value of at most this size is in the call's first message,
EAGER_TOTAL = 1 << 19  # unless the first messages that a rank receives have more bytes together
TEXT_BYTES = 512
KNOWN_VIEWS = 256


class MpiCollective(Collective):
    """A rank of a group in an MPI world."""

    kind = "mpi"
    over_network = True

    def __init__(self, member: Member, transport: MpiTransport) -> None:
        super().__init__(member.rank, member.labels, member.check)
        self._transport, self._timeout = transport, member.timeout
        transport.abort_check = self.abort_check
        self._eager = min(EAGER, EAGER_TOTAL // self.size)
        self._messages = [transport.row(HEAD + self._eager) for _ in range(self.size)]
        self._head = self._messages[self.rank][:HEAD].view(np.int64)
        self._head[0] = self._incarnation = member.incarnation
        self._heads = [message[:HEAD].view(np.int64) for message in self._messages]
        self._eager_views: dict[CollectiveCall, list[Array]] = {}
        self._chunked = ChunkedTransfer(transport, self.rank, self.size)

    def _look(self) -> None:
        self._transport.check_control()
        self._transport.check_alive()

    def connect(self, timeout: float, remote: Sequence[str]) -> None:
        """Wait until all ranks have joined; `remote` are the addresses of the ranks' liveness listeners."""
        self._timeout, timeout_of_calls = timeout, self._timeout
        self.barrier()
        try:
            self._transport.remote.connect(remote, self._transport.check)
        except BaseException as error:
            self._failed(error)
            if isinstance(error, GroupBroken):
                raise error.failure.error() from None
            raise
        self.barrier()
        self.sequence, self._timeout = 0, timeout_of_calls
        self._transport.doing = lambda: self.doing

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        self._transport.begin(self.sequence, self._timeout)
        if call.nbytes <= self._eager:
            self._eager_call(call, x, out)
            return
        self._exchange(call, HEAD)
        if call.what in REDUCING:
            self._chunked.reduce(call, x, out)
        else:
            self._chunked.gather(call, x, out)

    def _eager_call(self, call: CollectiveCall, x: Array, out: Array) -> None:
        values = self._eager_views.get(call)
        if values is None:
            if len(self._eager_views) >= KNOWN_VIEWS:
                self._eager_views.clear()
            places = [message[HEAD : HEAD + call.nbytes] for message in self._messages]
            values = self._eager_views[call] = [place.view(call.work).reshape(call.shape) for place in places]
        gives = call.what != "broadcast" or call.root == self.rank
        if gives:
            np.copyto(values[self.rank], x)
        self._exchange(call, HEAD + call.nbytes if gives else HEAD)
        complete(call, values, out, self.rank)

    def _exchange(self, call: CollectiveCall, nbytes: int) -> None:
        """Exchange the first messages of a call with all ranks; raise GroupBroken if the calls differ."""
        begun = time.perf_counter()
        transport, own = self._transport, self._messages[self.rank][:nbytes]
        key = self._head[1] = call.digest ^ self._incarnation
        for rank in transport.others:
            transport.receive(self._messages[rank], rank)
        for rank in transport.others:
            transport.send(own, rank)
        transport.finish()
        self.waited += time.perf_counter() - begun
        for head in self._heads:
            if head[1] != key:
                self._disagree(call)

    def _disagree(self, call: CollectiveCall) -> None:
        """Exchange the calls' texts with all ranks, as all do now; raise GroupBroken with the mismatch."""
        if any(head[0] != self._incarnation for head in self._heads):
            raise GroupBroken.by("UnavailableError", f"a message of another group arrived in {self.doing}")
        transport = self._transport
        texts = [transport.row(TEXT_BYTES) for _ in range(self.size)]
        for text in texts:
            text[:] = 0
        raw = call.text.encode()[:TEXT_BYTES]
        texts[self.rank][: len(raw)] = np.frombuffer(raw, np.uint8)
        for rank in transport.others:
            transport.receive(texts[rank], rank)
            transport.send(texts[self.rank], rank)
        transport.finish()
        calls = {
            rank: text.tobytes().rstrip(b"\0").decode(errors="ignore") for rank, text in enumerate(texts)
        }
        raise GroupBroken.of_calls(calls, self.sequence, self.labels)

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._transport.control.announce_failure(failure)

    def _leave(self) -> None:
        self._transport.control.leave(self.sequence)

    def _release(self) -> None:
        self._transport.close()


class MpiEndpoint(Endpoint):
    """A rank's membership of the MPI world, before it connects to the others."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._world = enter_world()
        self._remote = RemoteLiveness(member)
        free_closed()

    @property
    def info(self) -> dict[str, Any]:
        """The name of this rank's world, its rank there, its process and its liveness address."""
        return {
            "incarnation": self._member.incarnation,
            "world": self._world.name,
            "world_rank": self._world.comm.rank,
            "pid": os.getpid(),
            "liveness": self._remote.address,
        }

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the others in the world."""
        member, world = self._member, self._world
        try:
            check_same_group(member, infos)
            ranks = world_ranks(member, infos)
        except BaseException:
            self.close()
            raise
        here = [rank for rank, host in enumerate(member.hosts) if host == member.hosts[member.rank]]
        monitor = ProcessMonitor({rank: infos[rank]["pid"] for rank in here})
        group = MpiCollective(
            member, MpiTransport(world.mpi, world.comm, member, ranks, monitor, self._remote, world.links)
        )
        group.notes += [
            f"the end of {member.labels[rank]} cannot be detected: its process is not visible here"
            for rank in range(member.size)
            if rank in monitor.unseen() or (rank not in here and member.keys is None)
        ]
        try:
            group.connect(timeout, [info["liveness"] for info in infos])
        except BaseException:
            group.close()
            raise
        return group

    def close(self) -> None:
        """Close the liveness listener; the world exists as long as the process."""
        self._remote.close()


# Large values over MPI: in chunks, through buffers of the group.
#
#     transfer = ChunkedTransfer(transport, rank, size)
#     transfer.reduce(call, x, out)         # every rank combines its share of the items
#     transfer.gather(call, x, out)         # all-gather and broadcast
#
# There are two sets of buffers, so that the chunks of one round travel while those of the previous one are
# combined. Chunks are small enough to stay in cache between the copy and the send.

LINE = 64
ROUND_BYTES = 1 << 20  # of all chunks that a rank sends in one round
SMALLEST_CHUNK = 1 << 14
Shares = list[tuple[int, int]]


class ChunkedTransfer:
    """Sends and receives one rank's chunks of large values, after all ranks have agreed on the call."""

    def __init__(self, transport: MpiTransport, rank: int, size: int) -> None:
        self._transport, self._rank, self._size = transport, rank, size
        self._nbytes = max(SMALLEST_CHUNK, ROUND_BYTES // size // LINE * LINE)
        self._slabs: list[Array] = []
        self._rows: dict[np.dtype[Any], _ChunkBuffers] = {}

    def reduce(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Reduce-scatter, with all-gather for an all-reduce; sends round i before it combines round i - 1."""
        given, taken, rows = flat(call, x), FlatOutput(call, out, x, self._rank), self._buffers_of(call.work)
        shares, length, transport, own = call.shares(LINE), rows.length, self._transport, self._rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        base = 0 if gathers else shares[own][0]  # in a reduce-scatter `out` has room for the share only
        sent, published = [0], [0]  # the number of messages of each round
        for step in range(rounds + 2 if gathers else rounds + 1):
            if step < rounds:
                sent.append(self._send_shares(given, shares, step, rows))
            if 1 <= step <= rounds:
                transport.finish(sent[step])
                at, end = chunk(shares[own], step - 1, length)
                result = rows.combined[(step - 1) % 2][own][: end - at]
                if at < end:
                    parts = [row[: end - at] for row in rows.incoming[(step - 1) % 2]]
                    parts[own] = given[at:end]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                if gathers:
                    published.append(self._publish(shares, step - 1, rows))
            if gathers and step >= 2:
                transport.finish(published[step - 1])
                for rank in transport.others:
                    at, end = chunk(shares[rank], step - 2, length)
                    np.copyto(taken.items[at:end], rows.combined[step % 2][rank][: end - at], "same_kind")
        taken.finish()

    def gather(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """All-gather or broadcast: the chunks of every source rank go to all, one round after the other."""
        given, taken, rows = flat(call, x), FlatOutput(call, out, x, self._rank), self._buffers_of(call.work)
        transport, length, whole = self._transport, rows.length, (0, call.count)
        sources = range(self._size) if call.what == "all_gather" else (call.root,)
        rounds, counts = -(-call.count // length), list[int]()
        for step in range(rounds + 1):
            if step < rounds:
                at, end = chunk(whole, step, length)
                before, incoming = transport.count, rows.incoming[step % 2]
                for rank in sources:
                    if rank != self._rank:
                        transport.receive(incoming[rank][: end - at], rank)
                if self._rank in sources:
                    np.copyto(incoming[self._rank][: end - at], given[at:end])
                    for rank in transport.others:
                        transport.send(incoming[self._rank][: end - at], rank)
                counts.append(transport.count - before)
            if step:
                transport.finish(counts[step - 1])
                at, end = chunk(whole, step - 1, length)
                for number, rank in enumerate(sources):
                    start = number * call.count + at
                    value = rows.incoming[(step - 1) % 2][rank][: end - at]
                    np.copyto(taken.items[start : start + end - at], value)
        taken.finish()

    def _send_shares(self, given: Array, shares: Shares, step: int, rows: _ChunkBuffers) -> int:
        """Send each rank its chunk of a round and receive the own one from all; return the message count."""
        transport, turn = self._transport, step % 2
        before = transport.count
        at, end = chunk(shares[self._rank], step, rows.length)
        for rank in transport.others if at < end else ():
            transport.receive(rows.incoming[turn][rank][: end - at], rank)
        for rank in transport.others:
            at, end = chunk(shares[rank], step, rows.length)
            if at < end:
                row = rows.outgoing[turn][rank][: end - at]
                np.copyto(row, given[at:end])
                transport.send(row, rank)
        return transport.count - before

    def _publish(self, shares: Shares, step: int, rows: _ChunkBuffers) -> int:
        """Send the own combined chunk to all and receive theirs; return the message count."""
        transport, combined = self._transport, rows.combined[step % 2]
        before = transport.count
        for rank in transport.others:
            at, end = chunk(shares[rank], step, rows.length)
            if at < end:
                transport.receive(combined[rank][: end - at], rank, RESULT)
        at, end = chunk(shares[self._rank], step, rows.length)
        for rank in transport.others if at < end else ():
            transport.send(combined[self._rank][: end - at], rank, RESULT)
        return transport.count - before

    def _buffers_of(self, dtype: np.dtype[Any]) -> _ChunkBuffers:
        rows = self._rows.get(dtype)
        if rows is None:
            self._slabs = self._slabs or [
                self._transport.row(2 * self._size * self._nbytes) for _ in range(3)
            ]
            rows = self._rows[dtype] = _ChunkBuffers(self._slabs, self._size, self._nbytes, dtype)
        return rows


class _ChunkBuffers:
    """The chunk buffers, by round modulo 2 and rank: outgoing, incoming and combined chunks."""

    def __init__(self, slabs: Sequence[Array], size: int, nbytes: int, dtype: np.dtype[Any]) -> None:
        self.length = nbytes // dtype.itemsize

        def cut(slab: Array) -> list[list[Array]]:
            starts = [nbytes * number for number in range(2 * size)]
            rows = [np.ndarray(self.length, dtype, slab.data, start) for start in starts]
            return [rows[:size], rows[size:]]

        self.outgoing, self.incoming, self.combined = map(cut, slabs)


def chunk(share: tuple[int, int], step: int, length: int) -> tuple[int, int]:
    """Return begin and end of the `step`-th chunk of a share; empty after the last.

    >>> [chunk((10, 25), step, 10) for step in range(3)]
    [(10, 20), (20, 25), (25, 25)]
    """
    low, high = share
    return min(high, low + step * length), min(high, low + (step + 1) * length)
