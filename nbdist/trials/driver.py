"""The driver of a sweep: a thread that gives trials to engines, hears what they report, and writes it down.

    look    what engines say, and which have died           becomes events in the log
    act     tell the engines what the log says               start, stop
    wait    until an engine says something, or somebody wishes something

What is written is acted on afterwards, never before: whatever dies, the log knows at least as much as the
engines. It ends when there is nothing more to do; a later wish begins another.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.errors import BodyError, FailedPreconditionError, NbdistError, ResourceExhaustedError
from nbdist.runs.interrupt import REPLACE_AFTER, SIGNAL_AFTER
from nbdist.runs.replacing import Replacing
from nbdist.sweep import wishes
from nbdist.sweep.events import EndState, Reported, Started
from nbdist.sweep.trial import Trial
from nbdist.trials.engines import Engines
from nbdist.trials.order import TrialOrder
from nbdist.wire.frames import Frame

if TYPE_CHECKING:
    from nbdist.trials.record import Record

SYNC_SECONDS = 1.0
LONGEST_WAIT = 0.25  # seconds between two looks at who has died
FULL_SECONDS = 1.0  # between two attempts to write on a full disk
RECOVER_SECONDS = 10.0  # that engines have to say what they are at, when a sweep is taken over
LEAVE_SECONDS = 2.0  # for engines to leave
LEAST_FAILURES = 4


class Driver:
    """Drives one sweep on its engines until there is nothing more to do."""

    def __init__(
        self, record: Record, engines: Engines, taken_over: bool, ended: Callable[[], object]
    ) -> None:
        self.record, self.engines = record, engines
        self.error: NbdistError | None = None
        self.trouble: str | None = None
        self._recovering = taken_over
        self._ended = ended
        self._overs: dict[tuple[int, int], dict[int, dict[str, Any]]] = {}
        self._told: dict[tuple[int, int], tuple[float, int]] = {}  # attempts that are to end: since, rungs
        self._replacing: list[Replacing] = []
        self._inbox: deque[Frame] = deque()
        self._died: set[int] = set()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._closing = threading.Lock()
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name=f"nbdist sweep {record.id}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Have the next look come at once; from any thread."""
        with self._closing, suppress(BlockingIOError):
            if self._wake_out >= 0:
                os.write(self._wake_out, b".")

    def leave(self) -> None:
        """Stop driving, and leave the engines and the log as they are."""
        self._leaving = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.engines.join()
            if self._recovering:
                self._recover()
            while not self._leaving:
                self._look()
                if self._act():
                    break
                with suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
                self.engines.wait(self._wake_in, FULL_SECONDS if self.record.full else LONGEST_WAIT)
        except NbdistError as error:
            self.error = self.error or error
        except Exception as error:  # a mistake of ours: it is said where the sweep is, and its log is whole
            self.error = FailedPreconditionError(
                f"the driver of sweep {self.record.id} failed: {type(error).__name__}: {error}; "
                f"nb.attach({self.record.id!r}) takes it over"
            )
            self.error.__cause__ = error
        finally:
            with suppress(NbdistError):
                self._leave()
            with self._closing:
                os.close(self._wake_in)
                os.close(self._wake_out)
                self._wake_in = self._wake_out = -1
            self._ended()

    def _leave(self) -> None:
        """Give the engines back, and wait a moment until others can have them."""
        self.engines.leave()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self.engines.have_left() and time.monotonic() < deadline:
            self.engines.wait(self._wake_in, 0.002)
            self.engines.look(time.monotonic())

    # Taking over.

    def _recover(self) -> None:
        """Find out what engines are at, and what has ended meanwhile, and write down what is lost."""
        deadline = time.monotonic() + RECOVER_SECONDS
        waiting = {one.rank for one in self.engines.standing() if one.state != "gone"}
        at_work: dict[tuple[int, int], tuple[int, ...]] = {}
        while waiting and time.monotonic() < deadline and not self._leaving:
            frames, died = self.engines.look(time.monotonic())
            waiting -= died
            for frame in frames:
                self._inbox.append(frame)
                if frame.kind == "trial.standing":
                    self.engines.take(frame, time.monotonic())
                    waiting.discard(int(frame.meta["rank"]))
                    for one in (frame.meta["present"], frame.meta["over"]):
                        if one is not None:
                            at_work[one["number"], one["attempt"]] = tuple(one["ranks"])
            self.engines.wait(self._wake_in, 0.05)
        record = self.record
        with record.lock:
            events, strays = record.scheduler.recover(at_work, time.time())
            record.write(*events)
        for number, attempt in strays:  # to those that have ended long ago nobody listens any more
            self.engines.stop(number, attempt, "the sweep has given this attempt up")

    # Looking.

    def _look(self) -> None:
        frames, died = self.engines.look(time.monotonic())
        self._inbox.extend(frames)
        self._died |= died
        record = self.record
        with record.lock:
            try:
                self._bury()
                while self._inbox:
                    self._hear(self._inbox[0])
                    self._inbox.popleft()
                record.full = ""
            except ResourceExhaustedError as error:  # nothing is lost: it is written when there is room
                record.full = str(error)
        for one in self._replacing:
            if one.under_way:
                one.look()

    def _bury(self) -> None:
        if not self._died:
            return
        record = self.record
        events = record.scheduler.died(self._died, time.time())
        record.write(*events)
        self._died.clear()
        for event in events:  # the other engines of such a trial cannot go on without
            attempt = record.ledger.trials[event.number].attempt
            self._overs.pop((event.number, attempt), None)
            self.engines.stop(event.number, attempt, "another engine of this trial died")

    def _hear(self, frame: Frame) -> None:
        now = time.monotonic()
        if frame.kind == "trial.news":
            self._take_news(frame)
            return
        over = frame.meta if frame.kind == "trial.over" else frame.meta.get("over")
        if over is not None:
            self._take_over(over)
            self.engines.take(Frame("trial.over", {**over, "rank": frame.meta["rank"]}), now)
        if frame.kind == "trial.standing":
            self.engines.take(frame, now)

    def _take_news(self, frame: Frame) -> None:
        number, attempt = int(frame.meta["number"]), int(frame.meta["attempt"])
        now = time.time()
        steps, values = frame.arrays
        reports = [
            Reported(number, attempt, int(step), float(value), now)
            for step, value in zip(steps, values, strict=True)
        ]
        trial = self.record.ledger.trials.get(number)
        if trial is None or trial.attempt != attempt or trial.state != "running":
            return
        self.record.write(*reports)
        for report in reports:
            pruned = self.record.scheduler.judge(report, now)
            if pruned is not None:
                self.record.write(pruned)
                break

    def _take_over(self, over: dict[str, Any]) -> None:
        """Take in how a trial has ended on one rank; it is over when it has on all of them."""
        record = self.record
        key = number, attempt = int(over["number"]), int(over["attempt"])
        trial = record.ledger.trials.get(number)
        if trial is None or trial.attempt != attempt or trial.state != "running":
            return
        overs = self._overs.setdefault(key, {})
        overs[int(over["rank"])] = over
        failed = next(
            (one for one in overs.values() if one["state"] == "failed" and not one.get("aborted")), None
        )
        if failed is not None and len(overs) < len(trial.ranks):
            self.engines.stop(number, attempt, "another engine of this trial failed")
        if set(overs) < set(trial.ranks):
            return
        del self._overs[key]
        shown = failed or overs[trial.ranks[0]]
        ended = record.scheduler.end(
            number, attempt, state_of(shown), time.time(), shown["values"], str(shown["error"])
        )
        if ended is not None:
            record.write(ended)
            self._told.pop(key, None)

    # Acting.

    def _act(self) -> bool:
        """Give out trials and end those that are to end; whether there is nothing more to do."""
        record = self.record
        started: list[TrialOrder] = []
        with record.lock:
            try:
                self._check_failures()
                free, alive = self.engines.free, self.engines.alive
                while (event := record.scheduler.next(free, alive, time.time())) is not None:
                    record.write(event)
                    if isinstance(event, Started):
                        free -= set(event.ranks)
                        started.append(record.order_for(event))
                record.sync(SYNC_SECONDS)
            except ResourceExhaustedError as error:
                record.full = str(error)
            stopping = [
                record.ledger.trials[n] for n in record.ledger.running if record.ledger.trials[n].stopping
            ]
            keys = [(trial.number, trial.attempt) for trial in stopping]
            self.trouble = record.full or record.scheduler.trouble(alive) or None
            over = not record.goes_on
        for trial in started:
            self.engines.start(trial, time.monotonic())
        for key in keys:
            self._press(key)
        if (wrong := self.engines.wrong) is not None:
            raise wrong
        return over and not record.full and not any(one.under_way for one in self._replacing)

    def _press(self, key: tuple[int, int]) -> None:
        """Have a trial end: it is asked, then signalled, at last its engines are replaced."""
        now = time.monotonic()
        since, rung = self._told.get(key, (now, 0))
        if rung == 0:
            self.engines.stop(*key)
            rung = 1
        elif rung == 1 and now - since >= SIGNAL_AFTER:
            self.engines.interrupt(*key)
            rung = 2
        elif rung == 2 and now - since >= REPLACE_AFTER:
            stuck = self.engines.infos(*key)
            if stuck:
                one = Replacing(self.engines.cluster)
                one.begin(stuck, REPLACE_AFTER)
                self._replacing.append(one)
            rung = 3
        self._told[key] = (since, rung)

    def _check_failures(self) -> None:
        """End a sweep whose trials all fail: the body is wrong, and a thousand trials would not mend it."""
        ledger = self.record.ledger
        counts = ledger.counts
        failed = counts["failed"]
        others = counts["complete"] + counts["pruned"] + counts["stopped"]
        if ledger.closed or others or failed < max(LEAST_FAILURES, 2 * self.engines.alive):
            return
        first = next(trial for trial in ledger.trials.values() if trial.state == "failed")
        self.error = all_failed(first, failed)
        self.record.write(*wishes.close(ledger, time.time(), "all trials failed"))


def state_of(over: dict[str, Any]) -> EndState:
    """Return how an engine says that a trial ended, if that is a way to end."""
    found: EndState = over["state"] if over["state"] in ("complete", "stopped", "failed") else "failed"
    return found


def all_failed(first: Trial, count: int) -> BodyError:
    """Return the error of a sweep none of whose trials has done anything but fail."""
    given = " ".join(f"{name}={value!r}" for name, value in first.parameters.items())
    error = BodyError(
        f"all of the first {count} trials failed, and the sweep was ended. "
        f"Trial {first.number} ({given}):\n{first.error}"
    )
    error.ename, error.evalue = last_line(first.error)
    return error


def last_line(text: str) -> tuple[str, str]:
    """Return the name and the message of the error that a traceback ends with.

    >>> last_line("Traceback ...\\nValueError: no such width")
    ('ValueError', 'no such width')
    """
    last = text.rstrip().rpartition("\n")[2]
    name, _, message = last.partition(": ")
    return name, message
