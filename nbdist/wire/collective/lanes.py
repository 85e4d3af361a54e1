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
from typing import Any

import numpy as np

from nbdist.wire.collective.base import Broken, Member, Trouble
from nbdist.wire.collective.far import Far
from nbdist.wire.collective.lookout import Lookout
from nbdist.wire.collective.notices import ROOM, Notices
from nbdist.wire.collective.watch import Watch
from nbdist.wire.frames import Array

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
