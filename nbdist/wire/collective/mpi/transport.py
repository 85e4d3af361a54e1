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
from nbdist.wire.collective.base import Broken, Lookout, Member, Trouble
from nbdist.wire.collective.shm.sync import Watch
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Array, Frame
from nbdist.wire.rpc.server import Listener

SPINS = 200  # tests, of a microsecond or less
LOOKS = 4  # for notices, at the beginning of a call, for each rank: MPI takes in few messages at a time
YIELDS = 32  # between two looks around
PATIENCE_SECONDS = 500e-6  # then it naps: a core may be what the others wait for
LONGEST_NAP = 1e-3  # MPI has nothing to sleep on; this costs some hundredths of a core
LOOK_SECONDS = 0.02  # between two looks at the others' processes
REASON_SECONDS = 1.5  # for the word on who is gone, when MPI has failed
FROZEN_EVERY = 10  # of those looks
DATA, BACK, NOTICE = 0, 1, 2  # kinds of messages; each has a tag
TAGS = 3
LEAST_TAGS = 32768  # that every MPI has
# All that MPI, or another rank, is not through with; it may write there, so that nothing of it may be freed.
_known: list[Lanes] = []
_sweeping = threading.Lock()


class Lanes:
    """The messages of one group; `places` are its ranks in a communicator, which other groups share."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        member: Member,
        places: Sequence[int],
        watch: Watch,
        far: Far,
    ) -> None:
        with _sweeping:
            _known.append(self)
        self._closed = False
        self._memory: list[Array] = []
        self._mpi, self._comm, self._places, self._called = mpi, comm, list(places), member.called
        self.others = [other for other in range(len(places)) if other != member.rank]
        self._watch, self.far, self.lookout = watch, far, Lookout()
        tags = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) or LEAST_TAGS - 1
        self._tag = member.incarnation % (tags // TAGS) * TAGS  # so that groups do not meet
        self.notices = Notices(mpi, comm, member, places, self._tag + NOTICE, self.row(ROOM))
        self._spins = SPINS if len(places) <= (os.cpu_count() or 1) else 1
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._under_way: list[Any] = []  # requests; whose message each is, and whether it comes
        self._whose: list[int] = []
        self._comes: list[bool] = []
        self._asked = 0  # an interrupt may come between a request and the note of it
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
        """Begin a call; raise Broken if the group is broken already."""
        now = time.monotonic()
        self.sequence = sequence
        self._deadline = None if timeout is None else now + timeout
        self.hear()
        if now > self._next_look:
            self._next_look = now + LONGEST_NAP
            for _ in range(LOOKS * len(self._places)):
                self.hear()

    def receive(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Have the next message from a rank put into a row, which is as long or longer."""
        self._asked += 1
        request = self._comm.Irecv([row, self._mpi.BYTE], self._places[rank], self._tag + kind)
        self._under_way.append(request)
        self._whose.append(rank)
        self._comes.append(True)

    def send(self, row: Array, rank: int, kind: int = DATA) -> None:
        """Send a row to a rank; the row may be changed once `finish` has returned."""
        self._asked += 1
        request = self._comm.Isend([row, self._mpi.BYTE], self._places[rank], self._tag + kind)
        self._under_way.append(request)
        self._whose.append(rank)
        self._comes.append(False)

    @property
    def count(self) -> int:
        """How many messages are under way."""
        return len(self._under_way)

    def finish(self, first: int | None = None) -> None:
        """Wait until all messages are through, or the `first` so many; raise Broken if they will not be."""
        requests = self._under_way[:first]
        try:
            for _ in range(self._spins):
                if self._testall(requests):
                    break
            else:
                self._wait(requests)
        except self._mpi.Exception as error:
            raise self._why(error) from None
        del self._under_way[:first], self._whose[:first], self._comes[:first]
        self._asked -= len(requests)

    def hear(self) -> None:
        """Take in the notices that have come; raise Broken if the group is broken. Never waits."""
        if not self._closed:
            self.notices.take()
        if self.notices.trouble is not None:
            raise Broken(self.notices.trouble)

    def check_alive(self) -> None:
        """Raise Broken if a rank that has not left has died. Never waits."""
        for rank in self._watch.dead():
            if rank not in self.notices.left:
                raise Broken(Trouble("TaskDiedError", f"{self._called[rank]} has died"))

    def close(self) -> None:
        """Let go of everything, at once or as soon as MPI and the other ranks are through with it."""
        if self._closed:
            return
        self._closed = True
        self.notices.leave(self.sequence)
        self.far.close()
        for request, comes in zip(self._under_way, self._comes):
            if comes and request:
                request.Cancel()
        sweep()

    def is_swept(self) -> bool:
        """Free what is left of closed lanes, if nobody needs it any more; whether it is done."""
        if not self._closed:
            return False
        self.notices.take()
        unfinished = [request for request in self._under_way if request and not request.Test()]
        lost = self._asked - len(self._under_way)
        gone = self.notices.left.keys() | set(self._watch.dead())
        if unfinished or lost or not self.notices.are_sent() or not gone.issuperset(self.others):
            return False
        self.notices.close()
        self._watch.close()
        return True

    def _wait(self, requests: list[Any]) -> None:
        begun = time.monotonic()
        look, looks = begun + LOOK_SECONDS, 0
        while True:
            for _ in range(YIELDS):
                if self._testall(requests):
                    return
                os.sched_yield()
                if time.monotonic() - begun > PATIENCE_SECONDS:
                    break
            self._check_left(requests)
            now = time.monotonic()
            if now >= look:
                look, looks = now + LOOK_SECONDS, looks + 1
                self._check_processes(requests, looks % FROZEN_EVERY == 0)
            self.look(requests)
            if now - begun > PATIENCE_SECONDS:
                time.sleep(min(LONGEST_NAP, (now - begun) / 20))

    def _why(self, error: Exception) -> Broken:
        """Return why MPI failed: it notices a rank that is gone before anyone says which."""
        deadline = time.monotonic() + REASON_SECONDS
        while time.monotonic() < deadline:
            try:
                self.hear()
            except Broken as broken:
                return broken
            except self._mpi.Exception:  # the same again
                pass
            far = self.far.gone()
            gone = [*self._watch.dead(), *([far] if far is not None else [])]
            for rank in gone:
                if rank not in self.notices.left:
                    what = f"{self._called[rank]} has died; it was cut off: {self.doing()}"
                    return Broken(Trouble("TaskDiedError", what))
            time.sleep(LONGEST_NAP)
        return Broken(Trouble("UnavailableError", f"MPI failed in {self.doing()}: {error}"))

    def look(self, requests: list[Any] | None = None) -> None:
        """Raise what the outside check raises, or Broken if the group is broken or the time is up."""
        self.hear()
        self.lookout()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            for rank in self.others if requests is None else self._waiting(requests):
                what = f"{self._called[rank]} did not come in time: {self.doing()}"
                raise Broken(Trouble("DeadlineExceededError", what))

    def _waiting(self, requests: list[Any]) -> list[int]:
        """Return the ranks whose messages are not through."""
        self._mpi.Request.Testsome(requests)
        return [rank for request, rank in zip(requests, self._whose) if request]

    def _check_left(self, requests: list[Any]) -> None:
        self.hear()
        left = self.notices.left
        if any(finished < self.sequence for finished in left.values()):
            for rank in self._waiting(requests):
                if left.get(rank, self.sequence) < self.sequence:
                    what = f"{self._called[rank]} has left: {self.doing()} waits for it"
                    raise Broken(Trouble("UnavailableError", what))

    def _check_processes(self, requests: list[Any], also_frozen: bool) -> None:
        dead = self._watch.dead()
        # Looked at after that: a message may have come just before its rank died.
        for rank in self._waiting(requests) if dead else ():
            if rank in dead:
                self.hear()  # why it died, perhaps
                what = f"{self._called[rank]} has died; it was cut off: {self.doing()}"
                raise Broken(Trouble("TaskDiedError", what))
        far = self.far.gone()
        if far is not None and far not in self.notices.left and far in self._waiting(requests):
            self.hear()
            what = f"{self._called[far]} is gone; it was cut off: {self.doing()}"
            raise Broken(Trouble("UnavailableError", what))
        for rank in self._watch.frozen() if also_frozen else ():
            what = f"{self._called[rank]} is frozen; it was cut off: {self.doing()}"
            raise Broken(Trouble("UnavailableError", what))


