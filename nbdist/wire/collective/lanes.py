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

from nbdist.wire.collective.base import Broken, Trouble
from nbdist.wire.collective.lookout import Lookout
from nbdist.wire.collective.watch import Watch
from nbdist.wire.frames import Array

SPINS = 200  # tests, of a microsecond or less
LOOKS = 4  # for notices, at the beginning of a call, for each rank
YIELDS = 32  # between two looks around
PATIENCE_SECONDS = 500e-6  # then it naps: a core may be what the others wait for
LONGEST_NAP = 1e-3  # MPI has nothing to sleep on; this costs some hundredths of a core
LOOK_SECONDS = 0.02  # between two looks at the others' processes
FROZEN_EVERY = 10  # of those looks
NOTICE_BYTES = 2048
DATA, BACK, NOTICE = 0, 1, 2  # kinds of messages; each has a tag
TAGS = 3
TROUBLE, LEFT = 1, 2  # kinds of notices

_left_behind: list[Lanes] = []  # closed ones that MPI, or another rank, is not through with
_sweeping = threading.Lock()


class Lanes:
    """The messages of one group; `places` are its ranks in the communicator."""

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        rank: int,
        places: Sequence[int],
        called: Sequence[str],
        incarnation: int,
        watch: Watch,
    ) -> None:
        self._mpi, self._comm, self._places = mpi, comm, list(places)
        self._rank, self._called, self._incarnation = rank, called, incarnation
        self.others = [other for other in range(len(places)) if other != rank]
        self._watch, self.lookout = watch, Lookout()
        tags = mpi.COMM_WORLD.Get_attr(mpi.TAG_UB) or 32767
        self._tag = incarnation % (tags // TAGS) * TAGS  # groups on one communicator do not meet
        self._spins = SPINS if len(places) <= (os.cpu_count() or 1) else 1
        self._testall: Callable[[list[Any]], bool] = mpi.Request.Testall
        self._memory: list[Array] = []
        self._under_way: list[Any] = []  # requests that `finish` waits for, and whose message each is
        self._whose: list[int] = []
        self._comes: list[bool] = []
        self._asked = 0  # an interrupt may come between a request and the note of it
        self._notices: list[Any] = []  # requests of those that this rank has sent
        self._told_trouble = self._told_left = self._closed = False
        self.trouble: Trouble | None = None
        """Why the group is broken, as far as this rank has heard."""
        self._left: dict[int, int] = {}  # by rank: how many calls it has finished
        self.sequence = 0
        """How many calls this rank has begun."""
        self.deadline: float | None = None
        self._next_look = 0.0
        self.doing: Callable[[], str] = lambda: "forming the group"
        self._hearing = threading.Lock()
        self._status = mpi.Status()
        self._heard_row = self.row(NOTICE_BYTES)
        self._notice = self._next_notice()

    def row(self, nbytes: int) -> Array:
        """Return memory that messages are sent from or received into; it lives as long as MPI may use it."""
        memory = np.empty(nbytes, np.uint8)
        self._memory.append(memory)
        return memory

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
            raise Broken(Trouble("UnavailableError", f"MPI failed in {self.doing()}: {error}")) from None
        del self._under_way[:first], self._whose[:first], self._comes[:first]
        self._asked -= len(requests)

    def begin(self, sequence: int, timeout: float | None) -> None:
        """Begin a call; raise Broken if the group is broken already."""
        now = time.monotonic()
        self.sequence = sequence
        self.deadline = None if timeout is None else now + timeout
        self.hear()
        if now > self._next_look:
            self._next_look = now + LONGEST_NAP
            for _ in range(LOOKS * len(self._places)):  # MPI takes in few messages at a time
                self.hear()

    @property
    def count(self) -> int:
        """How many messages are under way."""
        return len(self._under_way)

    def hear(self) -> None:
        """Take in the notices that have come; raise Broken if the group is broken. Never waits."""
        if self._hearing.acquire(blocking=False):
            try:
                self._take_notices()
            finally:
                self._hearing.release()
        if self.trouble is not None:
            raise Broken(self.trouble)

    def check_alive(self) -> None:
        """Raise Broken if a rank that has not left has died. Never waits."""
        for rank in self._watch.dead():
            if rank not in self._left:
                raise Broken(Trouble("TaskDiedError", f"{self._called[rank]} has died"))

    def tell(self, trouble: Trouble) -> None:
        """Tell all ranks that the group is broken, if they do not know; from any thread."""
        self.trouble = self.trouble or trouble
        if not self._told_trouble:
            self._send_notices(TROUBLE, 0, self.trouble.pack(NOTICE_BYTES - 24))
            self._told_trouble = True  # now, for an interrupt may have cut off an earlier attempt

    def leave(self, finished: int) -> None:
        """Tell all ranks that this one makes no more calls; `finished` are those that it has made."""
        if not self._told_left:
            self._send_notices(LEFT, finished, b"")
            self._told_left = True

    def close(self) -> None:
        """Let go of everything, at once or as soon as MPI and the other ranks are through with it."""
        if self._closed:
            return
        self.leave(self.sequence)
        for request, comes in zip(self._under_way, self._comes):
            if comes and request:
                request.Cancel()
        self._closed = True
        with _sweeping:
            _left_behind.append(self)
        sweep()

    def _swept(self) -> bool:
        """Free what is left, if nobody needs it any more; whether it is done."""
        with self._hearing:
            self._take_notices()
        unfinished = [
            request for request in (*self._under_way, *self._notices) if request and not request.Test()
        ]
        gone = self._left.keys() | set(self._watch.dead())
        if unfinished or self._asked > len(self._under_way) or not gone.issuperset(self.others):
            return False
        self._notice.Cancel()
        self._notice.Wait()
        self._watch.close()
        if self._comm != self._mpi.COMM_WORLD:
            self._comm.Free()  # nobody sends here any more, so that its number can be taken by another
        return True

    def _next_notice(self) -> Any:
        row = [self._heard_row, self._mpi.BYTE]
        return self._comm.Irecv(row, self._mpi.ANY_SOURCE, self._tag + NOTICE)

    def _take_notices(self) -> None:
        while self._notice.Test(self._status):
            self._note(self._places.index(self._status.Get_source()))
            self._notice = self._next_notice()

    def _note(self, rank: int) -> None:
        incarnation, kind, number = (int(word) for word in self._heard_row[:24].view(np.int64))
        if incarnation != self._incarnation:
            return  # of another group
        if kind == LEFT:
            self._left[rank] = number
        elif self.trouble is None:
            length = self._status.Get_count(self._mpi.BYTE)
            self.trouble = Trouble.unpack(self._heard_row[24:length].tobytes())
            self._told_trouble = True  # by the rank that told this one

    def _send_notices(self, kind: int, number: int, text: bytes) -> None:
        words = np.array([self._incarnation, kind, number], np.int64)
        row = self.row(24 + len(text))
        row[:24], row[24:] = words.view(np.uint8), np.frombuffer(text, np.uint8)
        told = []
        for rank in self.others:
            with suppress(self._mpi.Exception):  # it is gone
                told.append(self._comm.Isend([row, self._mpi.BYTE], self._places[rank], self._tag + NOTICE))
        self._notices += told
        for _ in range(YIELDS):
            if self._testall(told):
                break
            os.sched_yield()

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
            self.lookout()
            now = time.monotonic()
            if now >= look:
                look, looks = now + LOOK_SECONDS, looks + 1
                self._check_processes(requests, looks % FROZEN_EVERY == 0)
            if self.deadline is not None and now >= self.deadline:
                waiting = self._waiting(requests)
                if waiting:
                    raise Broken(
                        Trouble(
                            "DeadlineExceededError",
                            f"{self._called[waiting[0]]} did not come in time: {self.doing()}",
                        )
                    )
            if now - begun > PATIENCE_SECONDS:
                time.sleep(min(LONGEST_NAP, (now - begun) / 20))

    def _waiting(self, requests: list[Any]) -> list[int]:
        """Return the ranks whose messages are not through."""
        self._mpi.Request.Testsome(requests)
        return [rank for request, rank in zip(requests, self._whose) if request]

    def _check_left(self, requests: list[Any]) -> None:
        self.hear()
        if any(finished < self.sequence for finished in self._left.values()):
            for rank in self._waiting(requests):
                if self._left.get(rank, self.sequence) < self.sequence:
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
        for rank in self._watch.frozen() if also_frozen else ():
            what = f"{self._called[rank]} is frozen; it was cut off: {self.doing()}"
            raise Broken(Trouble("UnavailableError", what))


def sweep() -> None:
    """Free what closed groups have left, where MPI and the other ranks are through with it by now."""
    with _sweeping:
        _left_behind[:] = [lanes for lanes in _left_behind if not lanes._swept()]
