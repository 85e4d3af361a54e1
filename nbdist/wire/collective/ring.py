"""Collectives between hosts: each rank sends to the next one only, over an authenticated socket."""

# Design.
#
# Algorithm. Ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
# workstations", 2009): a reduce-scatter of n - 1 steps, then an all-gather of n - 1 steps. In each step a
# rank sends one chunk to the next rank and receives one from the previous rank, so each rank sends
# 2 (n - 1) / n of the array's bytes, which is the minimum. A large array is cut into rounds, of which
# ROUNDS_IN_FLIGHT run concurrently: one chunk travels while another is combined. Two ranks with one chunk
# send each other all they have, and both combine it: as many bytes, and one way between hosts, not two. A
# broadcast is a pipeline along the ring. schedule.py has the order of all messages, as a pure function of the
# call.
#
# Waiting. `receive` waits for the previous rank only, and `send` only if the queue of the socket
# to the next rank is full. The result of a rank depends on a message from every other rank, so no rank
# returns from a call that another one has not begun. The order of the additions depends on the position in
# the ring; each chunk is combined once and then copied, so all ranks have equal bits. (Two ranks that both
# combine everything do so in one order.)
#
# Agreement. The first message of a call contains the call's text. A rank compares it with its own before it
# forwards anything, so a mismatch is found at the first rank that differs from its predecessor, and no rank
# completes a call on which the ranks do not agree. In a plain broadcast the root would receive nothing; so
# empty messages go once round the ring first (`_agree`).
#
# Rounds. Every message has the group's incarnation (plan), the number of the call (step) and of the message
# in the call (edge). A socket keeps the order, and all ranks follow the same schedule, so the next message is
# always the expected one: a message of another incarnation is dropped, and one with other numbers means that
# the connection was lost and made again in between (UnavailableError). A message of a later call may arrive
# early; it stays in the queue until this rank begins that call.
#
# Failures. A rank that fails sends FAILURE to all other ranks, first on its existing connections. A rank
# that receives it stops waiting and forwards it to its neighbours. A rank that ends without a message is
# detected by both of its neighbours: ZeroMQ reports the lost connection (immediately if the process ended,
# after about 5 s without heartbeats if the host is unreachable), and after GRACE_SECONDS, in which a FAILURE
# or LEFT message that was sent before may still arrive, they break the group.

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.wire.channel.sender import Address, Message, MessageReceiver, MessageSender
from nbdist.wire.collective.base import (
    CHECK_EVERY,
    AbortCheck,
    Collective,
    Endpoint,
    GroupBroken,
    GroupFailure,
    Member,
    check_same_group,
)
from nbdist.wire.collective.call import CollectiveCall, FlatOutput, flat
from nbdist.wire.collective.schedule import BEGIN, RingSchedule, broadcast_route
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import shared_folder


