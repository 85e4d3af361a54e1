"""Follows a run's tasks from the client: `RunMonitor`.

All is done by `RunMonitor.poll`, from one thread, without waiting:

commands     "run.stop" and "run.control" are sent from here, also if another thread asks for them: each
             connection belongs to one thread, and closing it could lose what that thread has just sent.
messages     Points, output and progress come about ten times a second. A task drops a subscriber that stops
             reading (a kernel that computes for minutes); a client that receives nothing for 2 s subscribes
             again and fills the gap from the task's log (`StreamPosition`).
deaths       Before outcomes, so that the run names the task that died, not a task whose call it broke (see
             :mod:`nbdist.run.recovery.failure_detector`).
recovery     Where the others continue, a lost worker is replaced, and its new process joins them (see
             :mod:`nbdist.run.recovery.replacement`).
resizing     Workers that are added to the cluster join the run, and workers may leave it (see
             :mod:`nbdist.run.recovery.resizing`).
ownership    One client, the owner, replaces lost tasks; the others observe it (see
             :mod:`nbdist.run.recovery.ownership`).
outcomes     The first failure is the run's error; the bodies on all other tasks are aborted.
escalation   Bodies that do not end are signalled, then replaced (see :mod:`nbdist.run.recovery.shutdown`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    UnavailableError,
    WorkerError,
)
from nbdist.metrics.log import Batch
from nbdist.metrics.store import RunStore
from nbdist.run.backfill import add_since
from nbdist.run.body_error import Hint, body_error, ended_before, why_not_joined
from nbdist.run.membership import MembershipRules
from nbdist.run.progress import ProgressTracker
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.recovery.failure_detector import FailureDetector, LostTask, RootCause
from nbdist.run.recovery.replacement import CallsByRank, Restart, RestartBudget, WorkerRecovery, count
from nbdist.run.recovery.resizing import Resize, WorkerGrowth, left_at
from nbdist.run.recovery.server_recovery import Replaced, ServerRecovery
from nbdist.run.recovery.shutdown import REPLACE_AFTER, Escalation, StuckTaskReplacer, given_up_report
from nbdist.run.task.reporting import Displayed
from nbdist.runtime.task import TaskInfo
from nbdist.summary.pictures import Gallery, Picture
from nbdist.train.state_writer import state_files
from nbdist.wire.rpc.frame import Frame

LAST_MESSAGE_SECONDS = 5.0  # for which the last points of a task, sent before its outcome, may still arrive
RESERVE_SECONDS = 10.0  # between two renewals of the towers' reservations, which expire after 30 s
SILENT_SECONDS = 2.0  # after which the client subscribes again: a task with a body sends ten times a second
SESSION_SECONDS = 1.0  # in which the first message of a session may follow the death of a parameter server
WORKER_SESSION_SECONDS = 0.5  # likewise, of a worker, whose error waits so long
SAVE = "With --checkpoint-every, run.resume() continues such a run from its newest state"
JOINED_SECONDS = 1.0  # in which the message that a new process has joined may follow a worker's death


class RunMonitor:
    """Follows the tasks of one run: call ``poll`` repeatedly, from one thread, until ``complete``.

    - ``workers``: tasks that run the body; ``servers`` and ``towers``: other tasks that the run needs
    - ``calls``: the calls that run the body on the workers
    - ``rules``: which workers it needs, and whether they are replaced, join and leave
    - ``store`` receives points, ``tally`` progress, ``printed`` output, ``displayed`` displayed objects,
      ``noted`` messages for the end of the run
    - ``hint``: returns the remedy for a name that the body lacks
    - ``budget``: the restart budget of the run, which parameter servers of sessions and workers share
    - ``recovery`` replaces lost workers while the others continue; None if nothing does. Where ``rules`` does
      not replace workers, it does for those that drive a monitored session. ``restarted`` is called with each
      replacement that has started, joined or failed
    - ``growth`` adds new workers of the cluster; None if this client does not. ``placed`` is called with a
      worker that becomes a replica, ``resized`` with each that has started, joined, failed or left
    - ``renewed`` returns the call that knows the outcome of a rank's new process, which another client has
      started. With it this client is not the owner of the run, until `take_over`
    - ``prepare`` begins to create the agent of a parameter server's new process; without it only sessions
      survive the loss of one

    ``outcomes`` are what the bodies returned, by rank. ``error`` is the first failure.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        cluster: RunTasks,
        workers: list[TaskInfo],
        servers: list[TaskInfo],
        calls: RunCalls,
        *,
        towers: Sequence[TaskInfo] = (),
        rules: MembershipRules,
        budget: RestartBudget,
        store: RunStore,
        tally: ProgressTracker,
        printed: Callable[[str, str], object],
        hint: Hint | None = None,
        displayed: Callable[[str, Displayed], object] = lambda task, shown: None,
        noted: Callable[[str], object] = lambda note: None,
        recovery: WorkerRecovery | None = None,
        restarted: Callable[[Restart | Replaced], object] = lambda restart: None,
        growth: WorkerGrowth | None = None,
        placed: Callable[[TaskInfo], object] = lambda info: None,
        resized: Callable[[Resize], object] = lambda resize: None,
        prepare: Callable[[TaskInfo], RunCalls] | None = None,
        renewed: Callable[[int], RunCalls] | None = None,
    ) -> None:
        self.decides = renewed is None
        """Whether this client is the owner of the run; else it observes what the owner does."""
        self._renewed = renewed
        self._observed: dict[int, tuple[LostTask, float]] = {}  # by rank, and since when
        self._budget = budget
        self.run, self.folder, self.workers, self.servers = run, folder, workers, servers
        self.towers = towers
        self._rules = rules
        replaces = recovery is not None and rules.replaces_workers
        self._failures = FailureDetector(
            cluster,
            workers,
            [*servers, *towers],
            rules.least(),
            rules.trains,
            rules.needs_chief and not replaces,
        )  # fmt: skip
        self.lost = self._failures.lost
        """Ranks that are lost, while the others continue."""
        self.calls, self.store, self.tally = calls, store, tally
        self.gallery = Gallery()
        """The histograms and images of the run's summaries."""
        self.outcomes: dict[int, dict[str, Any]] = {}
        self.error: NbdistError | None = None
        self.stuck = ""
        """A report of tasks that did not stop in time, if any."""
        self.interrupted = self._stop_wanted = False
        self.commands: deque[dict[str, Any]] = deque()
        """Commands for all bodies, to be sent at the next poll. Any thread may append."""
        self.escalation = Escalation(aborts=bool(towers))
        self.replacer = StuckTaskReplacer(cluster)
        self._server_recovery = ServerRecovery(cluster, budget, prepare=prepare)
        self._prepares = prepare is not None
        self._unrestored: dict[int, Replaced] = {}  # by incarnation: workers restore their parameters
        self.sessions: set[int] = set()  # ranks whose bodies have driven a monitored session
        self._recovering: set[int] = set()  # ranks whose bodies survive the loss of a parameter server
        self._refusals: dict[int, str] = {}  # by incarnation: why a lost task is not replaced
        self._lost_since: dict[int, float] = {}  # incarnations of tasks, and when they were found dead
        self._session_progress: dict[int, Mapping[str, Any]] = {}  # by rank
        self._unknown: set[int] = set()  # dead ranks: a message says whether the others continue
        self._awaited: set[int] = set()  # lost ranks that the run cannot end without
        self.ended_bodies: set[int] = set()  # ranks; their outcomes are on their way
        self._cluster, self._printed, self._hint = cluster, printed, hint
        self._displayed, self._noted = displayed, noted
        self._recovery, self._restarted = recovery, restarted
        self.growth = growth
        self._placed, self._resized = placed, resized
        self._absent = self._failures.absent
        self._awaiting: set[int] = set()  # ranks in a fit that waits for the new process of a lost replica
        self._holding_up: set[int] = set()  # lost ranks that such a fit waits for
        self._fits: set[int] = set()  # ranks whose bodies are in fit, or were at their last message
        self._names = {info.rank: info.name for info in workers}
        self._reserved = time.monotonic()
        self._positions = {info.rank: StreamPosition(self._reserved) for info in workers}
        self._root_cause = RootCause()
        self._begun: dict[int, int] = {}  # trainings that each rank has begun, as far as known
        self._ended: set[int] = set()
        self._outcomes_since: float | None = None
        self._given_up = False

    def request_stop(self) -> None:
        """Have all bodies asked to stop at the next poll. May be called from any thread."""
        self.interrupted = self._stop_wanted = True

    def poll(self) -> None:
        """Receive, send and check everything once, without waiting."""
        if self._stop_wanted:
            self._stop_wanted = False
            for info in self.workers:
                self.send(info, "run.stop", {"run": self.run})
            self.escalation.begin()  # the time until the signal counts from here
        while self.commands:
            command = self.commands.popleft()
            for info in self.workers:
                self.send(info, "run.control", {"run": self.run, **command})
        for info in self.workers:
            self.receive(info)
            self._resubscribe_if_silent(info)
        self._check_tasks()
        self._observe_replacements()
        self._collect()
        self._recover()
        self._grow()
        self._check_fits()
        self._escalate()
        self._replace()
        self._replace_servers()
        if len(self.outcomes) == len(self.workers):
            self._note_unrestored()
        self._renew_towers()

    @property
    def has_trained(self) -> bool:
        """Whether a body has begun to train, as far as known."""
        return any(self._begun.values())

    @property
    def is_unclear(self) -> bool:
        """Whether only the owner of the run, another client, knows how the run ends."""
        if self.decides or self.error is not None or self.interrupted:
            return False
        wrong = (one.get("error") for one in self.outcomes.values() if not one.get("stopped"))
        return bool(self._observed) or any(one and one["aborted"] for one in wrong)

    def complete(self) -> bool:
        """Whether the run has ended."""
        # Not calls.done(): outcomes that arrived since the last poll are not yet in `outcomes`.
        if self._given_up:
            return True
        all_here = len(self.outcomes) == len(self.workers) and self._has_last_messages()
        recovers = self._server_recovery.under_way  # also of a run that has failed: it holds the cluster
        recovers = recovers or (self._recovery is not None and self._recovery.under_way)
        grows = self.growth is not None and self.growth.under_way
        return all_here and not self.replacer.under_way and not recovers and not grows

    def receive(self, info: TaskInfo) -> None:
        """Handle all messages that have arrived from a task."""
        try:
            peer = self._cluster.peer(info.rank)
            while (frame := peer.receive(0)) is not None:
                if frame.meta.get("run") != self.run:
                    continue
                if frame.kind == "run.display":
                    self._handle_display(info, frame)
                elif frame.kind == "run.summary":
                    self._handle_summary(info, frame)
                elif frame.kind == "run.progress":
                    self._handle_progress(info, frame)
                elif frame.kind == "run.backfill":
                    self._handle_backfill(info, frame)
        except (UnavailableError, InvalidArgumentError):  # the cluster may have no such task any more
            self._ended.add(info.rank)  # if it is dead, `_check_tasks` finds the reason

    def _handle_summary(self, info: TaskInfo, frame: Frame) -> None:
        try:
            self.gallery.add(info.name, Picture.received(frame.meta, frame.arrays))
        except InvalidArgumentError:  # a picture that no task makes must not end what the task says else
            self.gallery.left_out += 1

    def apply_backfill(self, info: TaskInfo, answer: Frame) -> None:
        """Apply a task's answer to a subscription: its progress so far, and what it has printed."""
        self._handle_progress(info, Frame("run.progress", answer.meta, answer.arrays[:1]))

    def resubscribe(self) -> None:
        """Subscribe to all workers again at the next poll, over connections of the thread that then polls."""
        for position in self._positions.values():
            position.last = -math.inf

    def _resubscribe_if_silent(self, info: TaskInfo) -> None:
        ended = info.rank in self.ended_bodies or info.rank in self.lost or self.towers
        if not ended and self._positions[info.rank].is_silent(time.monotonic()):
            self.send(info, "run.subscribe", {"run": self.run, "resubscribe": True})

    def _handle_display(self, info: TaskInfo, frame: Frame) -> None:
        texts = [one.tobytes().decode("utf-8", "replace") for one in frame.arrays]
        data = dict(zip(frame.meta["types"], texts, strict=True))
        # Two tasks may use the same name; the page treats these as two displays.
        name = f"{self.run}-{info.rank}-{frame.meta['name']}" if frame.meta["name"] else ""
        self._displayed(info.name, Displayed(data, name, bool(frame.meta["update"])))

    def _handle_backfill(self, info: TaskInfo, answer: Frame) -> None:
        """Handle the answer of a task that had dropped this client."""
        self._positions[info.rank].fill_gap(
            answer, self.store, self.folder, lambda text: self._printed(info.name, text)
        )
        self.apply_backfill(info, Frame("run.backfill", answer.meta, (answer.arrays[0][:0],)))

    def _handle_progress(self, info: TaskInfo, frame: Frame) -> None:
        self._positions[info.rank].advance(frame, time.monotonic())
        replica = int(frame.meta["replica"])
        text, *columns = frame.arrays
        if columns:
            self.store.extend_batch(Batch.from_arrays(frame.meta["batch"], columns))
        if text.size:
            self._printed(info.name, text.tobytes().decode())
        self.tally.update(replica, frame.meta["progress"], time.monotonic())
        self._begun[info.rank] = frame.meta["progress"]["trainings"]
        (self._fits.discard if frame.meta["progress"]["epoch"] is None else self._fits.add)(info.rank)
        if (step := frame.meta["progress"].get("joined")) is not None:
            self._join(info, step)
            self._join_added(info, step)
        (self._awaiting.add if frame.meta["progress"].get("awaits") else self._awaiting.discard)(info.rank)
        self._failures.report_frozen(frame.meta["progress"].get("lost", ()))
        if frame.meta["progress"].get("recovers"):
            self._recovering.add(info.rank)
            self.sessions.add(info.rank)
            self._session_progress[info.rank] = frame.meta["progress"]
        elif frame.meta["progress"].get("restores") and self._prepares:
            self._recovering.add(info.rank)
        else:
            self._recovering.discard(info.rank)
        for report in frame.meta["progress"].get("restored", ()):
            self._note_restored(report)
        if frame.meta["ended"]:
            self._ended.add(info.rank)
            self.ended_bodies.add(info.rank)

    def _collect(self) -> None:
        """Collect the outcomes that have arrived; the first failure ends the other bodies."""
        for rank in self.calls.ready_ranks():
            if rank in self.outcomes:
                continue
            outcome = self.calls.outcome(rank)
            if self._has_left(rank, outcome):
                continue
            if isinstance(outcome, TaskDiedError | UnavailableError):
                self._check_tasks()  # it knows how the task died, and whether the others continue
                if rank in self._observed:  # the owner has ended the run without it
                    self._end_rank(rank)
                    continue
                is_open = rank in self._unknown or rank in self._failures.undecided
                if rank in self.lost or (
                    is_open and self.error is None
                ):  # a run that has failed decides no more
                    continue
            if self._has_given_up(rank, outcome):
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
            if wrong and self.error is None and self._root_cause.is_open(wrong, rank):
                continue
            self.outcomes[rank] = outcome
            stopped = self.interrupted or outcome.get("stopped")  # by this client or another
            if self._observed:  # it may be a consequence of the loss, which the owner knows
                continue
            if wrong and not wrong["aborted"] and not (stopped and wrong["interrupted"]):
                info = next(info for info in self.workers if info.rank == rank)
                others = {self._names[other]: one for other, one in self.outcomes.items() if other != rank}
                said = {**wrong, "traceback": wrong["traceback"] + ended_before(outcome, others)}
                self._fail(body_error(info, said, self._hint), rank)

    def _fail(self, error: NbdistError, rank: int | None) -> None:
        """Record the first error and abort the other tasks."""
        if self.error is not None:
            return
        self.error = error
        where = next((info.name for info in self.workers if info.rank == rank), "another task")
        reason = f"run {self.run} was aborted: {where} failed"
        for info in self.workers:
            if info.rank != rank:
                self.send(info, "run.abort", {"run": self.run, "reason": reason})
        self.escalation.begin(failed=True)

    def _logged(self) -> str:
        """Return where to find what the run leaves, as sentences for its error."""
        logged = f"What run {self.run} logged is in {self.folder}."
        if not state_files(self.folder):
            return logged
        return f"{logged} It can be resumed from its newest state: nb.attach({self.run!r}).resume()."

    def _check_tasks(self) -> None:
        """Fail, or continue on the others, when a task that the run needs is lost."""
        if self.error is not None:
            return
        if (how := self._cluster.controller_died()) is not None:
            self._fail(
                TaskDiedError(
                    f"the cluster of run {self.run} has ended: {how}. {self._logged()} "
                    "Start another one with %cluster start"
                ),
                None,
            )
            return
        for lost in self._failures.poll(self.has_trained, self.replacer.ended, bool(self.sessions)):
            if not self.decides:
                self._observe_loss(lost)
                continue
            if self._replaces(lost):
                continue
            by_session = self._continues_by_session(lost)
            if by_session is None:
                continue
            waits = False if by_session or lost.others_continue else self._waits_for(lost)
            if waits is None:
                continue
            continues: bool | None = by_session or waits
            if not continues and lost.others_continue:
                continues = self._continues_without_chief(lost)
                if continues is None:
                    self._unknown.add(lost.task.rank)
                    continue
            if continues:
                new = [] if by_session or waits else self._only_new_left(lost.task)
                if new and not self._is_later(lost.task, JOINED_SECONDS):
                    self._unknown.add(lost.task.rank)
                    continue
                if new:
                    missing = f"has the parameters: {', '.join(new)} had not joined the training yet"
                    self._fail(
                        TaskDiedError(f"{lost.how}. No other worker {missing}. {self._logged()} {SAVE}"), None
                    )
                    return
                self._lose(lost.task, lost.how, by_session)
                gone = [info for info in self.workers if info.rank in self.lost - self._absent]
                ranks, numbers = [info.rank for info in gone], [info.incarnation for info in gone]
                meta = {"run": self.run, "ranks": ranks, "incarnations": numbers}
                for info in self._remaining():  # any of them may become the first one
                    self.send(info, "run.lost", meta)
            else:
                refused = self._refusals.get(lost.task.incarnation, "")
                died = TaskDiedError(f"{lost.how}{refused}. {self._logged()} {lost.remedy}")
                self._fail(died, lost.task.rank)

    def take_over(self) -> None:
        """Become the owner: decide from now on about lost tasks, also about those that were observed."""
        self.decides = True
        for rank in self._observed:
            self.lost.discard(rank)
        self._observed.clear()

    def leave_out(self, info: TaskInfo, left: str = "") -> None:
        """Expect nothing of a worker: the run has continued without it before this client attached.

        It is lost, or has ``left`` the run, as the text says.
        """
        place = self.workers.index(info)
        if left:
            self._failures.remove(info)
            self._leave(info)
            self.tally.leave(place, left)
            return
        self.lost.add(info.rank)
        self._end_rank(info.rank)
        self.tally.lose(place, time.monotonic())

    def _observe_loss(self, lost: LostTask) -> None:
        """Show the loss of a task: the owner of the run replaces it, continues without it or ends the run."""
        info = lost.task
        self.lost.add(info.rank)
        self._observed[info.rank] = lost, time.monotonic()
        if info in self.workers:
            self.tally.lose(self.workers.index(info), time.monotonic())
        else:
            self.tally.lose_server(info.name)
        self._printed(info.name, f"{lost.how}\n")

    def _observe_replacements(self) -> None:
        """Expect messages and an outcome of the new processes that the owner has started."""
        now = {info.rank: info for info in self._cluster.tasks} if self._observed else {}
        for rank, (lost, since) in list(self._observed.items()):
            old, new = lost.task, now.get(rank, lost.task)
            if new.incarnation == old.incarnation:
                continue
            del self._observed[rank]
            if old in self.servers:
                seconds = time.monotonic() - since
                self._budget.spent += 1
                self._take_server(Replaced(old, new, lost.how, seconds, self._budget.spent, since))
            elif self.interrupted:  # a task that did not stop was replaced: its new process runs no body
                self._end_rank(rank)
            elif self._recovery is not None and self._renewed is not None:
                self._restart(self._recovery.observe(old, new, lost.how, since, self._renewed(rank)))
                self._positions[rank].last = -math.inf  # subscribe at once

    def _is_later(self, task: TaskInfo, seconds: float) -> bool:
        """Whether so many seconds have passed since a task was found lost."""
        now = time.monotonic()
        return now - self._lost_since.setdefault(task.incarnation, now) >= seconds

    def _only_new_left(self, lost: TaskInfo) -> list[str]:
        """Return the other workers than a lost one, if workers keep the parameters and these have none yet.

        They wait to join the training, and no worker is left that could admit them.
        """
        if self.servers or self._recovery is None or self.ended_bodies:
            return []
        left = [info for info in self._remaining() if info.rank != lost.rank]
        new = [info.name for info in left if self._recovery.joining(info.rank)]
        return new if len(new) == len(left) else []

    def _replaces(self, lost: LostTask) -> bool:
        """Return whether a lost task is a parameter server that is, or may yet be, replaced.

        It is if all bodies wait for it.
        """
        if self._server_recovery.has(lost.task):
            return True
        waiting = {info.rank for info in self.workers} - self.lost - self.outcomes.keys()
        if self._recovery is not None:
            waiting -= {rank for rank in waiting if self._recovery.joining(rank)}
        if lost.task not in self.servers:
            return False
        if not waiting and self.sessions and self._replaces_workers:  # their new processes will wait for it
            return self._begin_server(lost)
        if not waiting:
            return False
        waiting -= self.ended_bodies  # their outcomes are on their way, and need no server
        if not waiting:
            return not self._root_cause.awaited - self.outcomes.keys()
        if not self._can_wait(waiting):  # a session or a fit that has just begun is not known here yet
            begins = not self.has_trained or bool(waiting & self._recovering)
            return not self._is_later(lost.task, SESSION_SECONDS) and begins
        return self._begin_server(lost)

    @property
    def _replaces_workers(self) -> bool:
        """Whether lost workers are being replaced, or their new processes have not joined."""
        if self._recovery is None:
            return False
        return self._recovery.under_way or any(self._recovery.joining(one.rank) for one in self.workers)

    def _refuse(self, lost: LostTask, why: str) -> None:
        """Note why a task is not replaced that the run needs: the run's error will say so."""
        self._refusals[lost.task.incarnation] = f"; {why}"
        self._noted(f"{lost.how}; {why}")

    def _begin_server(self, lost: LostTask) -> bool:
        """Begin to replace a parameter server; return whether the restart budget permits it."""
        if refusal := self._server_recovery.begin(lost.task, lost.how):
            self._refuse(lost, refusal)
            return False
        self._printed(lost.task.name, f"{lost.how}; it is replaced\n")
        self.tally.lose_server(lost.task.name)
        return True

    def _can_wait(self, waiting: Collection[int]) -> bool:
        """Return whether the bodies of these ranks survive the loss of a parameter server.

        If one trains by a fit that does, so do others that have not reached that fit, or have returned from
        it: they use no server now.
        """
        fits = self._recovering - self.sessions
        return all(rank in self._recovering or (fits and rank not in self._fits) for rank in waiting)

    def _replace_servers(self) -> None:
        if not self._server_recovery.under_way:
            return
        try:
            for one in self._server_recovery.poll():
                self._take_server(one)
        except NbdistError as error:
            self._fail(UnavailableError(f"a parameter server died and could not be replaced: {error}"), None)

    def _take_server(self, one: Replaced) -> None:
        """Use the new process of a parameter server."""
        self.servers[self.servers.index(one.old)] = one.new
        self._failures.replace(one.old, one.new)
        if self.decides:
            self.send(one.new, "run.reserve", {"run": self.run})
        self._restarted(one)
        self._note_unrestored(one.new.rank)
        if self._recovering - self.sessions:
            self._unrestored[one.new.incarnation] = one
        else:
            self._note_replaced(one)

    def _session_workers(self) -> int:
        """Return with how few workers the sessions make steps, where workers wait for each other; else 0."""
        return max((one["needed_workers"] for one in self._session_progress.values()), default=0)

    def _continues_by_session(self, lost: LostTask) -> bool | None:
        """Return whether the run survives the loss of a worker because its body drives a monitored session.

        The variables are on other tasks, so all other workers continue, and the new process of the lost one
        joins them, also the chief's. None if this is not known yet: a message may still arrive.
        """
        info, rank = lost.task, lost.task.rank
        self._unknown.discard(rank)
        if info not in self.workers or rank in self.outcomes or self.interrupted or self.has_trained:
            return False
        if not self._recovering or (rank in self._session_progress and rank not in self._recovering):
            if self._is_later(info, WORKER_SESSION_SECONDS) or self._session_progress:
                return False
            self._unknown.add(rank)
            return None
        if any(progress["sessions"] > 1 for progress in self._session_progress.values()):
            self._noted(
                f"{lost.how}; it is not replaced: its body has made several monitored sessions, and a new "
                "process would begin with the first one"
            )
            return False
        others = [one for one in self._remaining() if one.rank != rank]
        if self._recovery is None:
            return bool(others)
        needed = self._session_workers()
        if rank == self.workers[0].rank or len(others) < max(1, min(needed, len(self.workers))):
            if refusal := self._recovery.refusal:
                self._refuse(lost, refusal)
                return False
            self._awaited.add(rank)
        return True

    def _waits_for(self, lost: LostTask) -> bool | None:
        """Return whether the others wait for the new process of a lost worker, in the step that needs it.

        None if this is not known yet: the first message of a training may still arrive.
        """
        info, rank = lost.task, lost.task.rank
        over = rank in self.outcomes or self.interrupted
        if self._recovery is None or not self._rules.awaits_workers or info not in self.workers or over:
            return False
        fits = {one.rank for one in self.workers} - self.outcomes.keys() - self.ended_bodies
        if not fits & self._awaiting:
            if self._is_later(info, WORKER_SESSION_SECONDS):
                return False
            self._unknown.add(rank)
            return None
        if not (continues := self._continues_without_chief(lost)):
            if continues is None:
                self._unknown.add(rank)
            return continues
        if refusal := self._recovery.refusal:
            self._refuse(lost, refusal)
            return False
        self._awaited.add(rank)
        self._holding_up.add(rank)
        return True

    def _continues_without_chief(self, lost: LostTask) -> bool | None:
        """Return whether the run survives the loss of a worker that trains with fit, if that is its chief.

        None if this is not known yet.
        Its end waits for the new process, which has the results. That process takes no part in an earlier
        fit of its body, so it would return the model of that as it was before.
        """
        rank = lost.task.rank
        if not self._rules.needs_chief or rank != self.workers[0].rank:
            return True
        if self._recovery is None or rank in self.outcomes:
            return False
        if not (in_first_fit := self._in_first_fit(lost.task)):
            return in_first_fit
        if refusal := self._recovery.refusal:
            self._refuse(lost, refusal)
            return False
        self._awaited.add(rank)
        return True

    def _in_first_fit(self, info: TaskInfo) -> bool | None:
        """Return whether a worker's body was in its first fit; None while a message may still say so.

        It may have died, also as a new process that joins, before its first message with an epoch: the others
        run the same body.
        """
        rank = info.rank
        known = [rank] if rank in self._fits else [rank, *(one.rank for one in self._remaining())]
        if max(self._begun.get(one, 0) for one in known) > 1:
            return False
        if any(one in self._fits for one in known):
            return True
        return False if self._is_later(info, JOINED_SECONDS) else None

    def _note_restored(self, report: Mapping[str, Any]) -> None:
        """Record what a worker reports that has restored a parameter server."""
        one = self._unrestored.pop(int(report["incarnation"]), None)
        if one is not None:
            one = one.restored(report)
            self._note_replaced(one)
            self._restarted(one)

    def _note_unrestored(self, rank: int | None = None) -> None:
        """Record replaced servers that no worker has restored: it died again, or the bodies have ended."""
        for incarnation, one in list(self._unrestored.items()):
            if rank in (None, one.new.rank):
                self._note_replaced(self._unrestored.pop(incarnation))

    def _note_replaced(self, one: Replaced) -> None:
        text = f"{one.how}; {one.text}"
        self._printed(one.new.name, f"{text}\n")
        self._noted(text)
        self.tally.replace_server(f"{one.old.name} was {one.text}")

    def _lose(self, info: TaskInfo, how: str, by_session: bool) -> None:
        """Continue the run without a worker, until its new process joins."""
        self.lost.add(info.rank)
        if info.rank not in self._awaited:
            self._end_rank(info.rank)
        self.tally.lose(self.workers.index(info), time.monotonic())
        added = None if self.growth is None else self.growth.joining(info.rank)
        if added is not None:
            added.problem = "it was lost before it joined"
            self._resized(added)
        replaces = self._recovery is not None and (by_session or self._rules.replaces_workers)
        why = self._recovery.begin(info, how) if self._recovery is not None and replaces else ""
        more = f"; {why}" if why else ""
        remaining = self._remaining()
        waits = info.rank in self._holding_up or (by_session and self._session_workers() > len(remaining))
        if remaining and waits:
            self._printed(info.name, f"{how}; training waits for its new process\n")
            self._noted(f"{how}; training waited for its new process")
        elif remaining:
            workers = count(len(remaining), "worker", "workers")
            self._printed(info.name, f"{how}; training continues on {workers}{more}\n")
            self._noted(f"{how}; training continued on {workers}{more}")
        else:
            self._printed(info.name, f"{how}; it is replaced\n")
            self._noted(how)
        # A frozen worker reads this when its process is continued, and is then free for the next run.
        reason = f"run {self.run} has continued without {info.name}: {how}"
        self.send(info, "run.abort", {"run": self.run, "reason": reason})

    def _recover(self) -> None:
        """Have lost workers replaced, unless the run ends."""
        recovery = self._recovery
        if recovery is None:
            return
        stopped = self.interrupted or any(one.get("stopped") for one in self.outcomes.values())
        if self.error is not None or stopped or len(self.outcomes) == len(self.workers):
            recovery.end()
        for restart in recovery.poll():
            if restart.problem:
                self._note_restart(restart, f"it was {restart.text}")
                self._fail_if_awaited(restart)
            else:
                self._restart(restart)
            self._restarted(restart)
        if recovery.ending and not recovery.under_way:
            for rank in self._awaited & self.lost:
                self._end_rank(rank)

    def _end_rank(self, rank: int) -> None:
        """Expect no outcome of a rank."""
        self.outcomes.setdefault(rank, {})
        self._ended.add(rank)

    def _fail_if_awaited(self, restart: Restart) -> None:
        """End the run if it needs a worker that could not be replaced: its chief, or one in each step."""
        rank = restart.old.rank
        assert self._recovery is not None
        if rank in self._awaited and (self.interrupted or self._recovery.ending):
            self._awaited.discard(rank)  # it was stopped before it joined
            self._end_rank(rank)
        if rank in self._holding_up and rank != self.workers[0].rank:
            in_fit = {info.rank for info in self._remaining()} - self.outcomes.keys() - self.ended_bodies
            if not in_fit & self._awaiting:  # the training has ended, and needs it no more
                self._awaited.discard(rank)
                self._end_rank(rank)
        if rank in self._awaited:
            self._end_rank(rank)
            self._fail(TaskDiedError(f"{restart.how}. It was not replaced: {restart.problem}"), rank)

    def _restart(self, restart: Restart) -> None:
        """Expect messages and an outcome of a worker's new process, which runs the body."""
        old, new, calls = restart.old, restart.new, restart.calls
        assert new is not None
        assert calls is not None
        rank, place = old.rank, self.workers.index(old)
        self.workers[place] = new
        self._failures.replace(old, new)
        self._expect(rank, calls)
        self.tally.restart(place)
        for info in self._remaining() if self.decides else ():
            self.send(info, "run.rejoined", {"run": self.run, "rank": rank})

    def _remaining(self) -> list[TaskInfo]:
        return [info for info in self.workers if info.rank not in self.lost]

    def _join(self, info: TaskInfo, step: int) -> None:
        """Record that a worker's new process has joined the training, at a step of its own."""
        restart = None if self._recovery is None else self._recovery.joining(info.rank)
        if restart is None:
            return
        restart.step, restart.seconds = step, time.monotonic() - restart.lost_at
        self._awaited.discard(info.rank)
        self._holding_up.discard(info.rank)
        self.tally.join(self.workers.index(info), restart.text)
        self._note_restart(restart, f"it was {restart.text}")
        self._restarted(restart)

    def _has_given_up(self, rank: int, outcome: Any) -> bool:
        """Continue without a worker whose body has ended on the new process, but never joined."""
        if self._has_given_up_added(rank, outcome):
            return True
        restart = None if self._recovery is None else self._recovery.joining(rank)
        if restart is None or restart.new is None:
            return False
        joined = None if isinstance(outcome, BaseException) else outcome.get("joined")
        if joined is not None:  # the message that says so is on its way
            self._join(restart.new, joined)
            return False
        restart.problem = why_not_joined(outcome)
        self.lost.add(rank)
        self._end_rank(rank)
        self.tally.lose(self.workers.index(restart.new), time.monotonic())
        self._note_restart(restart, f"it was {restart.text}")
        self._fail_if_awaited(restart)
        self._restarted(restart)
        return True

    def _grow(self) -> None:
        """Have workers that were added to the cluster join the run, unless it ends."""
        growth = self.growth
        if growth is None:
            return
        if self.error is not None or self.interrupted or len(self.outcomes) == len(self.workers):
            growth.end()
        for info in growth.find_new({info.rank for info in self.workers} - self._absent):
            if not self._rules.why_fixed:
                if growth.begin(info):
                    self._place(info)
            elif self._rules.trains or self.has_trained:
                self._noted(
                    f"{info.name} was added to the cluster, and not to the run: {self._rules.why_fixed}"
                )
        for resize in growth.poll():
            if resize.problem:
                self._give_up_added(resize)
            else:
                self._start_added(resize)

    def _place(self, info: TaskInfo) -> None:
        """Count an added worker among the replicas; no outcome is expected before its body has started."""
        place = next((i for i, one in enumerate(self.workers) if one.rank == info.rank), len(self.workers))
        self.workers[place:] = [info, *self.workers[place + 1 :]]
        self._names[info.rank] = info.name
        self._absent.add(info.rank)
        self.lost.add(info.rank)
        self.outcomes[info.rank] = {}
        self._ended.add(info.rank)
        self._positions[info.rank] = StreamPosition(time.monotonic())
        self._placed(info)
        self.tally.add(place)

    def _start_added(self, resize: Resize) -> None:
        """Expect messages and an outcome of an added worker, which runs the body."""
        info, calls = resize.new, resize.calls
        assert calls is not None
        self._absent.discard(info.rank)
        self.lost.discard(info.rank)
        self._failures.add(info)
        self._failures.least = self._rules.least(len(self._taking_part()))
        self._expect(info.rank, calls)
        for one in self._remaining():
            self.send(one, "run.rejoined", {"run": self.run, "rank": info.rank})
        self._resized(resize)

    def _taking_part(self) -> list[TaskInfo]:
        """Return the workers that have not left; those that are lost are among them."""
        return [info for info in self.workers if info.rank not in self._absent]

    def _join_added(self, info: TaskInfo, step: int) -> None:
        """Record that an added worker has joined the training, at a step of its own."""
        resize = None if self.growth is None else self.growth.joining(info.rank)
        if resize is None:
            return
        resize.step, resize.seconds = step, time.monotonic() - resize.begun_at
        self.tally.joined(self.workers.index(info), resize.text, step)
        self._note_resize(resize)

    def _has_given_up_added(self, rank: int, outcome: Any) -> bool:
        """Continue without an added worker whose body has ended without joining the training."""
        resize = None if self.growth is None else self.growth.joining(rank)
        if resize is None or isinstance(outcome, TaskDiedError):
            return False
        joined = None if isinstance(outcome, BaseException) else outcome.get("joined")
        if joined is not None:  # the message that says so is on its way
            self._join_added(resize.new, joined)
            return False
        resize.problem = why_not_joined(outcome)
        self._failures.remove(resize.new)
        self._give_up_added(resize)
        return True

    def _give_up_added(self, resize: Resize) -> None:
        info = resize.new
        assert self.growth is not None
        self.growth.give_up(resize)
        self._leave(info)
        self.tally.leave(self.workers.index(info), resize.text)
        self._note_resize(resize)

    def _has_left(self, rank: int, outcome: Any) -> bool:
        """Continue without a worker that has left the run, so that it can be removed from the cluster."""
        step = left_at(outcome)
        if step is None:
            here = {info.rank for info in self._cluster.tasks}
            if not isinstance(outcome, TaskDiedError) or rank in here or self._cluster.controller_died():
                return False
        info = next(one for one in self.workers if one.rank == rank)
        self._failures.remove(info)
        self._leave(info)
        if step is not None:
            self.outcomes[rank] = outcome
        number = self.workers.index(info)
        step = (
            self.tally.standing(time.monotonic(), self.store).replicas[number].step if step is None else step
        )
        resize = Resize(info, False, 0, time.monotonic(), step=step)
        if self.growth is not None:
            resize = self.growth.leave(info, step)
        self.tally.leave(number, resize.text, step)
        self._note_resize(resize)
        return True

    def _leave(self, info: TaskInfo) -> None:
        """Expect nothing more of a worker that takes no part in the run."""
        self._absent.add(info.rank)
        self.lost.add(info.rank)
        self._end_rank(info.rank)
        self._failures.least = self._rules.least(len(self._taking_part()))
        for one in self._remaining():
            self.send(one, "run.left", {"run": self.run, "rank": info.rank})

    def _note_resize(self, resize: Resize) -> None:
        """Print what became of a change, and keep it for the end of the run and in its record."""
        was = "it was " if resize.grown else "it "
        note = f"{resize.new.name} (pid {resize.new.pid}): {was}{resize.text}"
        self._printed(resize.new.name, f"{note}\n")
        self._noted(note)
        self._resized(resize)

    def _expect(self, rank: int, calls: RunCalls) -> None:
        """Expect messages and an outcome of the process of a rank that runs the body now."""
        self.calls = self.calls if isinstance(self.calls, CallsByRank) else CallsByRank(self.calls)
        self.calls.replace(rank, calls)
        self.outcomes.pop(rank, None)
        self._begun.pop(rank, None)
        self._fits.discard(rank)
        self._session_progress.pop(rank, None)
        self._recovering.discard(rank)
        self._awaiting.discard(rank)
        for ranks in (self._ended, self.ended_bodies):
            ranks.discard(rank)
        self._positions[rank] = StreamPosition(time.monotonic())

    def _note_restart(self, restart: Restart, what: str) -> None:
        """Print what became of a replacement, and keep it for the end of the run."""
        old, new = restart.old, restart.new
        processes = f"pid {old.pid}" if new is None or new == old else f"pid {old.pid} -> {new.pid}"
        most = "" if self._recovery is None else f" of {self._recovery.budget.most}"
        note = f"{old.name} ({processes}): {what} (restart {restart.number}{most})"
        self._printed(old.name, f"{note}\n")
        self._noted(note)

    def _check_fits(self) -> None:
        over = self.error is not None or self.interrupted or len(self.outcomes) == len(self.workers)
        if over or not self.servers:
            return
        wrong = unequal_fits(self.workers, self.lost, self._begun, self.outcomes)
        if wrong is not None:
            self._fail(wrong, None)

    def _escalate(self) -> None:
        """Do the step that is due with bodies that were asked to end and have not."""
        step = self.escalation.due()
        if step is None:
            return
        # A body that has ended is not stuck while its outcome is on its way, which a large model's is for
        # seconds.
        over = self.ended_bodies | set(self.outcomes) | set(self.calls.ready_ranks())
        stuck = [info for info in self.workers if info.rank not in over]
        if step == "replace" and stuck:
            self.replacer.begin(stuck, REPLACE_AFTER)
        for info in stuck:
            if step == "abort":
                self.send(info, "run.abort", {"run": self.run, "reason": f"run {self.run} was stopped"})
            elif step == "signal":
                with suppress(NbdistError):  # the cluster has ended, and the task with it
                    self._cluster.signal(info.rank, 2)
            else:
                if step == "give up":
                    reason = f"run {self.run} was given up"
                    self.send(info, "run.abort", {"run": self.run, "reason": reason})
                self.outcomes[info.rank] = {}
                self._ended.add(info.rank)
        if step == "give up" and stuck:
            self.stuck = given_up_report(stuck)
            self.error = self.error or UnavailableError(self.stuck)
            self._given_up = True

    def _replace(self) -> None:
        if self.replacer.under_way:
            self.replacer.poll()
        self.stuck = self.stuck or self.replacer.report
        self.error = self.error or self.replacer.error

    def _renew_towers(self) -> None:
        """Renew the towers' reservations: they run no body that would hold them."""
        if self.towers and time.monotonic() - self._reserved > RESERVE_SECONDS:
            self._reserved = time.monotonic()
            for info in self.towers:
                self.send(info, "run.reserve", {"run": self.run})

    def _has_last_messages(self) -> bool:
        if all(info.rank in self._ended for info in self.workers):
            return True
        self._outcomes_since = self._outcomes_since or time.monotonic()
        return time.monotonic() - self._outcomes_since > LAST_MESSAGE_SECONDS

    def send(self, info: TaskInfo, kind: str, meta: dict[str, Any], wait: float = 0.0) -> None:
        """Send a message to a task and ``wait`` so many seconds for its answer; a dead task is left out."""
        dead = {one.rank for one in self._cluster.dead()}
        if info.rank not in dead:
            try:
                peer = self._cluster.peer(info.rank)
                if wait:
                    peer.call(kind, meta, timeout=wait)
                else:
                    peer.send(kind, meta)
            except NbdistError:
                self._ended.add(info.rank)


