"""How ranks of one host wait for each other's words: spin, then yield, then sleep until rung.

A wait ends with what was waited for, or with why it will never come: the group is broken, a rank has left,
died or is frozen, or the time is up.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nbdist.wire.collective.base import LOOK_EVERY, Broken, Lookout, Trouble
from nbdist.wire.collective.call import Call, compare
from nbdist.wire.collective.shm.segment import (
    ASLEEP,
    BROKEN,
    DIGEST,
    IN_ORDER,
    LEFT,
    REDUCED,
    SENT,
    THREAD,
    Desk,
    fence,
)
from nbdist.wire.shm import Doorbell, shared_folder

SAY_EVERY = 64  # steps, for a group may be used by another thread than before
SPINS = 400  # some 20 microseconds; to yield earlier would keep two ranks on one core while another is idle
YIELDS = 64  # between two looks at the clock
PATIENCE_SECONDS = 500e-6  # then it sleeps: a core may be what the others wait for
NAP_SECONDS = 0.01  # a ring may be missed when both sides look at the same moment; this bounds it
LONGEST_NAP = LOOK_EVERY
LOOK_SECONDS = 0.2  # between two looks at frozen processes and at what else is watched


class Meeting:
    """One rank's way to wait for the others of its host and to wake them."""

    def __init__(
        self,
        rank: int,
        desks: Sequence[Desk],
        called: Sequence[str],
        bell: Doorbell,
        ringers: dict[int, int],
        watch: Watch,
    ) -> None:
        self._rank, self._called = rank, called
        self._desks = desks
        self._words = [desk.words for desk in desks]
        self._own = desks[rank].words
        self._others = [other for other in range(len(desks)) if other != rank]
        self._bell, self._ringers, self._watch = bell, ringers, watch
        self._ringing = threading.Lock()
        self._spins = SPINS if len(desks) <= (os.cpu_count() or 1) else 1
        self._parting = Parting(rank, self._words)
        self._poll = select.poll()
        self._poll.register(bell.fileno(), select.POLLIN)
        watch.register(self._poll)
        self.deadline: float | None = None
        self.lookout = Lookout()
        self.also: Callable[[], None] = lambda: None
        """What else is looked at from time to time, and raises if there is no point in waiting."""
        self.doing: Callable[[], str] = lambda: "forming the group"

    def post(self, word: int, value: int) -> None:
        """Set one of this rank's words, and wake who sleeps."""
        if not IN_ORDER:
            fence()
        self._own[word] = value
        if value % SAY_EVERY == 1:
            self._parting.say()
        for other in self._others:
            if self._words[other][ASLEEP]:
                self._ring(other)

    def until(self, word: int, value: int) -> None:
        """Return when this word of every other rank is at least `value`; raise Broken if that cannot be."""
        for other in self._others:
            if self._words[other][word] < value:
                self._await(other, word, value)
        if not IN_ORDER:
            fence()

    def check(self) -> None:
        """Raise Broken if a rank has said that the group is, or has died; never waits."""
        broken = [(words[BROKEN], rank) for rank, words in enumerate(self._words) if words[BROKEN]]
        if broken:
            raise Broken(self._desks[min(broken)[1]].read_trouble())
        for rank in self._watch.dead():
            if not self._words[rank][LEFT]:
                raise Broken(Trouble("TaskDiedError", f"{self._called[rank]} has died"))

    def tell(self, trouble: Trouble) -> None:
        """Say to everyone that the group is broken; from any thread."""
        self._desks[self._rank].write_trouble(trouble, time.monotonic_ns())
        self._ring_all()

    def leave(self) -> None:
        """Say to everyone that this rank makes no more calls."""
        self._own[LEFT] = 1
        self._ring_all()

    def close(self) -> None:
        """Let go of bells and processes."""
        with self._ringing:
            for descriptor in self._ringers.values():
                os.close(descriptor)
            self._ringers.clear()
        self._watch.close()
        self._bell.close()

    def remove_name(self) -> None:
        """Take the bell's file away, when all who ring it have it open."""
        (shared_folder() / self._bell.name).unlink(missing_ok=True)

    def _await(self, other: int, word: int, value: int) -> None:
        line = self._words[other]
        for _ in range(self._spins):
            if line[word] >= value:
                return
        now = time.perf_counter()
        self._parting.look(now)
        tired = now + PATIENCE_SECONDS
        while True:
            for _ in range(YIELDS):
                if line[word] >= value:
                    return
                os.sched_yield()
            if self._own[BROKEN]:
                break
            self.lookout()
            if time.perf_counter() >= tired:
                break
        self._sleep(other, word, value)

    def _sleep(self, other: int, word: int, value: int) -> None:
        line = self._words[other]
        nap, looked = NAP_SECONDS, time.monotonic()
        self._own[ASLEEP] = 1
        try:
            while True:
                fence()  # that this rank sleeps is seen before it looks again
                if line[word] >= value:
                    return
                self._check(word, value)
                self.lookout()
                now = time.monotonic()
                if now - looked > LOOK_SECONDS:
                    looked = now
                    self._check_frozen()
                    self.also()
                if self.deadline is not None and now >= self.deadline:
                    raise Broken(self._late(other))
                for descriptor, _ in self._poll.poll(nap * 1000):
                    if descriptor != self._bell.fileno():
                        self._poll.unregister(descriptor)  # a process that ended wakes once
                    else:
                        with suppress(BlockingIOError):
                            os.read(descriptor, 4096)
                nap = min(LONGEST_NAP, nap * 1.5)
        finally:
            self._own[ASLEEP] = 0

    def _check(self, word: int, value: int) -> None:
        """Raise why the word will not come, if so."""
        broken = [(words[BROKEN], rank) for rank, words in enumerate(self._words) if words[BROKEN]]
        if broken:
            raise Broken(self._desks[min(broken)[1]].read_trouble())
        left = [rank for rank in self._others if self._words[rank][LEFT]]
        dead = self._watch.dead()
        for rank in self._others:
            # Looked at last: a word may have come just before its rank left or died.
            if self._words[rank][word] >= value:
                continue
            if rank in left:
                what = f"{self._called[rank]} has left: {self.doing()} waits for it"
                raise Broken(Trouble("UnavailableError", what))
            if rank in dead:
                what = f"{self._called[rank]} has died; it was cut off: {self.doing()}"
                raise Broken(Trouble("TaskDiedError", what))

    def _check_frozen(self) -> None:
        for rank in self._watch.frozen():
            raise Broken(
                Trouble("UnavailableError", f"{self._called[rank]} is frozen; it was cut off: {self.doing()}")
            )

    def _late(self, other: int) -> Trouble:
        return Trouble("DeadlineExceededError", f"{self._called[other]} did not come in time: {self.doing()}")

    def _ring_all(self) -> None:
        for other in self._others:
            self._ring(other)

    def _ring(self, other: int) -> None:
        with self._ringing:
            descriptor = self._ringers.get(other)
            if descriptor is not None:
                # A full pipe wakes as well; who has gone needs no waking.
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(descriptor, b"!")


