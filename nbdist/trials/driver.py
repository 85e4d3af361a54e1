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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.errors import FailedPreconditionError, NbdistError, ResourceExhaustedError, WorkerError
from nbdist.runs.monitor import Hint, with_hint
from nbdist.runs.shutdown import REPLACE_AFTER, SIGNAL_AFTER, StuckTaskReplacer
from nbdist.sweep import commands
from nbdist.sweep.events import EndState, Reported, Started
from nbdist.sweep.state import Ledger, Trial
from nbdist.trials.protocol import TrialOrder
from nbdist.trials.workers import Attempt, Engines
from nbdist.wire.rpc.frame import Frame

if TYPE_CHECKING:
    from nbdist.trials.store import Record

SYNC_SECONDS = 1.0
LONGEST_WAIT = 0.25  # seconds between two looks at who has died
FULL_SECONDS = 1.0  # between two attempts to write on a full disk
RECOVER_SECONDS = 10.0  # that engines have to say what they are at, when a sweep is taken over
LEAVE_SECONDS = 2.0  # for engines to leave
PRUNED_PATIENCE = 10.0  # times as long as others has a trial that is pruned
UNKNOWN_SECONDS = 1.0  # the same as RECOVER_SECONDS, where the log knows of nothing that runs


class Driver:
    """Drives one sweep on its engines until there is nothing more to do."""

    def __init__(
        self,
        record: Record,
        engines: Engines,
        taken_over: bool,
        ended: Callable[[], object],
        hint: Hint | None = None,
    ) -> None:
        self.record, self.engines, self._hint = record, engines, hint
        self.error: NbdistError | None = None
        self.trouble: str | None = None
        self._recovering = taken_over
        self._ended = ended
        self._overs: dict[Attempt, dict[int, dict[str, Any]]] = {}
        self._pressing = Pressing(engines)
        self._failing = Failing(record.ledger)
        self.hopeless = False
        """Whether the trouble does not pass by itself."""
        self._inbox: deque[Frame] = deque()
        self._died: set[int] = set()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        engines.wake = self.wake
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
            if self._recovering:
                self._recover()
            while not self._leaving:
                self._look()
                if self._act():
                    break
                with suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
                self.engines.wait(self._wake_in, FULL_SECONDS if self.record.full else LONGEST_WAIT)
        except Exception as error:  # nobody else would hear of it: it is said where the sweep is
            self.error = self.error or self._ended_by(error)
        finally:
            with suppress(Exception):  # what ended it is said already
                self._leave()
            with self._closing:
                os.close(self._wake_in)
                os.close(self._wake_out)
                self._wake_in = self._wake_out = -1
            self._ended()

    def _ended_by(self, error: Exception) -> NbdistError:
        """Return what to say of an error that has ended the driver."""
        if self.engines.cluster.stopped:
            told: NbdistError = FailedPreconditionError(
                f"cluster {self.engines.cluster.id} was stopped while sweep {self.record.id} ran on it; "
                "start another with %cluster start, then sweep.resume() goes on there"
            )
        elif isinstance(error, NbdistError):
            return error
        else:  # a mistake of ours: it is said where the sweep is, and its log is whole
            told = FailedPreconditionError(
                f"the driver of sweep {self.record.id} failed: {type(error).__name__}: {error}; "
                f"nb.attach({self.record.id!r}) takes it over"
            )
        told.__cause__ = error
        return told

    def _leave(self) -> None:
        """Give the engines back, and wait a moment until others can have them."""
        self.engines.leave()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self.engines.have_left() and time.monotonic() < deadline:
            self.engines.wait(self._wake_in, 0.002)
            for frame in self.engines.look(time.monotonic())[0]:
                self.engines.take(frame, time.monotonic())

    # Taking over.

    def _recover(self) -> None:
        """Find out what engines are at, and what has ended meanwhile, and write down what is lost.

        An attempt is adopted if all its engines are at it, or have been.
        """
        record = self.record
        with record.lock:
            unsure = record.ledger.running or record.log.found.torn
            seconds = RECOVER_SECONDS if unsure else UNKNOWN_SECONDS
        deadline = time.monotonic() + seconds
        waiting = {one.rank for one in self.engines.standing() if one.state != "gone"}
        ranks: dict[tuple[int, int], tuple[int, ...]] = {}
        found: dict[tuple[int, int], set[int]] = {}
        while waiting and time.monotonic() < deadline and not self._leaving:
            frames, died = self.engines.look(time.monotonic())
            self._inbox.extend(frames)
            self._died |= died
            for frame in frames:
                if frame.kind == "trial.standing":  # news and ends do not say all that it is at
                    waiting.discard(int(frame.meta["rank"]))
                for one in parts_of(frame):
                    key = one["number"], one["attempt"]
                    ranks[key] = tuple(one["ranks"])
                    found.setdefault(key, set()).add(int(frame.meta["rank"]))
            waiting -= self._died
            if waiting:
                self.engines.wait(self._wake_in, 0.05)
        known = {key: those for key, those in ranks.items() if not self._is_elsewhere(key, those)}
        at_work = {key: those for key, those in known.items() if found[key] >= set(those)}
        if self._leaving:
            return
        with record.lock:
            now = time.time()
            for key in sorted(ranks.keys() - at_work.keys()):  # its start may be the record that was lost
                trial = record.ledger.trials.get(key[0])
                if trial is not None and trial.state == "waiting" and trial.attempt + 1 == key[1]:
                    record.write(Started(now, *key, ranks[key]))
            events, _ = record.scheduler.recover(at_work, now)
            record.write(*events)

    def _is_elsewhere(self, key: Attempt, ranks: tuple[int, ...]) -> bool:
        """Whether the log has an attempt on other ranks: the start of the one on these is lost."""
        trial = self.record.ledger.trials.get(key[0])
        running = trial is not None and trial.state == "running" and trial.attempt == key[1]
        return running and trial is not None and bool(trial.ranks) and trial.ranks != ranks

    # Looking.

    def _look(self) -> None:
        frames, died = self.engines.look(time.monotonic())
        self._inbox.extend(frames)
        self._died |= died
        record = self.record
        with record.lock:
            try:
                while self._inbox:  # before deaths: what has ended is not tried again
                    self._hear(self._inbox[0])
                    self._inbox.popleft()
                self._bury()
                record.full = ""
            except ResourceExhaustedError as error:  # nothing is lost: it is written when there is room
                record.full = str(error)
        self._pressing.look()

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
            self.engines.disown(event.number, attempt)

    def _hear(self, frame: Frame) -> None:
        now = time.monotonic()
        if frame.kind == "trial.news":
            self._take_news(frame)
            return
        over = frame.meta if frame.kind == "trial.over" else frame.meta["over"]
        if over is not None:
            self._take_over(over)
            self.engines.take(Frame("trial.over", {**over, "rank": frame.meta["rank"]}), now)
        if frame.kind == "trial.standing":
            present = frame.meta["present"]
            trial = None if present is None else self.record.ledger.trials.get(present["number"])
            wanted = trial is not None and trial.state == "running" and trial.attempt == present["attempt"]
            self.engines.take(frame, now, wanted)

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
        if frame.meta.get("again"):  # all that there are, of which some are known
            curve = self.record.ledger.curve(number)
            last = curve.steps[-1] if curve is not None and curve.steps else -1
            reports = [report for report in reports if report.step > last]
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
        ranks = tuple(int(rank) for rank in over["ranks"])
        if trial.ranks and ranks != trial.ranks:  # of an attempt whose start the log has lost
            rank = int(over["rank"])
            if rank in trial.ranks:
                record.write(*record.scheduler.died([rank], time.time(), "its number was used before"))
                self.engines.disown(number, attempt)
            return
        if trial.stopping and over.get("interrupted"):  # our signal was faster than our word
            over = {**over, "state": "stopped", "error": ""}
        overs = self._overs.setdefault(key, {})
        overs[int(over["rank"])] = over
        failed = next(
            (one for one in overs.values() if one["state"] == "failed" and not one.get("aborted")), None
        )
        if not set(overs) >= set(ranks):
            return
        del self._overs[key]
        shown = failed or overs[ranks[0]]
        ended = record.scheduler.end(
            number, attempt, state_of(shown), time.time(), shown["values"],
            with_hint(str(shown["error"]), shown, self._hint),
        )  # fmt: skip
        if ended is not None:
            record.write(ended)

    # Acting.

    def _act(self) -> bool:
        """Give out trials and end those that are to end; whether there is nothing more to do."""
        record = self.record
        started: list[TrialOrder] = []
        free, alive = self.engines.free, self.engines.alive
        with record.lock:
            try:
                now = time.time()
                if (error := self._failing.verdict(alive, record.over, now)) is not None:
                    self.error = error
                    if not record.over:
                        record.write(*commands.close(record.ledger, now, "all trials failed"))
                still = {number for number, _ in self.engines.strays()}
                while (event := record.scheduler.next(free, alive, time.time(), still)) is not None:
                    record.write(event)
                    if isinstance(event, Started):
                        free -= set(event.ranks)
                        started.append(record.order_for(event))
                record.sync(SYNC_SECONDS)
            except ResourceExhaustedError as error:
                record.full = str(error)
            ending = self._ending()
            self.trouble = record.full or record.scheduler.trouble(alive) or None
            over = not record.goes_on
            idle = not over and not record.ledger.running
        for trial in started:
            self.engines.start(trial, time.monotonic())
        self._pressing.press(ending)
        if (wrong := self.engines.wrong) is not None:
            raise wrong
        self.hopeless = self.trouble is not None
        if self.trouble is None and idle and (held := self.engines.held):
            self.trouble = f"run {held} has the engines; the sweep continues when that run has ended"
        self.trouble = self.trouble or self._pressing.trouble
        return over and not record.full and not self._pressing.under_way

    def _ending(self) -> dict[Attempt, tuple[str, float]]:
        """Return the attempts that are to end: why they are aborted, if so, and how patiently."""
        record, found = self.record, dict[Attempt, tuple[str, float]]()
        for number in record.ledger.running:
            trial = record.ledger.trials[number]
            if trial.stopping:  # one that is pruned harms nobody: its step may take its time
                found[number, trial.attempt] = "", PRUNED_PATIENCE if trial.stopping == "pruned" else 1.0
        for key, overs in self._overs.items():
            if any(one["state"] == "failed" for one in overs.values()):
                found[key] = "another engine of this trial failed", 1.0
        for key in self.engines.strays():
            found[key] = "the sweep has given this attempt up", 1.0
        return found


