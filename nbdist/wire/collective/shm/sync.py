"""How ranks of one host wait for each other: sequence counters, waiting, wake-ups and failure detection.

    counters.begin(call)        # publish the first chunk and the call; wait for all ranks, compare the calls
    counters.put()              # publish another chunk
    counters.await_put()        # wait until all ranks have published as many

Rounds are kept apart by counting. SENT counts the chunks that a rank has published, REDUCED those that it has
reduced, over all calls of the group; neither is ever reset. A chunk is in slot ``count % 2``. Two slots
suffice: a rank writes chunk n only after it has waited for chunk n - 1 of all ranks, and a rank publishes
chunk n - 1 only after it has finished reading chunk n - 2, which was in the same slot. The same holds for
reduced chunks with REDUCED, and between two calls the wait in ``begin`` separates them. One slot would need a
second wait in each round.

A wait has three stages: spin on the word (about 20 microseconds, if every rank has a core), yield (500
microseconds), then sleep on a doorbell until another rank rings, with a timeout. It ends with the word or
with the reason why the word will not reach the value: the group failed, a rank left, died or is frozen, or
the time limit has passed. segment.py explains the memory ordering.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbdist.machine import count_cores
from nbdist.wire.collective.base import CHECK_EVERY, AbortCheck, GroupBroken, GroupFailure
from nbdist.wire.collective.call import CollectiveCall
from nbdist.wire.collective.shm.segment import (
    ASLEEP,
    DIGEST,
    FAILED,
    IN_ORDER,
    LEFT,
    REDUCED,
    SENT,
    THREAD,
    RankSegment,
)
from nbdist.wire.ordering import fence, yield_core
from nbdist.wire.shm import Doorbell, shared_folder

ANNOUNCE_EVERY = 64  # steps: another thread may use the group
SPINS = 400  # about 20 microseconds; yielding earlier would keep two ranks on one core while another is idle
YIELDS = 64  # between two reads of the clock
SPIN_SECONDS = 500e-6  # then it sleeps: the others may need its core
FIRST_SLEEP = 0.01  # bounds the delay of a missed ring, see segment.py
LONGEST_SLEEP = CHECK_EVERY
CHECK_SECONDS = 0.2  # between two checks for frozen processes and of `also_check`


class Synchronizer:
    """Publishes the words of one rank, waits for those of the others, and wakes sleeping ranks."""

    def __init__(
        self,
        rank: int,
        segments: Sequence[RankSegment],
        labels: Sequence[str],
        bell: Doorbell,
        ringers: dict[int, int],
        monitor: ProcessMonitor,
    ) -> None:
        self._rank, self._labels = rank, labels
        self._segments = segments
        self._words = [segment.words for segment in segments]
        self._own = segments[rank].words
        self._others = [other for other in range(len(segments)) if other != rank]
        self._bell, self._ringers, self._monitor = bell, ringers, monitor
        self._ringing = threading.Lock()
        self._spins = SPINS if len(segments) <= count_cores(others=monitor.pids) else 1
        self._affinity = CoreAffinity(rank, self._words)
        self._poll = select.poll()
        self._poll.register(bell.fileno(), select.POLLIN)
        monitor.register(self._poll)
        self.deadline: float | None = None
        self.abort_check = AbortCheck()
        self.also_check: Callable[[], None] = lambda: None
        """Called every 0.2 s during a sleep; what it raises ends the wait."""
        self.doing: Callable[[], str] = lambda: "group formation"

    def post(self, word: int, value: int) -> None:
        """Set one of this rank's words, and wake the ranks that sleep."""
        if not IN_ORDER:
            fence()
        self._own[word] = value
        if value % ANNOUNCE_EVERY == 1:
            self._affinity.announce()
        for other in self._others:
            if self._words[other][ASLEEP]:
                self._ring(other)

    def wait_until(self, word: int, value: int) -> None:
        """Wait until this word of every other rank is at least `value`; may raise GroupBroken."""
        for other in self._others:
            if self._words[other][word] < value:
                self._await(other, word, value)
        if not IN_ORDER:
            fence()

    def check(self) -> None:
        """Raise GroupBroken if a rank has failed or died; never waits."""
        self._check_failed()
        for rank in self._monitor.dead():
            if not self._words[rank][LEFT]:
                raise GroupBroken.by("TaskDiedError", f"{self._labels[rank]} has died")

    def _check_failed(self) -> None:
        broken = [(words[FAILED], rank) for rank, words in enumerate(self._words) if words[FAILED]]
        if broken:
            raise GroupBroken(self._segments[min(broken)[1]].read_failure())

    def announce_failure(self, failure: GroupFailure) -> None:
        """Publish why the group failed, and wake all ranks; from any thread."""
        self._segments[self._rank].write_failure(failure, time.monotonic_ns())
        self._ring_all()

    def leave(self) -> None:
        """Publish that this rank makes no more calls."""
        self._own[LEFT] = 1
        self._ring_all()

    def close(self) -> None:
        """Close the doorbells and process descriptors."""
        with self._ringing:
            for descriptor in self._ringers.values():
                os.close(descriptor)
            self._ringers.clear()
        self._monitor.close()
        self._bell.close()

    def remove_name(self) -> None:
        """Remove the doorbell's file, once all other ranks have opened it."""
        (shared_folder() / self._bell.name).unlink(missing_ok=True)

    def _await(self, other: int, word: int, value: int) -> None:
        line = self._words[other]
        for _ in range(self._spins):
            if line[word] >= value:
                return
        now = time.perf_counter()
        self._affinity.separate(now)
        tired = now + SPIN_SECONDS
        while True:
            for _ in range(YIELDS):
                if line[word] >= value:
                    return
                yield_core()
            if self._own[FAILED]:
                break
            self.abort_check()
            if time.perf_counter() >= tired:
                break
        self._sleep(other, word, value)

    def _sleep(self, other: int, word: int, value: int) -> None:
        line = self._words[other]
        pause, looked = FIRST_SLEEP, time.monotonic()
        self._own[ASLEEP] = 1
        try:
            while True:
                fence()  # ASLEEP must be visible before the word is read again
                if line[word] >= value:
                    return
                self._check(word, value)
                self.abort_check()
                now = time.monotonic()
                if now - looked > CHECK_SECONDS:
                    looked = now
                    for rank in self._monitor.frozen():
                        what = f"{self._labels[rank]} is frozen during {self.doing()}"
                        raise GroupBroken.by("UnavailableError", what)
                    self.also_check()
                if self.deadline is not None and now >= self.deadline:
                    what = f"{self._labels[other]} did not take part within the time limit: {self.doing()}"
                    raise GroupBroken.by("DeadlineExceededError", what)
                for descriptor, _ in self._poll.poll(pause * 1000):
                    if descriptor != self._bell.fileno():
                        self._poll.unregister(descriptor)  # a process that ended wakes once
                    else:
                        with suppress(BlockingIOError):
                            os.read(descriptor, 4096)
                pause = min(LONGEST_SLEEP, pause * 1.5)
        finally:
            self._own[ASLEEP] = 0

    def _check(self, word: int, value: int) -> None:
        """Raise GroupBroken if the word will never reach the value."""
        self._check_failed()
        left = [rank for rank in self._others if self._words[rank][LEFT]]
        dead = self._monitor.dead()
        for rank in self._others:
            # Read last: a rank may have set the word just before it left or died.
            if self._words[rank][word] >= value:
                continue
            if rank in left:
                what = f"{self._labels[rank]} has left the group; {self.doing()} is waiting for it"
                raise GroupBroken.by("UnavailableError", what)
            if rank in dead:
                what = f"{self._labels[rank]} has died during {self.doing()}"
                raise GroupBroken.by("TaskDiedError", what)

    def _ring_all(self) -> None:
        for other in self._others:
            self._ring(other)

    def _ring(self, other: int) -> None:
        with self._ringing:
            descriptor = self._ringers.get(other)
            if descriptor is not None:
                # A full pipe wakes as well, and a rank that has ended needs no wake-up.
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(descriptor, b"!")


