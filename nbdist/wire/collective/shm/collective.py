"""Collectives of ranks on one host, through shared memory.

A call takes one of three protocols, by size and by where its array is:

    eager       small values, and sums of two ranks: each rank publishes its whole value and combines all
    chunked     large values: in chunks that stay in cache; each rank reduces its share, all read it
    symmetric   all-reduce, reduce-scatter and all-gather in place of arrays that are in shared memory
                themselves (`symmetric_buffer`)

The protocols differ in how many waits and copies they take, and stay separate for that reason. All use the
same sequence counters (sync.py) over the same segments (segment.py, with the memory ordering).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import NbdistError, ResourceExhaustedError, UnavailableError
from nbdist.wire.collective.base import (
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    check_same_group,
)
from nbdist.wire.collective.call import REDUCING, CollectiveCall, FlatOutput, combine, complete, flat
from nbdist.wire.collective.shm.segment import (
    EAGER_BYTES,
    FAILED,
    LEFT,
    LINE,
    RankSegment,
    chunk_bytes,
    eager_bytes,
)
from nbdist.wire.collective.shm.sync import ProcessMonitor, SequenceCounters, Synchronizer
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import Doorbell, Segment, open_bell, shared_folder


class ShmCollective(Collective):
    """One rank of a group on one host."""

    kind = "shm"

    def __init__(self, member: Member, segments: Sequence[RankSegment], synchronizer: Synchronizer) -> None:
        super().__init__(member.rank, member.labels, member.check)
        self._segments, self._synchronizer = segments, synchronizer
        synchronizer.abort_check = self.abort_check
        self._timeout, self._prefix = member.timeout, member.prefix
        self._others = [segments[rank].words for rank in range(self.size) if rank != self.rank]
        self._eager = eager_bytes(self.size)
        self._counters = SequenceCounters(self.rank, segments, synchronizer, self.labels)
        self._counters.instead = lambda: None if self.phase_of is None else self.compared[0]
        self._counters.sequence = lambda: self.compared[1]
        self._eager_calls, self._chunked_calls = (
            EagerProtocol(self._counters),
            ChunkedProtocol(self._counters),
        )
        self._buffers = SymmetricBuffers(self._counters)

    def connect(self, timeout: float) -> None:
        """Wait until all ranks have joined, then remove the files' names: nothing is left when they end."""
        self._synchronizer.deadline = time.monotonic() + timeout
        try:
            self._counters.begin(self._current)
        except GroupBroken as broken:
            raise broken.failure.error() from None
        except BaseException as error:
            self._failed(error)
            raise
        self._synchronizer.doing = lambda: self.doing
        for segment in self._segments:
            segment.remove_name()
        self._synchronizer.remove_name()

    def symmetric_buffer(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return zeros in shared memory; an ordinary array, with a note, if a rank has no room."""
        buffer = SymmetricBuffer(self._prefix, tuple(shape), np.dtype(dtype).newbyteorder("="))
        try:
            texts = [info.tobytes().rstrip(b"\0").decode() for info in self.all_gather(buffer.info)]
            infos = [(name, asked) for name, _, asked in (text.partition(" ") for text in texts)]
            calls = {rank: asked for rank, (_, asked) in enumerate(infos)}
            try:
                GroupBroken.raise_unless_same(calls, self.sequence, self.labels)
            except GroupBroken as broken:
                self.break_with(broken.failure)
                raise broken.failure.error() from None
            opened = buffer.open([name for name, _ in infos], self.rank)
            self.barrier()
        finally:
            buffer.remove_name()
        if not opened:
            self.notes.append(
                "symmetric buffers are ordinary arrays: "
                f"{buffer.failure or 'another rank has no room for shared memory'}"
            )
            return super().symmetric_buffer(shape, dtype)
        self._buffers.add(buffer)
        return buffer.rows[self.rank].reshape(tuple(shape))

    def _look(self) -> None:
        self._synchronizer.check()

    def peek(self) -> str:
        """Return whether another rank "waits" in a call that this one has not begun, or has "left"."""
        if self._counters.waits_elsewhere():
            return "waits"
        return "left" if any(words[LEFT] for words in self._others) else ""

    def also_check(self, check: Callable[[], None]) -> None:
        """Call `check` every 0.2 s while this rank sleeps; an error that it raises ends the wait."""
        self._synchronizer.also_check = check

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        self._synchronizer.deadline = None if self._timeout is None else time.monotonic() + self._timeout
        for words in self._others:
            if words[FAILED]:
                self._synchronizer.check()
        if call.nbytes <= EAGER_BYTES:
            self._eager_calls.do(call, x, out)
        elif (buffer := self._buffers.find(call, x, out)) is not None:
            self._buffers.do(call, *buffer)
        elif call.nbytes <= self._eager:
            self._eager_calls.do(call, x, out)
        elif call.what == "all_reduce" and self.size == 2:
            self._eager_calls.reduce_pair(call, x, out)
        elif call.what in REDUCING:
            self._chunked_calls.reduce(call, x, out)
        else:
            self._chunked_calls.gather(call, x, out)
        self.waited = self._counters.waited

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._synchronizer.announce_failure(failure)

    def _leave(self) -> None:
        self._synchronizer.leave()

    def _release(self) -> None:
        self._synchronizer.close()


class ShmEndpoint(Endpoint):
    """A rank's segment and doorbell, before it connects to the others."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._segment = RankSegment.create(member.prefix, member.size)
        try:
            self._bell = Doorbell.create(member.prefix)
        except BaseException:
            self._segment.close()
            raise

    @property
    def info(self) -> dict[str, Any]:
        """The names of the segment and the doorbell, and the process id."""
        return {
            "incarnation": self._member.incarnation,
            "segment": self._segment.name,
            "bell": self._bell.name,
            "pid": os.getpid(),
        }

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Open the segments and doorbells of all ranks, and wait until all have joined."""
        member = self._member
        ringers: dict[int, int] = {}
        try:
            check_same_group(member, infos)
            segments = [
                self._segment if rank == member.rank else RankSegment.open(info["segment"], member.size)
                for rank, info in enumerate(infos)
            ]
            for rank, info in enumerate(infos):
                if rank != member.rank:
                    ringers[rank] = open_bell(info["bell"])
        except BaseException as error:
            for descriptor in ringers.values():
                os.close(descriptor)
            self.close()
            if isinstance(error, (NbdistError, OSError)):
                raise UnavailableError(f"the group cannot be formed: {error}") from error
            raise
        monitor = ProcessMonitor({rank: info["pid"] for rank, info in enumerate(infos)})
        synchronizer = Synchronizer(member.rank, segments, member.labels, self._bell, ringers, monitor)
        group = ShmCollective(member, segments, synchronizer)
        group.notes += [
            f"the end of {member.labels[rank]} cannot be detected: its process is not visible here"
            for rank in monitor.unseen()
        ]
        try:
            group.connect(timeout)
        except BaseException:
            group.close()
            self.close()
            raise
        return group

    def close(self) -> None:
        """Remove the segment and the doorbell."""
        self._segment.close()
        self._bell.close()


KNOWN_VIEWS = 256
L1_BYTES = 1 << 14  # a value of this size stays in the first-level cache
PAIR_CHUNK_BYTES = 1 << 19  # the chunks of both ranks stay in cache


class EagerProtocol:
    """Each rank publishes its whole value, at once or in chunks, and combines all: one wait for each chunk.

    For small values, because the wait is most of their cost. For all-reduces of two ranks of any size,
    because combining the whole value costs less than exchanging the two halves, and each value is written
    once and read once.
    """

    def __init__(self, counters: SequenceCounters) -> None:
        self._counters, self._rank = counters, counters.rank
        self._views: dict[CollectiveCall, list[list[Array]]] = {}
        self._pairs: dict[np.dtype[Any], list[list[Array]]] = {}

    def do(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Execute a call with values that fit in the eager slots."""
        views = self._views.get(call)
        if views is None:
            if len(self._views) >= KNOWN_VIEWS:
                self._views.clear()
            views = self._views[call] = _views(self._counters.segments, call.work, call.shape)
        values = views[self._counters.sent % 2]
        if call.what != "broadcast" or call.root == self._rank:
            np.copyto(values[self._rank], x)
        self._counters.begin(call)
        if call.what == "all_reduce" and call.work == call.result:
            if call.nbytes > L1_BYTES and self._rank < 2 and x.dtype == call.work:
                # Reading the own value from x saves a read of the slot. Not from the third rank on: if x is
                # `out`, `combine` has overwritten x by then.
                values = [*values[: self._rank], x, *values[self._rank + 1 :]]
            combine(call, values, out)
        else:
            complete(call, values, out, self._rank)

    def reduce_pair(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """All-reduce of large values between two ranks: each combines all items, chunk by chunk."""
        given, taken = flat(call, x), FlatOutput(call, out, x, self._rank)
        length = PAIR_CHUNK_BYTES // call.work.itemsize
        slots = self._pairs.get(call.work)
        if slots is None:
            slots = self._pairs[call.work] = _views(self._counters.segments, call.work, (length,))
        direct = taken.items.dtype == call.work
        for at in range(0, call.count, length):
            end = min(call.count, at + length)
            chunks = [slot[: end - at] for slot in slots[self._counters.sent % 2]]
            np.copyto(chunks[self._rank], given[at:end])
            if at == 0:
                self._counters.begin(call)
            else:
                self._counters.put()
                self._counters.await_put()
            chunks[self._rank] = given[at:end]  # saves a read of the slot
            result = taken.items[at:end] if direct else np.empty(end - at, call.work)
            combine(call, chunks, result)
            if not direct:
                np.copyto(taken.items[at:end], result, "same_kind")
        taken.finish()


def _views(
    segments: Sequence[RankSegment], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> list[list[Array]]:
    return [[segment.eager(slot, dtype, shape) for segment in segments] for slot in (0, 1)]


class ChunkSlots:
    """Views of the slots of all ranks, for one dtype."""

    def __init__(self, segments: Sequence[RankSegment], dtype: np.dtype[Any]) -> None:
        self.chunks = [segment.chunks(dtype) for segment in segments]
        """By rank, slot and share."""
        self.reduced = [segment.reduced(dtype) for segment in segments]
        """By rank and slot."""
        self.length = segments[0].chunk_bytes // dtype.itemsize


class ChunkedProtocol:
    """Large values pass through two slots in chunks: one slot is written while the other is read.

    In a reduction each rank combines its share of the items and publishes the result.
    """

    def __init__(self, counters: SequenceCounters) -> None:
        self._counters, self._rank = counters, counters.rank
        self._slots: dict[np.dtype[Any], ChunkSlots] = {}

    def slots(self, dtype: np.dtype[Any]) -> ChunkSlots:
        """Return the slots of all ranks for items of a dtype."""
        slots = self._slots.get(dtype)
        if slots is None:
            slots = self._slots[dtype] = ChunkSlots(self._counters.segments, dtype)
        return slots

    def reduce(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Reduce-scatter, and all-gather for an all-reduce.

        A pipeline: step i reads the reduced chunks i - 2, reduces chunk i - 1 and publishes chunk i.
        """
        given, taken = flat(call, x), FlatOutput(call, out, x, self._rank)
        counters, slots = self._counters, self.slots(call.work)
        shares, length, own = call.shares(LINE), slots.length, self._rank
        rounds = -(-max(high - low for low, high in shares) // length)
        gathers = call.what == "all_reduce"
        low, high = shares[own]
        base = low if not gathers else 0  # in a reduce-scatter `out` has room for the share only
        reduced = counters.reduced
        for step in range(rounds + 2 if gathers else rounds + 1):
            if gathers and step >= 2:
                counters.await_reduced(reduced + step - 1)
                slot = (reduced + step - 2) % 2
                for rank, (at, end) in _cut(shares, step - 2, length):
                    if rank != own:
                        np.copyto(taken.items[at:end], slots.reduced[rank][slot][: end - at], "same_kind")
            if 1 <= step <= rounds:
                if step > 1:
                    counters.await_put()
                at, end = low + (step - 1) * length, min(high, low + step * length)
                if at < end:
                    parts = [chunks[(counters.sent - 1) % 2][own][: end - at] for chunks in slots.chunks]
                    parts[own] = given[at:end]
                    result = slots.reduced[own][counters.reduced % 2][: end - at]
                    combine(call, parts, result)
                    np.copyto(taken.items[at - base : end - base], result, "same_kind")
                counters.put_reduced()
            if step < rounds:
                views = slots.chunks[own][counters.sent % 2]
                for rank, (at, end) in _cut(shares, step, length):
                    if rank != own:
                        np.copyto(views[rank][: end - at], given[at:end])
                if step == 0:
                    counters.begin(call)
                else:
                    counters.put()
        taken.finish()

    def gather(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """All-gather or broadcast: each chunk fills all rows of one slot."""
        given, taken = flat(call, x), FlatOutput(call, out, x, self._rank)
        counters, slots = self._counters, self.slots(call.work)
        everyone = range(call.size) if call.what == "all_gather" else (call.root,)
        for at in range(0, call.count, slots.length):
            end = min(call.count, at + slots.length)
            if self._rank in everyone:
                np.copyto(slots.chunks[self._rank][counters.sent % 2][0][: end - at], given[at:end])
            if at == 0:
                counters.begin(call)
            else:
                counters.put()
                counters.await_put()
            for number, rank in enumerate(everyone):
                start = number * call.count + at
                value = slots.chunks[rank][(counters.sent - 1) % 2][0][: end - at]
                np.copyto(taken.items[start : start + end - at], value)
        taken.finish()


def _cut(shares: list[tuple[int, int]], step: int, length: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the ranks with a `step`-th chunk in their share, and its begin and end."""
    return [
        (rank, (low + step * length, min(high, low + (step + 1) * length)))
        for rank, (low, high) in enumerate(shares)
        if low + step * length < high
    ]


INFO_BYTES = 512
NO_ROOM = "-"


class SymmetricBuffer:
    """One array in shared memory, and the corresponding arrays of the other ranks."""

    def __init__(self, prefix: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._count, self._dtype = shape, prod(shape), dtype
        self._segment: Segment | None = None
        self.failure = ""
        try:
            self._segment = Segment.create(prefix, self._count * dtype.itemsize)
        except ResourceExhaustedError as error:
            self.failure = str(error)
        self.rows: list[Array] = []
        """All ranks' arrays, as one row each."""

    @property
    def info(self) -> Array:
        """The name of the segment, and shape and dtype, as bytes."""
        name = self._segment.name if self._segment is not None else NO_ROOM
        raw = f"{name} symmetric_buffer({self._shape}, {self._dtype})".encode()[:INFO_BYTES]
        return np.frombuffer(raw.ljust(INFO_BYTES, b"\0"), np.uint8)

    def open(self, names: Sequence[str], rank: int) -> bool:
        """Open the others' arrays; return False if a rank has no room for its own."""
        if self._segment is None or NO_ROOM in names:
            return False
        segments = [self._segment if one == rank else Segment.open(name) for one, name in enumerate(names)]
        self.rows = [segment.array(self._dtype, self._count, 0) for segment in segments]
        return True

    def remove_name(self) -> None:
        """Remove the file's name, so that the memory is freed when all processes have ended."""
        if self._segment is not None:
            (shared_folder() / self._segment.name).unlink(missing_ok=True)


class SymmetricBuffers:
    """The symmetric buffers of one rank, and calls in place of them.

    In a reduction each rank reads its share from all ranks and reduces it in place; in an all-reduce and in
    an all-gather it copies each other share from the rank that has it: half as many copies as the chunked
    protocol, and in a reduce-scatter none.
    """

    def __init__(self, counters: SequenceCounters) -> None:
        self._counters, self._rank = counters, counters.rank
        self._buffers: dict[int, tuple[int, SymmetricBuffer]] = {}  # by the address of the own array
        self._calls: dict[tuple[CollectiveCall, int], CollectiveCall] = {}

    def add(self, buffer: SymmetricBuffer) -> None:
        """Add a buffer that all ranks have opened."""
        self._buffers[_begin(buffer.rows[self._rank])] = (len(self._buffers), buffer)

    def find(self, call: CollectiveCall, x: Array, out: Array) -> tuple[int, SymmetricBuffer] | None:
        """Return the number and the buffer of a call in place, or None.

        The whole buffer is the input of a reduction and the output of an all-gather; a rank's rows of it are
        the output of a reduce-scatter, and the input of an all-gather.
        """
        if not self._buffers or x.size == 0 or call.what == "broadcast":
            return None
        whole, part = (out, x) if call.what == "all_gather" else (x, out)
        found = self._buffers.get(_begin(whole))
        if found is None or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return None
        first = 0 if call.what == "all_reduce" else call.shares(LINE)[self._rank][0] * x.itemsize
        if _begin(part) != _begin(whole) + first:
            return None
        row = found[1].rows[self._rank]
        return found if row.dtype == x.dtype == out.dtype and row.size == whole.size else None

    def do(self, call: CollectiveCall, number: int, buffer: SymmetricBuffer) -> None:
        """Reduce the own share in place, copy the others' shares, or both."""
        in_place = self._calls.get((call, number))
        if in_place is None:
            in_place = self._calls[call, number] = replace(call, buffer=number)
        counters, rank = self._counters, self._rank
        shares, own, rows = call.shares(LINE), buffer.rows[rank], buffer.rows
        counters.begin(in_place)
        if call.what != "all_gather":
            self._reduce(call, own, rows, *shares[rank])
        if call.what == "all_reduce":
            counters.put_reduced()
            counters.await_reduced(counters.reduced)
        if call.what != "reduce_scatter":
            for other, (low, high) in enumerate(shares):
                if other != rank:
                    np.copyto(own[low:high], rows[other][low:high])
        counters.put()  # the caller may change its array only after all ranks have read it
        counters.await_put()

    def _reduce(self, call: CollectiveCall, own: Array, rows: Sequence[Array], low: int, high: int) -> None:
        """Combine a share of all ranks, in chunks that stay in cache."""
        length = chunk_bytes(call.size) // call.work.itemsize
        scratch = np.empty(min(length, high - low), call.work)
        for at in range(low, high, length):
            end = min(high, at + length)
            # From the third rank on, `combine` reads the own part only after it has written the result.
            result = own[at:end] if self._rank < 2 else scratch[: end - at]
            combine(call, [row[at:end] for row in rows], result)
            if self._rank >= 2:
                np.copyto(own[at:end], result)


def _begin(x: Array) -> int:
    return int(x.__array_interface__["data"][0])