def parts_of(frame: Frame) -> list[dict[str, Any]]:
    """Return the attempts that an engine speaks of: at which it is, and which has ended."""
    if frame.kind == "trial.over":
        return [frame.meta]
    if frame.kind != "trial.standing":
        return []
    return [one for one in (frame.meta["present"], frame.meta["over"]) if one is not None]


def state_of(over: dict[str, Any]) -> EndState:
    """Return how an engine says that a trial ended, if that is a way to end."""
    found: EndState = over["state"] if over["state"] in ("finished", "stopped", "failed") else "failed"
    return found


# Tells a sweep none of whose trials can do anything but fail: its body is wrong.

LEAST_FAILURES = 4


class Failing:
    """Looks at the failures since a driver began."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = ledger.counts["failed"]
        self._least = 1  # failures for another look

    def verdict(self, alive: int, over: bool, now: float) -> WorkerError | None:
        """Return the error of a sweep whose trials have all failed, None while that cannot be said.

        A thousand trials would not mend its body: some for each of the engines that are ``alive`` are enough,
        unless one is under way that has come further than they did. Of a sweep that is ``over`` it is all.
        """
        ledger = self._ledger
        failed = ledger.counts["failed"] - self._before
        if failed < self._least or ledger.closed:
            return None
        if ledger.counts["finished"] + ledger.counts["pruned"] + ledger.counts["stopped"]:
            return None
        if not over and failed < max(LEAST_FAILURES, 2 * alive):
            return None
        those = [trial for trial in ledger.trials.values() if trial.state == "failed"]
        longest = max(trial.seconds or 0.0 for trial in those)
        for number in ledger.running:
            trial = ledger.trials[number]
            if trial.step is not None or now - (trial.started_at or now) > longest:
                self._least = failed + 1
                return None
        return all_failed(those[0], failed)


def all_failed(first: Trial, count: int) -> WorkerError:
    """Return the error of a sweep none of whose trials has done anything but fail."""
    given = " ".join(f"{name}={value!r}" for name, value in first.parameters.items())
    error = WorkerError(
        f"all of the first {count} trials failed, and the sweep has ended. "
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


# How attempts at trials are made to end: asked, then signalled, at last their engines are replaced.


class Pressing:
    """The attempts that are to end, each as far up the ladder as its time allows."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.told: dict[Attempt, tuple[float, int]] = {}
        """Since when each is to end, and how many rungs it has seen."""
        self._replacing: list[StuckTaskReplacer] = []

    def press(self, ending: Mapping[Attempt, tuple[str, float]]) -> None:
        """Do what is due: for each attempt why it is aborted, empty if it is stopped, and how patiently."""
        now = time.monotonic()
        self.told = {key: self.told.get(key, (now, 0)) for key in ending}
        for key, (reason, patience) in ending.items():
            since, rung = self.told[key]
            if rung == 0:
                self._engines.stop(*key, reason)
            elif rung == 1 and now - since >= SIGNAL_AFTER * patience:
                self._engines.interrupt(*key)
            elif rung == 2 and now - since >= REPLACE_AFTER * patience:
                stuck = self._engines.infos(*key)
                if stuck:
                    one = StuckTaskReplacer(self._engines.cluster)
                    one.begin(stuck, REPLACE_AFTER * patience)
                    self._replacing.append(one)
            else:
                continue
            self.told[key] = since, rung + 1

    def look(self) -> None:
        """Go on with engines that are being replaced."""
        for one in self._replacing:
            if one.under_way:
                one.poll()
        self._replacing = [one for one in self._replacing if one.under_way or one.error is not None]

    @property
    def under_way(self) -> bool:
        """Whether an engine is being replaced."""
        return any(one.under_way for one in self._replacing)

    @property
    def trouble(self) -> str | None:
        """What could not be replaced, if that is so."""
        return next((one.report for one in self._replacing if one.error is not None), None)