# For a rank, or a replica of a server, to be stopped, which the kernel reports and which is no guess.
RANK_FROZEN_SECONDS = 2.0
PROC = Path("/proc")
USER_TIME = 11  # of /proc/<pid>/stat, after the name; the system's follows
STOPPED = ("T", "t", "stopped", "tracing-stop")


class FreezeDetector:
    """Finds frozen processes by rank: each call reads their state.

    A stopped process (SIGSTOP, a debugger) is frozen. A process that computes, holds the interpreter lock for
    long in native code, or waits for a core is not, and neither is one that is stopped again and again, as
    by cpulimit: it has used its core since it was seen stopped. Ranks of this process are left out.
    ``clock`` returns seconds.
    """

    def __init__(self, pids: Mapping[int, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids = {rank: pid for rank, pid in pids.items() if pid != os.getpid()}
        self._clock = clock
        self._stopped: dict[int, tuple[float, float]] = {}  # since when, and its time on cores by then

    def replace(self, rank: int, pid: int) -> None:
        """Watch the process ``pid`` in place of a rank's former one; 0 for a process on another host."""
        self._pids.pop(rank, None)
        self._stopped.pop(rank, None)
        if pid not in (0, os.getpid()):
            self._pids[rank] = pid

    @property
    def pids(self) -> Sequence[int]:
        """The watched processes."""
        return [*self._pids.values()]

    def pid_of(self, rank: int) -> int:
        """Return the watched process of a rank, 0 if there is none."""
        return self._pids.get(rank, 0)

    def frozen(self, seconds: float = RANK_FROZEN_SECONDS) -> list[int]:
        """Return the ranks that polls have seen stopped for longer than ``seconds``."""
        now = self._clock()
        for rank, pid in self._pids.items():
            state, used = _state(pid)
            if state not in STOPPED:
                self._stopped.pop(rank, None)
            elif self._stopped.get(rank, (0.0, -1.0))[1] != used:
                self._stopped[rank] = now, used
        return sorted(rank for rank, (since, _) in self._stopped.items() if now - since > seconds)


class ProcessMonitor(FreezeDetector):
    """Detects the end of processes too, by rank, until it is closed."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        super().__init__(pids)
        self._ends: dict[int, ProcessEnd] = {}
        for rank in self._pids:
            self._watch(rank)

    def replace(self, rank: int, pid: int) -> None:
        """Watch the process ``pid`` in place of a rank's former one; 0 for a process on another host."""
        super().replace(rank, pid)
        if rank in self._ends:
            self._ends.pop(rank).close()
        if rank in self._pids:
            self._watch(rank)

    def _watch(self, rank: int) -> None:
        with suppress(OSError):  # the process has ended, or is in another PID namespace
            self._ends[rank] = ProcessEnd(self._pids[rank])

    def register(self, poll: select.poll) -> None:
        """Let a poll return when one of the processes ends, if the system can tell (Linux)."""
        for end in self._ends.values():
            if end.descriptor >= 0:
                poll.register(end.descriptor, select.POLLIN)

    def seen(self) -> list[int]:
        """Return the ranks with a detectable end."""
        return sorted(self._ends)

    def unseen(self) -> list[int]:
        """Return the ranks with an undetectable end, because their processes are not visible here."""
        return sorted(self._pids.keys() - self._ends.keys())

    def dead(self) -> list[int]:
        """Return the ranks with a process that has ended; zombies are included."""
        if not hasattr(os, "pidfd_open"):
            return sorted(rank for rank, end in self._ends.items() if end.has_come())
        poll = select.poll()  # one call for all of them
        self.register(poll)
        ended = {descriptor for descriptor, _ in poll.poll(0)}
        return sorted(rank for rank, end in self._ends.items() if end.descriptor in ended)

    def close(self) -> None:
        """Stop watching for ends."""
        for end in self._ends.values():
            end.close()
        self._ends.clear()


class ProcessEnd:
    """The end of another process: on Linux a pidfd, elsewhere its state, which is asked for.

    Raises OSError if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self.descriptor = -1
        """Becomes readable at the end; -1 where only `has_come` tells it."""
        if hasattr(os, "pidfd_open"):
            self.descriptor = os.pidfd_open(pid)
            return
        import psutil  # here, since Linux needs none of this

        try:
            self._process = psutil.Process(pid)  # knows it by its start, too: the pid may be used again
        except psutil.Error as error:
            raise ProcessLookupError(str(error)) from None

    def has_come(self) -> bool:
        """Return whether the process has ended; without a descriptor only."""
        return _state_of(self._process) in ("", "zombie") or not self._process.is_running()

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


def _state(pid: int) -> tuple[str, float]:
    """Return the state of a process, and the time that it has used on cores.

    The state is "" if there is none: a letter of /proc, or psutil's word elsewhere.
    """
    try:
        fields = (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], float(fields[USER_TIME]) + float(fields[USER_TIME + 1])
    except IndexError:
        return "", 0.0
    except OSError:
        if PROC.is_dir():
            return "", 0.0
    import psutil

    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return _state_of(process), times.user + times.system
    except psutil.Error:
        return "", 0.0


def _state_of(process: Any) -> str:
    import psutil

    try:
        return str(process.status())
    except psutil.Error:
        return ""


CORE_CHECK_SECONDS = 0.02  # seconds; reading the core of one rank takes about 15 µs
CORE_FIELD = 36  # of /proc/<pid>/stat, after the name


class CoreAffinity:
    """Moves a rank's thread to an idle core when several ranks spin on the same one.

    The scheduler would leave them together: they yield to each other every few microseconds, so both always
    look too recently run to be moved, and each call takes twice as long.
    """

    def __init__(self, rank: int, words: Sequence[memoryview[int]]) -> None:
        self._own = words[rank]
        self._others = [one for one in words if one is not words[rank]]
        self._next = 0.0
        able = hasattr(os, "sched_setaffinity")  # elsewhere a thread cannot choose its core
        self._enough = able and len(words) <= len(os.sched_getaffinity(0))

    def announce(self) -> None:
        """Publish the id of the calling thread."""
        self._own[THREAD] = threading.get_native_id()

    def separate(self, now: float) -> None:
        """Move off a core that another rank uses; does nothing more often than every 20 ms."""
        if not self._enough or now < self._next:
            return
        self._next = now + CORE_CHECK_SECONDS
        self.announce()
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


class SequenceCounters:
    """The sequence counters of one rank, and its waits for those of the others."""

    def __init__(
        self, rank: int, segments: Sequence[RankSegment], synchronizer: Synchronizer, labels: Sequence[str]
    ) -> None:
        self.rank, self.segments = rank, segments
        self.sent = self.reduced = 0
        self.waited = 0.0
        """Seconds spent in `begin` until all ranks had made the call."""
        self.sequence: Callable[[], int] = lambda: 0
        """Returns the number of the group's current call, for error messages."""
        self.instead: Callable[[], CollectiveCall | None] = lambda: None
        """Returns the call that ranks compare in place of the one that begins, if there is another."""
        self._synchronizer, self._labels = synchronizer, labels
        self._own = segments[rank].words
        self._others = [segment.words for segment in segments if segment is not segments[rank]]
        self._written = [0, 0]  # for each slot, the digest of the call text in it

    def begin(self, call: CollectiveCall) -> None:
        """Publish the first chunk and its call; wait for all ranks and compare their calls."""
        slot = self.sent % 2
        call = self.instead() or call
        digest = call.digest
        if self._written[slot] != digest:
            self.segments[self.rank].write_call(slot, call.text)
            self._own[DIGEST + slot] = self._written[slot] = digest
        self.sent += 1
        self._synchronizer.post(SENT, self.sent)
        begun = time.perf_counter()
        self._synchronizer.wait_until(SENT, self.sent)
        self.waited += time.perf_counter() - begun
        for words in self._others:
            if words[DIGEST + slot] != digest:
                self._synchronizer.check()  # the failure of a rank is a better reason
                texts = {rank: segment.read_call(slot) for rank, segment in enumerate(self.segments)}
                raise GroupBroken.of_calls(texts, self.sequence(), self._labels)

    def put(self) -> None:
        """Publish another chunk."""
        self.sent += 1
        self._synchronizer.post(SENT, self.sent)

    def await_put(self) -> None:
        """Wait until all ranks have published as many chunks as this one."""
        self._synchronizer.wait_until(SENT, self.sent)

    def put_reduced(self) -> None:
        """Publish another reduced chunk."""
        self.reduced += 1
        self._synchronizer.post(REDUCED, self.reduced)

    def await_reduced(self, count: int) -> None:
        """Wait until all ranks have published `count` reduced chunks, over all calls."""
        self._synchronizer.wait_until(REDUCED, count)

    def waits_elsewhere(self) -> bool:
        """Whether another rank has published a chunk of a call that this one has not begun."""
        return any(words[SENT] > self.sent for words in self._others)
