"""The loss scale of one replica in a training loop: what a step's outcome does to it.

    scaling.update()                    # before the program: takes the outcome of the last step
    ...program, which reads the scale's array...
    if scaling.has_overflowed(loss, squares): replica.checks.overflow()
    else:                                     replica.push()
    scaling.record_step(step)

Replicas that make a step together leave it out together, and learn that with the exchange of the step
(``StepReport.overflows``): at its push with all-reduce, at the next pull with parameter servers. So all have
the same scale in every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nbdist.graph.backend import Array
from nbdist.optim.precision import LossScale
from nbdist.train.boundary import MOST_SAID
from nbdist.train.context import Context
from nbdist.train.replica import Replica


class LossScaling:
    """Follows the outcomes of a replica's steps; without a ``scale`` it does nothing."""

    def __init__(self, scale: LossScale | None, replicas: Sequence[Replica], context: Context) -> None:
        self.scale, self._replicas, self._context = scale, replicas, context
        self._seen, self._step = self._overflows, 0
        self._reported = 0

    @property
    def _overflows(self) -> int:
        return sum(replica.report.overflows for replica in self._replicas)

    @property
    def value(self) -> float:
        """The factor of the gradients; 1 without a scale."""
        return 1.0 if self.scale is None else self.scale.value

    def has_overflowed(self, loss: float, squares: float) -> bool:
        """Return whether a step is to be left out for a smaller scale: the sum of squares is not finite.

        A loss that is not finite is not scaled: no scale would help. Nor would one below 1.
        """
        if self.scale is None or math.isfinite(squares):
            return False
        return math.isfinite(loss) and self.scale.can_shrink

    def record_step(self, step: int) -> None:
        """Record the number of a step that was handed over, for the next update."""
        self._step = step

    def update(self) -> None:
        """Adapt the scale to the outcome of the last step, unless that is done."""
        if self.scale is None or not self._step:
            return
        step, self._step = self._step, 0
        before, self._seen = self._seen, self._overflows
        self.scale.update(finite=self._seen == before)
        if self._seen != before:
            self._report(step, self.scale.value)

    def array(self, xp: Any) -> Array:
        """Return the scale as an array on the current device, which follows it."""
        assert self.scale is not None
        return self.scale.array(xp)

    def state_dict(self) -> list[float] | None:
        """Return the scale after the last step, and the finite steps in a row at it; None without a scale."""
        self.update()
        return None if self.scale is None else [self.scale.value, self.scale.good_steps]

    def load_state_dict(self, state: list[float] | None) -> None:
        """Continue at the scale that :meth:`state_dict` returned, if both have one."""
        if self.scale is not None and state is not None:
            value, good_steps = state
            self.scale.restore(value, int(good_steps))

    def follow(self, replicas: Sequence[Replica]) -> None:
        """Follow other replicas, which begin to train; the scale stays."""
        if [*map(id, replicas)] != [*map(id, self._replicas)]:
            self._replicas, self._step = replicas, 0
            self._seen = self._overflows

    def _report(self, step: int, scale: float) -> None:
        """Count a step that was left out, and print the first few; one replica does of those in step."""
        self._context.progress.skipped += 1
        self._reported += 1
        alone = self._context.strategy.num_replicas_in_sync == 1
        if self._reported <= MOST_SAID and (alone or self._context.is_chief):
            more = "; further ones are counted without a line" if self._reported == MOST_SAID else ""
            text = "a gradient overflowed: no update is made; the loss scale is now"
            print(f"step {step}: {text} {scale:g}{more}")
