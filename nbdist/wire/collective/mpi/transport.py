"""Messages between one rank and all other ranks of an MPI communicator.

    transport.receive(row, rank, DATA); transport.send(row, rank, DATA)
    transport.finish()                   # waits for all requests, or raises why they cannot complete

Nothing here blocks in MPI: requests are tested, and between tests this rank checks whether the group is
broken, a rank has left, died or is frozen, or the time limit has passed. MPI cannot cancel a message in
transfer, so it may access a row long after the call has failed: rows are the group's own memory, never the
caller's, and unfinished requests keep their rows alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.machine import count_cores
from nbdist.wire.collective.base import AbortCheck, GroupBroken, GroupFailure, Member
from nbdist.wire.collective.mpi.links import Links
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.ordering import yield_core
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Array
from nbdist.wire.rpc.server import Listener

SPINS = 200  # tests, each of a microsecond or less
CONTROL_TESTS = 4  # for each rank, at the beginning of a call: a test of MPI receives few messages
YIELDS = 32  # between two checks
SPIN_SECONDS = 500e-6  # then it sleeps: other ranks may need the core
LONGEST_SLEEP = 1e-3  # MPI offers nothing to sleep on; polling costs some hundredths of a core
CHECK_SECONDS = 0.02  # between two checks of the others' processes
DIAGNOSE_SECONDS = 1.5  # to find out which rank ended, after an error of MPI
FROZEN_EVERY = 10  # of those checks
DATA, RESULT, CONTROL = 0, 1, 2  # kinds of messages; each has a tag
TAGS = 3
LEAST_TAGS = 32768  # the minimum of the MPI standard
# Open transports, and closed ones with unfinished requests: MPI may still write to their memory.
_open_transports: list[MpiTransport] = []
_freeing = threading.Lock()


class MpiTransport:
    """The messages of one group; `ranks` are its ranks in the communicator that all groups share."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        member: Member,
        ranks: Sequence[int],
        monitor: ProcessMonitor,
        remote: RemoteLiveness,
        links: Links,
    ) -> None:
        with _freeing:
            _open_transports.append(self)
        self._closed = False
        self._memory: list[Array] = []
        self._mpi, self._comm, self._ranks, self._labels = mpi, comm, list(ranks), member.labels
        self.others = [other for other in range(len(ranks)) if other != member.rank]
        self._monitor, self.remote, self._links, self.abort_check = monitor, remote, links, AbortCheck()
        tags = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) or LEAST_TAGS - 1
        self._tag = member.incarnation % (tags // TAGS) * TAGS  # keeps groups apart
        self.control = ControlMessages(mpi, comm, member, ranks, self._tag + CONTROL, self.row(ROOM), links)
        self._spins = SPINS if len(ranks) <= count_cores(others=monitor.pids) else 1
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._requests: list[Any] = []  # with, for each request, its rank and whether it is a receive
        self._peers: list[int] = []
        self._incoming: list[bool] = []
        self._requested = 0  # more than the requests if an interrupt came between a request and its append
        self.sequence = 0
        """How many calls this rank has begun."""
        self._deadline: float | None = None
        self._next_control_tests = 0.0
        self.doing: Callable[[], str] = lambda: "group formation"

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
        if now > self._next_control_tests:
            self._next_control_tests = now + LONGEST_SLEEP
            for _ in range(CONTROL_TESTS * len(self._ranks)):
                self.check_control()

    def receive(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Start to receive the next message from a rank into a row, which is as long or longer."""
        self._requested += 1
        request = self._comm.Irecv([row, self._mpi.BYTE], self._ranks[rank], self._tag + kind)
        self._requests.append(request)
        self._peers.append(rank)
        self._incoming.append(True)

    def send(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Start to send a row to a rank; the row may be changed once `finish` has returned."""
        if self._links.is_lost(self._ranks[rank]):  # the send would not return
            self.check_control()
            raise self._lost(rank)
        self._requested += 1
        request = self._comm.Isend([row, self._mpi.BYTE], self._ranks[rank], self._tag + kind)
        self._requests.append(request)
        self._peers.append(rank)
        self._incoming.append(False)

    @property
    def count(self) -> int:
        """The number of unfinished requests."""
        return len(self._requests)

    def finish(self, first: int | None = None) -> None:
        """Wait until all requests, or the first so many, are complete; may raise GroupBroken."""
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
        """Receive pending control messages; raise GroupBroken if the group is broken. Never waits."""
        if not self._closed:
            self.control.receive_pending()
        if self.control.failure is not None:
            raise GroupBroken(self.control.failure)

    def check_alive(self) -> None:
        """Raise GroupBroken if a rank that has not left has died. Never waits."""
        for rank in self._monitor.dead():
            if rank not in self.control.left:
                raise GroupBroken.by("TaskDiedError", f"{self._labels[rank]} has died")

    def close(self) -> None:
        """Release everything, now or as soon as MPI and the other ranks have finished with it."""
        if self._closed:
            return
        self._closed = True
        self.control.leave(self.sequence)
        self.remote.close()
        for request, incoming in zip(self._requests, self._incoming):
            if incoming and request:
                request.Cancel()
        free_closed()

    def free_if_done(self) -> bool:
        """Free a closed transport if MPI and the other ranks have finished with it; return True then."""
        if not self._closed:
            return False
        self.control.receive_pending()
        unfinished = [request for request in self._requests if request and not request.Test()]
        lost = self._requested - len(self._requests)
        ended = self.control.left.keys() | {*self._monitor.dead(), *self._lost_ranks()}
        if unfinished or lost or not self.control.are_sent() or not ended.issuperset(self.others):
            return False
        self.control.close()
        self._monitor.close()
        return True

    def _wait(self, requests: list[Any]) -> None:
        begun = time.monotonic()
        check, checks = begun + CHECK_SECONDS, 0
        while True:
            for _ in range(YIELDS):
                if self._testall(requests):
                    return
                yield_core()
                if time.monotonic() - begun > SPIN_SECONDS:
                    break
            self._check_left(requests)
            now = time.monotonic()
            if now >= check:
                check, checks = now + CHECK_SECONDS, checks + 1
                self._check_peers(requests, checks % FROZEN_EVERY == 0)
            self.check(requests)
            if now - begun > SPIN_SECONDS:
                time.sleep(min(LONGEST_SLEEP, (now - begun) / 20))

    def _diagnose(self, error: Exception) -> GroupBroken:
        """Return the reason for an error of MPI, whose error does not say which rank has died."""
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.check_control()
            except GroupBroken as broken:
                return broken
            except self._mpi.Exception:  # the same error again
                pass
            for rank in [*self._monitor.dead(), *self._lost_ranks()]:
                if rank not in self.control.left:
                    what = f"{self._labels[rank]} has died during {self.doing()}"
                    return GroupBroken.by("TaskDiedError", what)
            time.sleep(LONGEST_SLEEP)
        return GroupBroken.by("UnavailableError", f"MPI failed in {self.doing()}: {error}")

    def _lost(self, rank: int) -> GroupBroken:
        what = f"the connection to {self._labels[rank]} was lost during {self.doing()}"
        return GroupBroken.by("UnavailableError", what)

    def _lost_ranks(self) -> list[int]:
        """Return the ranks of other hosts whose connection to this rank is lost; never waits."""
        lost = [rank for rank in self.others if self._links.is_lost(self._ranks[rank])]
        remote = self.remote.lost_rank()
        return lost if remote is None or remote in lost else [*lost, remote]

    def check(self, requests: list[Any] | None = None) -> None:
        """Raise the abort check's error, or GroupBroken if the group is broken or after the time limit."""
        self.check_control()
        self.abort_check()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for rank in self.others if requests is None else self._waiting(requests):
                what = f"{self._labels[rank]} did not take part within the time limit: {self.doing()}"
                raise GroupBroken.by("DeadlineExceededError", what)

    def _waiting(self, requests: list[Any]) -> list[int]:
        """Return the ranks of unfinished requests."""
        self._mpi.Request.Testsome(requests)
        return [rank for request, rank in zip(requests, self._peers) if request]

    def _check_left(self, requests: list[Any]) -> None:
        self.check_control()
        left = self.control.left
        if any(finished < self.sequence for finished in left.values()):
            for rank in self._waiting(requests):
                if left.get(rank, self.sequence) < self.sequence:
                    what = f"{self._labels[rank]} has left the group; {self.doing()} is waiting for it"
                    raise GroupBroken.by("UnavailableError", what)

    def _check_peers(self, requests: list[Any], also_frozen: bool) -> None:
        dead = self._monitor.dead()
        # After `dead`, because a message may have arrived just before its rank died.
        for rank in self._waiting(requests) if dead else ():
            if rank in dead:
                self.check_control()  # it may have announced the reason
                what = f"{self._labels[rank]} has died during {self.doing()}"
                raise GroupBroken.by("TaskDiedError", what)
        for rank in self._lost_ranks():
            if rank not in self.control.left and rank in self._waiting(requests):
                self.check_control()
                raise self._lost(rank)
        for rank in self._monitor.frozen() if also_frozen else ():
            what = f"{self._labels[rank]} is frozen during {self.doing()}"
            raise GroupBroken.by("UnavailableError", what)


def free_closed() -> None:
    """Free the closed transports that MPI and the other ranks have finished with."""
    with _freeing:
        _open_transports[:] = [transport for transport in _open_transports if not transport.free_if_done()]


def stop_receiving() -> None:
    """Cancel all open receives, before MPI is finalized."""
    free_closed()
    for transport in _open_transports:
        transport.control.close()


# Control messages of an MPI group: a rank announces a failure, or that it leaves.
#
#     control.announce_failure(GroupFailure("AbortedError", "rank 1 aborted: ..."))
#     control.receive_pending(); control.failure; control.left
#
# Any thread may use them while another one is in a call. One receive is always open for the next control
# message from any rank.

ROOM = 2048  # bytes of the longest control message
HEAD = 24  # bytes of three words: incarnation, kind, number
FAILURE, LEFT = 1, 2  # kinds
TRIES = 32  # tests whether a control message was sent; later it is left to MPI's progress


class ControlMessages:
    """One rank's control messages to and from all other ranks of a group.

    `ranks` are the group's ranks in the communicator; `row` has ROOM bytes and is used until `close`.
    """

    def __init__(
        self, mpi: Any, comm: Any, member: Member, ranks: Sequence[int], tag: int, row: Array, links: Links
    ) -> None:
        self._mpi, self._comm, self._tag, self._links = mpi, comm, tag, links
        self._ranks, self._incarnation = list(ranks), member.incarnation
        self._others = [number for rank, number in enumerate(ranks) if rank != member.rank]
        self.failure: GroupFailure | None = None
        """Why the group is broken, if a failure was announced here or received."""
        self.left: dict[int, int] = {}
        """The ranks that have left, with the number of calls that each has finished."""
        self._announced = self._announced_leave = False
        self._sent: list[tuple[list[Any], Array]] = []
        self._receiving = threading.Lock()
        self._status = mpi.Status()
        self._row = row
        self._next = self._receive()

    def receive_pending(self) -> None:
        """Receive what has arrived; never waits, and does nothing if another thread is receiving."""
        if self._receiving.acquire(blocking=False):
            try:
                while self._next.Test(self._status):
                    self._note(self._ranks.index(self._status.Get_source()))
                    self._next = self._receive()
            finally:
                self._receiving.release()

    def announce_failure(self, failure: GroupFailure) -> None:
        """Send the failure to all ranks, unless it was sent or received before."""
        self.failure = self.failure or failure
        if not self._announced:
            self._send(FAILURE, 0, self.failure.pack(ROOM - HEAD))
            self._announced = True  # at the end, so that a call after an interrupt repeats the announcement

    def leave(self, finished: int) -> None:
        """Announce to all ranks that this one makes no more calls; `finished` is how many it has made."""
        if not self._announced_leave:
            self._send(LEFT, finished, b"")
            self._announced_leave = True

    def are_sent(self) -> bool:
        """Return whether MPI has sent all of this rank's control messages."""
        return all(not request or request.Test() for requests, _ in self._sent for request in requests)

    def close(self) -> None:
        """Cancel the open receive."""
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
            self._announced = True  # by the rank that sent this message

    def _send(self, kind: int, number: int, text: bytes) -> None:
        words = np.array([self._incarnation, kind, number], np.int64)
        row = np.frombuffer(words.tobytes() + text, np.uint8)
        requests: list[Any] = []
        self._sent.append((requests, row))  # before the sends, so that the row stays alive in any case
        for rank in [one for one in self._others if not self._links.is_lost(one)]:
            with suppress(self._mpi.Exception):  # the rank has ended
                requests.append(self._comm.Isend([row, self._mpi.BYTE], rank, self._tag))
        for _ in range(TRIES):
            if self._mpi.Request.Testall(requests):
                break
            yield_core()


# Liveness of remote ranks: each rank keeps a connection to the next one.
#
#     remote = RemoteLiveness(member)              # remote.address goes to the others
#     remote.connect(addresses, check)
#     remote.lost_rank()                           # the next rank's number, once its connection is lost
#
# MPI does not report a rank that has died. The ranks of its host detect the end of its process (pidfd). If
# the previous rank is on another host, it detects the loss of this connection. Either announces it to all.

GREETING = "mpi.here"
GRACE_SECONDS = 0.5  # after a lost connection, for a control message that was sent before its end
WAIT_SECONDS = 0.05


class RemoteLiveness:
    """One rank's connections to the next and from the previous rank, if these are on other hosts."""

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
        """The address that the previous rank connects to; "" if it is on this host."""
        return self._listener.address if self._listener is not None else ""

    def connect(self, addresses: Sequence[str], check: Callable[[], None]) -> None:
        """Connect to the next rank and wait for the previous one; `check` may raise to end the wait."""
        member, address = self._member, addresses[self._next]
        if member.keys is not None and address and member.size > 1:
            self._peer = Peer(address, member.keys, name=member.labels[self._next])
            self._peer.send(GREETING, {"incarnation": member.incarnation})
        while self._listener is not None:
            check()
            if self._listener.poll(WAIT_SECONDS):
                received = self._listener.receive()
                frame = received and received[1]
                if frame and frame.kind == GREETING and frame.meta.get("incarnation") == member.incarnation:
                    break

    def lost_rank(self) -> int | None:
        """Return the next rank if its connection has been lost for GRACE_SECONDS, else None; never waits."""
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
        """Close both connections; may be called twice."""
        if self._peer is not None:
            self._peer.close()
        if self._listener is not None:
            self._listener.close()
