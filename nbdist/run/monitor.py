"""Follows a run's tasks from the client: `RunMonitor`.

All is done by `RunMonitor.poll`, from one thread, without waiting:

commands     "run.stop" and "run.control" are sent from here, also if another thread asks for them: each
             connection belongs to one thread, and closing it could lose what that thread has just sent.
messages     Points, output and progress (see :mod:`nbdist.run.inbox`).
deaths       Before outcomes, so that the run names the task that died, not a task whose call it broke (see
             :mod:`nbdist.run.recovery.losses`).
outcomes     The first failure is the run's error; the bodies on all other tasks are aborted.
changes      New processes of lost workers join the others, as do workers that are added to the cluster; and
             workers may leave (see :mod:`nbdist.run.recovery.worker_changes`).
escalation   Bodies that do not end are signalled, then replaced (see :mod:`nbdist.run.recovery.shutdown`).

What is known of each task stands in its `Member`, with its state (see :mod:`nbdist.run.recovery.member`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nbdist.errors import NbdistError, TaskDiedError, UnavailableError, WorkerError
from nbdist.run.body_error import body_error, ended_before
from nbdist.run.followed import FollowedRun
from nbdist.run.inbox import Inbox
from nbdist.run.protocols import RunCalls
from nbdist.run.recovery.failure_detector import FailureDetector, RootCause
from nbdist.run.recovery.losses import Losses
from nbdist.run.recovery.member import Member, State, unequal_fits
from nbdist.run.recovery.replacement import RestartBudget, WorkerRecovery
from nbdist.run.recovery.resizing import WorkerGrowth
from nbdist.run.recovery.shutdown import REPLACE_AFTER, StuckTaskReplacer, given_up_report
from nbdist.run.recovery.worker_changes import WorkerChanges
from nbdist.runtime.task import TaskInfo
from nbdist.text import in_bytes

LAST_MESSAGE_SECONDS = 5.0  # for which the last points of a task, sent before its outcome, may still arrive
QUIET_SECONDS = 2.0  # of copying after the end of a run, which then says so
RESERVE_SECONDS = 10.0  # between two renewals of the towers' reservations, which expire after 30 s


class RunMonitor:
    """Follows the tasks of one run: call ``poll`` repeatedly, from one thread, until ``complete``.

    - ``followed``: the run, its members, and what receives its news
    - ``budget``: the restart budget of the run, which parameter servers and workers share
    - ``recovery`` replaces lost workers while the others continue; None if nothing does. Where the rules of
      the run do not replace workers, it does for those that drive a monitored session
    - ``growth`` adds new workers of the cluster; None if this client does not
    - ``prepare`` begins to create the agent of a parameter server's new process; None for bodies that lose
      one only in a session, which needs no agent
    - ``renewed`` returns the call that knows the outcome of a rank's new process, which another client has
      started; None for a client that is the owner of the run from the beginning
    """

    def __init__(
        self,
        followed: FollowedRun,
        budget: RestartBudget,
        *,
        recovery: WorkerRecovery | None = None,
        growth: WorkerGrowth | None = None,
        prepare: Callable[[TaskInfo], RunCalls] | None = None,
        renewed: Callable[[int], RunCalls] | None = None,
    ) -> None:
        self.followed, self.members = followed, followed.members
        self.detector = FailureDetector(followed.cluster, followed.members)
        self.changes = WorkerChanges(followed, self.detector, recovery, growth)
        self.losses = Losses(followed, self.detector, self.changes, budget, prepare, renewed)
        self.inbox = Inbox(followed, self.detector, self.changes.join, self.losses.restored)
        self.replacer = StuckTaskReplacer(followed.cluster)
        self.stuck = ""
        """A report of tasks that did not stop in time, if any."""
        self.commands: deque[dict[str, Any]] = deque()
        """Commands for all bodies, to be sent at the next poll. Any thread may append."""
        self._stop_wanted = self._given_up = False
        self._root_cause = RootCause()
        self._reserved = time.monotonic()
        self._outcomes_since: float | None = None
        self._copying_since = 0.0

    def request_stop(self) -> None:
        """Have all bodies asked to stop at the next poll. May be called from any thread."""
        self.followed.interrupted = self._stop_wanted = True

    def poll(self) -> None:
        """Receive, send and check everything once, without waiting."""
        if self._copying_since:  # how the run ends is known: a task that dies now changes nothing
            return
        self._send_commands()
        self.inbox.poll()
        self.followed.say_what_is_missing()
        self._check_losses()
        self.losses.poll()
        self._collect()
        self.changes.poll()
        self._check_fits()
        self._escalate()
        self._replace_stuck()
        if self.members.all_ended:
            self.losses.end()
        self._renew_towers()

    @property
    def is_unclear(self) -> bool:
        """Whether only the owner of the run, another client, knows how the run ends."""
        followed = self.followed
        if followed.decides or followed.error is not None or followed.interrupted:
            return False
        outcomes = self.members.outcomes.values()
        wrong = (one.get("error") for one in outcomes if not one.get("stopped"))
        return self._observes_loss or any(one and one["aborted"] for one in wrong)

    @property
    def _observes_loss(self) -> bool:
        """Whether a task is lost and the owner of the run, another client, decides what follows."""
        return any(one.observed for one in self.members)

    def complete(self) -> bool:
        """Whether the run has ended."""
        # Not calls.done(): outcomes that arrived since the last poll are not yet known to the members.
        if not self._given_up:
            if not self.members.all_ended or not self._has_last_messages():
                return False
            # Replacements hold the cluster, also those of a run that has failed.
            if self.replacer.under_way or self.losses.under_way or self.changes.under_way:
                return False
        return self._has_copies()

    def take_over(self, growth: WorkerGrowth | None) -> None:
        """Become the owner: decide from now on about lost tasks, and add workers by ``growth``."""
        self.changes.growth = growth
        self.losses.take_over()

    def _send_commands(self) -> None:
        if self._stop_wanted:
            self._stop_wanted = False
            self.followed.send_to(self.members.workers, "run.stop")
            self.followed.escalation.begin()  # the time until the signal counts from here
        while self.commands:
            self.followed.send_to(self.members.workers, "run.control", **self.commands.popleft())

    def _check_losses(self) -> None:
        self.losses.check(self.replacer.ended, self._root_cause.awaited)

    def _collect(self) -> None:
        """Collect the outcomes that have arrived; the first failure ends the other bodies."""
        expected = {one.rank: one for one in self.members.workers if one.outcome is None}
        for rank in self.followed.calls.ready_ranks():
            member = expected.get(rank)
            # What was done about an earlier one may be that this one is not expected any more.
            if member is not None and member.outcome is None:
                self._take(member, self.followed.calls.outcome(rank))

    def _take(self, member: Member, outcome: Any) -> None:
        """Handle the outcome of a worker, unless the cause of its error may still arrive."""
        followed = self.followed
        self.inbox.receive_last(member, outcome)
        if self.changes.has_left(member, outcome):
            return
        if isinstance(outcome, TaskDiedError | UnavailableError):
            self._check_losses()  # it knows how the task died, and whether the others continue
            if member.observed:  # the owner has ended the run without it
                member.expect_nothing()
                return
            is_open = member.state is State.SUSPECTED and followed.error is None
            if member.is_away or is_open:  # a run that has failed decides no more
                return
        if self.changes.has_given_up(member, outcome):
            return
        if isinstance(outcome, BaseException):
            member.expect_nothing()
            error = outcome if isinstance(outcome, NbdistError) else WorkerError(str(outcome))
            if isinstance(error, WorkerError):
                error.task = member.info.name
            followed.fail(error, member)
            return
        wrong = outcome.get("error")
        if wrong and followed.error is None and self._root_cause.is_open(wrong, member.rank):
            return
        member.end(outcome)
        if self._observes_loss:  # it may be a consequence of the loss, which the owner knows
            return
        stopped = followed.interrupted or outcome.get("stopped")  # by this client or another
        if wrong and not wrong["aborted"] and not (stopped and wrong["interrupted"]):
            others = {one.info.name: one.outcome for one in self.members.workers if one is not member}
            ended = {name: one for name, one in others.items() if one is not None}
            said = {**wrong, "traceback": wrong["traceback"] + ended_before(outcome, ended)}
            followed.fail(body_error(member.info, said, followed.events.hint), member)

    def _check_fits(self) -> None:
        if self.followed.is_ending or not self.members.servers:
            return
        if (wrong := unequal_fits(self.members.workers)) is not None:
            self.followed.fail(wrong)

    def _escalate(self) -> None:
        """Do the step that is due with bodies that were asked to end and have not."""
        followed, step = self.followed, self.followed.escalation.due()
        if step is None:
            return
        # A body that has ended is not stuck while its outcome is on its way, which a large model's is for
        # seconds.
        ready = followed.calls.ready_ranks()
        stuck = [one for one in self.members.workers if not one.is_over and one.rank not in ready]
        infos = [one.info for one in stuck]
        if step == "abort":
            followed.send_to(stuck, "run.abort", reason=f"run {followed.run} was stopped")
            return
        if step == "signal":
            for one in stuck:
                with suppress(NbdistError):  # the cluster has ended, and the task with it
                    followed.cluster.signal(one.rank, 2)
            return
        if step == "replace" and stuck:
            self.replacer.begin(infos, REPLACE_AFTER)
        if step == "give up" and stuck:
            followed.send_to(stuck, "run.abort", reason=f"run {followed.run} was given up")
            self.stuck = given_up_report(infos)
            followed.error = followed.error or UnavailableError(self.stuck)
            self._given_up = True
        for one in stuck:
            one.expect_nothing()

    def _replace_stuck(self) -> None:
        if self.replacer.under_way:
            self.replacer.poll()
        self.stuck = self.stuck or self.replacer.report
        self.followed.error = self.followed.error or self.replacer.error

    def _renew_towers(self) -> None:
        """Renew the towers' reservations: they run no body that would hold them."""
        if self.members.towers and time.monotonic() - self._reserved > RESERVE_SECONDS:
            self._reserved = time.monotonic()
            self.followed.send_to(self.members.towers, "run.reserve")

    def _has_copies(self) -> bool:
        """Whether the files of tasks on other hosts are here; of those that take long it says so."""
        followed, now = self.followed, time.monotonic()
        lost = (one for one in self.members.workers if one.is_away or one.state is State.SUSPECTED)
        followed.mirror.lost = {one.rank for one in lost}
        copied = followed.mirror.settle()
        self._copying_since = self._copying_since or now
        if not copied and now - self._copying_since > QUIET_SECONDS:
            self._copying_since = math.inf
            followed.say(
                f"run {followed.run} has ended, and its files are copied from other hosts: "
                f"{in_bytes(followed.mirror.left)} are left. An interrupt ends that"
            )
        followed.say_what_is_missing()
        return copied

    def _has_last_messages(self) -> bool:
        if all(one.body.is_silent for one in self.members.workers):
            return True
        self._outcomes_since = self._outcomes_since or time.monotonic()
        return time.monotonic() - self._outcomes_since > LAST_MESSAGE_SECONDS
