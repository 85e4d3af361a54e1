"""What becomes of a run's tasks, seen from the client: what they say, what they return, whether they live."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.cluster.resize import short_name
from nbdist.errors import FailedPreconditionError, NbdistError, TaskDiedError, UnavailableError, WorkerError
from nbdist.metrics.log import Batch
from nbdist.metrics.store import RunStore
from nbdist.runs.backfill import add_since
from nbdist.runs.progress import Tally
from nbdist.runs.protocols import Calls, Tasks
from nbdist.runs.shutdown import REPLACE_AFTER, Ladder, Replacing, given_up, gone_among
from nbdist.runs.task.reporting import Displayed
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import FreezeDetector
from nbdist.wire.hosts import host_identity
from nbdist.wire.rpc.frame import Frame

LAST_NEWS_SECONDS = 5.0  # how long the last points of a task, sent before its outcome, may come after it
HOLD_SECONDS = 10.0  # between two words that towers are still needed: without one they are free again


class Watch:
    """Follows the tasks of one run, all from one thread: ``look`` once in a while, until it is ``complete``.

    ``workers`` run bodies; ``servers`` and ``towers`` are needed beside them. ``outcomes`` are what the
    bodies returned, by rank; ``error`` is the first thing that went wrong, after which the other tasks are
    aborted. With ``least``, workers other than the first may die, as long as so many are left and the body
    ``trains``, or is seen to. Points go to ``store``, progress to ``tally``, output to ``printed``,
    displayed objects to ``displayed``, remarks for the run's end to ``noted``.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        cluster: Tasks,
        workers: list[TaskInfo],
        servers: list[TaskInfo],
        calls: Calls,
        *,
        towers: Sequence[TaskInfo] = (),
        least: int | None = None,
        trains: bool = False,
        store: RunStore,
        tally: Tally,
        printed: Callable[[str, str], object],
        hint: Hint | None = None,
        displayed: Callable[[str, Displayed], object] = lambda task, shown: None,
        noted: Callable[[str], object] = lambda note: None,
    ) -> None:
        self.run, self.folder, self.workers, self.servers = run, folder, workers, servers
        self.towers = towers
        self._deaths = Deaths(cluster, workers, [*servers, *towers], least, trains)
        self.lost = self._deaths.lost
        """Ranks that have died, and without which the others go on."""
        self.calls, self.store, self.tally = calls, store, tally
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.error: NbdistError | None = None
        self.stuck = ""
        """What did not stop in time, if anything."""
        self.interrupted = self._stop_wanted = False
        self.asked: deque[dict[str, Any]] = deque()
        """Words for all bodies, beside a stop, to be sent at the next look. Any thread may add to them."""
        self.ladder = Ladder(aborts=bool(towers))
        self.replacing = Replacing(cluster)
        self.through: set[int] = set()  # ranks whose bodies are over, and whose results are on their way
        self._cluster, self._printed, self._hint = cluster, printed, hint
        self._displayed, self._noted = displayed, noted
        self._names = {info.rank: info.name for info in workers}
        self._held = time.monotonic()
        self._hearing = {info.rank: Hearing(self._held) for info in workers}
        self._doubts = Doubts()
        self._begun: dict[int, int] = {}  # trainings that a rank has begun, as far as it is known
        self._ended: set[int] = set()
        self._all_in: float | None = None
        self._given_up = False

    def ask_to_stop(self) -> None:
        """Have all bodies asked to stop, at the next look. May be called from any thread."""
        self.interrupted = self._stop_wanted = True

    def look(self) -> None:
        """Look once at everything that may have changed."""
        if self._stop_wanted:  # said from here: a connection of a thread that ends may lose its last words
            self._stop_wanted = False
            for info in self.workers:
                self.tell(info, "run.stop", {"run": self.run})
            self.ladder.begin_abort()  # not before: tasks have their time from the word on
        while self.asked:
            word = self.asked.popleft()
            for info in self.workers:
                self.tell(info, "run.control", {"run": self.run, **word})
        for info in self.workers:
            self.hear(info)
            self._ask_again(info)
        self._watch_tasks()  # first: what a task says of a dead one's silence is but a consequence
        self._collect()
        self._watch_trainings()
        self._climb()
        self._replace()
        self._hold()

    @property
    def has_trained(self) -> bool:
        """Whether a body has begun to train, as far as it is known."""
        return any(self._begun.values())

    def complete(self) -> bool:
        """Whether there is nothing to wait for any more."""
        # Not calls.done(): what came in since the look at the outcomes is still to be looked at.
        if self._given_up:
            return True
        all_in = len(self.outcomes) == len(self.workers) and self._heard_all()
        return all_in and not self.replacing.under_way

    def hear(self, info: TaskInfo) -> None:
        """Take in what a task has sent."""
        try:
            peer = self._cluster.peer(info.rank)
            while (frame := peer.receive(0)) is not None:
                if frame.meta.get("run") != self.run:
                    continue
                if frame.kind == "run.display":
                    self._take_display(info, frame)
                elif frame.kind == "run.news":
                    self._take_news(info, frame)
                elif frame.kind == "run.watched":
                    self._catch_up(info, frame)
        except UnavailableError:
            self._ended.add(info.rank)  # a death is noticed by the cluster, with its reason

    def join(self, info: TaskInfo, answer: Frame) -> None:
        """Take in what a task says of a run that goes on, or is over: how far it is, what it has printed."""
        self._take_news(info, Frame("run.news", answer.meta, answer.arrays[:1]))

    def subscribe_anew(self) -> None:
        """Poll all workers at the next check, over connections of this thread."""
        for hearing in self._hearing.values():
            hearing.last = -math.inf

    def _ask_again(self, info: TaskInfo) -> None:
        """Ask a task that says nothing, and has a body, to be told its news: it may have left us out."""
        over = info.rank in self.through or info.rank in self.lost or self.towers
        if not over and self._hearing[info.rank].asks(time.monotonic()):
            self.tell(info, "run.watch", {"run": self.run, "again": True})

    def _take_display(self, info: TaskInfo, frame: Frame) -> None:
        texts = [one.tobytes().decode("utf-8", "replace") for one in frame.arrays]
        data = dict(zip(frame.meta["types"], texts, strict=True))
        # Two tasks may use the same name; the page treats these as two displays.
        name = f"{self.run}-{info.rank}-{frame.meta['name']}" if frame.meta["name"] else ""
        self._displayed(info.name, Displayed(data, name, bool(frame.meta["update"])))

    def _catch_up(self, info: TaskInfo, answer: Frame) -> None:
        """Take in what a task says that has left us out."""
        self._hearing[info.rank].catch_up(
            answer, self.store, self.folder, lambda text: self._printed(info.name, text)
        )
        self.join(info, Frame("run.watched", answer.meta, (answer.arrays[0][:0],)))

    def _take_news(self, info: TaskInfo, frame: Frame) -> None:
        self._hearing[info.rank].take(frame, time.monotonic())
        replica = int(frame.meta["replica"])
        text, *columns = frame.arrays
        if columns:
            self.store.extend_batch(Batch.from_arrays(frame.meta["batch"], columns))
        if text.size:
            self._printed(info.name, text.tobytes().decode())
        self.tally.hear(replica, frame.meta["progress"], time.monotonic())
        self._begun[info.rank] = frame.meta["progress"]["trainings"]
        self._deaths.report_frozen(frame.meta["progress"].get("lost", ()))
        if frame.meta["ended"]:
            self._ended.add(info.rank)
            self.through.add(info.rank)

    def _collect(self) -> None:
        """Take in the outcomes that have come; the first failure ends the others."""
        for rank in self.calls.ready_ranks():
            if rank in self.outcomes:
                continue
            outcome = self.calls.outcome(rank)
            if isinstance(outcome, TaskDiedError):
                self._watch_tasks()  # it says more, and whether the others go on
                if rank in self.lost or rank in self._deaths.undecided:
                    continue
            if isinstance(outcome, BaseException):
                self.outcomes[rank] = {}
                self._ended.add(rank)
                error = outcome if isinstance(outcome, NbdistError) else WorkerError(str(outcome))
                if isinstance(error, WorkerError):
                    error.task = self._names[rank]
                self._fail(error, rank)
                continue
            wrong = outcome.get("error")
            if wrong and self.error is None and self._doubts.about(wrong, rank):
                continue
            self.outcomes[rank] = outcome
            stopped = self.interrupted or outcome.get("stopped")  # from here, or by another client
            if wrong and not wrong["aborted"] and not (stopped and wrong["interrupted"]):
                info = next(info for info in self.workers if info.rank == rank)
                self._fail(body_error(info, wrong, self._hint), rank)

    def _fail(self, error: NbdistError, rank: int | None) -> None:
        """Note the first error and abort the other tasks."""
        if self.error is not None:
            return
        self.error = error
        where = next((info.name for info in self.workers if info.rank == rank), "another task")
        reason = f"run {self.run} was aborted: {where} failed"
        for info in self.workers:
            if info.rank != rank:
                self.tell(info, "run.abort", {"run": self.run, "reason": reason})
        self.ladder.begin_abort(failed=True)

    def _watch_tasks(self) -> None:
        """Fail when a task that the run needs is dead or frozen."""
        if self.error is not None:
            return
        logged = f"What run {self.run} logged is in {self.folder}."
        if (how := self._cluster.controller_died()) is not None:
            self._fail(
                TaskDiedError(
                    f"the cluster of run {self.run} has ended: {how}. {logged} "
                    "Start another one with %cluster start"
                ),
                None,
            )
            return
        for death in self._deaths.new(self.has_trained, self.replacing.ended):
            if death.goes_on:
                self._lose(death.task, death.how)
                ranks = sorted(self.lost)
                self.tell(self.workers[0], "run.lost", {"run": self.run, "ranks": ranks})
            else:
                died = TaskDiedError(f"{death.how}. {logged} {death.next}")
                self._fail(died, death.task.rank)

    def _lose(self, info: TaskInfo, how: str) -> None:
        """Continue the run without a worker."""
        self.lost.add(info.rank)
        self.outcomes.setdefault(info.rank, {})
        self._ended.add(info.rank)
        self.tally.lose(self.workers.index(info), time.monotonic())
        left = len(self.workers) - len(self.lost)
        workers = "1 worker" if left == 1 else f"{left} workers"
        self._printed(info.name, f"{how}; training continues on {workers}\n")
        self._noted(f"{how}; training continued on {workers}")
        # A frozen worker reads this when its process is continued, and is then free for the next run.
        reason = f"run {self.run} has continued without {info.name}: {how}"
        self.tell(info, "run.abort", {"run": self.run, "reason": reason})

    def _watch_trainings(self) -> None:
        """Fail when a replica waits in a fit() that another one's body has ended without."""
        over = self.error is not None or self.interrupted or len(self.outcomes) == len(self.workers)
        if over or not self.servers:
            return
        wrong = left_waiting(self.workers, self.lost, self._begun, self.outcomes)
        if wrong is not None:
            self._fail(wrong, None)

    def _climb(self) -> None:
        """Press on with tasks that do not end though they were asked to."""
        step = self.ladder.due()
        if step is None:
            return
        # A large model takes its time to come home.
        over = self.through | set(self.outcomes) | set(self.calls.ready_ranks())
        stuck = [info for info in self.workers if info.rank not in over]
        if step == "replace" and stuck:
            self.replacing.begin(stuck, REPLACE_AFTER)
        for info in stuck:
            if step == "abort":
                self.tell(info, "run.abort", {"run": self.run, "reason": f"run {self.run} was stopped"})
            elif step == "signal":
                self._cluster.signal(info.rank, 2)
            else:
                if step == "give up":
                    reason = f"run {self.run} was given up"
                    self.tell(info, "run.abort", {"run": self.run, "reason": reason})
                self.outcomes[info.rank] = {}
                self._ended.add(info.rank)
        if step == "give up" and stuck:
            self.stuck = given_up(stuck)
            self.error = self.error or UnavailableError(self.stuck)
            self._given_up = True

    def _replace(self) -> None:
        """Go on with replacing what did not stop."""
        if self.replacing.under_way:
            self.replacing.look()
        self.stuck = self.stuck or self.replacing.told
        self.error = self.error or self.replacing.error

    def _hold(self) -> None:
        """Say that the towers are still needed: no body of theirs says so."""
        if self.towers and time.monotonic() - self._held > HOLD_SECONDS:
            self._held = time.monotonic()
            for info in self.towers:
                self.tell(info, "run.reserve", {"run": self.run})

    def _heard_all(self) -> bool:
        if all(info.rank in self._ended for info in self.workers):
            return True
        self._all_in = self._all_in or time.monotonic()
        return time.monotonic() - self._all_in > LAST_NEWS_SECONDS

    def tell(self, info: TaskInfo, kind: str, meta: dict[str, Any], wait: float = 0.0) -> None:
        """Send a word to a task, and ``wait`` for its answer; one that is gone is noticed elsewhere."""
        dead = {gone.rank for gone in self._cluster.dead()}
        if info.rank not in dead:
            try:
                peer = self._cluster.peer(info.rank)
                if wait:
                    peer.call(kind, meta, timeout=wait)
                else:
                    peer.send(kind, meta)
            except NbdistError:
                self._ended.add(info.rank)