class RingCollective(Collective):
    """A rank of a ring."""

    kind = "ring"
    over_network = True

    def __init__(self, member: Member, neighbours: Neighbours) -> None:
        super().__init__(member.rank, member.labels, member.check)
        neighbours.abort_check = self.abort_check
        self._neighbours = neighbours
        neighbours.doing = lambda: self.doing
        self._timeout = member.timeout

    def _look(self) -> None:
        self._neighbours.check()

    def peek(self) -> str:
        """Return "waits" if the previous rank is in a call that this one has not begun, "left" if one has."""
        return self._neighbours.peek()

    def also_check(self, check: Callable[[], None]) -> None:
        """Call `check` every 0.1 s while no message arrives; an error that it raises ends the wait."""
        self._neighbours.also_check = check

    def _perform(self, call: CollectiveCall, x: Array, out: Array) -> None:
        compared, number = self.compared
        self._neighbours.begin(compared.text, self.sequence, self._timeout, number)
        if self.size == 1:
            np.copyto(out, x, casting="same_kind")  # the first axis of an all-gather has length 1
        elif call.what == "broadcast":
            self._agree()
            self._broadcast(call, x, out)
        else:
            taken = FlatOutput(call, out, x, self.rank)
            _RingRun(self, call, flat(call, x), taken.items).run()
            taken.finish()
        self._neighbours.finish()

    def _agree(self) -> None:
        """Send empty messages once round: every rank compares its call with the previous rank's."""
        nothing, begun = np.empty(0, np.uint8), time.perf_counter()
        self._neighbours.send(0, nothing)
        for step in range(1, self.size):
            self._neighbours.receive(step - 1)
            self.waited += (time.perf_counter() - begun) * (step == 1)
            if step < self.size - 1:
                self._neighbours.send(step, nothing)

    def _broadcast(self, call: CollectiveCall, x: Array, out: Array) -> None:
        """Send the root's chunks along the ring, up to the rank before the root."""
        place, chunks = broadcast_route(call, self.rank)
        value = np.ascontiguousarray(x, call.work) if place == 0 else np.empty(call.shape, call.work)
        row = value.reshape(-1)
        # The numbers continue those of the agreement, so that a lost message of it is detected.
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
    """One reduce-scatter, all-gather or both, executed by their schedule."""

    def __init__(self, group: RingCollective, call: CollectiveCall, given: Array, taken: Array) -> None:
        self._group, self._call, self._given, self._taken = group, call, given, taken
        self._neighbours, self._rank = group._neighbours, group.rank
        self._schedule = RingSchedule.of(call)

    def run(self) -> None:
        messages, begun = self._schedule.messages, time.perf_counter()
        waits = True  # until the first message, the previous rank's part of this call
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
            own = self._given[where]
            # Where both of two ranks combine the same values, NaN and zeros may keep the bits of the first.
            value = call.ufunc(own, value) if self._rank == 0 else call.ufunc(value, own)
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
    """A rank's message receiver, before it connects to the others."""

    def __init__(self, member: Member) -> None:
        if member.keys is None:
            raise InvalidArgumentError("a ring needs the cluster's keys")
        self._member = member
        self._receiver = MessageReceiver(
            member.keys, member.prefix, member.bind, host_identity=member.hosts[member.rank]
        )
        # Messages use the socket only. Without the pipe's file nothing is left if this process is killed.
        if self._receiver.address.bell:
            (shared_folder() / self._receiver.address.bell).unlink()

    @property
    def info(self) -> dict[str, Any]:
        """The address of this rank's receiver."""
        return {"incarnation": self._member.incarnation, "address": self._receiver.address.to_dict()}

    def join(self, infos: Sequence[dict[str, Any]], timeout: float = 30.0) -> Collective:
        """Connect to the previous and the next rank, and wait until all ranks have."""
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
        """Close the receiver."""
        self._receiver.close()


# The ring's transport: messages to the next rank and from the previous one, and the liveness of both.

DATA, FAILURE, LEFT = 1, 2, 3  # kinds of messages
CHECK_SECONDS = CHECK_EVERY  # between two checks of the neighbours' connections
GRACE_SECONDS = 0.5  # after a lost connection, for a FAILURE or LEFT message that was sent before its end


