"""Pause, resume, another learning rate, a checkpoint: asked of a run, done by its tasks between two steps.

client                                    task
run.control   run, do: "pause", number ─► replicas rest at their next steps (see nbdist.train.boundary)
              do: "resume" ─────────────► they go on
              do: "set", learning_rate ─► their next updates are made at that rate
              do: "checkpoint", number ─► the chief writes one, and says so in its progress: number, path
task                                      task
run.control   do: "rest", number ───────► the chief rests in that pause: so do those who would wait for it
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    choices,
)
from nbdist.optim.base import number
from nbdist.train.context import Context, Control

if TYPE_CHECKING:
    from nbdist.runs.progress import ProgressTracker

SETTINGS = ("learning_rate",)
LOOK_SECONDS = 0.005  # between two looks at a run that this thread follows, and waits for an answer of
KEPT_SECONDS = 60.0
DOES: dict[str, Callable[[Control, Mapping[str, Any]], object]] = {
    "pause": lambda control, word: control.pause(_whole(word)),
    "resume": lambda control, word: control.resume(),
    "set": lambda control, word: control.set_rate(number("learning_rate", word.get("learning_rate"))),
    "checkpoint": lambda control, word: control.ask_checkpoint(_whole(word)),
}


def heed(control: Control, word: Mapping[str, Any]) -> None:
    """Let a run's replicas on this task do what a ``run.control`` frame asks for."""
    do = word.get("do")
    if do == "rest":  # said by tasks alone
        control.rest(_whole(word))
        return
    if do not in DOES:
        raise InvalidArgumentError(f"a run cannot be asked to {do!r}; {choices(do, DOES)}")
    DOES[do](control, word)


def _whole(word: Mapping[str, Any]) -> int:
    found = word.get("number")
    if isinstance(found, bool) or not isinstance(found, int):
        raise InvalidArgumentError(f"number is a whole number, got {found!r}")
    return found


def said(context: Context) -> dict[str, Any]:
    """Return a replica's progress as it travels; one that waits for others who are paused is paused, too."""
    one, control = context.progress, context.control
    progress = {**vars(one), "lost": [*one.lost], "spent": {**one.spent}}  # asdict takes 13 µs
    step, rested = progress.pop("last_rest")
    if one.step > step:
        progress["rested"] += rested
    stopped = control.stop_requested  # its pause has ended, though the control does not count it as over
    progress["paused"] = one.rested + rested if stopped else control.rested()
    if one.state == "running" and control.waits:
        progress["state"] = "paused"
    return progress


class Followed(Protocol):
    """A run, as far as it is asked for something; see :class:`nbdist.runs.run.Run`."""

    id: str
    status: str
    tally: ProgressTracker

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    @property
    def trains(self) -> bool:
        """Whether it trains, or is meant to."""

    def poll(self) -> bool:
        """Poll the run once; return whether it has ended."""

    def send(self, word: dict[str, Any]) -> None:
        """Have a word sent to all bodies at the next look."""


class Controls:
    """What users ask of a run. Any thread may; words are sent by the thread that follows the run."""

    def __init__(self, run: Followed) -> None:
        self._run, self._number = run, 0
        self._follower, self._polling = threading.get_ident(), False
        self._news = threading.Condition()

    def act(self, kind: str, value: Any = None) -> None:
        """Do what a view asks for, without waiting for what comes of it."""
        if kind == "set":
            self.set({"learning_rate": value})
        elif kind == "pause":
            self.pause()
        elif kind == "checkpoint":
            self.ask_checkpoint()
        else:
            self.ask(kind)

    def ask(self, do: str, **values: Any) -> None:
        """Have the replicas asked for something, at once if this thread follows the run, else at its look."""
        word = {"do": do, **values}
        heed(Control(), word)  # here, where somebody is told what is wrong with it
        if self._run.over:
            raise FailedPreconditionError(
                f"run {self._run.id} is over ({self._run.status}): there is nothing to {do} any more"
            )
        if not self._run.trains:
            raise FailedPreconditionError(
                f"run {self._run.id} does not train: there is nothing to {do}. It does that with a model.fit "
                "or an optimizer's step in its body"
            )
        self._run.send(word)
        if self._follower == threading.get_ident() and not self._polling:
            self._run.poll()

    def pause(self) -> None:
        """Ask for a pause, which has a number that no other one has."""
        self.ask("pause", number=time.time_ns())

    def set(self, values: Mapping[str, Any]) -> None:
        """Ask for other settings of the training."""
        unknown = sorted(values.keys() - set(SETTINGS))
        if unknown or not values:
            what = f"no setting {unknown[0]!r}" if unknown else "nothing to set"
            raise InvalidArgumentError(
                f"run.set: {what}; {choices(unknown[0] if unknown else None, SETTINGS)}"
            )
        self.ask("set", **values)

    def ask_checkpoint(self) -> int:
        """Ask for a checkpoint; returns the number that the answer will bear."""
        self._number = max(self._number, self._answered()) + 1
        self.ask("checkpoint", number=self._number)
        return self._number

    def checkpoint(self, timeout: float = KEPT_SECONDS) -> Path:
        """Ask for a checkpoint, and return its path on the chief's machine once it is there."""
        if not 0 < timeout < math.inf:
            raise InvalidArgumentError(f"timeout is a number of seconds above 0, got {timeout!r}")
        asked = self.ask_checkpoint()
        self._wait(lambda: self._answered() >= asked, timeout)
        found = self._run.tally.checkpoint
        if found is None or found["number"] < asked:
            if self._run.over:
                raise FailedPreconditionError(
                    f"run {self._run.id} has ended ({self._run.status}) without another checkpoint; "
                    "run.model is what it has trained"
                )
            raise DeadlineExceededError(
                f"run {self._run.id} has written no checkpoint within {timeout:g} s: its chief has come to "
                "no end of a step, or no process follows the run. Give it more time with "
                "checkpoint(timeout=...), or follow it with run.wait()"
            )
        if found["error"]:
            raise ResourceExhaustedError(f"{found['error']}. The run continues")
        return Path(found["path"])

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Note who follows the run, while it looks; who waits for news is woken then."""
        self._follower, self._polling = threading.get_ident(), True
        try:
            yield
        finally:
            self._polling = False
            with self._news:
                self._news.notify_all()

    def _answered(self) -> int:
        found = self._run.tally.checkpoint
        return 0 if found is None else int(found["number"])

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition or the run's end; who follows the run goes on doing so meanwhile."""
        deadline = time.monotonic() + seconds
        if self._follower != threading.get_ident():
            with self._news:
                self._news.wait_for(lambda: condition() or self._run.over, seconds)
            return
        if self._polling:
            raise FailedPreconditionError("who shows a run cannot wait for it: use run.controls.act")
        while not condition() and not self._run.poll() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
