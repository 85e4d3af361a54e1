"""One rank's messages to all other ranks of an MPI communicator, and from them.

    lanes.receive(row, rank, DATA); lanes.send(row, rank, DATA)
    lanes.finish()                       # until all are through, or raises why they never will be

Nothing here blocks in MPI: requests are tested, and between tests this rank looks whether the group is
broken, a rank has left, died or is frozen, or the time is up. MPI cannot take back a message that is half
through, so it may touch a row long after the call that sent it was broken off: rows are memory of the
group's own, never the caller's, and what is unfinished is kept until it is done.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.wire.collective.base import AbortCheck, GroupBroken, GroupFailure, Member
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Array, Frame
from nbdist.wire.rpc.server import Listener

SPINS = 200  # tests, of a microsecond or less
LOOKS = 4  # for notices, at the beginning of a call, for each rank: MPI takes in few messages at a time
YIELDS = 32  # between two looks around
SPIN_SECONDS = 500e-6  # then it naps: a core may be what the others wait for
LONGEST_SLEEP = 1e-3  # MPI has nothing to sleep on; this costs some hundredths of a core
CHECK_SECONDS = 0.02  # between two looks at the others' processes
DIAGNOSE_SECONDS = 1.5  # for the word on who is gone, when MPI has failed
FROZEN_EVERY = 10  # of those looks
DATA, BACK, CONTROL = 0, 1, 2  # kinds of messages; each has a tag
TAGS = 3
LEAST_TAGS = 32768  # that every MPI has
# All that MPI, or another rank, is not through with; it may write there, so that nothing of it may be freed.
_open_transports: list[MpiTransport] = []
_freeing = threading.Lock()


class MpiTransport:
    """The messages of one group; `places` are its ranks in a communicator, which other groups share."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        member: Member,
        places: Sequence[int],
        monitor: ProcessMonitor,
        remote: RemoteLiveness,
    ) -> None:
        with _freeing:
            _open_transports.append(self)
        self._closed = False
        self._memory: list[Array] = []
        self._mpi, self._comm, self._places, self._labels = mpi, comm, list(places), member.labels
        self.others = [other for other in range(len(places)) if other != member.rank]
        self._monitor, self.remote, self.abort_check = monitor, remote, AbortCheck()
        tags = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) or LEAST_TAGS - 1
        self._tag = member.incarnation % (tags // TAGS) * TAGS  # so that groups do not meet
        self.control = ControlMessages(mpi, comm, member, places, self._tag + CONTROL, self.row(ROOM))
        self._spins = SPINS if len(places) <= (os.cpu_count() or 1) else 1
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._requests: list[Any] = []  # requests; whose message each is, and whether it comes
        self._peers: list[int] = []
        self._incoming: list[bool] = []
        self._requested = 0  # an interrupt may come between a request and the note of it
        self.sequence = 0
        """How many calls this rank has begun."""
        self._deadline: float | None = None
        self._next_look = 0.0
        self.doing: Callable[[], str] = lambda: "forming the group"

    def row(self, nbytes: int) -> Array:
        """Return memory that messages are sent from or received into; it lives as long as MPI may use it."""
        memory = np.empty(nbytes, np.uint8)
        self._memory.append(memory)
        return memory

    def begin(self, sequence: int, timeout: float | None) -> None:
        """Begin a call; raise GroupBroken if the group is broken already."""
        now = time.monotonic()
        self.sequence = sequence
        self._deadline = None if timeout is None else now + timeout
        self.check_control()
        if now > self._next_look:
            self._next_look = now + LONGEST_SLEEP
            for _ in range(LOOKS * len(self._places)):
                self.check_control()

    def receive(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Have the next message from a rank put into a row, which is as long or longer."""
        self._requested += 1
        request = self._comm.Irecv([row, self._mpi.BYTE], self._places[rank], self._tag + kind)
        self._requests.append(request)
        self._peers.append(rank)
        self._incoming.append(True)

    def send(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Send a row to a rank; the row may be changed once `finish` has returned."""
        self._requested += 1
        request = self._comm.Isend([row, self._mpi.BYTE], self._places[rank], self._tag + kind)
        self._requests.append(request)
        self._peers.append(rank)
        self._incoming.append(False)

    @property
    def count(self) -> int:
        """How many messages are under way."""
        return len(self._requests)

    def finish(self, first: int | None = None) -> None:
        """Wait until all messages are through, or the first so many; may raise GroupBroken."""
        requests = self._requests[:first]
        try:
            for _ in range(self._spins):
                if self._testall(requests):
                    break
            else:
                self._wait(requests)
        except self._mpi.Exception as error:
            raise self._diagnose(error) from None
        del self._requests[:first], self._peers[:first], self._incoming[:first]
        self._requested -= len(requests)

    def check_control(self) -> None:
        """Take in the notices that have come; raise GroupBroken if the group is broken. Never waits."""
        if not self._closed:
            self.control.receive_pending()
        if self.control.failure is not None:
            raise GroupBroken(self.control.failure)

    def check_alive(self) -> None:
        """Raise GroupBroken if a rank that has not left has died. Never waits."""
        for rank in self._monitor.dead():
            if rank not in self.control.left:
                raise GroupBroken(GroupFailure("TaskDiedError", f"{self._labels[rank]} has died"))

    def close(self) -> None:
        """Let go of everything, at once or as soon as MPI and the other ranks are through with it."""
        if self._closed:
            return
        self._closed = True
        self.control.leave(self.sequence)
        self.remote.close()
        for request, comes in zip(self._requests, self._incoming):
            if comes and request:
                request.Cancel()
        free_closed()

    def free_if_done(self) -> bool:
        """Free what is left of closed lanes, if nobody needs it any more; whether it is done."""
        if not self._closed:
            return False
        self.control.receive_pending()
        unfinished = [request for request in self._requests if request and not request.Test()]
        lost = self._requested - len(self._requests)
        gone = self.control.left.keys() | set(self._monitor.dead())
        if unfinished or lost or not self.control.are_sent() or not gone.issuperset(self.others):
            return False
        self.control.close()
        self._monitor.close()
        return True

    def _wait(self, requests: list[Any]) -> None:
        begun = time.monotonic()
        check, looks = begun + CHECK_SECONDS, 0
        while True:
            for _ in range(YIELDS):
                if self._testall(requests):
                    return
                os.sched_yield()
                if time.monotonic() - begun > SPIN_SECONDS:
                    break
            self._check_left(requests)
            now = time.monotonic()
            if now >= check:
                check, looks = now + CHECK_SECONDS, looks + 1
                self._check_peers(requests, looks % FROZEN_EVERY == 0)
            self.check(requests)
            if now - begun > SPIN_SECONDS:
                time.sleep(min(LONGEST_SLEEP, (now - begun) / 20))

    def _diagnose(self, error: Exception) -> GroupBroken:
        """Return why MPI failed: it notices a rank that is gone before anyone says which."""
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.check_control()
            except GroupBroken as broken:
                return broken
            except self._mpi.Exception:  # the same again
                pass
            remote = self.remote.lost_rank()
            gone = [*self._monitor.dead(), *([remote] if remote is not None else [])]
            for rank in gone:
                if rank not in self.control.left:
                    what = f"{self._labels[rank]} has died; it was cut off: {self.doing()}"
                    return GroupBroken(GroupFailure("TaskDiedError", what))
            time.sleep(LONGEST_SLEEP)
        return GroupBroken(GroupFailure("UnavailableError", f"MPI failed in {self.doing()}: {error}"))

    def check(self, requests: list[Any] | None = None) -> None:
        """Raise what the outside check raises, or GroupBroken if the group is broken or the time is up."""
        self.check_control()
        self.abort_check()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for rank in self.others if requests is None else self._waiting(requests):
                what = f"{self._labels[rank]} did not come in time: {self.doing()}"
                raise GroupBroken(GroupFailure("DeadlineExceededError", what))

    def _waiting(self, requests: list[Any]) -> list[int]:
        """Return the ranks whose messages are not through."""
        self._mpi.Request.Testsome(requests)
        return [rank for request, rank in zip(requests, self._peers) if request]

    def _check_left(self, requests: list[Any]) -> None:
        self.check_control()
        left = self.control.left
        if any(finished < self.sequence for finished in left.values()):
            for rank in self._waiting(requests):
                if left.get(rank, self.sequence) < self.sequence:
                    what = f"{self._labels[rank]} has left: {self.doing()} waits for it"
                    raise GroupBroken(GroupFailure("UnavailableError", what))

    def _check_peers(self, requests: list[Any], also_frozen: bool) -> None:
        dead = self._monitor.dead()
        # Looked at after that: a message may have come just before its rank died.
        for rank in self._waiting(requests) if dead else ():
            if rank in dead:
                self.check_control()  # why it died, perhaps
                what = f"{self._labels[rank]} has died; it was cut off: {self.doing()}"
                raise GroupBroken(GroupFailure("TaskDiedError", what))
        remote = self.remote.lost_rank()
        if remote is not None and remote not in self.control.left and remote in self._waiting(requests):
            self.check_control()
            what = f"{self._labels[remote]} is gone; it was cut off: {self.doing()}"
            raise GroupBroken(GroupFailure("UnavailableError", what))
        for rank in self._monitor.frozen() if also_frozen else ():
            what = f"{self._labels[rank]} is frozen; it was cut off: {self.doing()}"
            raise GroupBroken(GroupFailure("UnavailableError", what))


def free_closed() -> None:
    """Free what closed groups have left, where MPI and the other ranks are through with it by now."""
    with _freeing:
        _open_transports[:] = [transport for transport in _open_transports if not transport.free_if_done()]


def open_count() -> int:
    """Return how many groups are open, or closed and not yet freed."""
    return len(_open_transports)


def stop_receiving() -> None:
    """Have MPI wait for nothing more, before it is finalized."""
    free_closed()
    for transport in _open_transports:
        transport.control.close()


# Control messages of an MPI group: a rank announces a failure, or that it leaves.
#
#     notices.tell(GroupFailure("AbortedError", "rank 1 aborted: ..."))
#     notices.take(); notices.trouble; notices.left
#
# Any thread may use them, while another one is in a call. One receive is always open for the next notice,
# from whichever rank.

ROOM = 2048  # bytes of the longest
HEAD = 24  # three words: incarnation, kind, number
FAILURE, LEFT = 1, 2  # kinds
TRIES = 32  # tests whether a notice is on its way before nobody waits for that


class ControlMessages:
    """One rank's notices to all others of a communicator, and theirs.

    `places` are the ranks there; `row` has ROOM bytes, and is kept as long as this is open.
    """

    def __init__(
        self, mpi: Any, comm: Any, member: Member, places: Sequence[int], tag: int, row: Array
    ) -> None:
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self._places, self._incarnation = list(places), member.incarnation
        self._others = [place for rank, place in enumerate(places) if rank != member.rank]
        self.failure: GroupFailure | None = None
        """Why the group is broken, as far as this rank has heard."""
        self.left: dict[int, int] = {}
        """By rank that has left: how many calls it has finished."""
        self._announced = self._announced_leave = False
        self._sent: list[tuple[list[Any], Array]] = []
        self._receiving = threading.Lock()
        self._status = mpi.Status()
        self._row = row
        self._next = self._receive()

    def receive_pending(self) -> None:
        """Take in what has come; never waits, and leaves it to another thread that does so already."""
        if self._receiving.acquire(blocking=False):
            try:
                while self._next.Test(self._status):
                    self._note(self._places.index(self._status.Get_source()))
                    self._next = self._receive()
            finally:
                self._receiving.release()

    def announce_failure(self, failure: GroupFailure) -> None:
        """Tell all ranks that the group is broken, if they do not know."""
        self.failure = self.failure or failure
        if not self._announced:
            self._send(FAILURE, 0, self.failure.pack(ROOM - HEAD))
            self._announced = True  # now, for an interrupt may have cut off an earlier attempt

    def leave(self, finished: int) -> None:
        """Tell all ranks that this one makes no more calls; `finished` are those that it has made."""
        if not self._announced_leave:
            self._send(LEFT, finished, b"")
            self._announced_leave = True

    def are_sent(self) -> bool:
        """Return whether MPI is through with all that this rank has told."""
        return all(not request or request.Test() for requests, _ in self._sent for request in requests)

    def close(self) -> None:
        """Receive no more."""
        self._next.Cancel()
        self._next.Wait()

    def _receive(self) -> Any:
        return self._comm.Irecv([self._row, self._mpi.BYTE], self._mpi.ANY_SOURCE, self._tag)

    def _note(self, rank: int) -> None:
        incarnation, kind, number = (int(word) for word in self._row[:HEAD].view(np.int64))
        if incarnation != self._incarnation:
            return  # of another group
        if kind == LEFT:
            self.left[rank] = number
        elif self.failure is None:
            length = self._status.Get_count(self._mpi.BYTE)
            self.failure = GroupFailure.unpack(self._row[HEAD:length].tobytes())
            self._announced = True  # by the rank that told this one

    def _send(self, kind: int, number: int, text: bytes) -> None:
        words = np.array([self._incarnation, kind, number], np.int64)
        row = np.frombuffer(words.tobytes() + text, np.uint8)
        requests: list[Any] = []
        self._sent.append((requests, row))  # first, so that the row stays, whatever comes between
        for place in self._others:
            with suppress(self._mpi.Exception):  # it is gone
                requests.append(self._comm.Isend([row, self._mpi.BYTE], place, self._tag))
        for _ in range(TRIES):
            if self._mpi.Request.Testall(requests):
                break
            os.sched_yield()


# Liveness of remote ranks: each rank keeps a connection to the next one.
#
#     far = RemoteLiveness(member)                       # far.address goes to the others
#     far.meet(addresses, check)
#     far.lost_rank()                              # the next rank's number, once it is not reached any more
#
# MPI itself says nothing of a rank that has died. The ranks of its host see that its process is gone; where
# the rank before it is on another host, that one loses this connection. Either tells all.

GREETING = "mpi.here"
GRACE_SECONDS = 0.5  # in which a rank whose connection ended can still be heard to have left in peace
WAIT_SECONDS = 0.05


class RemoteLiveness:
    """One rank's connection to the next, and from the one before, where those are on other hosts."""

    def __init__(self, member: Member) -> None:
        hosts, rank = member.hosts, member.rank
        self._member, self._next = member, (rank + 1) % member.size
        self._peer: Peer | None = None
        self._lost_at: float | None = None
        self._listener: Listener | None = None
        if member.keys is not None and hosts[rank - 1] != hosts[rank]:
            self._listener = Listener(member.keys, member.bind)

    @property
    def address(self) -> str:
        """Where the rank before reaches this one; "" if it does not have to."""
        return self._listener.address if self._listener is not None else ""

    def connect(self, addresses: Sequence[str], check: Callable[[], None]) -> None:
        """Connect to the next rank and be reached by the one before; `check` may raise to end that."""
        member, address = self._member, addresses[self._next]
        if member.keys is not None and address and member.size > 1:
            self._peer = Peer(address, member.keys, name=member.labels[self._next])
            self._peer.send(GREETING, {"incarnation": member.incarnation})
        while self._listener is not None:
            check()
            if self._listener.poll(WAIT_SECONDS):
                received = self._listener.receive()
                if received is not None and self._is_greeting(received[1]):
                    break

    def lost_rank(self) -> int | None:
        """Return the next rank if it has not been reached for a while, else None; never waits."""
        if self._peer is None:
            return None
        try:
            self._peer.check()
        except UnavailableError:
            now = time.monotonic()
            self._lost_at = self._lost_at or now
            return self._next if now - self._lost_at >= GRACE_SECONDS else None
        self._lost_at = None
        return None

    def close(self) -> None:
        """Close both connections; safe to repeat."""
        if self._peer is not None:
            self._peer.close()
        if self._listener is not None:
            self._listener.close()

    def _is_greeting(self, frame: Frame) -> bool:
        return frame.kind == GREETING and frame.meta.get("incarnation") == self._member.incarnation
