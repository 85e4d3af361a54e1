"""`RateSchedule`: the learning rate of each step as a function of the steps before it.

    schedule = RateSchedule(lambda updates, epoch: 0.1 * 0.9**epoch, boundary, context)
    schedule.follow(replica)                # between pull and push: the update that follows has this rate

A rate that a user asks for takes the place of the scheduled one, and multiplies the rest of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nbdist.train.boundary import Boundary
from nbdist.train.context import Context, Control
from nbdist.train.replica import Replica, change_rate, rate_of

RateAt: TypeAlias = Callable[[int, int], float]
"""Returns a rate of 0 or more, given the updates so far and the number of the epoch, both from 0."""


class RateFactor:
    """What the rate that a user has asked for multiplies those of a schedule by; `Stateful`.

    ``scheduled`` is the scheduled rate of now, in whose place the user's comes.
    """

    def __init__(self, boundary: Boundary, control: Control, scheduled: float) -> None:
        self._boundary, self._control = boundary, control
        self._handled, self._factor = boundary.rates_handled, 1.0
        self.scheduled = scheduled

    def state_dict(self) -> float:
        """Return the factor."""
        if self._handled != self._boundary.rates_handled:
            self._handled = self._boundary.rates_handled
            self._factor = self._control.rate / self.scheduled if self.scheduled else 1.0
        return self._factor

    def load_state_dict(self, state: float) -> None:
        """Continue with what :meth:`state_dict` returned."""
        self._factor = state


class RateSchedule:
    """Has a replica make its updates at scheduled rates; used by the thread that trains."""

    def __init__(self, rate_at: RateAt, boundary: Boundary, context: Context) -> None:
        self._rate_at, self._context = rate_at, context
        self.factor = RateFactor(boundary, context.control, 0.0)

    def follow(self, replica: Replica) -> None:
        """Have the next update be made at its rate.

        A replica that receives the rate from others changes nothing, but knows the factor should the others
        be lost. Raises StepStopped if no update can follow, FailedPreconditionError if the replica cannot
        change its rate.
        """
        now, progress = rate_of(replica), self._context.progress
        self.factor.scheduled = self._rate_at(replica.report.global_step, (progress.epoch or 1) - 1)
        rate = self.factor.scheduled * self.factor.state_dict()
        if now is None and replica.rate is not None:
            return
        if rate != now:
            change_rate(replica, rate)
            progress.learning_rate = rate
