"""`RateSchedule`: the learning rate of each step as a function of the steps before it.

    schedule = RateSchedule(lambda updates, epoch: 0.1 * 0.9**epoch, context)
    schedule.follow(replica)                # between pull and push: the update that follows has this rate

A rate that a user asks for takes the place of the scheduled one, and multiplies the rest of the schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nbdist.train.context import Context
from nbdist.train.replica import Replica, change_rate, rate_of

RateAt: TypeAlias = Callable[[int, int], float]
"""Returns a rate of 0 or more, given the updates so far and the number of the epoch, both from 0."""


class RateSchedule:
    """Has a replica make its updates at scheduled rates; used by the thread that trains."""

    def __init__(self, rate_at: RateAt, context: Context) -> None:
        self._rate_at, self._context = rate_at, context
        self._asked, self._factor = context.control.rates, 1.0

    def follow(self, replica: Replica) -> None:
        """Have the next update be made at its rate.

        A replica that receives the rate from others does nothing. Raises StepStopped if no update can follow,
        FailedPreconditionError if the replica cannot change its rate.
        """
        now = rate_of(replica)
        if now is None and replica.rate is not None:
            return
        control, progress = self._context.control, self._context.progress
        rate = self._rate_at(replica.report.global_step, (progress.epoch or 1) - 1)
        if control.rates != self._asked:
            self._asked = control.rates
            self._factor = control.rate / rate if rate else 1.0
        rate *= self._factor
        if rate != now:
            change_rate(replica, rate)
            progress.learning_rate = rate
