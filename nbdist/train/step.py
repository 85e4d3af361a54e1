"""A step, in the order that every training loop keeps: `Step`; and `StepDriver`, which makes many.

    while driver.ready():                       # messages, a state that is due, a stop, joins and leaves
        step = driver.pull(size, mine)          # the newest parameters
        results = program(*batch, *step.gradients)
        step.check(loss, squares, rows)         # NaN and overflow: is this step to be applied?
        step.push()                             # hands the gradients over, or leaves the step out
        driver.record(step)
    driver.settle()

``fit``, loops of one's own over ``strategy.run``, and those over models of PyTorch and JAX call it; what a
step computes is theirs. None of them knows which strategy it runs.

Why replicas that step together cannot deadlock. Every call that waits for other replicas stands at a fixed
point of this order, the same on all of them, and each point is reached a number of times that all agree on:

    begin                    form groups; broadcast the chief's values
    for each epoch:
        for each batch:      all replicas see the same batches (one order, one seed) and take their shares
            handle messages  waits for no replica
            save state       if it is due: the chief copies what the last step has made, and waits for that
            agree            returns a stop that the last push carried; else `GroupAgreement` asks all of them
            admit            re-forms the group if the last push said so: new processes join, others leave
            pull, program    a replica without an example skips the program, not the pull or the push
            push             sends the gradients, and with them whether to stop and the next learning rate
        fetch                to validate, or for callbacks; waits only for updates of steps that all have made
        end_epoch            agrees whether another epoch follows
    finish

- No replica leaves the order alone. With all-reduce a stop travels in the next push (``agree``), so that all
  leave after the same step. With parameter servers a replica may leave at any step: the servers then answer
  `StepStopped` to each replica whose step can no longer be completed.
- A step that must not be applied (NaN policy "skip", no examples) still pushes where others wait for the
  push: ``skip`` pushes zeros.
- Within a push, collectives are called in the order of the plan of buckets, which follows from the variables
  alone; programs may finish gradients in any order (``Buckets.mark``).
- A replica that fails calls ``abort``, which breaks its groups: replicas that wait for it raise. A replica
  that dies is noticed by the groups; `RetryStep` then repeats the step with the remaining replicas.
- A pause is taken by the chief first (`Boundary.handle`), so that it never waits for a paused replica.

In custom loops the same holds for ``strategy.run``; reductions inside a step run in the order in which they
were traced (``Trace.in_order``), which is the same on all replicas.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nbdist.errors import NanLossError
from nbdist.graph.backend import Array, backend_of
from nbdist.runtime.ps.client import StepStopped
from nbdist.runtime.tables import gradient_of
from nbdist.train.boundary import Boundary, describe_nonfinite, report_skipped
from nbdist.train.context import Context
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.replica import Replica, RetryStep
from nbdist.train.schedule import RateSchedule
from nbdist.train.step_timing import StepAccount, StepEvents

Batch = tuple[tuple[Array, ...], int]
"""A replica's share of a batch, and the size of the whole batch."""


