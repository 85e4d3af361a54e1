"""`Agent`: a task's side of its runs. Answers clients while the body has the main thread.

client                                   task
run.reserve    run, ranks, subscribe, ─► one run at a time: a busy task answers with an error that names its
               root, token               run, else by whether it sees the client's folder of the run; with a
               [, framework, first]      framework, by its version here, and on the first task by the port
                                         of a rendezvous (see nbdist.frameworks.environment)
run.subscribe  run[, resubscribe] ─────► run.backfill: the run so far; then run.progress ten times a second:
                                         points, text, progress; the only one of a brief body comes with
                                         its outcome
run.using      ────────────────────────► the run that has this task, and which other tasks it needs
run.outcome    run, at ────────────────► the body's outcome, in pages, until the next body begins
run.lost       run, ranks, incarnations ► those workers are lost, and the others continue
run.rejoined   run, rank ──────────────► a lost worker has a new process, or one was added, with the body
run.leave      run, ranks, leaves ─────► it leaves the run between two steps, with those ranks; or no longer
run.left       run, rank ──────────────► a worker has left the run
run.commands   run ────────────────────► the commands in force, for a new process of another task
run.stop / run.abort ──────────────────► the training loop sees it at its next step
run.control    run, do ────────────────► likewise: pause, resume, learning rate, checkpoint (see control.py)
run.timeline   run ────────────────────► the task's spans of the run, also of the last one that has ended
push.open, push.part, push.close         arrays from a client on another host, see values/delivery.py
files.list, .read, .put, .drop           files of a run for a client on another host, see files/service.py
run.release    run, root, token ───────► drops the run's parameters and datasets, returns freed memory to the
                                         system, writes its timeline, or answers with it
run_body       run ────────────────────► the body and its RunSpec, for the next owner of the run: over
                                         ipyparallel's channel (see nbdist.run.recovery.ownership)

A notebook's kernel that was restarted subscribes to a run that it did not start, receives a backfill, and
fetches the outcome at the end. `CachedOutcome` keeps the outcome until the next body begins; one that no
client fetches is written to the run's folder, where it outlives the cluster.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.cluster.control_channel import serve
from nbdist.errors import FailedPreconditionError, NbdistError, NotFoundError
from nbdist.frameworks import environment as frameworks
from nbdist.frameworks.base import host_of
from nbdist.frameworks.registry import SPECS
from nbdist.home import private_folder
from nbdist.metrics.timeline import Span, Timeline
from nbdist.metrics.timeline_parts import Part, write_part
from nbdist.run.control import apply_command
from nbdist.run.files.place import RunPlace
from nbdist.run.files.service import FileService
from nbdist.run.task.edited_modules import watch_imports
from nbdist.run.task.reporting import ActiveRun
from nbdist.run.values.delivery import Receiver, without_closure
from nbdist.run.values.outcome import Buffer, encode, page, write_outcome
from nbdist.runtime import task as tasks
from nbdist.runtime.data.service import DataService
from nbdist.runtime.groups import GroupCoordinator
from nbdist.runtime.heap import return_freed_memory
from nbdist.runtime.ps.service import ParameterService
from nbdist.runtime.server import Handler
from nbdist.runtime.task import Task
from nbdist.train.context import Control
from nbdist.train.step_timing import StepLog
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.frame import MAX_BYTES, Frame, decode

if TYPE_CHECKING:
    from nbdist.run.task.body import RunSpec

RESERVED_SECONDS = 30.0  # after which a reservation without a body expires
PAGE_BYTES = 4 << 20
FETCH_SECONDS = 10.0  # in which a client that subscribed until the end has fetched the outcome
BODY_REQUEST = "run_body"
Source: TypeAlias = Callable[[str], Iterable[Span]]
log = logging.getLogger(__name__)


class Agent:
    """The run on one task, as its Server sees it. Handlers run on the Server's thread."""

    def __init__(self, task: tasks.Task) -> None:
        self.task = task
        self.prefix = shared_prefix(task)
        self.parameters = ParameterService(
            task.server, self.prefix, lambda rank: tasks.find_rank(task.roster, rank)
        )
        self.groups = GroupCoordinator(task.server)
        self._services = [one.serve(task.server) for one in SPECS.values() if one.serve is not None]
        self.data = DataService(task.server, self.prefix)
        self._reserved: tuple[str, float] | None = None
        self._holder: str | None = None
        self._needs: tuple[str, list[int] | None] = ("", None)  # a run, and the ranks of all its tasks
        self._added: tuple[str, list[int]] = ("", [])  # a run, and the ranks of workers that were added to it
        self._fixed: tuple[str, str | None] = ("", None)  # a run, and why no worker can join or leave it
        self._left = ""  # the run that this task has left last
        self._active: ActiveRun | None = None
        self._sending = threading.Lock()
        """Held while messages of the active run are taken, and while a client subscribes."""
        self._send_at = math.inf
        self._intervals: Iterator[float] = iter(())
        self._unsent: deque[tuple[Caller, Frame]] = deque()
        """The last messages of runs that have ended, each with its receiver."""
        self._caller: tuple[str, Caller] | None = None
        """A run, and the connection of the client that started it, which receives the outcome."""
        self.body: tuple[RunSpec, str | Callable[..., Any]] | None = None
        """What runs on this task, while it does."""
        self._control = ("", Control())
        self.subscribers = Subscribers()
        """The connections that receive the messages of runs here."""
        self._step_log: tuple[str, StepLog] | None = None
        self._received, self._files = Receiver(self.prefix), FileService()
        self.cached_outcome = CachedOutcome(task.rank, task.server.after)
        self.traces = TraceBuffer(task, [self._steps, lambda run: self.parameters.logs.spans(run, task.name)])
        handlers: dict[str, Handler] = {
            "run.hello": lambda frame, sender: Frame("run.hello", {"clock": time.perf_counter()}),
            "run.reserve": self._reserve,
            "run.using": lambda frame, sender: Frame("run.using", self._using()),
            "run.subscribe": self._subscribe,
            "run.outcome": self._outcome,
            "run.stop": self._stop,
            "run.abort": self._abort,
            "run.control": self._control_run,
            "run.end_training": self._end_training,
            "run.lost": self._lost,
            "run.rejoined": self._rejoined,
            "run.leave": self._leave,
            "run.left": self._has_left,
            "run.commands": self._commands,
            "run.timeline": self._timeline,
            "run.release": self._release,
            **self._received.handlers(),
            **self._files.handlers(),
        }
        for kind, handler in handlers.items():
            task.server.on(kind, handler)

    def control(self, run: str) -> Control:
        """Return the commands to a run: from its reservation on, because they may arrive before the body."""
        if self._control[0] != run:
            self._control = (run, Control())
        return self._control[1]

    def begin(self, live: ActiveRun) -> None:
        """Make ``live`` the run on this task. Called by the body, on the main thread."""
        self.cached_outcome.forget()
        if live.context.step_log is not None:
            self._step_log = (live.run, live.context.step_log)
        live.start_gpu_sampler(self.task.device)
        intervals = live.intervals()
        first = next(intervals)  # before a timer of the run before may ask for the next one
        self._intervals, self._active = intervals, live
        self._send_in(first)

    def end(self, live: ActiveRun) -> None:
        """Send the last messages and free the task. Called by the body, on the main thread.

        The only message of a brief body is left to an outcome that is ``small``, and so arrives at once, if
        the receiver of the outcome is the only subscriber.
        """
        live.stop_gpu_sampler()
        with self._sending:
            subscribers, frames = self.subscribers.take(live.run), list[Frame]()
            try:
                frames.extend(live.messages(self.task.rank, ended=True))  # those before one that fails, too
                if live.small and [(live.run, one) for one in subscribers] == [self._caller]:
                    frames = live.leave_to_outcome(frames)
            except Exception:  # the outcome follows all the same
                log.exception("the last messages of run %s on %s are missing", live.run, self.task.name)
            try:
                answer = live.backfill(self.task.rank, ended=True)
                self.cached_outcome.end(live.run, answer, bool(subscribers))
            finally:
                self._unsent.extend((one, frame) for one in subscribers for frame in frames)
                if live.context.progress.left_at is not None:
                    self._left = live.run
                self._end_reservation(live.run)  # before: no other run can reserve the task meanwhile
                self._active = None
        if self._unsent:
            self.task.server.post(self._send_last)

    def send_left(self, live: ActiveRun) -> None:
        """Send the message that a run has left to its outcome, which could not be returned."""
        if live.unsent is not None and self._caller is not None and self._caller[0] == live.run:
            self._unsent.append((self._caller[1], decode(live.unsent, MAX_BYTES)))
            self.task.server.post(self._send_last)

    def hand_over(self, run: str) -> tuple[RunSpec, str | Callable[..., Any]]:
        """Return the RunSpec and the body of a run, as they were sent here; NotFoundError if it is not here.

        May be called on any thread.
        """
        if self.body is None or self.body[0].run != run:
            raise NotFoundError(f"{self.task.name} runs no body of run {run}")
        spec, body = self.body
        return spec, without_closure(body)[0]  # the cells that the task has filled are in `spec.pushed`

    def hold(self, holder: str) -> None:
        """Reserve the task for a holder that runs bodies of its own here, such as a sweep, until `let_go`."""
        self._holder = holder

    def claim(self, run: str) -> str:
        """Reserve the task for a run; return the run that has it, empty if the reservation was made.

        On the Server's thread.
        """
        busy = self._busy()
        if busy is not None and busy != run:
            return busy
        self._reserved, self._needs = (run, time.monotonic()), (run, [self.task.rank])
        return ""

    def let_go(self, holder: str) -> None:
        """End the reservation of `hold` or `claim`."""
        if self._holder == holder:
            self._holder = None
        self._end_reservation(holder)

    def _end_reservation(self, run: str) -> None:
        if self._is_reserved(run):
            self._reserved = None

    def _is_reserved(self, run: str) -> bool:
        reserved = self._reserved  # once: the body and the Server's thread may end it
        return reserved is not None and reserved[0] == run

    def drop_groups(self, run: str) -> None:
        """Drop what lets the ranks of a run find each other. On the Server's thread."""
        self.groups.drop_run(run)
        for service in self._services:
            service.drop_run(run)

    def close(self) -> None:
        """Release all parameters, passes over datasets and files."""
        self.parameters.close()
        self.data.close()
        self._received.close()
        self._files.close()

    def _send_in(self, seconds: float) -> None:
        """Send the active run's messages in so many seconds, unless that is due earlier. From any thread.

        A timer may outlive its run: the next one, if it follows soon, needs no other.
        """
        if (due := time.monotonic() + seconds) < self._send_at:
            self._send_at = due
            self.task.server.after(seconds, self._send)

    def _send(self) -> None:
        """Send the latest messages to the run's subscribers. On the Server's thread."""
        if time.monotonic() < self._send_at:  # another timer has replaced this one
            return
        self._send_at = math.inf  # before the active run is looked at: `begin` does both the other way round
        with self._sending:
            if (live := self._active) is not None:
                self._send_in(next(self._intervals))
                live.reported = True
                for frame in live.messages(self.task.rank, ended=False):
                    self.subscribers.push(live.run, frame)

    def _send_last(self) -> None:
        """Send the last messages of runs that have ended. On the Server's thread."""
        while self._unsent:
            subscriber, frame = self._unsent.popleft()
            try:
                subscriber.push(frame)
            except ConnectionError:
                pass
            except Exception:  # the others' messages follow all the same
                log.exception("a last message of %s is missing", self.task.name)

    def _reserve(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        busy = self._busy()
        if busy is not None and (self._active is not None or busy != run):
            raise FailedPreconditionError(
                f"{self.task.name} is busy with run {busy}; wait for it (run.wait()), or stop it (its Stop "
                f"button, run.stop(), or an interrupt); nb.attach({busy!r}) returns it in any notebook"
            )
        self._reserved = (run, time.monotonic())
        if "ranks" in frame.meta:
            self._needs = (run, list(frame.meta["ranks"]))
        if "fixed" in frame.meta:
            self._fixed = (run, str(frame.meta["fixed"]))
        self.control(run)
        if frame.meta.get("subscribe"):  # in this call: a short body would end before another message
            self.subscribers.add(run, sender)
            self._caller = run, sender
        about: dict[str, Any] = {}
        if "root" in frame.meta:
            about["shared"] = RunPlace(str(frame.meta["root"]), str(frame.meta["token"])).is_shared
        if (name := frame.meta.get("framework")) is not None:
            host = host_of(self.task.info) if frame.meta["first"] else None
            about |= frameworks.offered(str(name), host)
        return Frame("run.reserved", about)

    def _busy(self) -> str | None:
        """Return the run that has this task, None if it is free."""
        live, reserved = self._active, self._reserved
        if self._holder is not None:
            return self._holder
        if live is not None:
            return live.run
        if reserved is not None and time.monotonic() - reserved[1] < RESERVED_SECONDS:
            return reserved[0]
        return None

    def _using(self) -> dict[str, Any]:
        """Return the run that has this task, the ranks that it needs (None: unknown) and has lost.

        Also why no worker can join or leave it (empty: they can; None: unknown), and the run that this task
        has left.
        """
        run = self._busy()
        needs = self._needs[1] if run == self._needs[0] else None
        fixed = self._fixed[1] if run == self._fixed[0] else None
        lost = self.groups.lost(run or "")
        about = {"run": run, "ranks": needs, "lost": lost, "fixed": fixed, "left": self._left}
        return {"rank": self.task.rank, **about}

    def _subscribe(self, frame: Frame, sender: Caller) -> Frame | None:
        with self._sending:
            self._send_last()
            return self._backfill(frame, sender)

    def _backfill(self, frame: Frame, sender: Caller) -> Frame | None:
        run, live = frame.meta["run"], self._active
        last = self.cached_outcome.answer(run)
        if frame.meta.get("resubscribe"):  # a client that receives nothing: it may have been dropped, or not
            self._resubscribe(run, sender, last)
            return None
        if last is not None:
            return last
        self.subscribers.add(run, sender)
        if live is not None and live.run == run:
            return live.backfill(self.task.rank, ended=False)
        return Frame("run.backfill", {"state": self._state_without_body(run, "waiting")})

    def _resubscribe(self, run: str, sender: Caller, backfill: Frame | None) -> None:
        """Push a backfill to a subscriber that was dropped, and the messages that follow it."""
        live = self._active
        if backfill is None and not self.subscribers.has(run, sender):
            self.subscribers.add(run, sender)
            if live is not None and live.run == run:
                backfill = live.backfill(self.task.rank, ended=False)
        if backfill is not None:
            sender.push(backfill)

    def _outcome(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        state = self._state_without_body(run, "coming")  # first: the body's thread may end the run meanwhile
        found = self.cached_outcome.page(run, int(frame.meta.get("at", 0)))
        return found or Frame("run.outcome", {"state": state})

    def _state_without_body(self, run: str, awaited: str) -> str:
        """Return ``awaited`` for a run that is here, "expired" if its body has not come in time."""
        if self._busy() is None and self._is_reserved(run):  # in this order: a run that ends keeps neither
            return "expired"
        return awaited if self._is_here(run) else "unknown"

    def _stop(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            self.control(frame.meta["run"]).stop_requested = True
        return Frame("run.stopping", {"running": here})

    def _control_run(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            apply_command(self.control(frame.meta["run"]), frame.meta)
        return Frame("run.controlled", {"running": here})

    def _end_training(self, frame: Frame, sender: Caller) -> None:
        """End one training early, as a callback of the chief asks (sent from task to task)."""
        if self._is_here(frame.meta["run"]):
            self.control(frame.meta["run"]).ended_training = int(frame.meta["number"])

    def _lost(self, frame: Frame, sender: Caller) -> Frame:
        """Record that workers of a run are lost and the others continue."""
        self.groups.lose(frame.meta["run"], list(frame.meta["ranks"]), frame.meta.get("incarnations", ()))
        return Frame("run.lost")

    def _rejoined(self, frame: Frame, sender: Caller) -> Frame:
        """Record that a lost worker has a new process, or that a worker was added."""
        run, rank = str(frame.meta["run"]), int(frame.meta["rank"])
        self.groups.restore(run, rank)
        if self._added[0] != run:
            self._added = (run, [])
        self._added[1].append(rank)
        if self._needs[0] == run and self._needs[1] is not None and rank not in self._needs[1]:
            self._needs[1].append(rank)
        return Frame("run.rejoined")

    def _leave(self, frame: Frame, sender: Caller) -> Frame:
        """Have this task leave its run between two steps, or stay; say where its body is.

        Raises FailedPreconditionError if too few workers would be left.
        """
        run, live = str(frame.meta["run"]), self._active
        if live is None or live.run != run:
            return Frame("run.leaving", {"state": "waits" if self._is_here(run) else "free"})
        if not frame.meta["leaves"]:
            self.control(run).leave_requested = False
            return Frame("run.leaving", {"state": "stays"})
        world, without = live.context.world, {*frame.meta["ranks"], *self.groups.lost(run)}
        left = len(set(world.ranks) - without)
        if left < max(world.least, 1):
            raise FailedPreconditionError(
                f"run {run} would have {left} workers left, and needs {max(world.least, 1)} (--min-workers)"
            )
        self.control(run).leave_requested = True
        paused = live.context.control.paused
        return Frame(
            "run.leaving", {"state": "paused" if paused else "fits" if live.context.fitting else "body"}
        )

    def _has_left(self, frame: Frame, sender: Caller) -> Frame:
        """Record that another worker has left the run."""
        run, rank = str(frame.meta["run"]), int(frame.meta["rank"])
        for named, ranks in (self._needs, self._added):
            if named == run and ranks is not None and rank in ranks:
                ranks.remove(rank)
        return Frame("run.left")

    def added(self, run: str) -> list[int]:
        """Return the ranks of workers that were replaced in a run, or added to it. From any thread."""
        return list(self._added[1]) if self._added[0] == run else []

    def _commands(self, frame: Frame, sender: Caller) -> Frame:
        """Return the commands in force, to a new process of another task of the run."""
        run = frame.meta["run"]
        if not self._is_here(run):
            return Frame("run.commands", {"running": False})
        control = self.control(run)
        return Frame(
            "run.commands",
            {
                "running": True,
                "paused": control.paused,
                "pause_number": control.pause_number,
                "ended_training": control.ended_training,
            },
        )

    def _abort(self, frame: Frame, sender: Caller) -> Frame:
        here = self._is_here(frame.meta["run"])
        if here:
            self.control(frame.meta["run"]).aborted = str(frame.meta["reason"])
        return Frame("run.aborting", {"running": here})

    def _timeline(self, frame: Frame, sender: Caller) -> Frame:
        part = self.traces.part(frame.meta["run"]).encode()
        return Frame("run.timeline", {}, (np.frombuffer(part, np.uint8),))

    def _steps(self, run: str) -> list[Span]:
        """Return the step spans of a run; only the last run that trained here has any."""
        if self._step_log is None or self._step_log[0] != run:
            return []
        return self._step_log[1].spans(self.task.name)

    def _release(self, frame: Frame, sender: Caller) -> Frame:
        run = frame.meta["run"]
        if self._active is None and self._is_reserved(run):
            self._reserved = None
            self.subscribers.take(run)
        self.parameters.drop_run(run)
        self.data.drop_run(run)
        self.drop_groups(run)
        frameworks.release(run)
        self.cached_outcome.set_fetched(run)
        self._received.drop(run)
        return_freed_memory()
        return Frame("run.released", {}, self._trace(run, frame.meta))

    def _trace(self, run: str, meta: Mapping[str, Any]) -> tuple[Any, ...]:
        """Write the timeline of a run into the client's folder; return it where that is on another host."""
        if "root" not in meta:
            return ()
        place = RunPlace(str(meta["root"]), str(meta["token"]))
        if place.is_shared:
            self.traces.write(run, place.folder())
            return ()
        part = self.traces.unwritten(run)
        return () if part is None else (np.frombuffer(part.encode(), np.uint8),)

    def _is_here(self, run: str) -> bool:
        live = self._active
        if live is not None:
            return live.run == run
        if self._reserved is None and self._holder is None:
            return False
        return run == self._control[0] or self._is_reserved(run)


_agent: Agent | None = None


def install() -> None:
    """Create this task's agent; submitted by the first run of a client. Runs on the main thread."""
    agent()


def agent() -> Agent:
    """Return this task's agent; the first call creates it."""
    global _agent
    task = tasks.current()
    if _agent is None or _agent.task is not task:
        _agent = Agent(task)
        watch_imports()
        serve(BODY_REQUEST, _agent.hand_over)
    return _agent


def shared_prefix(task: tasks.Task) -> str:
    """Return the prefix of the names of this cluster's shared files."""
    if not task.cluster_id:
        raise NbdistError("the task has no cluster id")
    return f"nbdist-{task.cluster_id}"


class Subscribers:
    """The connections that receive a run's messages, by run. On the Server's thread, but for `take`."""

    def __init__(self) -> None:
        self._of: dict[str, list[Caller]] = {}

    def add(self, run: str, sender: Caller) -> None:
        """Send the run's messages to a connection; adding it twice has no effect."""
        if not self.has(run, sender):
            self._of.setdefault(run, []).append(sender)

    def push(self, run: str, frame: Frame) -> None:
        """Send a frame to all subscribers of a run."""
        for sender in list(self._of.get(run, ())):
            try:
                sender.push(frame)
            except ConnectionError:  # closed, or it stopped reading: it can read the log later
                self._of[run].remove(sender)

    def has(self, run: str, sender: Caller) -> bool:
        """Return whether a connection is subscribed to a run."""
        return sender in self._of.get(run, ())

    def take(self, run: str) -> list[Caller]:
        """Remove all subscribers of a run, and return them."""
        return self._of.pop(run, [])


@dataclass
class _Last:
    run: str
    answer: Frame
    """The backfill for later subscribers."""
    subscribed: bool
    """Whether a client was subscribed at the end."""
    folder: str = ""
    outcome: dict[str, Any] | None = None
    pieces: Sequence[Buffer] = ()
    fetch_until: float = 0.0
    fetched: bool = False
    written: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)

    def encoded(self) -> Sequence[Buffer]:
        if not self.pieces and self.outcome is not None:
            self.pieces = encode(self.outcome)
        return self.pieces


class CachedOutcome:
    """The outcome of the last run of task ``rank``, for clients that fetch it later.

    ``later(seconds, function)`` calls a function after so many seconds.
    """

    def __init__(self, rank: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._rank, self._later = rank, later
        self._last: _Last | None = None
        self._timed = False

    def forget(self) -> None:
        """Drop the outcome: the next body begins. If no client has fetched it, write it to the folder."""
        last, self._last = self._last, None
        if last is not None and last.outcome is not None:
            if not last.fetched:
                self._write(last)
            last.outcome, last.pieces = None, ()  # it may be large, and a thread may still refer to `last`

    def end(self, run: str, answer: Frame, subscribed: bool) -> None:
        """Record that a body has ended; its outcome follows."""
        self._last = _Last(run, answer, subscribed)

    def put(self, run: str, folder: str, outcome: dict[str, Any]) -> None:
        """Keep an outcome; it is written to the run's folder, now or later, unless a client fetches it."""
        last = self._of(run)
        if last is None:
            return
        last.folder, last.outcome = folder, outcome
        if not last.subscribed:
            self._write(last)
            return

        last.fetch_until = time.monotonic() + FETCH_SECONDS
        if not self._timed:  # else the timer of an earlier outcome looks at this one
            self._timed = True
            self._later(FETCH_SECONDS, self._look)

    def _look(self) -> None:
        self._timed = False
        last = self._last
        if last is None or last.fetched or last.outcome is None:
            return
        if (left := last.fetch_until - time.monotonic()) > 0:
            self._timed = True
            self._later(left, self._look)
        else:
            # On a thread: writing a large outcome would block the task's Server.
            threading.Thread(target=self._write, args=(last,), daemon=True).start()

    def drop(self, run: str) -> None:
        """Record that the outcome could not be made."""
        if self._of(run) is not None and self._last is not None and self._last.outcome is None:
            self._last = None

    def set_fetched(self, run: str) -> None:
        """Record that a client has the whole outcome."""
        if (last := self._of(run)) is not None:
            last.fetched = True

    def answer(self, run: str) -> Frame | None:
        """Return the backfill of a run that has ended; None if another one was the last."""
        last = self._of(run)
        return None if last is None else last.answer

    def page(self, run: str, start: int) -> Frame | None:
        """Return a page of a run's outcome; None if it is not cached."""
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
            except (OSError, NbdistError) as error:  # clients can fetch it while the task lives
                log.warning("the outcome of run %s could not be written: %s", last.run, error)
            last.written = True


class TraceBuffer:
    """Collects the spans of a run from ``sources``, for its timeline; the caller may append sources."""

    def __init__(self, task: Task, sources: Iterable[Source]) -> None:
        self.task = task
        self.sources = list(sources)
        self._written = ""

    def part(self, run: str) -> Part:
        """Return this task's part of a run's timeline, which may be empty. May be called on any thread."""
        return self._part_of(self._spans(run))

    def _spans(self, run: str) -> list[Span]:
        return [span for source in self.sources for span in source(run)]

    def _part_of(self, spans: list[Span]) -> Part:
        return Part.now(self.task.name, self.task.info.host, Timeline(spans, [self.task.name]))

    def unwritten(self, run: str) -> Part | None:
        """Return the part unless it is empty or was written."""
        return None if self._written == run or not (spans := self._spans(run)) else self._part_of(spans)

    def write(self, run: str, folder: Path) -> None:
        """Write the part into the run's folder, once, unless it is empty."""
        if (part := self.unwritten(run)) is None:
            return
        try:
            write_part(private_folder(folder), self.task.rank, part)
        except OSError as error:  # a full disk costs no results; clients can fetch it while the task lives
            log.warning("the timeline of run %s could not be written to %s: %s", run, folder, error)
        self._written = run