class Neighbours:
    """The connections to the previous and the next rank."""

    def __init__(self, member: Member, receiver: MessageReceiver, addresses: Sequence[Address]) -> None:
        self._member, self._receiver, self._addresses = member, receiver, addresses
        self._before, self._after = (member.rank - 1) % member.size, (member.rank + 1) % member.size
        self._senders: dict[int, MessageSender] = {}
        for rank in (self._after, self._before):
            if rank != member.rank and rank not in self._senders:
                self._senders[rank] = self._open(rank)
        self.abort_check = AbortCheck()
        self.also_check: Callable[[], None] = lambda: None
        """Another check during a wait; an error that it raises ends the wait."""
        self.doing: Callable[[], str] = lambda: "group formation"
        self._sending = threading.Lock()
        self._chunks: deque[Message] = deque()
        self._failure: GroupFailure | None = None  # from another rank, or from another thread of this one
        self._announced = False
        self._left: dict[int, int] = {}  # by rank: how many calls it has finished
        self._lost: dict[int, float] = {}  # by rank: the time at which its connection was found lost
        self._text, self._sequence, self._number, self._finished = "", 0, 0, 0
        self._deadline: float | None = None
        self._first_sent = self._first_received = True

    def begin(self, text: str, sequence: int, timeout: float | None, number: int) -> None:
        """Begin a call that all ranks describe by `text`; its `number` is for error messages."""
        self._text, self._sequence, self._number = text, sequence, number
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._first_sent = self._first_received = True
        self.check()
        for rank in self._left:
            raise GroupBroken(self._has_left(rank))

    def finish(self) -> None:
        """Note that the call is done."""
        self._finished = self._sequence

    def send(self, edge: int, value: Array) -> None:
        """Send a chunk to the next rank; it may be changed once this returns."""
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
        """Return the next chunk from the previous rank, as bytes; raise GroupBroken if it will not arrive.

        It has to have the number `edge`: another number means that the connection was lost in between.
        """
        while not self._chunks:
            if self._failure is not None:
                raise GroupBroken(self._failure)
            self.abort_check()
            message = self._receiver.next(CHECK_SECONDS)
            if message is None:
                self._check_neighbours()
            else:
                self._file(message)
            # The previous rank sends in order: after its LEFT message it sends no more chunks.
            if not self._chunks:
                for rank, finished in self._left.items():
                    if rank == self._before or finished < self._sequence:
                        raise GroupBroken(self._has_left(rank))
        message = self._chunks.popleft()
        # Before the calls are compared: the text is in a call's first message, which may be the lost one.
        if (message.step, message.edge) != (self._sequence, edge):
            raise GroupBroken(self._missing(edge, message))
        if self._first_received:
            self._compare(str(message.meta.get("call")))
            self._first_received = False
        return message.arrays[0]

    def check(self) -> None:
        """Raise GroupBroken if another rank has announced a failure; never waits."""
        while (message := self._receiver.next(0)) is not None:
            self._file(message)
        if self._failure is not None:
            raise GroupBroken(self._failure)

    def peek(self) -> str:
        """Return "waits" if the previous rank is in a call that this one has not begun, "left" if one has."""
        self.check()
        return "waits" if self._chunks else "left" if self._left else ""

    def announce_failure(self, failure: GroupFailure) -> None:
        """Send the failure to all ranks, once; may be called from any thread.

        A failure that another rank announced is forwarded to the connected ranks only.
        """
        if self._announced:
            return
        received = self._failure == failure
        self._failure = self._failure or failure
        self._receiver.wake()
        others = [rank for rank in range(self._member.size) if rank != self._member.rank]
        others.sort(key=lambda rank: rank not in self._senders)  # connected ranks first
        with self._sending:
            for rank in others:
                if rank not in self._senders and received:
                    continue
                with suppress(UnavailableError):
                    self._announce_to(rank, failure)
            self._announced = True  # at the end, so that a call after an interrupt repeats the announcement

    def _announce_to(self, rank: int, failure: GroupFailure) -> None:
        meta = {"kind": failure.kind, "text": failure.text}
        order = (FAILURE, self._member.incarnation, self._sequence, self._member.rank)
        if rank in self._senders:
            with suppress(UnavailableError):
                self._senders[rank].send(*order, meta=meta)
                return
            # The connection was lost, but the rank may live and wait for the messages that were lost with it.
            self._senders[rank].close()
        self._senders[rank] = self._open(rank)
        self._senders[rank].send(*order, meta=meta)

    def leave(self) -> None:
        """Announce to both neighbours that this rank makes no more calls."""
        with self._sending:
            for rank in {self._before, self._after} & self._senders.keys():
                with suppress(UnavailableError):
                    self._senders[rank].send(
                        LEFT, self._member.incarnation, self._finished, self._member.rank
                    )

    def close(self) -> None:
        """Close all connections; messages that were sent before still arrive."""
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
        if text != self._text:
            self.check()  # a failure that a rank announced is the better reason
            GroupBroken.raise_unless_same(calls, self._number, self._member.labels)

    def _check_neighbours(self) -> None:
        """Raise GroupBroken if the connection to a neighbour is lost, or at the deadline."""
        self.also_check()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise GroupBroken.by(
                "DeadlineExceededError",
                f"{self._member.labels[self._before]} sent nothing within the time limit: {self.doing()}",
            )
        for rank in (self._before, self._after):
            if rank in self._left:  # after its last call; before it, `receive` has raised
                continue
            try:
                self._senders[rank].check()
            except UnavailableError as error:
                if now - self._lost.setdefault(rank, now) >= GRACE_SECONDS:
                    raise GroupBroken(self._unreachable(rank, error)) from None

    def _await_reason(self, rank: int) -> None:
        """Wait for the neighbour's reason for a lost connection; raise GroupBroken if there is one."""
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
        self.check()  # a failure that a rank announced is the better reason
        return GroupFailure(
            "UnavailableError",
            f"message {edge} of {self.doing()} is missing, message {message.edge} arrived instead: the "
            f"connection from {self._member.labels[self._before]} was lost in between; form another group",
        )

    def _has_left(self, rank: int) -> GroupFailure:
        what = f"{self._member.labels[rank]} has left the group; {self.doing()} is waiting for it"
        return GroupFailure("UnavailableError", what)

    def _unreachable(self, rank: int, error: UnavailableError) -> GroupFailure:
        return GroupFailure(
            "UnavailableError",
            f"the connection to {self._member.labels[rank]} was lost during {self.doing()}: {error}",
        )
