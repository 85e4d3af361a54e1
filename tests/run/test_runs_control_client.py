"""What a run can be asked, on the client and on its tasks, without engines."""

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
from nbdist.train.context import Context, Control, Progress

PATIENCE = 30.0


def test_a_word_reaches_the_control() -> None:
    control = Control()
    for word in (
        {"do": "pause", "number": 5},
        {"do": "rest", "number": 5},
        {"do": "set", "learning_rate": 0.5},
        {"do": "checkpoint", "number": 3},
    ):
        apply_command(control, word)
    assert (control.paused, control.rate, control.rates, control.checkpoint) == (True, 0.5, 1, 3)
    assert (control.pause_number, control.resting, control.messages) == (5, True, 4)
    apply_command(control, {"do": "resume"})
    assert (control.paused, control.resting, control.messages) == (False, False, 5)


@pytest.mark.parametrize(
    ("word", "message"),
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
def test_what_cannot_be_asked_changes_nothing(word: dict[str, Any], message: str) -> None:
    control = Control()
    with pytest.raises(InvalidArgumentError, match=message):
        apply_command(control, word)
    assert control == Control()


def test_one_that_waits_for_others_who_are_paused_is_paused() -> None:
    context = Context(progress=Progress(state="running"))
    context.control.check()
    context.control.pause()
    context.control.check()
    assert progress_message(context)["state"] == "running"  # others may be in a step
    context.control.rest(1)
    assert progress_message(context)["state"] == "running"  # it may be in a step itself
    context.control.check()
    assert progress_message(context)["state"] == "paused"
    context.control.resume()
    assert progress_message(context)["state"] == "running"


class Some:
    """A run that is told what to answer."""

    id = "r1"

    def __init__(self) -> None:
        self.status, self.trains, self.sent = "running", True, list[dict[str, Any]]()
        self.tally, self.pumps, self.answers = ProgressTracker(1, False), 0, list[dict[str, Any]]()
        self.controls = RunControls(self)

    @property
    def over(self) -> bool:
        return self.status != "running"

    def send(self, word: dict[str, Any]) -> None:
        self.sent.append(word)

    def poll(self) -> bool:
        with self.controls.polling():
            self.pumps += 1
            if self.answers and self.sent:
                self.tally.checkpoint = self.answers.pop(0)
        return self.over


def answer(number: int, path: str | None = "/x/step-3/model.safetensors", error: Any = None) -> Any:
    return {"number": number, "step": 3, "path": path, "error": error}


def test_what_is_asked_is_sent_and_the_run_looked_at() -> None:
    run = Some()
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
    run = Some()
    with pytest.raises(InvalidArgumentError, match="no setting 'momentum'; choose from learning_rate"):
        run.controls.set({"momentum": 0.9, "learning_rate": 1})
    with pytest.raises(InvalidArgumentError, match="nothing to set; choose from learning_rate"):
        run.controls.set({})
    with pytest.raises(InvalidArgumentError, match="choose from pause, resume"):
        run.controls.act("dance")
    assert run.sent == []


def test_a_run_that_is_over_or_does_not_train_is_asked_nothing() -> None:
    run = Some()
    run.trains = False
    with pytest.raises(FailedPreconditionError, match="run r1 does not train: there is nothing to set"):
        run.controls.set({"learning_rate": 0.1})
    run.status = "finished"
    for kind in ("pause", "resume", "checkpoint"):
        with pytest.raises(FailedPreconditionError, match=rf"run r1 has ended \(finished\).*{kind}"):
            run.controls.act(kind)
    assert run.sent == []


def test_a_checkpoint_is_waited_for() -> None:
    run = Some()
    run.answers = [answer(0), answer(1)]
    assert run.controls.checkpoint(timeout=PATIENCE) == Path("/x/step-3/model.safetensors")
    run.answers = [answer(1), answer(2, None, "No space left on device")]
    with pytest.raises(ResourceExhaustedError, match=r"No space left on device. The run continues"):
        run.controls.checkpoint(timeout=PATIENCE)


def test_numbers_go_on_where_another_client_has_stopped() -> None:
    run = Some()
    run.tally.checkpoint = answer(7)
    assert run.controls.ask_checkpoint() == 8


def test_a_checkpoint_that_does_not_come() -> None:
    run = Some()
    with pytest.raises(DeadlineExceededError, match=r"no checkpoint within 0\.01 s"):
        run.controls.checkpoint(timeout=0.01)
    with pytest.raises(InvalidArgumentError, match="timeout is a number of seconds above 0"):
        run.controls.checkpoint(timeout=0)
    run.send = lambda word: setattr(run, "status", "finished")  # type: ignore[method-assign]
    with pytest.raises(FailedPreconditionError, match=r"has ended \(finished\) without another checkpoint"):
        run.controls.checkpoint(timeout=PATIENCE)


def test_another_thread_asks_and_waits_and_the_follower_sends() -> None:
    run, found = Some(), list[Path]()
    thread = threading.Thread(target=lambda: found.append(run.controls.checkpoint(PATIENCE)), daemon=True)
    thread.start()
    while not run.sent:
        thread.join(0.001)
    assert run.pumps == 0
    run.answers = [answer(1)]
    run.poll()
    thread.join(PATIENCE)
    assert found == [Path("/x/step-3/model.safetensors")]


def test_who_shows_a_run_asks_and_does_not_wait() -> None:
    run = Some()
    with run.controls.polling():
        run.controls.act("pause")
        with pytest.raises(FailedPreconditionError, match=r"use run\.controls\.act"):
            run.controls.checkpoint()
    assert run.pumps == 0
    assert [word["do"] for word in run.sent] == ["pause", "checkpoint"]


def told(state: str, step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "total": 100, "examples": 10 * step, "state": state, **more}


def test_a_pause_leaves_rates_and_what_is_left_as_they_were() -> None:
    tally, store = ProgressTracker(1, True), RunStore()
    for second in range(3):
        tally.update(0, told("running", 10 * second), second)
    before = tally.standing(2, store)
    assert (before.steps_per_second, before.seconds_left) == (10, 8)
    for second in range(3, 60):
        tally.update(0, told("paused", 20), second)
        now = tally.standing(second, store)
        assert (now.state, now.steps_per_second, now.seconds_left) == ("paused", 10, 8)
    for second in range(60, 64):
        tally.update(0, told("running", 20 + 10 * (second - 59)), second)
        assert tally.standing(second, store).steps_per_second == 10


def test_a_run_is_paused_when_nobody_trains() -> None:
    tally, store = ProgressTracker(3, False), RunStore()
    for replica, state in enumerate(["paused", "running", "finished"]):
        tally.update(replica, told(state, 3), 0.0)
    assert tally.standing(0.0, store).state == "running"
    tally.update(1, told("paused", 3), 0.1)
    assert tally.standing(0.1, store).state == "paused"


def test_the_rate_in_force_is_the_one_that_all_name_who_know() -> None:
    tally, store = ProgressTracker(3, False), RunStore()
    assert tally.standing(0.0, store).learning_rate is None
    tally.update(0, told("running", 3, learning_rate=0.1, checkpoint=answer(1)), 0.0)
    tally.update(1, told("running", 3, learning_rate=None), 0.0)
    standing = tally.standing(0.0, store)
    assert (standing.learning_rate, standing.checkpoint) == (0.1, answer(1))
    tally.update(2, told("running", 3, learning_rate=0.2), 0.0)
    assert tally.standing(0.0, store).learning_rate is None
