"""Collectives between hosts: each rank sends to the next one only, over an authenticated socket.

    round   2 (n - 1) messages: n - 1 to combine the n pieces, each on its way round, n - 1 to hand them out

A large array is several rounds, of which a few are under way at once, so that a piece travels while another
is combined (Patarasuk and Yuan 2009). Every rank's result needs messages of all others, and a rank passes
nothing on before its neighbour is known to make the same call: so nobody finishes a call on which not all
agree.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.channel.sender import Address, Message, MessageReceiver, MessageSender
from nbdist.wire.collective.base import (
    LOOK_EVERY,
    AbortCheck,
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    check_same_group,
)
from nbdist.wire.collective.call import CollectiveCall, FlatOutput, compare, flat
from nbdist.wire.collective.schedule import BEGIN, RingSchedule, broadcast_route
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import shared_folder


class Transport(Protocol):
    """How a rank of a ring reaches the next one: `Neighbours`, or a stand-in."""

    doing: Callable[[], str]
    also_check: Callable[[], None]
    abort_check: AbortCheck

    def begin(self, text: str, sequence: int, timeout: float | None) -> None:
        """Begin a call that all ranks describe by `text`."""

    def send(self, edge: int, value: Array) -> None:
        """Send message `edge` of the call to the rank after."""

    def receive(self, edge: int) -> Array:
        """Return message `edge` from the rank before, as bytes; raise GroupBroken if it does not come."""

    def finish(self) -> None:
        """Note that the call is done."""

    def check(self) -> None:
        """Raise GroupBroken if another rank has told of trouble; never wait."""

    def announce_failure(self, failure: GroupFailure) -> None:
        """Tell all ranks, once; from any thread."""

    def leave(self) -> None:
        """Tell the neighbours that this rank makes no more calls."""

    def close(self) -> None:
        """Let go of everything."""


class RingCollective(Collective):
    """A rank of a ring."""

    kind = "ring"
    over_network = True

    def __init__(self, member: Member, neighbours: Transport) -> None:
        super().__init__(member.rank, member.labels, member.check)
        neighbours.abort_check = self.abort_check
        self._neighbours = neighbours
        neighbours.doing = lambda: self.doing
        self._timeout = member.timeout

    def check(self) -> None:
        """Raise the reason if the group is broken, as far as messages have come that say so."""
        super().check()
        try:
            self._neighbours.check()
        except GroupBroken as broken:
            raise broken.failure.error() from None

    def peek(self) -> str:
        """Return whether the rank before "waits" in a call that this one has not begun, or one has "left"."""
        return self._neighbours.peek() if isinstance(self._neighbours, Neighbours) else ""

    def also_check(self, check: Callable[[], None]) -> None:
        """CollectiveCall `check` from time to time while this rank waits; what it raises ends the wait."""
        self._neighbours.also_check = check

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        self._neighbours.begin(call.text, self.sequence, self._timeout)
        if self.size == 1:
            np.copyto(out, x, casting="same_kind")  # an all-gather's first axis is 1 long
        elif call.what == "broadcast":
            self._agree()
            self._pass_on(call, x, out)
        else:
            taken = FlatOutput(call, out, x)
            _RingRun(self, call, flat(call, x), taken.items).run()
            taken.finish()
        self._neighbours.finish()

    def _agree(self) -> None:
        """Go once round: every rank's call is compared with its neighbour's before anyone goes on."""
        nothing, begun = np.empty(0, np.uint8), time.perf_counter()
        self._neighbours.send(0, nothing)
        for step in range(1, self.size):
            self._neighbours.receive(step - 1)
            self.waited += (time.perf_counter() - begun) * (step == 1)
            if step < self.size - 1:
                self._neighbours.send(step, nothing)

    def _pass_on(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Send the root's pieces round, up to the rank before it."""
        place, chunks = broadcast_route(call, self.rank)
        value = np.ascontiguousarray(x, call.work) if place == 0 else np.empty(call.shape, call.work)
        row = value.reshape(-1)
        # Their numbers follow those of the agreement, so that none is taken for one of it that was lost.
        for number, chunk in enumerate(chunks, self.size - 1):
            if place > 0:
                row[chunk] = self._neighbours.receive(number).view(call.work)
            if place < self.size - 1:
                self._neighbours.send(number, row[chunk])
        np.copyto(out, value)

    def _announce_failure(self, failure: GroupFailure) -> None:
        self._neighbours.announce_failure(failure)

    def _leave(self) -> None:
        self._neighbours.leave()

    def _release(self) -> None:
        self._neighbours.close()


