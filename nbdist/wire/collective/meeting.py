"""How ranks of one host wait for each other's words: spin, then yield, then sleep until rung.

A wait ends with what was waited for, or with why it will never come: the group is broken, a rank has left,
died or is frozen, or the time is up.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from nbdist.wire.collective.base import Broken, Trouble
from nbdist.wire.collective.desk import ASLEEP, BROKEN, IN_ORDER, LEFT, Desk, fence
from nbdist.wire.collective.lookout import LOOK_EVERY, Lookout
from nbdist.wire.collective.parting import Parting
from nbdist.wire.collective.watch import Watch
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
