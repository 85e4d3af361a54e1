"""Commands of a run (pause, learning rate, checkpoint), on the client and on its tasks, without engines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from nbdist.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from nbdist.metrics.store import RunStore
from nbdist.run.control import RunControls, apply_command, progress_message
from nbdist.run.progress import ProgressTracker
from nbdist.run.recovery.member import Members, State
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Context, Control, Progress

PATIENCE = 30.0


def test_a_command_reaches_the_control() -> None:
    control = Control()
    for command in (
        {"do": "pause", "number": 5},
        {"do": "rest", "number": 5},
        {"do": "set", "learning_rate": 0.5},
        {"do": "checkpoint", "number": 3},
    ):
        apply_command(control, command)
    assert (control.paused, control.rate, control.rates, control.checkpoint) == (True, 0.5, 1, 3)
    assert (control.pause_number, control.resting, control.messages) == (5, True, 4)
    apply_command(control, {"do": "resume"})
    assert (control.paused, control.resting, control.messages) == (False, False, 5)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"do": "fly"}, "cannot be asked to 'fly'; choose from pause, resume, set, checkpoint"),
        ({}, "cannot be asked to None"),
        ({"do": "set"}, "learning_rate is a number, got None"),
        ({"do": "set", "learning_rate": -1}, "learning_rate must be 0 or more and finite, got -1"),
        ({"do": "set", "learning_rate": float("nan")}, "must be 0 or more and finite, got nan"),
        ({"do": "set", "learning_rate": float("inf")}, "must be 0 or more and finite, got inf"),
        ({"do": "set", "learning_rate": "0.1"}, "learning_rate is a number, got '0.1'"),
        ({"do": "set", "learning_rate": True}, "learning_rate is a number, got True"),
        ({"do": "checkpoint", "number": "x"}, "number is a whole number, got 'x'"),
        ({"do": "pause"}, "number is a whole number, got None"),
    ],
)
def test_an_invalid_command_changes_nothing(command: dict[str, Any], message: str) -> None:
    control = Control()
    with pytest.raises(InvalidArgumentError, match=message):
        apply_command(control, command)
    assert control == Control()


def test_a_replica_that_waits_for_paused_ones_is_paused() -> None:
    context = Context(progress=Progress(state="running"))
    context.control.check()
    context.control.pause()
    context.control.check()
    assert progress_message(context)["state"] == "running"  # another thread may be in a step
    context.control.rest(1)
    assert progress_message(context)["state"] == "running"  # it may itself be in a step
    context.control.check()
    assert progress_message(context)["state"] == "paused"
    context.control.resume()
    assert progress_message(context)["state"] == "running"


class ScriptedRun:
    """A run with scripted answers."""

    id = "r1"
    has_session = False

    def __init__(self) -> None:
        self.status, self.trains, self.sent = "running", True, list[dict[str, Any]]()
        self.tally, self.pumps, self.answers = ProgressTracker(1, False), 0, list[dict[str, Any]]()
        self.controls = RunControls(self)

    @property
    def over(self) -> bool:
        return self.status != "running"

    def send(self, command: dict[str, Any]) -> None:
        self.sent.append(command)

    def await_file(self, path: Path, seconds: float) -> None:
        """Find it at once."""

    def poll(self) -> bool:
        with self.controls.polling():
            self.pumps += 1
            if self.answers and self.sent:
                self.tally.checkpoint = self.answers.pop(0)
        return self.over


def answer(number: int, path: str | None = "/x/step-3/model.safetensors", error: Any = None) -> Any:
    return {"number": number, "step": 3, "path": path, "error": error}


def test_a_command_is_sent_and_the_run_polled() -> None:
    run = ScriptedRun()
    for kind in ("pause", "resume"):
        run.controls.act(kind)
    run.controls.act("set", 0.25)
    run.controls.act("checkpoint")
    pause = run.sent.pop(0)
    assert pause == {"do": "pause", "number": pause["number"]}
    assert run.sent == [
        {"do": "resume"},
        {"do": "set", "learning_rate": 0.25},
        {"do": "checkpoint", "number": 1},
    ]
    assert run.pumps == 4


def test_settings_have_names() -> None:
    run = ScriptedRun()
    with pytest.raises(InvalidArgumentError, match="no setting 'momentum'; choose from learning_rate"):
        run.controls.set({"momentum": 0.9, "learning_rate": 1})
    with pytest.raises(InvalidArgumentError, match="nothing to set; choose from learning_rate"):
        run.controls.set({})
    with pytest.raises(InvalidArgumentError, match="choose from pause, resume"):
        run.controls.act("dance")
    assert run.sent == []


def test_commands_fail_without_training_and_after_the_end() -> None:
    run = ScriptedRun()
    run.trains = False
    with pytest.raises(FailedPreconditionError, match="run r1 does not train: there is nothing to set"):
        run.controls.set({"learning_rate": 0.1})
    run.status = "finished"
    for kind in ("pause", "resume", "checkpoint"):
        with pytest.raises(FailedPreconditionError, match=rf"run r1 has ended \(finished\).*{kind}"):
            run.controls.act(kind)
    assert run.sent == []


def test_checkpoint_waits_for_the_file() -> None:
    run = ScriptedRun()
    run.answers = [answer(0), answer(1)]
    assert run.controls.checkpoint(timeout=PATIENCE) == Path("/x/step-3/model.safetensors")
    run.answers = [answer(1), answer(2, None, "No space left on device")]
    with pytest.raises(ResourceExhaustedError, match=r"No space left on device. The run continues"):
        run.controls.checkpoint(timeout=PATIENCE)


def test_command_numbers_continue_those_of_another_client() -> None:
    run = ScriptedRun()
    run.tally.checkpoint = answer(7)
    assert run.controls.ask_checkpoint() == 8


def test_a_checkpoint_that_never_arrives() -> None:
    run = ScriptedRun()
    with pytest.raises(DeadlineExceededError, match=r"no checkpoint within 0\.01 s"):
        run.controls.checkpoint(timeout=0.01)
    with pytest.raises(InvalidArgumentError, match="timeout is a number of seconds above 0"):
        run.controls.checkpoint(timeout=0)
    run.send = lambda command: setattr(run, "status", "finished")  # type: ignore[method-assign]
    with pytest.raises(FailedPreconditionError, match=r"has ended \(finished\) without another checkpoint"):
        run.controls.checkpoint(timeout=PATIENCE)


def test_the_following_thread_sends_commands_of_others() -> None:
    run, found = ScriptedRun(), list[Path]()
    thread = threading.Thread(target=lambda: found.append(run.controls.checkpoint(PATIENCE)), daemon=True)
    thread.start()
    while not run.sent:
        thread.join(0.001)
    assert run.pumps == 0
    run.answers = [answer(1)]
    run.poll()
    thread.join(PATIENCE)
    assert found == [Path("/x/step-3/model.safetensors")]


def test_a_views_command_does_not_wait() -> None:
    run = ScriptedRun()
    with run.controls.polling():
        run.controls.act("pause")
        with pytest.raises(FailedPreconditionError, match=r"use run\.controls\.act"):
            run.controls.checkpoint()
    assert run.pumps == 0
    assert [command["do"] for command in run.sent] == ["pause", "checkpoint"]


def report(state: str, step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "total": 100, "examples": 10 * step, "state": state, **more}


def test_a_pause_keeps_rates_and_seconds_left() -> None:
    tally, store = ProgressTracker(1, True), RunStore()
    for second in range(3):
        tally.update(0, report("running", 10 * second), second)
    before = tally.standing(2, store)
    assert (before.steps_per_second, before.seconds_left) == (10, 8)
    for second in range(3, 60):
        tally.update(0, report("paused", 20), second)
        now = tally.standing(second, store)
        assert (now.state, now.steps_per_second, now.seconds_left) == ("paused", 10, 8)
    for second in range(60, 64):
        tally.update(0, report("running", 20 + 10 * (second - 59)), second)
        assert tally.standing(second, store).steps_per_second == 10


@pytest.mark.parametrize(("needed", "step"), [(0, 39), (3, 12)])
def test_workers_of_a_synchronous_session_make_steps_together(needed: int, step: int) -> None:
    """In an asynchronous session, with ``needed`` 0, each worker makes steps of its own."""
    tally, store = ProgressTracker(3, False), RunStore()
    for replica, own in enumerate((14, 13, 12)):
        tally.update(replica, report("running", own, needed_workers=needed, global_step=10 + replica), 0.0)
    assert tally.standing(0.0, store).step == step


def test_a_run_is_paused_if_no_replica_trains() -> None:
    tally, store = ProgressTracker(3, False), RunStore()
    for replica, state in enumerate(["paused", "running", "finished"]):
        tally.update(replica, report(state, 3), 0.0)
    assert tally.standing(0.0, store).state == "running"
    tally.update(1, report("paused", 3), 0.1)
    assert tally.standing(0.1, store).state == "paused"


def test_the_learning_rate_is_known_if_all_reports_agree() -> None:
    members = Members([TaskInfo("worker", i, i, "here", 7, "", "", 1) for i in range(3)])
    tally, store = ProgressTracker(3, False, members.workers), RunStore()
    assert tally.standing(0.0, store).learning_rate is None
    tally.update(0, report("running", 3, learning_rate=0.1, checkpoint=answer(1)), 0.0)
    tally.update(1, report("running", 3, learning_rate=None), 0.0)
    standing = tally.standing(0.0, store)
    assert (standing.learning_rate, standing.checkpoint) == (0.1, answer(1))
    tally.update(2, report("running", 3, learning_rate=0.2), 0.0)
    assert tally.standing(0.0, store).learning_rate is None
    members.workers[2].move(State.LOST)
    tally.lose(2, 0.1)
    assert tally.standing(0.1, store).learning_rate == 0.1
