"""`Driver`: the thread that runs a sweep. It gives trials to engines and writes their reports into the log.

    poll    messages and deaths of engines           become events in the log
    act     what the log says                        becomes messages to engines: start, stop
    wait    until an engine sends something or a command wakes the thread

An event is written before it is acted on (see `nbdist.sweep.event_log`), so after any death the log knows at
least as much as the engines. The driver ends when there is nothing more to do; a later command
starts another.

Recovery. A driver that takes a sweep over does not trust the log alone: it registers with every engine and
waits for its status (at most `RECOVER_SECONDS`). An attempt is adopted if all its ranks run it or have its
result. An attempt that the log calls running and that no engine runs is retried once, then failed. An attempt
that engines run and the log does not want is a stray, and is stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from nbdist.errors import FailedPreconditionError, NbdistError, ResourceExhaustedError, WorkerError
from nbdist.run.body_error import Hint, with_hint
from nbdist.run.recovery.shutdown import REPLACE_AFTER, SIGNAL_AFTER, StuckTaskReplacer
from nbdist.sweep import commands
from nbdist.sweep.events import EndState, Reported, Started
from nbdist.sweep.state import Ledger
from nbdist.trials.protocol import TrialSpec
from nbdist.trials.store import Record
from nbdist.trials.workers import Attempt, Engines
from nbdist.wire.rpc.frame import Frame

SYNC_SECONDS = 1.0
LONGEST_WAIT = 0.25  # seconds between two checks for dead engines
FULL_SECONDS = 1.0  # between two attempts to write on a full disk
COPY_SECONDS = 0.01  # between two looks at a trial's files that are being copied
RECOVER_SECONDS = 10.0  # for the engines to send their status, when a sweep is taken over
LEAVE_SECONDS = 2.0  # for engines to leave the sweep
PRUNED_PATIENCE = 10.0  # a pruned trial has this many times as long to end
UNKNOWN_SECONDS = 1.0  # as RECOVER_SECONDS, if no trial runs according to the log


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
        self._results: dict[Attempt, dict[int, dict[str, Any]]] = {}
        self._termination = Termination(engines)
        self._breaker = CircuitBreaker(record.ledger)
        self.hopeless = False
        """Whether the trouble does not pass by itself."""
        self._inbox: deque[Frame] = deque()
        self._died: set[int] = set()
        self.lost: Callable[[set[int]], object] = lambda ranks: None
        """Called with the ranks of engines that have died, once their trials are known to be lost."""
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
        """Have the thread poll at once; from any thread."""
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
        """Whether it has not ended."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._recovering:
                self._recover()
            while not self._leaving:
                self._poll()
                if self._act():
                    break
                with suppress(BlockingIOError):
                    os.read(self._wake_in, 4096)
                self.engines.wait(self._wake_in, self._longest_wait)
        except Exception as error:  # on a thread: the sweep's handle raises it
            self.error = self.error or self._ended_by(error)
        finally:
            with suppress(Exception):  # self.error has the reason already
                self._leave()
            with self._closing:
                os.close(self._wake_in)
                os.close(self._wake_out)
                self._wake_in = self._wake_out = -1
            self._ended()

    @property
    def _longest_wait(self) -> float:
        if self._inbox:  # a trial has ended, and its files are on their way
            return COPY_SECONDS
        return FULL_SECONDS if self.record.full else LONGEST_WAIT

    def _ended_by(self, error: Exception) -> NbdistError:
        """Return the error that the handle raises for an exception in this thread."""
        if self.engines.cluster.stopped:
            raised: NbdistError = FailedPreconditionError(
                f"cluster {self.engines.cluster.id} was stopped while sweep {self.record.id} ran on it; "
                "start another with %cluster start, then sweep.resume() continues there"
            )
        elif isinstance(error, NbdistError):
            return error
        else:  # a bug in nbdist: the log is complete
            raised = FailedPreconditionError(
                f"the driver of sweep {self.record.id} failed: {type(error).__name__}: {error}; "
                f"nb.attach({self.record.id!r}) takes it over"
            )
        raised.__cause__ = error
        return raised

    def _leave(self) -> None:
        """Give the engines back, and wait a moment until others can have them."""
        self.engines.leave()
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self.engines.have_left() and time.monotonic() < deadline:
            self.engines.wait(self._wake_in, 0.002)
            for frame in self.engines.look(time.monotonic())[0]:
                self.engines.take(frame, time.monotonic())
        with self.record.lock:
            over = not self.record.ledger.running
        if over:
            self.engines.mirror.drop()
        self.engines.mirror.close()

    # Taking over.

    def _recover(self) -> None:
        """Collect the status of the engines, adopt their attempts, and write events for what is lost."""
        record = self.record
        with record.lock:
            unsure = record.ledger.running or record.log.found.torn
            seconds = RECOVER_SECONDS if unsure else UNKNOWN_SECONDS
        deadline = time.monotonic() + seconds
        waiting = {one.rank for one in self.engines.status() if one.state != "gone"}
        ranks: dict[tuple[int, int], tuple[int, ...]] = {}
        found: dict[tuple[int, int], set[int]] = {}
        while waiting and time.monotonic() < deadline and not self._leaving:
            frames, died = self.engines.look(time.monotonic())
            self._inbox.extend(frames)
            self._died |= died
            for frame in frames:
                if frame.kind == "trial.status":  # reports and results are not its whole status
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
        trial = self.record.ledger.at_work(*key)
        return trial is not None and bool(trial.ranks) and trial.ranks != ranks

    # Polling.

    def _poll(self) -> None:
        frames, died = self.engines.look(time.monotonic())
        self._inbox.extend(frames)
        self._died |= died
        record = self.record
        with record.lock:
            try:
                for _ in range(len(self._inbox)):  # before deaths: a finished trial is not retried
                    if self.engines.awaits_files(self._inbox[0]):
                        self._inbox.rotate(-1)
                        continue
                    self._dispatch(self._inbox[0])
                    self._inbox.popleft()
                self._note_deaths()
                record.full = ""
            except ResourceExhaustedError as error:  # nothing is lost: it is written when there is room
                record.full = str(error)
        self._termination.poll()

    def _note_deaths(self) -> None:
        if not self._died:
            return
        record = self.record
        events = record.scheduler.died(self._died, time.time())
        record.write(*events)
        self.lost(set(self._died))
        self._died.clear()
        for event in events:  # the other engines of such a trial cannot continue alone
            attempt = record.ledger.trials[event.number].attempt
            self._results.pop((event.number, attempt), None)
            self.engines.disown(event.number, attempt)

    def _dispatch(self, frame: Frame) -> None:
        now = time.monotonic()
        if frame.kind == "trial.reports":
            self._take_reports(frame)
            return
        result = frame.meta if frame.kind == "trial.result" else frame.meta["result"]
        if result is not None:
            self._take_result(result)
            self.engines.take(Frame("trial.result", {**result, "rank": frame.meta["rank"]}), now)
        if frame.kind == "trial.status":
            present = frame.meta["present"]
            trial = None if present is None else self.record.ledger.trials.get(present["number"])
            wanted = trial is not None and trial.state == "running" and trial.attempt == present["attempt"]
            self.engines.take(frame, now, wanted)

    def _take_reports(self, frame: Frame) -> None:
        number, attempt = int(frame.meta["number"]), int(frame.meta["attempt"])
        now = time.time()
        steps, values = frame.arrays
        reports = [
            Reported(number, attempt, int(step), float(value), now)
            for step, value in zip(steps, values, strict=True)
        ]
        if self.record.ledger.at_work(number, attempt) is None:
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

    def _take_result(self, result: dict[str, Any]) -> None:
        """Take the result of one rank; the trial has ended when all its ranks have."""
        record = self.record
        key = number, attempt = int(result["number"]), int(result["attempt"])
        if (trial := record.ledger.at_work(number, attempt)) is None:
            return
        ranks = tuple(int(rank) for rank in result["ranks"])
        if trial.ranks and ranks != trial.ranks:  # of an attempt whose start the log has lost
            rank = int(result["rank"])
            if rank in trial.ranks:
                record.write(*record.scheduler.died([rank], time.time(), "its number was used before"))
                self.engines.disown(number, attempt)
            return
        if trial.stopping and result.get("interrupted"):  # our signal arrived before our stop message
            result = {**result, "state": "stopped", "error": ""}
        results = self._results.setdefault(key, {})
        results[int(result["rank"])] = result
        failed = next(
            (one for one in results.values() if one["state"] == "failed" and not one.get("aborted")), None
        )
        if not set(results) >= set(ranks):
            return
        del self._results[key]
        shown = failed or results[ranks[0]]
        ended = record.scheduler.end(
            number, attempt, state_of(shown), time.time(), shown["values"],
            with_hint(str(shown["error"]), shown, self._hint),
        )  # fmt: skip
        if ended is not None:
            record.write(ended)

    # Acting.

    def _act(self) -> bool:
        """Start trials and end trials; return whether there is nothing more to do."""
        record = self.record
        started: list[TrialSpec] = []
        free, alive = self.engines.free, self.engines.alive
        with record.lock:
            try:
                now = time.time()
                if (error := self._breaker.verdict(alive, record.over, now)) is not None:
                    self.error = error
                    if not record.over:
                        record.write(*commands.close(record.ledger, now, "all trials failed"))
                still = {number for number, _ in self.engines.strays()}
                while (event := record.scheduler.next(free, alive, time.time(), still)) is not None:
                    record.write(event)
                    if isinstance(event, Started):
                        free -= set(event.ranks)
                        started.append(record.trial_spec(event))
                record.sync(SYNC_SECONDS)
            except ResourceExhaustedError as error:
                record.full = str(error)
            ending = self._ending()
            self.trouble = record.full or record.scheduler.trouble(alive) or None
            over = not record.has_work
            idle = not over and not record.ledger.running
        for trial in started:
            self.engines.start(trial, time.monotonic())
        self._termination.advance(ending)
        if (wrong := self.engines.wrong) is not None:
            raise wrong
        self.hopeless = self.trouble is not None
        if self.trouble is None and idle and (held := self.engines.held):
            self.trouble = f"run {held} has the engines; the sweep continues when that run has ended"
        self.trouble = self.trouble or self._termination.trouble or self.engines.missing or None
        return over and not record.full and not self._termination.under_way

    def _ending(self) -> dict[Attempt, tuple[str, float]]:
        """Return the attempts to end: the reason if they are aborted, and a factor for the time they have."""
        record, found = self.record, dict[Attempt, tuple[str, float]]()
        for number in record.ledger.running:
            trial = record.ledger.trials[number]
            if trial.stopping:  # a pruned trial is correct: its step may take longer
                found[number, trial.attempt] = "", PRUNED_PATIENCE if trial.stopping == "pruned" else 1.0
        for key, results in self._results.items():
            if any(one["state"] == "failed" for one in results.values()):
                found[key] = "another engine of this trial failed", 1.0
        for key in self.engines.strays():
            found[key] = "the sweep has given this attempt up", 1.0
        return found