class Step:
    """One step of the ``replicas`` that a thread trains together, mostly of one.

    ``number`` is the step's, counted from 1 in its run. ``size`` is the number of examples in the whole
    batch, ``mine`` in this replica's share. ``begun``, ``pulled``, ``computed`` and ``pushed`` are times of
    time.perf_counter; ``waited`` and ``late`` are the seconds that the pull and the push waited for others.
    A step that is not finite raises, unless it ``skips``; ``advice`` is a call with which it would.
    """

    mine = size = 0
    batches = 1
    """Batches whose gradients it has."""
    waited = late = loss = 0.0
    pulled = computed = pushed = 0.0
    overflow = logged = False
    wrong = ""
    values: Sequence[Array] = ()
    """What the program has returned."""
    gradients: Sequence[Array] = ()
    """Where the program writes the gradients."""
    restore: Callable[[], object] | None = None
    """Undoes what the program does to states, such as moving averages; for a step that is not made."""

    def __init__(
        self,
        context: Context,
        replicas: Sequence[Replica],
        number: int,
        scalings: Sequence[LossScaling] = (),
        events: StepEvents | None = None,
        skips: bool = False,
        advice: str = "",
    ) -> None:
        self.context, self.replicas, self.number = context, replicas, number
        self.scalings, self.events, self.skips, self.advice = scalings, events, skips, advice
        self.begun = time.perf_counter()

    def pull(self, schedule: RateSchedule | None = None) -> None:
        """Bring the newest parameters, and follow the schedule of the learning rate.

        Raises StepStopped if the step cannot be made any more.
        """
        replicas = self.replicas
        for replica in replicas:
            before = replica.report.waited
            replica.pull()
            self.waited += replica.report.waited - before
        if schedule is not None:
            schedule.follow(replicas[0])
        self.pulled = time.perf_counter()
        if self.events is not None:
            self.events.mark(StepEvents.PULLED)
        for scaling in self.scalings:
            scaling.follow(replicas)
            scaling.update()
        if len(replicas) == 1:
            self.gradients = replicas[0].gradients()
        else:
            self.gradients = [gradient for replica in replicas for gradient in replica.gradients()]

    def check(
        self, loss: float, squares: float, rows: Sequence[Array] = (), overflow: bool | None = None
    ) -> None:
        """Decide whether the step is applied, given its loss and the sum of the squares of its gradients.

        ``rows`` are, for each table of each replica, the gradients of its rows and their numbers; they are
        handed to the replicas. ``overflow`` is whether a gradient has overflowed, where another one than the
        step's ``scalings`` tells. Raises NanLossError for a step that is not finite, unless it ``skips``.
        """
        if overflow is None:
            scalings = self.scalings
            overflow = bool(scalings) and all(one.has_overflowed(loss, squares) for one in scalings)
        self.loss, self.overflow = loss, overflow
        if overflow:
            return
        self.context.gradient = squares, self.mine, self.size
        if self.scalings:
            scale = self.scalings[0].value
            self.context.gradient = squares / (scale * scale), self.mine, self.size
        if not (math.isfinite(loss) and math.isfinite(squares)):
            self.wrong = describe_nonfinite(loss, squares, [*self.gradients, *rows[::2]])
        if self.wrong:
            if not self.skips:
                raise self.nonfinite(self.wrong)
        elif rows:
            given = iter(gradient_of(*pair) for pair in zip(rows[::2], rows[1::2], strict=True))
            for replica in self.replicas:
                if (taking := replica.rows) is not None and taking.tables:
                    taking.take([next(given) for _ in taking.tables])

    def push(self) -> None:
        """Hand the gradients over; or take no part in the update, where `check` found that.

        A step that all replicas leave out as one of them was not finite is taken back. Raises RetryStep if
        the step must be repeated, NanLossError where it cannot be left out.
        """
        replicas, wrong = self.replicas, self.wrong
        self.computed = time.perf_counter()
        if self.events is not None:
            self.events.mark(StepEvents.PUSHING)
        if wrong:
            self._undo()
        try:
            for replica in replicas:
                before = replica.report.waited
                if self.overflow:
                    replica.checks.overflow()
                elif wrong:
                    replica.checks.skip()
                else:
                    replica.push()
                self.late += replica.report.waited - before
        except RetryStep:
            self._undo()
            raise
        if wrong:
            report_skipped(self.context, self.number, wrong)
        elif not self.overflow:
            for replica in replicas:
                if replica.report.nonfinite is not None:
                    self._take_back(replica)
        for scaling in self.scalings if replicas else ():
            scaling.record_step(self.number)
        self.pushed = time.perf_counter()
        if self.events is not None:
            self.events.mark(StepEvents.PUSHED)

    def _take_back(self, replica: Replica) -> None:
        """Take back what a step did to states that all replicas have left out; or end the training."""
        found = replica.report.nonfinite
        assert found is not None
        scalings = self.scalings
        if found.scaled and scalings and all(one.has_overflowed(self.loss, math.inf) for one in scalings):
            replica.report.overflows += 1
        elif not self.skips:
            raise self.nonfinite(found.what)
        else:
            self._undo()
            report_skipped(self.context, self.number, found.what, by_all=True)

    def _undo(self) -> None:
        if self.restore is not None:
            self.restore()

    def nonfinite(self, wrong: str) -> NanLossError:
        """Return the error for a step with a value that is NaN or infinite, in the words ``wrong``."""
        return NanLossError(
            f"{wrong} at step {self.number}; that gradient was not applied. Try a smaller learning rate, and "
            f"look for NaN in the data; {self.advice} leaves such steps out"
        )


