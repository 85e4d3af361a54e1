"""What a replica does between two steps on request: pause, write a checkpoint, change the learning rate.

    if control.messages != handled:         # the only cost of a step without a message
        boundary.handle()
        handled = boundary.handled

`Boundary` handles the messages of a run's `Control`. The NaN policy of a step stands below it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.backend import Array, all_to_host, backend_of
from nbdist.train.context import PAUSED, Context
from nbdist.train.rate_changes import By
from nbdist.train.replica import Replica, change_rate, rate_of


class Boundary:
    """The boundary between two steps of ``replicas``, used by one thread; ``save`` writes a checkpoint.

    ``step`` returns how many updates all replicas have made, as far as these know. ``handled`` counts the
    messages of the control that were handled, ``rested`` the seconds that its pauses had lasted then.
    """

    def __init__(
        self,
        context: Context,
        replicas: Callable[[], Sequence[Replica]],
        step: Callable[[], int],
        save: Callable[[Path], Path],
    ) -> None:
        self._context, self._replicas, self._step, self._save = context, replicas, step, save
        self.handled, self.rested = 0, context.control.rested()
        self.rates_handled = context.rates_handled
        """How many of the control's learning rates these replicas have taken in; others may train in turn."""
        self._waits = False
        """Whether something is left to be done after the next step."""
        answered = context.progress.checkpoint
        self._answered: int = 0 if answered is None else answered["number"]

    def handle(self) -> float:
        """Handle all messages; return the seconds that it took, which belong to no step.

        Waits while the control is paused; a stop or an abort ends the pause, and the caller handles it.
        Raises StepStopped if the replicas' next step cannot be made any more.
        """
        control, progress, begun = self._context.control, self._context.progress, time.perf_counter()
        state, self._waits = progress.state, False
        while True:
            self.handled = control.messages
            if not self._rests():
                break
            self._save_if_asked()
            self._context.begin_pause()
            control.wait(self.handled)
        if progress.state == PAUSED:
            rested = self._context.end_pause(state, begun)
            if progress.step or progress.trainings > 1:
                if control.stop_requested:  # replicas that agree on a stop within a step make one more step
                    progress.last_rest = (progress.step, rested)
                else:
                    progress.rested += rested
        if control.rates > self.rates_handled and not control.stop_requested:
            self.rates_handled = self._context.rates_handled = control.rates
            for replica in self._replicas():
                change_rate(replica, control.rate)
            self.show_rate("callback" if control.rates == control.rates_of_fit else "user")
        self._save_if_asked()
        if self._waits:  # for values that come with the next step
            self.handled -= 1
        self.rested = control.rested()
        return time.perf_counter() - begun

    def _rests(self) -> bool:
        """Return whether to pause now; if replicas wait for each other, the chief pauses first.

        It must not wait for one that is paused: no replica would then write a checkpoint.
        """
        context, control = self._context, self._context.control
        if not control.rests:
            return False
        if not control.resting:
            together = context.strategy.keeps_pace
            if together and not context.is_chief:
                return False
            if not self._have_values():  # a checkpoint may be asked for during the pause
                return False
            control.rest(control.pause_number)
            if together and context.rest_everywhere is not None:
                context.rest_everywhere(control.pause_number)
        return True

    def _have_values(self) -> bool:
        """Return whether all values are here; if not, the next step brings them."""
        asked = [replica.reads.ask_values() for replica in self._replicas()] if self._context.is_chief else []
        self._waits = self._waits or not all(asked)
        return all(asked)

    def paused_since(self) -> float:
        """Return the seconds for which the control was paused since it was handled last."""
        return self._context.control.rested() - self.rested

    def show_rate(self, by: By = "") -> None:
        """Report the learning rate, if all replicas have the same; ``by`` is what has changed it."""
        rates = {rate_of(replica) for replica in self._replicas()} - {None}
        self._context.set_rate(rates.pop() if len(rates) == 1 else None, by)

    def drop_rate_of_fit(self) -> None:
        """Forget a learning rate that a callback has set, and that no step has taken yet."""
        control = self._context.control
        if control.rates == control.rates_of_fit:
            self.rates_handled = self._context.rates_handled = control.rates

    def end(self) -> None:
        """Handle requests since the last step; the parameters are final."""
        self._save_if_asked(final=True)

    def _save_if_asked(self, final: bool = False) -> None:
        context, number = self._context, self._context.control.checkpoint
        if number == self._answered or context.checkpoints is None or not context.is_chief:
            return
        begun = time.perf_counter()
        if not final:
            if not self._have_values():
                return
            for replica in self._replicas():
                replica.reads.newest()
        context.answer_checkpoint(number, self._step(), self._save, begun)
        self._answered = number