def sweep() -> None:
    """Free what closed groups have left, where MPI and the other ranks are through with it by now."""
    with _sweeping:
        _known[:] = [lanes for lanes in _known if not lanes.is_swept()]


def known() -> int:
    """Return how many groups are open, or closed and not yet freed."""
    return len(_known)


def let_go() -> None:
    """Have MPI wait for nothing more, before it is finalized."""
    sweep()
    for lanes in _known:
        lanes.notices.close()


#     What a rank of an MPI group tells all others beside its calls: that the group is broken, that it leaves.
#
#     notices.tell(Trouble("AbortedError", "rank 1 aborted: ..."))
#     notices.take(); notices.trouble; notices.left
#
# Any thread may use them, while another one is in a call. One receive is always open for the next notice,
# from
# whichever rank.

ROOM = 2048  # bytes of the longest
HEAD = 24  # three words: incarnation, kind, number
TROUBLE, LEFT = 1, 2  # kinds
TRIES = 32  # tests whether a notice is on its way before nobody waits for that


class Notices:
    """One rank's notices to all others of a communicator, and theirs.

    `places` are the ranks there; `row` has ROOM bytes, and is kept as long as this is open.
    """

    def __init__(
        self, mpi: Any, comm: Any, member: Member, places: Sequence[int], tag: int, row: Array
    ) -> None:
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self._places, self._incarnation = list(places), member.incarnation
        self._others = [place for rank, place in enumerate(places) if rank != member.rank]
        self.trouble: Trouble | None = None
        """Why the group is broken, as far as this rank has heard."""
        self.left: dict[int, int] = {}
        """By rank that has left: how many calls it has finished."""
        self._told_trouble = self._told_left = False
        self._sent: list[tuple[list[Any], Array]] = []
        self._taking = threading.Lock()
        self._status = mpi.Status()
        self._row = row
        self._next = self._receive()

    def take(self) -> None:
        """Take in what has come; never waits, and leaves it to another thread that does so already."""
        if self._taking.acquire(blocking=False):
            try:
                while self._next.Test(self._status):
                    self._note(self._places.index(self._status.Get_source()))
                    self._next = self._receive()
            finally:
                self._taking.release()

    def tell(self, trouble: Trouble) -> None:
        """Tell all ranks that the group is broken, if they do not know."""
        self.trouble = self.trouble or trouble
        if not self._told_trouble:
            self._send(TROUBLE, 0, self.trouble.pack(ROOM - HEAD))
            self._told_trouble = True  # now, for an interrupt may have cut off an earlier attempt

    def leave(self, finished: int) -> None:
        """Tell all ranks that this one makes no more calls; `finished` are those that it has made."""
        if not self._told_left:
            self._send(LEFT, finished, b"")
            self._told_left = True

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
        elif self.trouble is None:
            length = self._status.Get_count(self._mpi.BYTE)
            self.trouble = Trouble.unpack(self._row[HEAD:length].tobytes())
            self._told_trouble = True  # by the rank that told this one

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