# Finds out which processes of this host have died or are frozen, by rank.

FROZEN_SECONDS = 8.0
STOPPED = ("T", "t")


class FreezeDetector:
    """Finds frozen processes by rank: each call reads their state in /proc.

    A stopped process (SIGSTOP, a debugger) is frozen. A process that computes, holds the interpreter lock for
    long in native code, or waits for a core is not. Ranks of this process are left out. ``clock`` returns
    seconds.
    """

    def __init__(self, pids: Mapping[int, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids = {rank: pid for rank, pid in pids.items() if pid != os.getpid()}
        self._clock = clock
        self._stopped_since: dict[int, float] = {}

    def frozen(self, seconds: float = FROZEN_SECONDS) -> list[int]:
        """Return the ranks that polls have seen stopped for longer than ``seconds``."""
        now = self._clock()
        for rank, pid in self._pids.items():
            if _state(pid) in STOPPED:
                self._stopped_since.setdefault(rank, now)
            else:
                self._stopped_since.pop(rank, None)
        return sorted(rank for rank, since in self._stopped_since.items() if now - since > seconds)


class Watch(FreezeDetector):
    """Watches processes by rank, also for their end, by a descriptor of each, until it is closed."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        super().__init__(pids)
        self._descriptors: dict[int, int] = {}
        for rank, pid in self._pids.items():
            with suppress(OSError):  # the process has ended, or is in another PID namespace
                self._descriptors[os.pidfd_open(pid)] = rank

    def register(self, poll: select.poll) -> None:
        """Let a poll return when one of the processes ends."""
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)

    def seen(self) -> list[int]:
        """Return the ranks with a detectable end."""
        return sorted(self._descriptors.values())

    def unseen(self) -> list[int]:
        """Return the ranks whose end will not be noticed, because no process of their id is seen here."""
        return sorted(self._pids.keys() - set(self._descriptors.values()))

    def dead(self) -> list[int]:
        """Return the ranks whose processes have ended, zombies among them."""
        poll = select.poll()
        self.register(poll)
        return sorted(self._descriptors[descriptor] for descriptor, _ in poll.poll(0))

    def close(self) -> None:
        """Close the descriptors, and stop watching for ends."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


#     Ranks that wait for each other on one core part, where there is a core for each.
#
# The scheduler leaves them together: they yield to each other every few microseconds, so that both look too
# recently run to be moved, and each call takes twice as long, for ever.

GROUP_LOOK_EVERY = 0.02  # seconds; a look at the others takes some 15 µs each
CORE_FIELD = 36  # of /proc/<pid>/stat, after the name


class Parting:
    """Moves the calling thread of a rank off a core on which another rank runs."""

    def __init__(self, rank: int, words: Sequence[memoryview[int]]) -> None:
        self._own = words[rank]
        self._others = [one for one in words if one is not words[rank]]
        self._next = 0.0
        self._enough = len(words) <= len(os.sched_getaffinity(0))

    def say(self) -> None:
        """Let the others know which thread this rank is."""
        self._own[THREAD] = threading.get_native_id()

    def look(self, now: float) -> None:
        """See where the others are, if it is time to, and move if need be; for when this rank waits long."""
        if not self._enough or now < self._next:
            return
        self._next = now + GROUP_LOOK_EVERY
        self.say()
        here = core_of(self._own[THREAD])
        taken = {core_of(words[THREAD]) for words in self._others}
        if here not in taken or here < 0:
            return
        allowed = os.sched_getaffinity(0)
        if free := allowed - taken:
            os.sched_setaffinity(0, free)  # of this thread only
            os.sched_setaffinity(0, allowed)  # it stays where it is until there is a reason to move it


def core_of(thread: int) -> int:
    """Return the core on which a thread of this host runs, or ran last; -1 if it is not seen here."""
    with suppress(OSError, IndexError, ValueError):
        stat = Path(f"/proc/{thread}/task/{thread}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[CORE_FIELD])
    return -1


#     How far the ranks of one host are: what each has put on its desk, over all calls, and how they wait for
# it.
#
#     turns.begin(call)           # the first piece is on the desk; return when everyone's is, of the same
# call
#     turns.put()                 # another piece is
#     turns.await_put()           # until everyone's is
#
# SENT counts pieces put on a desk, REDUCED those combined; a slot is chosen by the count modulo 2. A slot is
# never overwritten too early, for a rank puts a piece into one only after it has seen that all ranks are past
# the step that read the slot's last piece.


class Turns:
    """The steps of one rank, and its way to wait for the others'."""

    def __init__(self, rank: int, desks: Sequence[Desk], meeting: Meeting, called: Sequence[str]) -> None:
        self.rank, self.desks = rank, desks
        self.sent = self.reduced = 0
        self.waited = 0.0
        """Seconds that went by until all ranks had come to a call."""
        self.sequence: Callable[[], int] = lambda: 0
        """Which call of the group this is, for people."""
        self._meeting, self._called = meeting, called
        self._own = desks[rank].words
        self._others = [desk.words for desk in desks if desk is not desks[rank]]
        self._said = [0, 0]  # the digest of the call whose text stands in each place

    def begin(self, call: Call) -> None:
        """Say that this rank's first piece is there and of which call, wait for all, compare."""
        turn = self.sent % 2
        digest = call.digest
        if self._said[turn] != digest:
            self.desks[self.rank].write_text(turn, call.text)
            self._own[DIGEST + turn] = self._said[turn] = digest
        self.sent += 1
        self._meeting.post(SENT, self.sent)
        begun = time.perf_counter()
        self._meeting.until(SENT, self.sent)
        self.waited += time.perf_counter() - begun
        for words in self._others:
            if words[DIGEST + turn] != digest:
                self._meeting.check()  # a rank that broke off is a better reason
                texts = {rank: desk.read_text(turn) for rank, desk in enumerate(self.desks)}
                raise Broken(Trouble("InvalidArgumentError", compare(texts, self.sequence(), self._called)))

    def put(self) -> None:
        """Say that another piece is on this rank's desk."""
        self.sent += 1
        self._meeting.post(SENT, self.sent)

    def await_put(self) -> None:
        """Wait until all ranks have put as many pieces as this one."""
        self._meeting.until(SENT, self.sent)

    def put_reduced(self) -> None:
        """Say that this rank has combined another piece."""
        self.reduced += 1
        self._meeting.post(REDUCED, self.reduced)

    def await_reduced(self, count: int) -> None:
        """Wait until all ranks have combined `count` pieces, over all calls."""
        self._meeting.until(REDUCED, count)

    def waits_elsewhere(self) -> bool:
        """Whether another rank has put a piece that this one has not."""
        return any(words[SENT] > self.sent for words in self._others)
