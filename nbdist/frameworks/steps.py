"""What is done between two steps of a loop that is not nbdist's: pause, stop, learning rate, checkpoint.

    boundary = StepBoundary(context, model, together=lambda: dist.is_initialized())
    ...                                 # optimizer.step()
    boundary.after_step()               # raises AbortedError where the run stops

Replicas that train together must all stop, pause and change their learning rate after the same step: a rank
that left earlier would keep the others waiting in their next collective call, and parameters of replicas with
other rates drift apart. Users' messages reach the ranks at different moments, and an all-reduce in every step
to agree on them would cost more than a small step takes. So the chief decides:

1. Before its step ``s + 1`` the chief finds a message. It plans what is to be done after step ``s + 1``, and
   gives the plan to the other ranks. Their servers' threads answer, also while they train or wait.
2. When it has all answers it makes that step. As the step needs all ranks, no other rank can have completed
   it before: each finds the plan at the end of it.
3. All ranks do what is planned. During a pause the chief plans for the step that all have made.

Ranks whose step does not need the chief may be further: they find the plan at the end of a later step. Where
there is no process group, each rank acts by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from nbdist.errors import AbortedError
from nbdist.train.context import PAUSED, Context, StepPlan

STOPPED = "this body was asked to stop: a user has stopped it, or it is pruned"


class Steered(Protocol):
    """What can be changed between two steps."""

    def set_learning_rate(self, rate: float) -> None:
        """Make the next updates at another learning rate."""

    def save(self, folder: Path) -> Path:
        """Write model and optimizers into a folder that is there; return the model's file."""


class StepBoundary:
    """The boundary between two steps of this process; used by the thread that trains.

    ``together`` returns whether this process's steps need those of the other ranks.
    """

    def __init__(self, context: Context, steered: Steered, together: Callable[[], bool]) -> None:
        self._context, self._control = context, context.control
        self._steered, self._together = steered, together
        self.steps = 0
        self._handled = -1
        self._pausing: int | None = None
        answered = context.progress.checkpoint
        self._answered = 0 if answered is None else int(answered["number"])

    def after_step(self) -> float:
        """Do what is planned for after this step; return the seconds that it took.

        Raises AbortedError if the run stops here, or was aborted.
        """
        self.steps += 1
        control = self._control
        if control.messages == self._handled and not control.plans and not control.stop_requested:
            return 0.0
        begun = time.perf_counter()
        self._handle(begun)
        return time.perf_counter() - begun

    def _handle(self, begun: float) -> None:
        control, progress = self._control, self._context.progress
        state, together = progress.state, self._together()
        decides = self._context.is_chief or not together
        while True:
            control.check()
            self._handled = control.messages
            self._do_planned()
            if decides and not control.plans and (plan := self._wanted(together)) is not None:
                if together and self._context.plan_everywhere is not None:
                    self._context.plan_everywhere(plan)
                control.plans.append(plan)
                self._do_planned()
            if not self._rests:
                break
            self._context.begin_pause()
            control.wait_for(lambda: self._is_awaited(decides))
        if progress.state == PAUSED:
            progress.rested += self._context.end_pause(state, begun)

    @property
    def _rests(self) -> bool:
        return self._control.paused and self._control.pause_number == self._pausing

    def _is_awaited(self, decides: bool) -> bool:
        """Return whether a replica that is paused has something to do."""
        control = self._control
        stops = decides and control.stop_requested
        return control.messages != self._handled or control.aborted is not None or stops

    def _wanted(self, together: bool) -> StepPlan | None:
        """Return a plan for what was asked and not done yet; None if that is nothing."""
        control, context = self._control, self._context
        stop = control.stop_requested
        pause = control.pause_number if control.paused and not stop and not self._rests else None
        rate = control.rate if control.rates > context.rates_handled else None
        checkpoint = control.checkpoint if control.checkpoint != self._answered else None
        if not stop and pause is None and rate is None and checkpoint is None:
            return None
        context.rates_handled = control.rates
        step = self.steps if self._rests or not together else self.steps + 1
        return StepPlan(step, stop, pause, rate, checkpoint)

    def _do_planned(self) -> None:
        plans = self._control.plans
        while plans and plans[0].step <= self.steps:
            plan = plans.popleft()
            if plan.rate is not None:
                self._steered.set_learning_rate(plan.rate)
            if plan.checkpoint is not None and self._context.is_chief:
                self._save(plan.checkpoint)
            if plan.pause is not None:
                self._pausing = plan.pause
                self._control.rest(plan.pause)
            if plan.stop:
                self._control.stop_requested = True  # the user's own message may not be here yet
                raise AbortedError(STOPPED)

    def _save(self, number: int) -> None:
        context = self._context
        self._answered = number
        if context.checkpoints is not None:
            context.answer_checkpoint(number, context.progress.step, self._steered.save, time.perf_counter())