# The NaN policy: a loss or gradient that is NaN or infinite must not be applied.

NAN_POLICIES = ("stop", "skip")
MOST_SAID = 5  # skipped steps of a run that are printed


def check_policy(policy: str) -> bool:
    """Return whether steps with a NaN or infinite value are skipped; otherwise they end the training.

    >>> check_policy("skip"), check_policy("stop")
    (True, False)
    """
    if policy not in NAN_POLICIES:
        raise InvalidArgumentError(f"no nan={policy!r}; {choices(policy, NAN_POLICIES)}")
    return policy == "skip"


def report_skipped(context: Context, step: int, wrong: str, by_all: bool = False) -> None:
    """Count a step without this replica's gradient, and print the first few.

    Of a step that is left out ``by_all`` together one replica prints it.
    """
    progress = context.progress
    progress.skipped += 1
    if progress.skipped <= MOST_SAID and (context.is_chief or not by_all):
        more = "; further ones are counted without a line" if progress.skipped == MOST_SAID else ""
        left_out = "all replicas leave the step out" if by_all else "this replica's gradient is left out"
        print(f"step {step}: {wrong}: {left_out}{more}")
    if (ends := context.control.on_nan) is not None:
        ends()
        context.control.ended_training = context.trainings


def read_step(values: Sequence[Array], gradients: Sequence[Array]) -> tuple[Sequence[Array], float]:
    """Return loss and metrics of a step on the host, and the sum of the squares of all gradients.

    The sum is finite if the loss and all gradients are; a square that overflows is looked at again. A GPU is
    waited for once.
    """
    if gradients and backend_of(gradients[0]) is np and not math.isfinite(values[0]):
        return values, math.inf
    return read_values(values, gradients)


def read_values(values: Sequence[Array], gradients: Sequence[Array]) -> tuple[Sequence[Array], float]:
    """Return any values of a step on the host, and the sum of the squares of all gradients.

    A GPU is waited for once.
    """
    xp = backend_of(gradients[0]) if gradients else np
    if xp is np:
        return all_to_host(values), square_sum(gradients)
    *found, total = all_to_host([*values, _square_sum(xp, gradients)])
    return found, float(total)


def square_sum(gradients: Sequence[Array]) -> float:
    """Return the sum of the squares of all gradients: one pass at memory speed.

    >>> square_sum([np.ones(3), np.ones((2, 2))])
    7.0
    """
    return float(_square_sum(backend_of(gradients[0]), gradients)) if gradients else 0.0


def _square_sum(xp: Any, gradients: Sequence[Array]) -> Array:
    return sum(xp.dot(g, g) for g in (gradient.reshape(-1) for gradient in gradients))  # type: ignore[no-any-return]


def describe_nonfinite(loss: float, squares: float, gradients: Sequence[Array]) -> str:
    """Return which value of a step is NaN or infinite, in words; "" if none is.

    ``squares`` is the `square_sum` of its gradients.

    >>> gradients = [np.ones(3, np.float32), np.array([1.0, np.inf])]
    >>> describe_nonfinite(1.0, square_sum(gradients), gradients)
    'a gradient is infinite'
    """
    if not math.isfinite(loss):
        return f"the loss is {_called(math.isnan(loss))}"
    if not gradients or math.isfinite(squares):
        return ""
    xp = backend_of(gradients[0])
    if any(bool(xp.isnan(g).any()) for g in gradients):
        return f"a gradient is {_called(True)}"
    return f"a gradient is {_called(False)}" if any(bool(xp.isinf(g).any()) for g in gradients) else ""


def all_finite(arrays: Sequence[Array]) -> bool:
    """Return whether all values of flat arrays of the host are finite: one pass at memory speed.

    >>> all_finite([np.full(2, 1e30, np.float32)]), all_finite([np.array([np.inf])])
    (True, False)
    """
    with np.errstate(all="ignore"):
        return all(math.isfinite(np.dot(a, a)) or bool(np.isfinite(a).all()) for a in arrays)


def _called(nan: bool) -> str:
    return "NaN" if nan else "infinite"