def parts_of(frame: Frame) -> list[dict[str, Any]]:
    """Return the attempts in a message: the present one, and the one that has ended."""
    if frame.kind == "trial.result":
        return [frame.meta]
    if frame.kind != "trial.status":
        return []
    return [one for one in (frame.meta["present"], frame.meta["result"]) if one is not None]


def state_of(result: dict[str, Any]) -> EndState:
    """Return how an engine says that a trial ended, if that is a way to end."""
    found: EndState = result["state"] if result["state"] in ("finished", "stopped", "failed") else "failed"
    return found


# The circuit breaker ends a sweep in which all trials fail: its body is wrong.

LEAST_FAILURES = 4


class CircuitBreaker:
    """Counts the failures since a driver began."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._before = ledger.counts["failed"]
        self._least = 1  # failures for another look

    def verdict(self, alive: int, over: bool, now: float) -> WorkerError | None:
        """Return the error for a sweep in which all trials have failed, or None.

        Two failures for each of the engines that are ``alive`` are enough, unless a trial runs that has
        survived longer than they did. If the sweep is ``over``, all its trials have failed.
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
        first = those[0]
        given = " ".join(f"{name}={value!r}" for name, value in first.parameters.items())
        of_them = "the first trial" if failed == 1 else f"all of the first {failed} trials"
        error = WorkerError(
            f"{of_them} failed, and the sweep has ended. Trial {first.number} ({given}):\n{first.error}"
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


# Termination of attempts: a stop message, then SIGINT, at last the engine is replaced.


class Termination:
    """The attempts to end, each with the step of the escalation that its time has reached."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.progress: dict[Attempt, tuple[float, int]] = {}
        """For each attempt when its termination began, and how many steps are done."""
        self._replacing: list[StuckTaskReplacer] = []

    def advance(self, ending: Mapping[Attempt, tuple[str, float]]) -> None:
        """Take the steps that are due; ``ending`` has the reason (empty: stop) and a factor for the time."""
        now = time.monotonic()
        self.progress = {key: self.progress.get(key, (now, 0)) for key in ending}
        for key, (reason, patience) in ending.items():
            since, steps = self.progress[key]
            if steps == 0:
                self._engines.stop(*key, reason)
            elif steps == 1 and now - since >= SIGNAL_AFTER * patience:
                self._engines.interrupt(*key)
            elif steps == 2 and now - since >= REPLACE_AFTER * patience:
                stuck = self._engines.infos(*key)
                if stuck:
                    one = StuckTaskReplacer(self._engines.cluster)
                    one.begin(stuck, REPLACE_AFTER * patience)
                    self._replacing.append(one)
            else:
                continue
            self.progress[key] = since, steps + 1

    def poll(self) -> None:
        """Advance the engines that are being replaced."""
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