# Tasks of a run that die: which, how, and whether the others go on without them.

LOOK_SECONDS = 0.5  # between two checks for stopped task processes
FROZEN_SECONDS = 9.0  # after which a task counts as lost; strategies that continue without it decide at 8 s
NEWS_SECONDS = 0.5  # how long the first word of a training may come after the death of a task that was in it


@dataclass(frozen=True)
class Death:
    """A task that has died, in words, and whether the others go on without it."""

    task: TaskInfo
    how: str
    next: str
    """What to do about it."""
    goes_on: bool


class Deaths:
    """Looks for dead tasks among those that a run needs: its ``workers``, and ``others`` beside them.

    With ``least``, workers other than the first may die, as long as so many are left and the run ``trains``.
    ``lost`` are the ranks without which the others go on; who acts on a death notes them there.
    """

    def __init__(
        self,
        cluster: Tasks,
        workers: Sequence[TaskInfo],
        others: Sequence[TaskInfo],
        least: int | None,
        trains: bool,
    ) -> None:
        self.lost: set[int] = set()
        self.undecided: dict[int, float] = {}
        """Ranks that are dead since then, and perhaps the others go on."""
        self._cluster, self._workers, self._least, self._trains = cluster, workers, least, trains
        self._needed = [*workers, *others]
        self._ranks = {info.rank for info in self._needed}
        here = host_identity()
        self._detector = FreezeDetector({info.rank: info.pid for info in self._needed if info.host == here})
        self._looked = 0.0
        self._frozen: dict[int, str] = {}

    def report_frozen(self, ranks: Iterable[int]) -> None:
        """Record ranks that other tasks found frozen or cut off; those tasks continue without them."""
        for rank in self._ranks.intersection(ranks):
            self._frozen.setdefault(rank, "is frozen or cut off: it does not answer the other tasks")

    def new(self, trained: bool, ended: Collection[TaskInfo]) -> Iterator[Death]:
        """Yield the deaths that are to be acted on, again at each look until that is done.

        ``trained`` is whether a body has begun to train; tasks that were ``ended`` on purpose do not count.
        A task counts as dead if its process is stopped for long.
        """
        self._look_for_frozen()
        dead = gone_among(self._cluster, self._needed)
        gone = {info.rank for info in dead}
        dead += [info for info in self._needed if info.rank in self._frozen and info.rank not in gone]
        gone.update(self._frozen)
        for info in dead:
            if info.rank not in self._ranks or info.rank in self.lost or info in ended:
                continue
            goes_on = self._goes_on(info, gone, trained)
            if goes_on or info.rank not in self.undecided:
                yield Death(info, self._how(info), what_next(info, dead), goes_on)

    def _look_for_frozen(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for rank in self._detector.frozen(FROZEN_SECONDS):
                stopped = f"is frozen: its process has been stopped for {FROZEN_SECONDS:.0f} s, as by SIGSTOP"
                self._frozen.setdefault(rank, stopped)

    def _goes_on(self, info: TaskInfo, dead: set[int], trained: bool) -> bool:
        """Whether the others can train on."""
        first, left = self._workers[0], [one for one in self._workers if one.rank not in dead]
        few = self._least is None or len(left) < self._least
        if few or info not in self._workers or info is first:
            return False
        if not self._trains and not trained:  # a plain cell, unless others say more
            now = time.monotonic()
            if now - self.undecided.setdefault(info.rank, now) >= NEWS_SECONDS:
                del self.undecided[info.rank]
            return False
        self.undecided.pop(info.rank, None)
        return True

    def _how(self, info: TaskInfo) -> str:
        now = next(row for row in self._cluster.status() if row["rank"] == info.rank)
        if now["pid"] != info.pid:
            return f"{info.name} (pid {info.pid}) was replaced by pid {now['pid']}"
        if not now["ended"] and info.rank in self._frozen:
            return f"{info.name} (pid {info.pid}) {self._frozen[info.rank]}"
        return f"{info.name} (pid {info.pid}) died: {now['ended']}"


def what_next(lost: TaskInfo, dead: list[TaskInfo]) -> str:
    """Return what to do about a task that is dead or frozen; ``dead`` are all that are."""
    if lost.job == "ps":
        return f"The parameters are lost: start it again with %cluster restart {short_name(lost)}"
    if any(info.job == "ps" for info in dead):
        return "Start all lost tasks again with %cluster restart"
    return f"Run without it with --on, or start it again with %cluster restart {short_name(lost)}"


# What a body has raised: a failure of its own, or perhaps only what came of another task's.

DEATH_SECONDS = 1.0  # how long what cut a task off may come after the word that it was cut off
CONSEQUENCES = ("UnavailableError", "AbortedError", "TaskDiedError")
Hint = Callable[[str], str]
"""The remedy for a name that a body lacks; empty if there is none."""


def body_error(info: TaskInfo, wrong: Mapping[str, Any], hint: Hint | None = None) -> WorkerError:
    """Return the error of a body with its traceback on the task, and the remedy for a name that it lacks."""
    traceback = with_hint(whole_letters(wrong["traceback"]).rstrip(), wrong, hint)
    error = WorkerError(f"{traceback}\n\nraised on {info.name} (pid {info.pid})")
    error.task, error.ename, error.evalue = info.name, wrong["type"], whole_letters(wrong["message"])
    return error


def with_hint(text: str, wrong: Mapping[str, Any], hint: Hint | None) -> str:
    """Return the text of an error, and below it the remedy for a name that is not defined."""
    more = hint(str(wrong["undefined"])) if hint is not None and wrong.get("undefined") else ""
    return f"{text}\n{more}" if more else text


def error_again(told: str) -> NbdistError:
    """Return the error of a run that failed, from what its run.json says of it.

    >>> told = "Traceback (most recent call last):\\n  File ...\\nValueError: late\\n\\n"
    >>> error = error_again(told + "raised on /job:worker/task:0 (pid 7)")
    >>> error.task, error.ename, error.evalue
    ('/job:worker/task:0', 'ValueError', 'late')
    """
    traceback, raised, where = told.rpartition("\n\nraised on ")
    if not raised:
        return NbdistError(told)
    lines = traceback.splitlines()
    # What was raised follows the last line of the code, which is set in; its message may have more lines.
    first = 1 + max((number for number, line in enumerate(lines) if line.startswith("  ")), default=-1)
    name, _, message = "\n".join(lines[first:]).partition(": ")
    error = WorkerError(told)
    error.task, error.ename, error.evalue = where.partition(" (pid ")[0], name.rpartition(".")[2], message
    return error


def whole_letters(text: str) -> str:
    r"""Return a text in which halves of a letter are spelled out: a kernel cannot send them, and hangs.

    Python has them in the names of files that are no UTF-8, and so in errors.

    >>> whole_letters("no file 'caf\udce9'")
    "no file 'caf\\udce9'"
    """
    return text.encode("utf-8", "backslashreplace").decode()


class Doubts:
    """Failures that may be consequences: for a while there may be news that say more."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def about(self, wrong: Mapping[str, Any], rank: int) -> bool:
        """Whether to wait for news: a task is gone, or has raised what cut this one off."""
        if wrong["type"] not in CONSEQUENCES:
            return False
        now = time.monotonic()
        return now - self._since.setdefault(rank, now) < DEATH_SECONDS


# Replicas that share parameters train together: each body calls fit as often as all others.


def left_waiting(
    workers: Sequence[TaskInfo],
    lost: Collection[int],
    begun: Mapping[int, int],
    outcomes: Mapping[int, Mapping[str, Any]],
) -> FailedPreconditionError | None:
    """Return what is wrong if a replica waits in a fit that another one's body has ended without.

    ``begun`` are the trainings that each rank has begun, as far as it is known; ``outcomes`` are of the
    bodies that are over. Workers that are ``lost`` are not waited for.
    """
    ended = {rank: outcome.get("trainings", 0) for rank, outcome in outcomes.items()}
    most = max(begun.values(), default=0)
    short = [info.name for info in workers if info.rank not in lost and ended.get(info.rank, most) < most]
    if not short:
        return None
    waits = next(info.name for info in workers if begun.get(info.rank) == most)
    return FailedPreconditionError(
        f"{waits} trains, and {', '.join(short)} ended without its part in fit number {most}: "
        "replicas that share parameters have to call fit the same number of times. Call it on "
        "every worker, or use --strategy one_device"
    )


#     What has been heard of each worker, so that a gap is noticed and filled.
#
# A task leaves out who does not read: a notebook whose cell computes for minutes, or a connection that broke.
# Who then hears nothing asks to watch again, and takes from the log what has passed meanwhile.

SILENT_SECONDS = 2.0  # a task that has a body says something ten times a second


@dataclass
class Hearing:
    """How much has come from one worker: bytes of its log, whose points have; characters of its output.

    >>> hearing = Hearing(last=0.0)
    >>> hearing.asks(1.0), hearing.asks(2.5), hearing.asks(3.0), hearing.asks(5.0)
    (False, True, False, True)
    """

    last: float
    """When anything came, or was asked for."""
    at: int = 0
    printed: int = 0

    def take(self, news: Frame, now: float) -> None:
        """Take note of news."""
        self.last = now
        self.at, self.printed = news.meta.get("at", self.at), news.meta.get("printed", self.printed)

    def asks(self, now: float) -> bool:
        """Return whether to ask again to watch: it has been silent for too long."""
        if now - self.last < SILENT_SECONDS:
            return False
        self.last = now
        return True

    def catch_up(self, answer: Frame, store: RunStore, folder: Path, say: Callable[[str], object]) -> None:
        """Fill the gap before what a task says when it is watched again: points, and what was printed."""
        for note in add_since(store, folder, answer, self.at):
            say(f"{note}\n")
        missing = int(answer.meta["printed"]) - self.printed
        if missing > 0:
            say(answer.arrays[0].tobytes().decode("utf-8", "replace")[-missing:])