@dataclass
class StreamPosition:
    """How much of one worker's stream has arrived: bytes of its log, characters of its output.

    >>> position = StreamPosition(last=0.0)
    >>> position.is_silent(1.0), position.is_silent(2.5), position.is_silent(3.0), position.is_silent(5.0)
    (False, True, False, True)
    """

    last: float
    """When the last message arrived, or the client last subscribed."""
    log_bytes: int = 0
    printed: int = 0

    def advance(self, message: Frame, now: float) -> None:
        """Move past a message."""
        self.last = now
        self.log_bytes = message.meta.get("at", self.log_bytes)
        self.printed = message.meta.get("printed", self.printed)

    def is_silent(self, now: float) -> bool:
        """Whether nothing arrived for so long that the client subscribes again; True restarts the clock."""
        if now - self.last < SILENT_SECONDS:
            return False
        self.last = now
        return True

    def fill_gap(self, answer: Frame, store: RunStore, folder: Path, say: Callable[[str], object]) -> None:
        """Add the points and the output between this position and a task's answer to the new subscription."""
        for note in add_since(store, folder, answer, self.log_bytes):
            say(f"{note}\n")
        missing = int(answer.meta["printed"]) - self.printed
        if missing > 0:
            say(answer.arrays[0].tobytes().decode("utf-8", "replace")[-missing:])


def unequal_fits(
    workers: Sequence[TaskInfo],
    lost: Collection[int],
    begun: Mapping[int, int],
    outcomes: Mapping[int, Mapping[str, Any]],
) -> FailedPreconditionError | None:
    """Return an error if a replica waits in a fit() that another one's body has ended without; else None.

    ``begun`` are the trainings that each rank has begun, as far as known; ``outcomes`` are of the bodies that
    have ended. Workers that are ``lost`` do not count.
    """
    ended = {rank: outcome.get("trainings", 0) for rank, outcome in outcomes.items()}
    most = max(begun.values(), default=0)
    short = [info for info in workers if info.rank not in lost and ended.get(info.rank, most) < most]
    if not short:
        return None
    waits = next(info.name for info in workers if begun.get(info.rank) == most)
    finished = " and ".join(f"{info.name} finished after {ended[info.rank]}" for info in short)
    return FailedPreconditionError(
        f"{waits} is waiting in fit() call {most}, but {finished}: replicas that share parameters have to "
        "call fit() equally often. Call it on every worker, or use --strategy one_device"
    )
