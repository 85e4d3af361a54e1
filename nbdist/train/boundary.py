"""What a replica does between two steps because somebody asked for it: rest, save, learn at another rate.

if control.words != heard:              # all that a step without a word pays
    boundary.heed()
    heard = boundary.heard
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.backend import Array, backend_of
from nbdist.train.context import Context, Progress
from nbdist.train.strategy import Replica


class Boundary:
    """The place between the steps of ``replicas``, which one thread asks; ``save`` writes a checkpoint.

    ``step`` says how many updates all replicas have made, as these know. ``heard`` is how many words of the
    control are taken in, ``rested`` how long its pauses had lasted then.
    """

    def __init__(
        self,
        context: Context,
        replicas: Callable[[], Sequence[Replica]],
        step: Callable[[], int],
        save: Callable[[Path], Path],
    ) -> None:
        self._context, self._replicas, self._step, self._save = context, replicas, step, save
        self.heard, self.rested = 0, context.control.rested()
        answered = context.progress.checkpoint
        self._answered: int = 0 if answered is None else answered["number"]

    def heed(self) -> float:
        """Do what was asked for; return the seconds that took, which belong to no step.

        Rests while the control is paused: a stop and an abort end that, and are left to the caller. Raises
        Stopped if the replicas' next step cannot be made any more.
        """
        control, progress, begun = self._context.control, self._context.progress, time.perf_counter()
        state = progress.state
        while True:
            self.heard = control.words
            if not self._rests():
                break
            self._save_if_asked()
            progress.state = "paused"
            control.wait(self.heard)
        if progress.state == "paused":
            progress.state = state
            self._note("wait", "paused", begun)
            if progress.step or progress.trainings > 1:
                rested = time.perf_counter() - begun
                if control.stop_requested:  # replicas that agree on a stop within a step make one more step
                    progress.last_rest = (progress.step, rested)
                else:
                    progress.rested += rested
        if control.rates > self._context.rates_heard and not control.stop_requested:
            self._context.rates_heard = control.rates
            for replica in self._replicas():
                replica.set_learning_rate(control.rate)
            self.show_rate()
        self._save_if_asked()
        self.rested = control.rested()
        return time.perf_counter() - begun

    def _rests(self) -> bool:
        """Whether to rest now; where replicas wait for each other, the chief is the first to.

        It must not wait for one that rests: there would be nobody to write a checkpoint.
        """
        context, control = self._context, self._context.control
        if not control.rests:
            return False
        if not control.resting:
            together = context.strategy.keeps_pace
            if together and not context.is_chief:
                return False
            control.rest(control.pause_number)
            if together and context.rest_everywhere is not None:
                context.rest_everywhere(control.pause_number)
        return True

    def paused_since(self) -> float:
        """Return for how many seconds the control was paused since it was heeded last."""
        return self._context.control.rested() - self.rested

    def show_rate(self) -> None:
        """Let the run know of the learning rate."""
        rates = {replica.learning_rate for replica in self._replicas()} - {None}
        self._context.progress.learning_rate = rates.pop() if len(rates) == 1 else None

    def end(self) -> None:
        """Answer what was asked for since the last step; the final parameters are there."""
        self._save_if_asked(final=True)

    def _save_if_asked(self, final: bool = False) -> None:
        context, number = self._context, self._context.control.checkpoint
        if number == self._answered or context.checkpoints is None:
            return
        begun = time.perf_counter()
        if not final:
            for replica in self._replicas():
                replica.newest()
        step, path, wrong = self._step(), None, None
        try:
            path = str(context.checkpoints.write(context.trainings, step, self._save))
        except Exception as error:  # a full disk, say: training goes on
            wrong = (
                f"the checkpoint of step {step} could not be written to {context.checkpoints.folder}: "
                f"{type(error).__name__}: {error}"
            )
        self._answered = number
        context.progress.checkpoint = {"number": number, "step": step, "path": path, "error": wrong}
        self._note("compute", "checkpoint", begun)

    def _note(self, kind: str, name: str, begun: float) -> None:
        if self._context.step_log is not None:
            self._context.step_log.note(kind, name, begun, time.perf_counter())


# Whether a step has come to numbers: a loss or gradient that is NaN or infinite must not be applied.

POLICIES = ("stop", "skip")
MOST_SAID = 5  # skipped steps of a run that are printed


def check_policy(policy: str) -> bool:
    """Return whether steps that come to no numbers are skipped; they end the training otherwise.

    >>> check_policy("skip"), check_policy("stop")
    (True, False)
    """
    if policy not in POLICIES:
        raise InvalidArgumentError(f"no nan={policy!r}; {choices(policy, POLICIES)}")
    return policy == "skip"


def say_skipped(progress: Progress, step: int, wrong: str) -> None:
    """Count a step that leaves this replica's gradient out, and print the first few."""
    progress.skipped += 1
    if progress.skipped <= MOST_SAID:
        more = "; further ones are counted without a line" if progress.skipped == MOST_SAID else ""
        print(f"step {step}: {wrong}: this replica's gradient is left out{more}")


def what_is_wrong(loss: float, gradients: Sequence[Array]) -> str:
    """Return what of a step is no finite number, in words; nothing if all is well.

    >>> import numpy as np
    >>> what_is_wrong(1.0, [np.ones(3, np.float32), np.array([1.0, np.inf])])
    'a gradient is infinite'
    """
    if not math.isfinite(loss):
        return f"the loss is {_called(math.isnan(loss))}"
    if not gradients:
        return ""
    xp = backend_of(gradients[0])
    # One pass at memory speed; a square that overflows is looked at again.
    total = sum(xp.dot(g, g) for g in (gradient.reshape(-1) for gradient in gradients))
    if math.isfinite(float(total)):
        return ""
    if any(bool(xp.isnan(g).any()) for g in gradients):
        return f"a gradient is {_called(True)}"
    return f"a gradient is {_called(False)}" if any(bool(xp.isinf(g).any()) for g in gradients) else ""


def _called(nan: bool) -> str:
    return "NaN" if nan else "infinite"
