"""A task's end of its runs: answers the client while the body has the main thread.

client                            task
run.reserve  run, watch ────────► one run at a time: busy is an error that names the run there is
run.watch    run[, again] ──────► what there was so far, then run.news (pushed ten times a second): points,
                                  text, progress
run.using    ────────────────────► the run that has this task, and which other tasks it needs
run.outcome  run, at ───────────► what the body came to, in pages, until the next one begins
run.lost     run, ranks ────────► those workers are gone, and the others go on
run.stop / run.abort ───────────► the training loop sees it at its next step
run.control  run, do ───────────► so it does a pause, another learning rate, a checkpoint (see controlling.py)
run.timeline run ───────────────► what the task recorded of the run: its last one, also when it is over
push.open, push.part, push.close            arrays of a client on another host, see delivery.py
run.release  run ───────────────► parameters of the run are given up, its timeline is written to its folder
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError, NbdistError
from nbdist.home import private_folder
from nbdist.metrics.timeline import Span, Timeline
from nbdist.metrics.timeline_parts import Part, write_part
from nbdist.runs.control import heed
from nbdist.runs.delivery import Receiver
from nbdist.runs.outcome import Buffer, encode, page, write_outcome
from nbdist.runs.task.reporting import Live
from nbdist.runtime import task as tasks
from nbdist.runtime.groups import Gathering
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.server import Handler
from nbdist.runtime.task import Task
from nbdist.train.context import Control
from nbdist.train.step_timing import StepLog
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import Frame

RESERVED_SECONDS = 30.0  # a reservation that no body follows is void after this


class Agent:
    """What one task's Server knows of the run on it. Handlers run on the Server's thread."""

    def __init__(self, task: tasks.Task) -> None:
        self.task = task
        self.prefix = shared_prefix(task)
        self.parameters = ParameterService(task.server, self.prefix)
        self.groups = Gathering(task.server)
        self._reserved: tuple[str, float] | None = None
        self._holder: str | None = None
        self._needs: tuple[str, list[int] | None] = ("", None)  # a run, and the ranks of all its tasks
        self._live: Live | None = None
        self._control = ("", Control())
        self._watchers = Watchers()
        self._step_log: tuple[str, StepLog] | None = None
        self._received = Receiver(self.prefix)
        self.kept = Kept(task.rank, task.server.after)
        self.recorded = Recorded(task, [self._steps, lambda run: self.parameters.logs.spans(run, task.name)])
        handlers: dict[str, Handler] = {
            "run.hello": lambda frame, sender: Frame("run.hello", {"clock": time.perf_counter()}),
            "run.reserve": self._reserve,
            "run.using": lambda frame, sender: Frame("run.using", self._using()),
            "run.watch": self._watch,
            "run.outcome": self._outcome,
            "run.stop": self._stop,
            "run.abort": self._abort,
            "run.control": self._heed,
            "run.end_training": self._end_training,
            "run.lost": self._lost,
            "run.timeline": self._timeline,
            "run.release": self._release,
            **self._received.handlers(),
        }
        for kind, handler in handlers.items():
            task.server.on(kind, handler)

    def control(self, run: str) -> Control:
        """Return what others ask of a run: from its reservation on, for a word may come before the body."""
        if self._control[0] != run:
            self._control = (run, Control())
        return self._control[1]

    def begin(self, live: Live) -> None:
        """Make ``live`` the run on this task. Called by the body, on the main thread."""
        self.kept.forget()
        self._live = live
        if live.context.step_log is not None:
            self._step_log = (live.run, live.context.step_log)
        over = threading.Event()
        live.cancel, intervals = over.set, live.intervals()

        def look() -> None:
            if over.is_set():
                return
            self.task.server.after(next(intervals), look)
            self._tell(live, ended=False)

        self.task.server.after(next(intervals), look)

    def end(self, live: Live) -> None:
        """Send the last news and free the task. Called by the body, on the main thread."""
        told = threading.Event()

        def last() -> None:
            watched = False
            try:
                live.cancel()
                watched = self._tell(live, ended=True)
            finally:
                self.kept.end(live.run, live.so_far(self.task.rank, ended=True), watched)
                self._live = None
                if self._reserved is not None and self._reserved[0] == live.run:
                    self._reserved = None
                told.set()

        self.task.server.post(last)
        told.wait(5.0)

    def hold(self, holder: str) -> None:
        """Keep the task for what runs bodies of its own here, such as a sweep, until it lets go."""
        self._holder = holder

    def claim(self, run: str) -> str:
        """Reserve the task for a run if nobody else has it; return who has, empty if that is done.

        On the Server's thread.
        """
        busy = self._busy()
        if busy is not None and busy != run:
            return busy
        self._reserved, self._needs = (run, time.monotonic()), (run, [self.task.rank])
        return ""

    def let_go(self, holder: str) -> None:
        """Hold the task no more."""
        if self._holder == holder:
            self._holder = None
        if self._reserved is not None and self._reserved[0] == holder:
            self._reserved = None

    def watch(self, run: str, sender: Caller) -> None:
        """Have a connection told the news of a run here. On the Server's thread."""
        self._watchers.add(run, sender)

    def unwatch(self, run: str) -> None:
        """Tell nobody of a run any more. On the Server's thread."""
        self._watchers.drop(run)

    def close(self) -> None:
        """Give up what this task keeps for runs."""
        self.parameters.close()
        self._received.close()

    def _tell(self, live: Live, ended: bool) -> bool:
        """Send the news to who watches; whether anybody does."""
        for frame in live.told(self.task.rank, ended):
            self._watchers.push(live.run, frame)
        watched = self._watchers.any(live.run)
        if ended:
            self._watchers.drop(live.run)
        return watched

    def _reserve(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        busy = self._busy()
        if busy is not None and (self._live is not None or busy != run):
            raise FailedPreconditionError(
                f"{self.task.name} is busy with run {busy}; wait for it (run.wait()), or stop it (its Stop "
                f"button, run.stop(), or an interrupt); nb.attach({busy!r}) returns it in any notebook"
            )
        self._reserved = (run, time.monotonic())
        if "ranks" in frame.meta:
            self._needs = (run, list(frame.meta["ranks"]))
        self.control(run)
        if frame.meta.get("watch"):  # in the same call: a short body would be over before another word
            self._watchers.add(run, sender)
        return Frame("run.reserved")

    def _busy(self) -> str | None:
        """Return the run that has this task, if one has."""
        if self._holder is not None:
            return self._holder
        if self._live is not None:
            return self._live.run
        if self._reserved is not None and time.monotonic() - self._reserved[1] < RESERVED_SECONDS:
            return self._reserved[0]
        return None

    def _using(self) -> dict[str, Any]:
        """Return the run that has this task, the ranks that it needs, if it has said which, and has lost."""
        run = self._busy()
        needs = self._needs[1] if run == self._needs[0] else None
        return {"run": run, "ranks": needs, "lost": self.groups.lost(run or "")}

    def _watch(self, frame: Frame, sender: Caller) -> Frame | None:
        run, live = frame.meta["run"], self._live
        over = self.kept.answer(run)
        if frame.meta.get("again"):  # from who hears nothing: it may have been left out, or not
            self._watch_again(run, sender, over)
            return None
        if over is not None:
            return over
        self._watchers.add(run, sender)
        if live is not None and live.run == run:
            return live.so_far(self.task.rank, ended=False)
        return Frame("run.watched", {"state": "waiting" if self._is_here(run) else "unknown"})

    def _watch_again(self, run: str, sender: Caller, over: Frame | None) -> None:
        """Push all there was so far to who is not told the news any more, and those that follow."""
        live = self._live
        if over is None and not self._watchers.has(run, sender):
            self._watchers.add(run, sender)
            if live is not None and live.run == run:
                over = live.so_far(self.task.rank, ended=False)
        if over is not None:
            sender.push(over)

    def _outcome(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        found = self.kept.page(run, int(frame.meta.get("at", 0)))
        return found or Frame("run.outcome", {"state": "coming" if self._is_here(run) else "unknown"})

    def _stop(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            self.control(frame.meta["run"]).stop_requested = True
        return Frame("run.stopping", {"running": here})

    def _heed(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            heed(self.control(frame.meta["run"]), frame.meta)
        return Frame("run.heeded", {"running": here})

    def _end_training(self, frame: Frame, sender: Caller) -> None:
        """End one training early: a callback of the chief wants it (sent from task to task)."""
        if self._is_here(frame.meta["run"]):
            self.control(frame.meta["run"]).ended_training = int(frame.meta["number"])

    def _lost(self, frame: Frame, sender: Caller) -> Frame:
        """Note that workers of a run are gone and the others go on."""
        self.groups.lose(frame.meta["run"], [int(rank) for rank in frame.meta["ranks"]])
        return Frame("run.lost")

    def _abort(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            self.control(frame.meta["run"]).aborted = str(frame.meta["reason"])
        return Frame("run.aborting", {"running": here})

    def _timeline(self, frame: Frame, sender: Caller) -> Frame:
        part = self.recorded.part(frame.meta["run"]).encode()
        return Frame("run.timeline", {}, (np.frombuffer(part, np.uint8),))

    def _steps(self, run: str) -> list[Span]:
        """Return what the replica of a run did here: of the last one that had any."""
        if self._step_log is None or self._step_log[0] != run:
            return []
        return self._step_log[1].spans(self.task.name)

    def _release(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        if self._live is None and self._reserved is not None and self._reserved[0] == run:
            self._reserved = None
            self._watchers.drop(run)
        self.parameters.drop_run(run)
        self.groups.drop_run(run)
        self.kept.taken(run)
        self._received.drop(run)
        if "folder" in frame.meta:
            self.recorded.write(run, str(frame.meta["folder"]))
        return Frame("run.released")

    def _is_here(self, run: str) -> bool:
        live = self._live
        if live is not None:
            return live.run == run
        if self._reserved is None and self._holder is None:
            return False
        return run == self._control[0] or (self._reserved is not None and self._reserved[0] == run)


_agent: Agent | None = None


def install() -> None:
    """Give this task its agent, once; submitted by the first run of a client. Runs on the main thread."""
    agent()


def agent() -> Agent:
    """Return this task's agent, made at the first use."""
    global _agent
    task = tasks.current()
    if _agent is None or _agent.task is not task:
        _agent = Agent(task)
    return _agent


def shared_prefix(task: tasks.Task) -> str:
    """Return what the names of this cluster's shared files start with."""
    if not task.cluster_id:
        raise NbdistError("the task has no cluster id")
    return f"nbdist-{task.cluster_id}"


# Who watches the runs on a task: each is pushed the news, until it goes away or does not read.


class Watchers:
    """The connections that are told the news, by run. All on the Server's thread."""

    def __init__(self) -> None:
        self._of: dict[str, list[Caller]] = {}

    def add(self, run: str, sender: Caller) -> None:
        """Have a connection told from now on; once, however often it asks."""
        if not self.has(run, sender):
            self._of.setdefault(run, []).append(sender)

    def push(self, run: str, frame: Frame) -> None:
        """Send a frame to all who watch a run."""
        for sender in list(self._of.get(run, ())):
            try:
                sender.push(frame)
            except ConnectionError:  # a client that went away, or does not read: the log has it all
                self._of[run].remove(sender)

    def has(self, run: str, sender: Caller) -> bool:
        """Whether a connection is told the news of a run."""
        return sender in self._of.get(run, ())

    def any(self, run: str) -> bool:
        """Whether anybody is."""
        return bool(self._of.get(run))

    def drop(self, run: str) -> None:
        """Tell nobody of a run any more."""
        self._of.pop(run, None)

    def clear(self) -> None:
        """Tell nobody of anything any more."""
        self._of.clear()


#     What a task keeps of its last run, until the body of the next begins: for a client that comes late.
#
# The news of a run go to whoever watches; a notebook's kernel that was restarted asks for what it has missed,
# and at the end for the outcome, in pages. An outcome that nobody takes home goes to the run's folder, so
# that
# it outlives the cluster.

PAGE_BYTES = 4 << 20
TAKEN_SECONDS = 10.0  # within which a client that was there at the end has the outcome
log = logging.getLogger(__name__)


@dataclass
class _Last:
    run: str
    answer: Frame
    """To who wants to watch: the end of the run, and what it takes to know all of it."""
    watched: bool
    folder: str = ""
    outcome: dict[str, Any] | None = None
    pieces: Sequence[Buffer] = ()
    taken: bool = False
    written: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)

    def encoded(self) -> Sequence[Buffer]:
        if not self.pieces and self.outcome is not None:
            self.pieces = encode(self.outcome)
        return self.pieces


class Kept:
    """The end of the last run of task ``rank``. ``later(seconds, function)`` calls a function then."""

    def __init__(self, rank: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._rank, self._later = rank, later
        self._last: _Last | None = None

    def forget(self) -> None:
        """Keep nothing any more: the next run begins. What nobody has taken home is written."""
        last, self._last = self._last, None
        if last is not None and last.outcome is not None:
            if not last.taken:
                self._write(last)
            last.outcome, last.pieces = None, ()  # it may be large, and a timer may know of it still

    def end(self, run: str, answer: Frame, watched: bool) -> None:
        """Take note that a body is over, and whether anybody has heard so; its outcome is on its way."""
        self._last = _Last(run, answer, watched)

    def put(self, run: str, folder: str, outcome: dict[str, Any]) -> None:
        """Keep an outcome; writes it to the run's folder, now or in a while, if nobody takes it."""
        last = self._of(run)
        if last is None:
            return
        last.folder, last.outcome = folder, outcome
        if not last.watched:
            self._write(last)
            return

        def unless_taken() -> None:
            if not last.taken and self._last is last:
                # Not here: a large one would keep the task's Server from its other callers.
                threading.Thread(target=self._write, args=(last,), daemon=True).start()

        self._later(TAKEN_SECONDS, unless_taken)

    def drop(self, run: str) -> None:
        """Do without an outcome that could not be made."""
        if self._of(run) is not None and self._last is not None and self._last.outcome is None:
            self._last = None

    def taken(self, run: str) -> None:
        """Take note that a client has all of a run."""
        if (last := self._of(run)) is not None:
            last.taken = True

    def answer(self, run: str) -> Frame | None:
        """Return what to tell who wants to watch a run that is over; None if it is another one."""
        last = self._of(run)
        return None if last is None else last.answer

    def page(self, run: str, start: int) -> Frame | None:
        """Return a part of a run's outcome; None if that is not kept."""
        last = self._of(run)
        if last is None:
            return None
        if last.outcome is None:
            return Frame("run.outcome", {"state": "coming"})
        pieces = last.encoded()
        part = np.frombuffer(page(pieces, start, PAGE_BYTES), np.uint8)
        return Frame("run.outcome", {"state": "here", "size": sum(map(len, pieces))}, (part,))

    def _of(self, run: str) -> _Last | None:
        last = self._last
        return last if last is not None and last.run == run else None

    def _write(self, last: _Last) -> None:
        with last.writing:
            pieces = last.encoded()
            if last.written or not pieces:
                return
            try:
                write_outcome(private_folder(Path(last.folder)), self._rank, pieces)
            except (OSError, NbdistError) as error:  # while the task lives it can be asked
                log.warning("the outcome of run %s could not be written: %s", last.run, error)
            last.written = True


# What a task recorded of its runs, for their timelines: handed out while it lives, written for later.

Source: TypeAlias = Callable[[str], Iterable[Span]]


class Recorded:
    """Asks its ``sources``, each of which returns the spans that it knows of a run; add to them at will."""

    def __init__(self, task: Task, sources: Iterable[Source]) -> None:
        self.task = task
        self.sources = list(sources)
        self._written = ""

    def part(self, run: str) -> Part:
        """Return this task's part of a run's timeline; it may be empty. May be called on any thread."""
        spans = [span for source in self.sources for span in source(run)]
        return Part.now(self.task.name, self.task.info.host, Timeline(spans, [self.task.name]))

    def write(self, run: str, folder: str) -> None:
        """Write the part into the run's folder, once, if there is anything in it."""
        part = self.part(run)
        if not part.timeline.spans or self._written == run:
            return
        try:
            write_part(private_folder(Path(folder)), self.task.rank, part)
        except OSError as error:  # a full disk costs no results; while the task lives it can be asked
            log.warning("the timeline of run %s could not be written to %s: %s", run, folder, error)
        self._written = run
