"""`RateSchedule`: the learning rate of each step as a function of the steps before it.

    schedule = RateSchedule(lambda updates, epoch: 0.1 * 0.9**epoch, boundary, context)
    schedule.follow(replica)                # between pull and push: the update that follows has this rate

A rate that a user asks for takes the place of the scheduled one, and multiplies the rest of the schedule. In
the place of 0 it holds until there is another one, whose place it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeAlias

from nbdist.train.boundary import Boundary
from nbdist.train.context import Context, Control
from nbdist.train.replica import Replica, change_rate, rate_of

RateAt: TypeAlias = Callable[[int, int], float]
"""Returns a rate of 0 or more, given the updates so far and the number of the epoch, both from 0."""


class RateFactor:
    """What the rate that a user has asked for multiplies those of a schedule by; `Stateful`.

    ``scheduled`` is the scheduled rate of now, in whose place the user's comes; ``rate`` that of the updates
    in a training that is continued, None where it is not known.
    """

    def __init__(self, boundary: Boundary, control: Control, scheduled: float, rate: float | None) -> None:
        self._boundary, self._control = boundary, control
        self._handled, self._factor, self._asked = boundary.rates_handled, 1.0, rate
        self.scheduled = scheduled

    @property
    def rate(self) -> float:
        """The rate of the updates: the user's own, while nothing is known that it would multiply."""
        factor = self.state_dict()
        return self._asked or 0.0 if factor == inf else self.scheduled * factor

    def state_dict(self) -> float:
        """Return the factor; infinite until there is a scheduled rate above 0 since the user has asked."""
        if self._handled != self._boundary.rates_handled:
            self._handled, self._asked = self._boundary.rates_handled, self._control.rate
            self._factor = inf
        if self._factor == inf and self.scheduled:
            self._factor = 1.0 if self._asked is None else self._asked / self.scheduled
        return self._factor

    def load_state_dict(self, state: float) -> None:
        """Continue with what :meth:`state_dict` returned."""
        self._factor = state

    def follow_updates(self, rate: float | None) -> None:
        """Take the scheduled rate from that of the updates, where it is known and no schedule is followed."""
        if rate is not None and self.state_dict():
            self.scheduled = rate / self._factor


class RateSchedule:
    """Has a replica make its updates at scheduled rates; used by the thread that trains."""

    def __init__(
        self, rate_at: RateAt, boundary: Boundary, context: Context, rate: float | None = None
    ) -> None:
        self._rate_at, self._context = rate_at, context
        self.factor = RateFactor(boundary, context.control, 0.0, rate)

    def follow(self, replica: Replica) -> None:
        """Have the next update be made at its rate.

        A replica that receives the rate from others changes nothing, but knows the factor should the others
        be lost. Raises StepStopped if no update can follow, FailedPreconditionError if the replica cannot
        change its rate.
        """
        now, progress = rate_of(replica), self._context.progress
        self.factor.scheduled = self._rate_at(replica.report.global_step, (progress.epoch or 1) - 1)
        rate, factor = self.factor.rate, self.factor.state_dict()
        if now is None and replica.rate is not None:
            return
        follows = replica.rate is not None and replica.rate.follow_schedule(rate, factor)
        if rate != now:
            if not follows:
                change_rate(replica, rate)
            self._context.set_rate(rate, "schedule")
