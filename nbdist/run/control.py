"""Commands to a run: pause, resume, learning rate, checkpoint. Its tasks apply them between two steps.

client                                    task
run.control   run, do: "pause", number ─► replicas pause before their next steps (see nbdist.train.boundary)
              do: "resume" ─────────────► they continue
              do: "set", learning_rate ─► their next updates are made at that rate
              do: "checkpoint", number ─► the chief writes one; its progress then has its number and path
task                                      task
run.control   do: "rest", number ───────► the chief pauses: the replicas that would wait for it pause as well
              do: "plan", step, ... ────► what all replicas do after that step (see nbdist.frameworks.steps)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    choices,
)
from nbdist.machine import count_cores
from nbdist.numbers import is_whole
from nbdist.optim.base import number
from nbdist.train.context import Context, Control, StepPlan

if TYPE_CHECKING:
    from nbdist.run.run import Run

SETTINGS = ("learning_rate",)
POLL_SECONDS = 0.005  # between two polls of a run that this thread follows, while it waits for an answer
KEPT_SECONDS = 60.0
DOES: dict[str, Callable[[Control, Mapping[str, Any]], object]] = {
    "pause": lambda control, command: control.pause(_whole(command)),
    "resume": lambda control, command: control.resume(),
    "set": lambda control, command: control.set_rate(number("learning_rate", command.get("learning_rate"))),
    "checkpoint": lambda control, command: control.ask_checkpoint(_whole(command)),
}


def apply_command(control: Control, command: Mapping[str, Any]) -> None:
    """Apply a ``run.control`` message to a run's replicas on this task."""
    do = command.get("do")
    if do == "rest":  # sent by tasks only
        control.rest(_whole(command))
        return
    if do == "plan":
        names = [field.name for field in fields(StepPlan)]
        control.add_plan(StepPlan(**{name: command[name] for name in names}))
        return
    if do not in DOES:
        raise InvalidArgumentError(f"a run cannot be asked to {do!r}; {choices(do, DOES)}")
    DOES[do](control, command)


def _whole(command: Mapping[str, Any]) -> int:
    found = command.get("number")
    if not is_whole(found):
        raise InvalidArgumentError(f"number is a whole number, got {found!r}")
    return found


def progress_message(context: Context) -> dict[str, Any]:
    """Return a replica's progress as a message; a replica that waits for paused ones counts as paused."""
    one, control = context.progress, context.control
    progress = {**vars(one), "lost": [*one.lost], "spent": {**one.spent}}  # asdict takes 13 µs
    step, rested = progress.pop("last_rest")
    if one.step > step:
        progress["rested"] += rested
    stopped = control.stop_requested  # its pause has ended, though the control does not count it as over
    progress["paused"] = one.rested + rested if stopped else control.rested()
    if context.framework is None and not (one.step or context.trainings or one.sessions):
        progress["step"] = len(context.logged_steps)  # a loop of the body's own
    if one.state == "running" and control.waits:
        progress["state"] = "paused"
    if context.input_meter is not None:
        progress["input"] = context.input_meter.reading().to_config()
    progress |= {"devices": [*context.devices], "gpu": context.gpu, "cores": count_cores()}
    return progress


class RunControls:
    """Sends users' commands to a run. Any thread may call it; the thread that follows the run sends them."""

    def __init__(self, run: Run) -> None:
        self._run, self._number = run, 0
        self._follower, self._polling = threading.get_ident(), False
        self._polled = threading.Condition()

    def act(self, kind: str, value: Any = None) -> None:
        """Send a command of a view, without waiting for its result."""
        if kind == "set":
            self.set({"learning_rate": value})
        elif kind == "pause":
            self.pause()
        elif kind == "checkpoint":
            self.ask_checkpoint()
        else:
            self.ask(kind)

    def ask(self, do: str, **values: Any) -> None:
        """Send a command to all replicas: now if this thread follows the run, else at the next poll."""
        command = {"do": do, **values}
        apply_command(Control(), command)  # an invalid one raises here, not on the tasks
        if self._run.over:
            raise FailedPreconditionError(
                f"run {self._run.id} has ended ({self._run.status}): there is nothing to {do}"
            )
        if not self._run.trains and self._run.has_session:
            if do not in ("pause", "resume"):
                raise FailedPreconditionError(
                    f"run {self._run.id} trains in a session of its body: there is nothing to {do}. The "
                    "hooks of the session save its checkpoints, and its graph has the learning rate"
                )
        elif not self._run.trains:
            raise FailedPreconditionError(
                f"run {self._run.id} does not train: there is nothing to {do}. A run trains if its body "
                "calls model.fit or an optimizer's step"
            )
        self._run.send(command)
        if self._follower == threading.get_ident() and not self._polling:
            self._run.poll()

    def pause(self) -> None:
        """Send a pause with a number of its own."""
        self.ask("pause", number=time.time_ns())

    def set(self, values: Mapping[str, Any]) -> None:
        """Send new settings of the training."""
        unknown = sorted(values.keys() - set(SETTINGS))
        if unknown or not values:
            what = f"no setting {unknown[0]!r}" if unknown else "nothing to set"
            raise InvalidArgumentError(
                f"run.set: {what}; {choices(unknown[0] if unknown else None, SETTINGS)}"
            )
        self.ask("set", **values)

    def ask_checkpoint(self) -> int:
        """Send a request for a checkpoint; return the number that the answer will have."""
        self._number = max(self._number, self._answered()) + 1
        self.ask("checkpoint", number=self._number)
        return self._number

    def checkpoint(self, timeout: float = KEPT_SECONDS) -> Path:
        """Request a checkpoint and return its path once it is written, and is here."""
        if not 0 < timeout < math.inf:
            raise InvalidArgumentError(f"timeout is a number of seconds above 0, got {timeout!r}")
        deadline = time.monotonic() + timeout
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
                f"run {self._run.id} has written no checkpoint within {timeout:g} s: its chief has "
                "ended no step, or no process follows the run. Give it more time with "
                "checkpoint(timeout=...), or follow it with run.wait()"
            )
        if found["error"]:
            raise ResourceExhaustedError(f"{found['error']}. The run continues")
        path = Path(found["path"])
        self._run.await_file(path, deadline - time.monotonic())
        return path

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Record this thread as the follower during a poll; wake threads that wait for an answer after it."""
        self._follower, self._polling = threading.get_ident(), True
        try:
            yield
        finally:
            self._polling = False
            with self._polled:
                self._polled.notify_all()

    def _answered(self) -> int:
        found = self._run.tally.checkpoint
        return 0 if found is None else int(found["number"])

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for a condition or the run's end; the thread that follows the run polls while it waits."""
        deadline = time.monotonic() + seconds
        if self._follower != threading.get_ident():
            with self._polled:
                self._polled.wait_for(lambda: condition() or self._run.over, seconds)
            return
        if self._polling:
            raise FailedPreconditionError("a view cannot wait for its run: use run.controls.act")
        while not condition() and not self._run.poll() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