class _RingRun:
    """One reduce-scatter, all-gather or both on their way round the ring, as their schedule says."""

    def __init__(self, group: RingCollective, call: CollectiveCall, given: Array, taken: Array) -> None:
        self._group, self._call, self._given, self._taken = group, call, given, taken
        self._neighbours, self._rank = group._neighbours, group.rank
        self._schedule = RingSchedule.of(call)

    def run(self) -> None:
        messages, begun = self._schedule.messages, time.perf_counter()
        waits = True  # for the first message: that the rank before has come
        for number, step in self._schedule.actions():
            if step == BEGIN:
                self._begin(number)
                continue
            raw = self._neighbours.receive(number * messages + step)
            if waits:
                waits, self._group.waited = False, self._group.waited + time.perf_counter() - begun
            self._take(number, step, raw.view(self._call.work))

    def _begin(self, number: int) -> None:
        own = self._schedule.chunk(number, self._schedule.sent(self._rank, 0))
        if not self._schedule.reduces:
            at = self._rank * self._call.count
            own = slice(own.start - at, own.stop - at)
            self._taken[own.start + at : own.stop + at] = self._given[own]
        self._send(number, 0, self._given[own])

    def _take(self, number: int, step: int, value: Array) -> None:
        call, schedule = self._call, self._schedule
        where = schedule.chunk(number, schedule.received(self._rank, step))
        if schedule.reduces and step < schedule.size - 1:
            value = call.ufunc(value, self._given[where])
            if step == schedule.size - 2:
                if call.op == "mean":
                    np.true_divide(value, call.divisor, out=value)
                value = value.astype(call.result, copy=False)
                low = schedule.shares[self._rank][0] if schedule.shift else 0
                self._taken[where.start - low : where.stop - low] = value
                value = value.astype(call.work, copy=False)
        else:
            np.copyto(self._taken[where], value, casting="same_kind")
        if step < schedule.messages - 1:
            self._send(number, step + 1, value)

    def _send(self, number: int, step: int, value: Array) -> None:
        self._neighbours.send(number * self._schedule.messages + step, value)


