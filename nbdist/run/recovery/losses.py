"""Finds the lost tasks of a run and does what `decide` says about each: `Losses`.

One client, the owner of the run, decides. Others observe what it does (see `nbdist.run.recovery.ownership`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from nbdist.errors import NbdistError, UnavailableError
from nbdist.run.followed import FollowedRun
from nbdist.run.protocols import RunCalls
from nbdist.run.recovery.failure_detector import FailureDetector
from nbdist.run.recovery.member import Loss, Member, State
from nbdist.run.recovery.policy import Action, Decision, Facts, decide
from nbdist.run.recovery.replacement import Procedures, RestartBudget
from nbdist.run.recovery.server_recovery import Replaced, replace_server
from nbdist.run.recovery.worker_changes import WorkerChanges
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Tolerance

SAVE = "With --checkpoint-every, run.resume() continues such a run from its newest state"


class Losses:
    """Handles the lost members of a run: call `check` and `poll` repeatedly.

    ``changes`` loses workers; ``budget`` is the restart budget of workers and parameter servers. ``prepare``
    begins to create the agent of a server's new process; None for bodies that lose one only in a session,
    which needs no agent. ``renewed`` returns the call that knows the outcome of a rank's new process, which
    the owner has started; None for the owner itself.
    """

    def __init__(
        self,
        followed: FollowedRun,
        detector: FailureDetector,
        changes: WorkerChanges,
        budget: RestartBudget,
        prepare: Callable[[TaskInfo], RunCalls] | None,
        renewed: Callable[[int], RunCalls] | None,
    ) -> None:
        self._followed, self._members = followed, followed.members
        self._detector, self._changes = detector, changes
        self._budget, self._prepare, self._renewed = budget, prepare, renewed
        self._servers = Procedures[Replaced]()
        """The replacements of parameter servers that are under way."""

    @property
    def under_way(self) -> bool:
        """Whether parameter servers are being replaced."""
        return bool(self._servers)

    def check(self, ended: Collection[TaskInfo], errors: Collection[int]) -> None:
        """Fail, continue on the others or have a task replaced where the run has lost one.

        Tasks that were ``ended`` on purpose do not count. ``errors`` are the ranks with errors that may be
        consequences of a loss.
        """
        followed = self._followed
        if followed.error is not None:
            return
        if (how := followed.cluster.controller_died()) is not None:
            how = f"the cluster of run {followed.run} has ended: {how}"
            followed.fail(followed.died(how, "Start another one with %cluster start"))
            return
        for lost in self._detector.poll(ended):
            if not followed.decides:
                self._observe(lost)
            elif not self._act(lost, decide(lost, self._members, self._facts(errors))):
                return

    def _facts(self, errors: Collection[int]) -> Facts:
        recovery = self._changes.recovery
        return Facts(
            now=time.monotonic(),
            rules=self._followed.rules,
            refusal=None if recovery is None else recovery.refusal,
            spent=self._budget.refusal if self._budget.is_spent else "",
            interrupted=self._followed.interrupted,
            errors=errors,
        )

    def _act(self, lost: Member, decision: Decision) -> bool:
        """Do what was decided about a lost task; return whether the run continues."""
        followed, loss = self._followed, lost.loss
        assert loss is not None
        if decision.action is Action.FAIL:
            how, remedy = loss.how, loss.remedy
            if decision.refusal:
                how = f"{how}; {decision.refusal}"
                followed.events.noted(how)
            elif decision.missing:
                how, remedy = f"{how}. {decision.missing}", SAVE
            followed.fail(followed.died(how, remedy), lost)
            followed.happened("lost", loss.how, lost.info)
        elif decision.action is not Action.WAIT:
            if lost in self._members.servers:
                self._replace_server(lost, loss)
            else:
                self._changes.lose(lost, decision)
        return decision.action is not Action.FAIL

    def poll(self) -> None:
        """Do what can be done now about replacements, without waiting."""
        self._observe_replacements()
        try:
            for one in self._servers.poll():
                self._take_server(one)
        except NbdistError as error:
            text = f"a parameter server died and could not be replaced: {error}"
            self._followed.fail(UnavailableError(text))

    # Parameter servers.

    def _replace_server(self, lost: Member, loss: Loss) -> None:
        """Begin to replace a parameter server."""
        followed, info, how = self._followed, lost.info, loss.how
        lost.move(State.LOST)
        lost.move(State.REPLACING)
        self._budget.take()
        number = self._budget.spent
        self._servers.begin(replace_server(followed.cluster, info, how, loss.found, number, self._prepare))
        followed.events.printed(info.name, f"{how}; it is replaced\n")
        followed.tally.lose_server(info.name)
        followed.happened("lost", how, info)

    def _take_server(self, one: Replaced) -> None:
        """Use the new process of a parameter server."""
        member = next(server for server in self._members.servers if server.info == one.old)
        self._note_unrestored(member)  # it has died again
        member.renew(one.new, State.RUNNING)
        self._detector.watch(member)
        if self._followed.decides:
            self._followed.send_to([member], "run.reserve")
        self._followed.events.restarted(one)
        if any(Tolerance.RESTORES in worker.body.tolerance for worker in self._members.workers):
            member.unrestored = one
        else:
            self._note_replaced(one)

    def restored(self, report: Mapping[str, Any]) -> None:
        """Record what a worker reports that has restored a parameter server."""
        for member in self._members.servers:
            one = member.unrestored
            if one is not None and one.new.incarnation == int(report["incarnation"]):
                member.unrestored = None
                one = one.restored(report)
                self._note_replaced(one)
                self._followed.events.restarted(one)

    def end(self) -> None:
        """Record the replaced servers that no worker has restored: the bodies have ended."""
        for member in self._members.servers:
            self._note_unrestored(member)

    def _note_unrestored(self, member: Member) -> None:
        one, member.unrestored = member.unrestored, None
        if one is not None:
            self._note_replaced(one)

    def _note_replaced(self, one: Replaced) -> None:
        self._followed.note(one.new.name, f"{one.how}; {one.text}")
        self._followed.tally.replace_server(f"{one.old.name} was {one.text}")
        self._followed.happened("replaced", f"{one.old.name} was {one.text}", one.old)

    # What the owner of the run does, where this client is not the owner.

    def take_over(self) -> None:
        """Become the owner: decide from now on about lost tasks, also about those that were observed."""
        self._followed.decides = True
        for member in self._members:
            if member.observed:
                assert member.loss is not None
                member.observed, member.loss.since = False, time.monotonic()
                member.move(State.SUSPECTED)

    def _observe(self, lost: Member) -> None:
        """Show the loss of a task: the owner of the run replaces it, continues without it or ends the run."""
        assert lost.loss is not None
        lost.observed = True
        lost.move(State.LOST)
        if lost in self._members.workers:
            self._followed.tally.lose(self._members.number(lost), time.monotonic())
        else:
            self._followed.tally.lose_server(lost.info.name)
        self._followed.events.printed(lost.info.name, f"{lost.loss.how}\n")

    def _observe_replacements(self) -> None:
        """Expect messages and an outcome of the new processes that the owner has started."""
        observed = [one for one in self._members if one.observed]
        now = {info.rank: info for info in self._followed.cluster.tasks} if observed else {}
        for member in observed:
            old, new, loss = member.info, now.get(member.rank, member.info), member.loss
            if new.incarnation == old.incarnation:
                continue
            assert loss is not None
            member.observed = False
            recovery = self._changes.recovery
            if member in self._members.servers:
                self._budget.spent += 1
                seconds = time.monotonic() - loss.found
                self._take_server(Replaced(old, new, loss.how, seconds, self._budget.spent, loss.found))
            elif self._followed.interrupted:  # it did not stop and was replaced: its new process runs no body
                member.expect_nothing()
            elif recovery is not None and self._renewed is not None:
                calls = self._renewed(member.rank)
                self._changes.restart(recovery.observe(old, new, loss.how, loss.found, calls))
                member.body.position.last = -math.inf  # subscribe at once