#     Whether ranks of an MPI group on other hosts are there: each rank keeps a connection to the next one.
#
#     far = Far(member)                       # far.address goes to the others
#     far.meet(addresses, check)
#     far.gone()                              # the next rank's number, once it is not reached any more
#
# MPI itself says nothing of a rank that has died. The ranks of its host see that its process is gone; where
# the
# rank before it is on another host, that one loses this connection. Either tells all.

HERE = "mpi.here"
GRACE_SECONDS = 0.5  # in which a rank whose connection ended can still be heard to have left in peace
WAIT_SECONDS = 0.05


class Far:
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

    def meet(self, addresses: Sequence[str], check: Callable[[], None]) -> None:
        """Connect to the next rank and be reached by the one before; `check` may raise to end that."""
        member, address = self._member, addresses[self._next]
        if member.keys is not None and address and member.size > 1:
            self._peer = Peer(address, member.keys, name=member.called[self._next])
            self._peer.send(HERE, {"incarnation": member.incarnation})
        while self._listener is not None:
            check()
            if self._listener.poll(WAIT_SECONDS):
                received = self._listener.receive()
                if received is not None and self._is_greeting(received[1]):
                    break

    def gone(self) -> int | None:
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
        return frame.kind == HERE and frame.meta.get("incarnation") == self._member.incarnation