class RingEndpoint(Endpoint):
    """A rank's inbox, before the others are known."""

    def __init__(self, member: Member) -> None:
        if member.keys is None:
            raise InvalidArgumentError("a ring needs the cluster's keys")
        self._member = member
        self._receiver = MessageReceiver(
            member.keys, member.prefix, member.bind, host_identity=member.hosts[member.rank]
        )
        # Messages come by socket; so nothing is left behind, whatever happens to this process.
        if self._receiver.address.bell:
            (shared_folder() / self._receiver.address.bell).unlink()

    @property
    def info(self) -> dict[str, Any]:
        """Where this rank's inbox is reached."""
        return {"incarnation": self._member.incarnation, "address": self._receiver.address.to_dict()}

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the ranks before and after, and wait until the ring is closed."""
        member = self._member
        try:
            check_same_group(member, infos)
            addresses = [Address.from_dict(info["address"]) for info in infos]
            group = RingCollective(member, Neighbours(member, self._receiver, addresses))
        except BaseException:
            self.close()
            raise
        group._timeout = timeout
        try:
            group.barrier()
        except BaseException:
            group.close()
            raise
        group.sequence, group._timeout = 0, member.timeout
        return group

    def close(self) -> None:
        """Close the inbox."""
        self._receiver.close()


# The ring's transport: messages to the next rank and from the previous one, and the liveness of both.
#
# Data comes from the rank before only, in order. That a rank is in trouble is told to all of them directly,
# and passed on by those who hear it; a rank that has gone is noticed by both of its neighbours.

DATA, FAILURE, LEFT = 1, 2, 3  # kinds of messages
LOOK_SECONDS = LOOK_EVERY  # between two looks at the neighbours' connections
GRACE_SECONDS = 0.5  # in which a neighbour whose connection ended can still be heard to have left in peace


class Neighbours:
    """The ranks before and after this one."""

    def __init__(self, member: Member, receiver: MessageReceiver, addresses: Sequence[Address]) -> None:
        self._member, self._receiver, self._addresses = member, receiver, addresses
        self._before, self._after = (member.rank - 1) % member.size, (member.rank + 1) % member.size
        self._senders: dict[int, MessageSender] = {}
        for rank in (self._after, self._before):
            if rank != member.rank and rank not in self._senders:
                self._senders[rank] = self._open(rank)
        self.abort_check = AbortCheck()
        self.also_check: Callable[[], None] = lambda: None
        """What else is looked at from time to time, and raises if there is no point in waiting."""
        self.doing: Callable[[], str] = lambda: "forming the group"
        self._sending = threading.Lock()
        self._chunks: deque[Message] = deque()
        self._failure: GroupFailure | None = None  # from another rank, or from another thread of this one
        self._announced = False
        self._left: dict[int, int] = {}  # by rank: how many calls it has finished
        self._lost: dict[int, float] = {}  # by rank: since when its connection is gone
        self._text, self._sequence, self._finished = "", 0, 0
        self._deadline: float | None = None
        self._first_sent = self._first_received = True

    def begin(self, text: str, sequence: int, timeout: float | None) -> None:
        """Begin a call."""
        self._text, self._sequence = text, sequence
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._first_sent = self._first_received = True
        self.check()
        for rank in self._left:
            raise GroupBroken(self._has_left(rank))

    def finish(self) -> None:
        """Note that the call is done."""
        self._finished = self._sequence

    def send(self, edge: int, value: Array) -> None:
        """Send a piece to the rank after; it may be changed once this returns."""
        meta = {"call": self._text} if self._first_sent else None
        self._first_sent = False
        try:
            with self._sending:
                self._senders[self._after].send(
                    DATA, self._member.incarnation, self._sequence, edge, [value.view(np.uint8)], meta
                )
        except UnavailableError as error:
            self._await_reason(self._after)
            raise GroupBroken(self._unreachable(self._after, error)) from None

    def receive(self, edge: int) -> Array:
        """Return the next piece from the rank before, as bytes; raise GroupBroken when it will not come.

        It has to be the one of number `edge`: another means that the connection was lost in between.
        """
        while not self._chunks:
            if self._failure is not None:
                raise GroupBroken(self._failure)
            self.abort_check()
            message = self._receiver.next(LOOK_SECONDS)
            if message is None:
                self._check_neighbours()
            else:
                self._file(message)
            # The rank before sends in order: what it has not sent by the time it leaves it never will.
            if not self._chunks:
                for rank, finished in self._left.items():
                    if rank == self._before or finished < self._sequence:
                        raise GroupBroken(self._has_left(rank))
        message = self._chunks.popleft()
        # First, for only a call's first message says what call it is: that one may be what was lost.
        if (message.step, message.edge) != (self._sequence, edge):
            raise GroupBroken(self._missing(edge, message))
        if self._first_received:
            self._compare(str(message.meta.get("call")))
            self._first_received = False
        return message.arrays[0]

    def check(self) -> None:
        """Raise GroupBroken if another rank has told of trouble; never waits."""
        while (message := self._receiver.next(0)) is not None:
            self._file(message)
        if self._failure is not None:
            raise GroupBroken(self._failure)

    def peek(self) -> str:
        """Return "waits" if the rank before has begun a call that this one has not, "left" if a rank has."""
        self.check()
        return "waits" if self._chunks else "left" if self._left else ""

    def announce_failure(self, failure: GroupFailure) -> None:
        """Tell all ranks, once; from any thread."""
        if self._announced:
            return
        passed_on = self._failure == failure
        self._failure = self._failure or failure
        self._receiver.wake()
        others = [rank for rank in range(self._member.size) if rank != self._member.rank]
        others.sort(key=lambda rank: rank not in self._senders)  # first those who are connected
        with self._sending:
            for rank in others:
                if rank not in self._senders and passed_on:
                    continue
                with suppress(UnavailableError):
                    self._announce_to(rank, failure)
            self._announced = True  # now, for an interrupt may have cut off an earlier attempt

    def _announce_to(self, rank: int, failure: GroupFailure) -> None:
        meta = {"kind": failure.kind, "text": failure.text}
        order = (FAILURE, self._member.incarnation, self._sequence, self._member.rank)
        if rank in self._senders:
            with suppress(UnavailableError):
                self._senders[rank].send(*order, meta=meta)
                return
            # The connection was lost, but the rank may live, and wait for what was on its way to it.
            self._senders[rank].close()
        self._senders[rank] = self._open(rank)
        self._senders[rank].send(*order, meta=meta)

    def leave(self) -> None:
        """Tell both neighbours that this rank makes no more calls."""
        with self._sending:
            for rank in {self._before, self._after} & self._senders.keys():
                with suppress(UnavailableError):
                    self._senders[rank].send(
                        LEFT, self._member.incarnation, self._finished, self._member.rank
                    )

    def close(self) -> None:
        """Close all connections; what was sent last still arrives."""
        with self._sending:
            for sender in self._senders.values():
                sender.close()
        self._receiver.close()

    def _open(self, rank: int) -> MessageSender:
        member = self._member
        assert member.keys is not None
        return MessageSender(
            self._addresses[rank],
            member.keys,
            host_identity=member.hosts[member.rank],
            transport="socket",
            prefix=member.prefix,
            name=member.names[rank],
        )

    def _file(self, message: Message) -> None:
        if message.plan != self._member.incarnation:
            return  # of another group
        if message.kind == DATA:
            self._chunks.append(message)
        elif message.kind == FAILURE:
            failure = GroupFailure(str(message.meta.get("kind")), str(message.meta.get("text")))
            self._failure = self._failure or failure
        elif message.kind == LEFT:
            self._left[message.edge] = message.step

    def _compare(self, text: str) -> None:
        calls = {self._before: text, self._member.rank: self._text}
        failure = compare(calls, self._sequence, self._member.labels)
        if failure:
            self.check()  # a rank that broke off is a better reason
            raise GroupBroken(GroupFailure("InvalidArgumentError", failure))

    def _check_neighbours(self) -> None:
        """Raise GroupBroken if a neighbour has gone, or the time is up."""
        self.also_check()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise GroupBroken(
                GroupFailure(
                    "DeadlineExceededError",
                    f"{self._member.labels[self._before]} sent nothing in time: {self.doing()}",
                )
            )
        for rank in (self._before, self._after):
            if rank in self._left:  # in peace, or it would have been raised
                continue
            try:
                self._senders[rank].check()
            except UnavailableError as error:
                if now - self._lost.setdefault(rank, now) >= GRACE_SECONDS:
                    raise GroupBroken(self._unreachable(rank, error)) from None

    def _await_reason(self, rank: int) -> None:
        """Learn why a neighbour takes nothing any more, if it has said so: a reason comes before its end."""
        until = time.monotonic() + GRACE_SECONDS
        while (seconds := until - time.monotonic()) > 0:
            message = self._receiver.next(seconds)
            if message is not None:
                self._file(message)
            if self._failure is not None:
                raise GroupBroken(self._failure)
            if rank in self._left:
                raise GroupBroken(self._has_left(rank))

    def _missing(self, edge: int, message: Message) -> GroupFailure:
        self.check()  # a rank that broke off is a better reason
        return GroupFailure(
            "DataLossError",
            f"piece {edge} of {self.doing()} is missing, piece {message.edge} came instead: the "
            f"connection from {self._member.labels[self._before]} was lost in between; form another group",
        )

    def _has_left(self, rank: int) -> GroupFailure:
        return GroupFailure(
            "UnavailableError", f"{self._member.labels[rank]} has left: {self.doing()} waits for it"
        )

    def _unreachable(self, rank: int, error: UnavailableError) -> GroupFailure:
        return GroupFailure(
            "UnavailableError",
            f"{self._member.labels[rank]} is gone; it was cut off: {self.doing()}: {error}",
        )
