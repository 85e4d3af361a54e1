"""What becomes of a run's tasks, seen from the client: what they say, what they return, whether they live."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbdist.errors import NbdistError, TaskDiedError, UnavailableError, WorkerError
from nbdist.metrics.log import Batch
from nbdist.metrics.store import RunStore
from nbdist.runs.deaths import Deaths
from nbdist.runs.failures import Doubts, Hint, body_error
from nbdist.runs.fits import left_waiting
from nbdist.runs.hearing import Hearing
from nbdist.runs.interrupt import REPLACE_AFTER, Ladder, given_up
from nbdist.runs.output import Displayed
from nbdist.runs.progress import Tally
from nbdist.runs.reach import Calls, Tasks
from nbdist.runs.replacing import Replacing
from nbdist.runtime.task import TaskInfo
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
