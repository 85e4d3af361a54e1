"""A step's order of calls, its NaN policy and its loss scale, on replicas that record what is called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from nbdist.errors import AbortedError, NanLossError
from nbdist.optim.precision import LossScale
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.capabilities import Agreement, Membership, Nonfinite, PendingPush, StepChecks
from nbdist.train.context import Context
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.replica import Replica, RetryStep, itself
from nbdist.train.step import Step, StepDriver


class Recorded(Replica, Agreement, Membership, PendingPush, StepChecks):
    """Records the calls; ``fails`` is raised by the next push, ``finds`` is what all find in it."""

    agreement = membership = pending = checks = itself

    def __init__(self, calls: list[str] | None = None) -> None:
        self.calls: list[str] = [] if calls is None else calls
        self.values = [np.zeros(2, np.float32)]
        self.own = [np.zeros(2, np.float32)]
        self.fails: BaseException | None = None
        self.finds: Nonfinite | None = None
        self.stops = self.admits = False

    def pull(self) -> None:
        self.calls.append("pull")
        self.report.waited += 0.25

    def gradients(self) -> Sequence[Any]:
        return self.own

    def push(self) -> None:
        self.calls.append("push")
        self.report.waited += 0.5
        if self.fails is not None:
            raise self.fails
        self.report.global_step += 1
        self.report.nonfinite = self.finds

    def flat_gradients(self) -> Sequence[Any]:
        return self.own

    def skip(self) -> None:
        self.calls.append("skip")

    def overflow(self) -> None:
        self.calls.append("overflow")
        self.report.overflows += 1

    def agree(self, stop: bool) -> bool:
        self.calls.append("agree")
        return stop or self.stops

    def end_epoch(self, stop: bool) -> bool:
        self.calls.append("end_epoch")
        return stop

    def abort(self, error: BaseException) -> None:
        self.calls.append("abort")

    def admit(self, leave: bool = False) -> bool:
        self.calls.append("admit")
        return self.admits

    def settle(self) -> None:
        self.calls.append("settle")
        if self.fails is not None:
            self.report.unmade = 1
            raise self.fails

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        self.calls.append("close")


def step_of(*replicas: Recorded, skips: bool = False, scaled: bool = False) -> tuple[Step, Context]:
    context = Context(quiet=True)
    scale = LossScale(8.0, 2) if scaled else None
    scalings = [LossScaling(scale, replicas, context)] if scaled else []
    step = Step(context, replicas, 7, scalings, skips=skips, advice="fit(nan='skip')")
    step.pull()
    step.restore = lambda: replicas[0].calls.append("restore")
    return step, context


def test_a_finite_step_is_pushed() -> None:
    calls: list[str] = []
    step, context = step_of(Recorded(calls), Recorded(calls))
    assert len(step.gradients) == 2
    step.check(0.5, 1.0)
    step.push()
    assert calls == ["pull", "pull", "push", "push"]
    assert (step.waited, step.late, context.progress.skipped) == (0.5, 1.0, 0)
    assert step.begun <= step.pulled <= step.computed <= step.pushed


@pytest.mark.parametrize(("loss", "gradient", "said"), [(math.nan, 0.0, "loss"), (0.5, math.inf, "gradient")])
def test_a_step_that_is_not_finite_raises_or_is_left_out(
    loss: float, gradient: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replica = Recorded()
    step, context = step_of(replica)
    replica.own[0][1] = gradient
    with pytest.raises(NanLossError, match=rf"{said} is .* at step 7; .*fit\(nan='skip'\) leaves"):
        step.check(loss, gradient * gradient)
    assert replica.calls == ["pull"]
    step, context = step_of(replica, skips=True)
    step.check(loss, gradient * gradient)
    step.push()
    assert replica.calls == ["pull", "pull", "restore", "skip"]
    assert context.progress.skipped == 1
    assert "step 7: " in capsys.readouterr().out


def test_a_square_that_overflows_is_no_error() -> None:
    replica = Recorded()
    step, _ = step_of(replica)
    replica.own[0][:] = 1e30
    step.check(0.5, math.inf)
    step.push()
    assert replica.calls == ["pull", "push"]


def test_a_gradient_that_overflows_the_scale_is_left_out_and_counted_once() -> None:
    replica = Recorded()
    step, _ = step_of(replica, scaled=True)
    step.check(0.5, math.inf)
    replica.report.nonfinite = Nonfinite("a gradient is NaN or infinite", scaled=True)  # as all find, too
    step.push()
    assert (replica.calls, replica.report.overflows) == (["pull", "overflow"], 1)


def test_what_all_leave_out_is_taken_back() -> None:
    for scaled in (False, True):  # a NaN in another replica's loss, whatever the scale
        replica = Recorded()
        replica.finds = Nonfinite("the loss of a replica is NaN or infinite", scaled=False)
        step, context = step_of(replica, skips=True, scaled=scaled)
        step.check(0.5, 1.0)
        step.push()
        assert replica.calls == ["pull", "push", "restore"]
        assert context.progress.skipped == 1
        step, _ = step_of(replica)
        step.check(0.5, 1.0)
        with pytest.raises(NanLossError, match="the loss of a replica is NaN or infinite at step 7"):
            step.push()
    replica.finds = Nonfinite("a gradient is NaN or infinite", scaled=True)  # another replica's overflow
    step, _ = step_of(replica, scaled=True)
    step.check(0.5, 1.0)
    step.push()
    assert replica.report.overflows == 1


def test_a_step_that_is_repeated_leaves_the_states_as_they_were() -> None:
    replica = Recorded()
    replica.fails = RetryStep()
    step, _ = step_of(replica)
    step.check(0.5, 1.0)
    with pytest.raises(RetryStep):
        step.push()
    assert replica.calls == ["pull", "push", "restore"]


def driver_of(replica: Recorded) -> tuple[StepDriver, Context]:
    context = Context(quiet=True, trainings=1)
    return StepDriver(context, replica, lambda folder: folder), context


def test_what_is_due_between_two_steps_comes_in_one_order() -> None:
    replica = Recorded()
    driver, context = driver_of(replica)
    driver.save_state = lambda: float(replica.calls.append("save") or 0)
    driver.drain = lambda: replica.calls.append("drain")
    assert driver.ready()
    assert replica.calls == ["save", "agree", "admit"]
    replica.admits = True
    with pytest.raises(RetryStep):
        driver.ready()
    replica.calls.clear()
    context.control.stop_requested = True
    assert not driver.ready()
    assert replica.calls == ["drain", "save", "agree", "drain"]
    context.control.aborted = "the cell has ended"
    replica.agree = lambda stop: False  # type: ignore[method-assign]
    with pytest.raises(AbortedError, match="the cell has ended"):
        driver.ready()


def test_steps_are_counted_and_one_that_is_never_made_is_taken_back() -> None:
    replica = Recorded()
    driver, context = driver_of(replica)
    for _ in range(2):
        step = driver.pull(size=8, mine=4)
        step.check(0.5, 1.0)
        step.push()
        assert driver.record(step) >= 0
    progress = context.progress
    assert (driver.steps, progress.step, progress.examples, progress.global_step) == (2, 2, 8, 2)
    assert progress.spent["wait"] > 0
    assert driver.settle()
    replica.fails = StepStopped()
    assert not driver.settle()
    assert driver.take_back()
    assert (driver.steps, progress.step, progress.examples) == (1, 1, 4)


def test_a_batch_whose_step_was_not_made_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, context = driver_of(Recorded())
    monkeypatch.setattr(type(context.strategy), "batch", lambda self: ("again", 4))
    seen = []
    for arrays, _ in driver.repeated(iter([("a", 8), ("b", 8)])):  # type: ignore[list-item]
        seen.append(arrays)
        if seen == ["a"]:
            driver.retry()
    assert seen == ["a", "again", "b"]
