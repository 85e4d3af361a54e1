"""What a run does when its workers are lost, replaced, added, or leave: `WorkerChanges`.

`nbdist.run.recovery.policy` decides; `WorkerRecovery` and `WorkerGrowth` make processes and start the body on
them. This changes the members' states, tells the others, and says what became of each.
"""

from __future__ import annotations

import time
from typing import Any

from nbdist.errors import TaskDiedError
from nbdist.run.body_error import why_not_joined
from nbdist.run.followed import FollowedRun
from nbdist.run.recovery.failure_detector import FailureDetector
from nbdist.run.recovery.member import Loss, Member, Need, State
from nbdist.run.recovery.policy import Decision, any_awaits_in_step
from nbdist.run.recovery.replacement import Restart, WorkerRecovery, count
from nbdist.run.recovery.resizing import Resize, WorkerGrowth, left_at
from nbdist.runtime.task import TaskInfo


class WorkerChanges:
    """Changes the workers of a run; call ``poll`` repeatedly.

    ``recovery`` replaces lost workers while the others continue, ``growth`` adds new workers of the cluster;
    each None if nothing does.
    """

    def __init__(
        self,
        followed: FollowedRun,
        detector: FailureDetector,
        recovery: WorkerRecovery | None,
        growth: WorkerGrowth | None,
    ) -> None:
        self.recovery, self.growth = recovery, growth
        self._followed, self._members = followed, followed.members
        self._detector, self._tally = detector, followed.tally

    @property
    def under_way(self) -> bool:
        """Whether processes are being made, or the body has not been sent to them."""
        recovers = self.recovery is not None and self.recovery.under_way
        return recovers or (self.growth is not None and self.growth.under_way)

    def poll(self) -> None:
        """Do what can be done now, without waiting."""
        self._recover()
        self._grow()

    # Lost workers.

    def lose(self, member: Member, decision: Decision) -> None:
        """Continue the run without a worker, until its new process joins."""
        followed, name, loss = self._followed, member.info.name, member.loss
        assert loss is not None
        # Its former process may have been needed, before others joined again.
        member.need = decision.need
        if isinstance(member.entry, Resize) and member.is_new:
            member.entry.problem = "it was lost before it joined"
            followed.events.resized(member.entry)
        member.entry = None
        member.move(State.LOST)
        if member.need is Need.NONE:
            member.expect_nothing()
        self._tally.lose(self._members.number(member), time.monotonic())
        followed.happened("lost", loss.how, member.info)
        why, remaining = self._replace(member, loss, decision), self._members.here
        too_few = decision.by_session and self._members.needed_by_sessions > len(remaining)
        if remaining and (member.need is Need.IN_STEP or too_few):
            followed.note(
                name,
                f"{loss.how}; training waits for its new process",
                f"{loss.how}; training waited for its new process",
            )
        elif remaining:
            workers = count(len(remaining), "worker", "workers")
            followed.note(
                name,
                f"{loss.how}; training continues on {workers}{why}",
                f"{loss.how}; training continued on {workers}{why}",
            )
        else:
            followed.note(name, f"{loss.how}; it is replaced", loss.how)
        # A frozen worker reads this when its process is continued, and is then free for the next run.
        reason = f"run {followed.run} has continued without {name}: {loss.how}"
        followed.send_to([member], "run.abort", reason=reason)
        # Any of the others may become the first one.
        self._send_lost([one.info for one in self._members.taking_part if one.is_away])

    def _send_lost(self, lost: list[TaskInfo]) -> None:
        """Have the others continue without processes."""
        ranks, numbers = [info.rank for info in lost], [info.incarnation for info in lost]
        self._followed.send_to(self._members.here, "run.lost", ranks=ranks, incarnations=numbers)

    def _replace(self, member: Member, loss: Loss, decision: Decision) -> str:
        """Begin to replace a lost worker if the run does that; return why not, after a semicolon."""
        recovery = self.recovery
        if recovery is None or not (decision.by_session or self._followed.rules.replaces_workers):
            return ""
        refusal = "" if recovery.ending else recovery.refusal
        if recovery.begin(member.info, loss.how, loss.found):
            member.move(State.REPLACING)
        return f"; {refusal}" if refusal else ""

    def _recover(self) -> None:
        """Have lost workers replaced, unless the run ends."""
        recovery = self.recovery
        if recovery is None:
            return
        if self._followed.is_ending or any(one.get("stopped") for one in self._members.outcomes.values()):
            recovery.end()
        for restart in recovery.poll():
            if restart.problem:
                member = self._members.worker(restart.old.rank)
                member.move(State.LOST)
                if self._is_removed(member) and member.need is Need.NONE:
                    self._record_left(member, {})
                else:
                    self._give_up(member, restart)
            else:
                self.restart(restart)
            self._followed.events.restarted(restart)
        if recovery.ending and not recovery.under_way:
            for member in self._members.workers:
                if member.state is State.REPLACING:
                    member.move(State.LOST)
                if member.state is State.LOST and member.need is not Need.NONE:
                    member.expect_nothing()

    def restart(self, restart: Restart) -> None:
        """Expect messages and an outcome of a worker's new process, which runs the body."""
        assert restart.new is not None
        member = self._members.worker(restart.old.rank)
        self._expect(member, restart.new, restart)
        self._tally.restart(self._members.number(member))
        if self._followed.decides:
            self._followed.send_to(self._members.here, "run.rejoined", rank=member.rank)

    def _expect(self, member: Member, new: TaskInfo, entry: Restart | Resize) -> None:
        assert entry.calls is not None
        member.renew(new, State.JOINING, entry)
        self._detector.watch(member)
        self._followed.calls.replace(member.rank, entry.calls)

    def _give_up(self, member: Member, restart: Restart) -> None:
        """Continue without a lost worker that has no new process; end the run if it needs one."""
        self._note_restart(restart)
        recovery, followed = self.recovery, self._followed
        if followed.interrupted or (recovery is not None and recovery.ending):
            is_needed = False  # it was stopped before it joined
        elif member.need is Need.IN_STEP and member is not self._members.chief:
            is_needed = any_awaits_in_step(self._members.here)  # else the training has ended
        else:
            is_needed = member.need is not Need.NONE
        member.expect_nothing()
        member.need = Need.NONE
        if is_needed:
            error = f"{restart.how}. It was not replaced: {restart.problem}"
            followed.fail(TaskDiedError(error), member)

    def _note_restart(self, restart: Restart) -> None:
        """Print what became of a replacement, and keep it for the end of the run."""
        old, new = restart.old, restart.new
        processes = f"pid {old.pid}" if new is None or new == old else f"pid {old.pid} -> {new.pid}"
        most = "" if self.recovery is None else f" of {self.recovery.budget.most}"
        note = f"{old.name} ({processes}): it was {restart.text} (restart {restart.number}{most})"
        self._followed.note(old.name, note)
        kind = "lost" if restart.problem else "replaced"
        self._followed.happened(kind, f"{old.name} was {restart.text}", old)

    # New processes, of lost workers and of added ones.

    def join(self, member: Member, step: int) -> None:
        """Record that a worker's new process has joined the training, at a step of its own."""
        entry, number = member.entry, self._members.number(member)
        if entry is None or not member.is_new:
            return
        entry.step, member.need = step, Need.NONE
        if member.state is State.JOINING:
            member.move(State.RUNNING)
        if isinstance(entry, Restart):
            entry.seconds = time.monotonic() - entry.lost_at
            self._tally.join(number, entry.text)
            self._note_restart(entry)
            self._followed.events.restarted(entry)
        else:
            entry.seconds = time.monotonic() - entry.begun_at
            self._tally.joined(number, entry.text, step)
            self._note_resize(entry)

    def has_given_up(self, member: Member, outcome: Any) -> bool:
        """Continue without a worker whose body has ended on a new process, but never joined."""
        entry = member.entry
        if entry is None or not member.is_new:
            return False
        if isinstance(entry, Resize) and isinstance(outcome, TaskDiedError):
            return False
        joined = None if isinstance(outcome, BaseException) else outcome.get("joined")
        if joined is not None:  # the message that says so is on its way
            self.join(member, joined)
            return False
        entry.problem = why_not_joined(outcome)
        if isinstance(entry, Resize):
            self._give_up_added(member, entry)
            return True
        member.move(State.LOST)
        self._tally.lose(self._members.number(member), time.monotonic())
        self._give_up(member, entry)
        self._followed.events.restarted(entry)
        return True

    # Workers that are added to the cluster, or leave it.

    def _grow(self) -> None:
        """Have workers that were added to the cluster join the run, unless it ends."""
        growth, members, rules = self.growth, self._members, self._followed.rules
        if growth is None:
            return
        if self._followed.is_ending:
            growth.end()
        replacing = {one.rank for one in members.workers if one.state is State.REPLACING}
        for info in growth.find_new({one.rank for one in members.taking_part}):
            if info.rank in replacing:  # its replacement finds the new process
                continue
            if not rules.why_fixed:
                if growth.begin(info):
                    self._place(info)
            elif rules.trains or members.have_trained:
                self._followed.events.noted(
                    f"{info.name} was added to the cluster, and not to the run: {rules.why_fixed}"
                )
        for resize in growth.poll():
            member = members.worker(resize.new.rank)
            if member.info != resize.new:
                # Its rank has another process by now, which is being added.
                resize.calls, resize.problem = None, resize.problem or "another process has its rank"
                self._note_resize(resize)
            elif resize.problem:
                self._give_up_added(member, resize)
            else:
                self._expect(member, resize.new, resize)  # it runs the body
                self._followed.send_to(members.here, "run.rejoined", rank=member.rank)
                self._followed.events.resized(resize)

    def _place(self, info: TaskInfo) -> None:
        """Count an added worker among the replicas; no outcome is expected before its body has started."""
        member = self._members.add(info)
        self._followed.events.placed(info)
        self._tally.add(self._members.number(member), member)

    def _give_up_added(self, member: Member, resize: Resize) -> None:
        assert self.growth is not None
        self.growth.give_up(resize)
        self._leave(member)
        self._tally.leave(self._members.number(member), resize.text)
        self._note_resize(resize)

    def has_left(self, member: Member, outcome: Any) -> bool:
        """Continue without a worker that has left the run, so that it can be removed from the cluster."""
        if member.state is State.REPLACING:
            return False
        if left_at(outcome) is not None:
            self._record_left(member, outcome)
        elif isinstance(outcome, TaskDiedError) and self._is_removed(member):
            self._record_left(member, {})
        else:
            return False
        return True

    def _is_removed(self, member: Member) -> bool:
        """Whether a worker was removed from the cluster."""
        cluster = self._followed.cluster
        return member.rank not in {info.rank for info in cluster.tasks} and not cluster.controller_died()

    def _record_left(self, member: Member, outcome: dict[str, Any]) -> None:
        """Continue without a worker that has left, at a step of its outcome, or with its process."""
        self._leave(member, outcome)
        number, step = self._members.number(member), left_at(outcome)
        if step is None:
            self._send_lost([member.info])
            step = self._tally.standing(time.monotonic(), self._followed.store).replicas[number].step
        resize = Resize(member.info, False, 0, time.monotonic(), step=step)
        if self.growth is not None:
            resize = self.growth.leave(member.info, step)
        self._tally.leave(number, resize.text, step)
        self._note_resize(resize)

    def leave_out(self, member: Member, left: str = "") -> None:
        """Expect nothing of a worker: the run has continued without it before this client attached.

        It is lost, or has ``left`` the run, as the text says.
        """
        number = self._members.number(member)
        if left:
            self._leave(member)
            self._tally.leave(number, left)
            return
        member.move(State.LOST)
        member.expect_nothing()
        self._tally.lose(number, time.monotonic())

    def _leave(self, member: Member, outcome: dict[str, Any] | None = None) -> None:
        """Expect nothing more of a worker that takes no part in the run."""
        member.move(State.LEFT)
        member.need, member.observed = Need.NONE, False
        if outcome:
            member.end(outcome)
        member.expect_nothing()
        self._detector.watch(member)
        self._followed.send_to(self._members.here, "run.left", rank=member.rank)

    def _note_resize(self, resize: Resize) -> None:
        """Print what became of a change, and keep it for the end of the run and in its record."""
        followed, name, was = self._followed, resize.new.name, "was " if resize.grown else ""
        followed.note(name, f"{name} (pid {resize.new.pid}): it {was}{resize.text}")
        joined = resize.grown and not resize.problem
        followed.happened("joined" if joined else "left", f"{name} {was}{resize.text}", resize.new)
        followed.events.resized(resize)