class StepDriver:
    """The steps of one replica in a training, one after another.

    ``save`` writes a checkpoint into a folder; with ``skip_nan`` steps that are not finite are left out.
    ``advice`` is the call with which they would be.
    """

    def __init__(
        self,
        context: Context,
        replica: Replica,
        save: Callable[[Any], Any],
        *,
        scaling: LossScaling | None = None,
        skip_nan: bool = False,
        advice: str = "fit(nan='skip')",
    ) -> None:
        progress = context.progress
        self.context, self.replica, self.skip_nan, self._advice = context, replica, skip_nan, advice
        self._replicas = [replica]
        self._scalings = [] if scaling is None or scaling.scale is None else [scaling]
        self.steps = progress.step
        """Steps of the run that this replica has made."""
        self.updates_before = progress.global_step - replica.report.global_step
        self.dropped_before = progress.dropped
        self.boundary = Boundary(context, lambda: self._replicas, lambda: self.updates, save)
        self.events = (
            StepEvents.of(backend_of(replica.values[0]), context.step_log) if replica.values else None
        )
        self.account = StepAccount(progress.spent, context.step_log, self.events)
        self.schedule: RateSchedule | None = None
        self.save_state: Callable[[], float] | None = None
        """Saves the training's state if it is time; returns the seconds that it took."""
        self.drain: Callable[[], object] = lambda: None
        """Reads the results of a step that is still computed; before anything that steps do not do."""
        self._retry = False
        self.last: Step | None = None
        """The step that was recorded last."""

    @property
    def updates(self) -> int:
        """Updates of the run, of all replicas, as far as this one knows."""
        return self.updates_before + self.replica.report.global_step

    def repeated(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield batches; and a batch whose step was not made again, with the current shares: see `retry`."""
        self._retry = False  # of a pass that was left
        for batch in batches:
            yield batch
            while self._retry:
                self._retry = False
                yield self.context.strategy.batch()

    def retry(self) -> None:
        """Have `repeated` yield the last batch again, since replicas were lost or have joined."""
        self._retry = True

    def ready(self, stop: bool = False) -> bool:
        """Do what is due between two steps; return whether a step follows.

        ``stop`` asks the others to stop, as the run's control does. Raises StepStopped if no step can follow,
        RetryStep if shares have changed, ReplicaLeft where this replica has left, AbortedError if the run was
        ended.
        """
        control, replica, boundary = self.context.control, self.replica, self.boundary
        asked = control.messages != boundary.handled  # read once: the server's thread changes it
        if asked or control.stop_requested:
            self.drain()
        if asked:
            self.account.exclude(boundary.handle())
        if self.save_state is not None and (seconds := self.save_state()):
            self.account.exclude(seconds)
        stop = stop or control.stop_requested or control.ended_training == self.context.trainings
        if stop if replica.agreement is None else replica.agreement.agree(stop):
            self.drain()
            return False
        control.check()
        if replica.membership is not None and replica.membership.admit(control.leave_requested):
            raise RetryStep
        return True

    def pull(
        self, size: int, mine: int, made: int | None = None, want: Callable[[], object] | None = None
    ) -> Step:
        """Begin a step: bring the newest parameters; ``want`` requests rows of tables before.

        ``made`` is the number of steps before it, where some are not recorded yet.
        """
        step = Step(
            self.context, self._replicas, (self.steps if made is None else made) + 1,
            self._scalings, self.events, self.skip_nan, self._advice,
        )  # fmt: skip
        step.size, step.mine = size, mine
        if want is not None:
            want()
        step.pull(self.schedule)
        return step

    def record(self, step: Step) -> float:
        """Count a step that was pushed; return the seconds that it took, without those of a pause."""
        progress, replica = self.context.progress, self.replica
        boundary = self.boundary
        paused = boundary.paused_since() if self.context.control.messages != boundary.handled else 0.0
        self.steps += 1
        if step.begun < self.account.ended < math.inf:  # it began while the one before it was computed
            step.begun = self.account.ended
            step.pulled = max(step.begun, step.pulled)
        rest = self.account.add(step, paused)
        progress.step = self.steps
        progress.examples += step.mine
        progress.global_step = self.updates
        progress.dropped = self.dropped_before + replica.report.dropped
        self.last = step
        return step.pushed - step.begun - rest

    def at(self, more: int = 0) -> int:
        """Return the step of all replicas that this one is at, ``more`` after the parameters it has."""
        return self.updates + more if self.replica.report.by_updates else self.steps

    def settle(self) -> bool:
        """Wait until the last step is made; return False if it cannot be, or the others have ended."""
        try:
            self._await_push()
        except StepStopped:
            return False
        for scaling in self._scalings:
            scaling.update()
        return True

    def take_back(self) -> bool:
        """Uncount a last step that the others' end has left unmade; return whether there was one.

        A state would otherwise begin after a batch that is in no parameters.
        """
        with contextlib.suppress(StepStopped):
            self._await_push()
        for scaling in self._scalings:
            scaling.update()
        if not self.replica.report.unmade:
            return False
        progress = self.context.progress
        self.steps -= 1
        progress.step, progress.examples = (
            self.steps,
            progress.examples - (self.last.mine if self.last else 0),
        )
        return True

    def _await_push(self) -> None:
        if self.replica.pending is not None:
            self.replica.pending.settle()
