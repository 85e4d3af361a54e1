"""Which changes of the learning rate are events of a run, and in which words: `RateChanges`. Pure.

A user's change always is one. A schedule that changes the rate at each step, or very often, is a curve: its
first changes are events, and then one says where the others are.
"""

from __future__ import annotations

import math
from typing import Literal

from nbdist.metrics.names import LEARNING_RATE

By = Literal["user", "callback", "schedule", ""]
MOST_CHANGES = 12  # by schedules and callbacks, of one process

WORDS = {
    "user": ", set by the user",
    "callback": ", set by a callback",
    "schedule": ", by the schedule",
    "": "",
}


class RateChanges:
    """Follows the learning rate of one replica.

    >>> changes = RateChanges()
    >>> changes.event(120, 0.1, 0.01, "user")
    ('rate', 'learning rate 0.1 → 0.01, set by the user')
    >>> changes.event(200, 0.01, 0.005, "schedule")
    ('schedule', 'learning rate 0.01 → 0.005, by the schedule')
    >>> changes.event(201, 0.005, 0.0025, "schedule")
    ('schedule', 'the learning rate changes at each step from here on: see the series "learning rate"')
    >>> changes.event(202, 0.0025, 0.00125, "schedule") is None
    True
    """

    def __init__(self) -> None:
        self._changes, self._step = 0, -2
        self._is_curve = False

    def event(self, step: int, before: float | None, rate: float, by: By) -> tuple[str, str] | None:
        """Return kind and text of the event of a change after ``step`` steps; None if it is none.

        ``before`` is the rate until then, None for the first one; ``by`` is what has changed it, "" where
        that is not known, as in a loop of a framework's own.
        """
        if before is None or math.isclose(rate, before, rel_tol=1e-6):  # a rate of float32 is read again
            return None
        text = f"learning rate {before:.4g} → {rate:.4g}{WORDS[by]}"
        if by == "user":
            return "rate", text
        if self._is_curve:
            return None
        self._changes += 1
        last, self._step = self._step, step
        where = f'see the series "{LEARNING_RATE}"'
        if step - last <= 1:
            self._is_curve, text = True, f"the learning rate changes at each step from here on: {where}"
        elif self._changes > MOST_CHANGES:
            self._is_curve, text = True, f"further changes of the learning rate are no events: {where}"
        return "schedule", text
