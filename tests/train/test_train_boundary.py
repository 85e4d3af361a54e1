"""Controls of a training on one device: pause, learning rate, checkpoint."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import until

from nbdist import nn
from nbdist.data import Dataset
from nbdist.errors import AbortedError, FailedPreconditionError
from nbdist.graph.tensor import Variable
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import columns_from_logs
from nbdist.optim import SGD, Adam
from nbdist.train import context as contexts
from nbdist.train.boundary import Boundary
from nbdist.train.context import Checkpoints, Context, Control
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.schedule import RateSchedule

Array = np.ndarray[Any, Any]
PATIENCE = 30.0


class Stepping(OneDeviceReplica):
    """A replica that calls ``before(step)`` when a step begins, ``pushing(step)`` before its push."""

    before: Callable[[int], object] = staticmethod(lambda step: None)
    pushing: Callable[[int], object] = staticmethod(lambda step: None)

    def pull(self) -> None:
        self.before(self.report.global_step + 1)

    def push(self) -> None:
        self.pushing(self.report.global_step + 1)
        super().push()


class SteppingStrategy(OneDeviceStrategy):
    before: Callable[[int], object] = staticmethod(lambda step: None)
    pushing: Callable[[int], object] = staticmethod(lambda step: None)

    def replica(self, variables: Any, optimizer: Any) -> Stepping:
        self.made = Stepping(variables, optimizer)
        self.made.before, self.made.pushing = self.before, self.pushing
        return self.made


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advance the clock that measures steps."""
    passed, real = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + sum(passed))
    return passed.append


@pytest.fixture
def strategy() -> SteppingStrategy:
    return SteppingStrategy()


@pytest.fixture
def context(strategy: SteppingStrategy, tmp_path: Path) -> Iterator[Context]:
    tmp_path.chmod(0o700)
    one = Context(strategy=strategy, seed=3, quiet=True, checkpoints=Checkpoints(tmp_path / "checkpoints"))
    with contexts.use(one):
        yield one


def model(optimizer: Any = None) -> nn.Sequential:
    made = nn.Sequential([nn.Dense(4, "tanh"), nn.BatchNorm(), nn.Dense(3, "softmax")], seed=5)
    made.compile(optimizer or SGD(0.2))
    return made


def data() -> Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 3
    return Dataset.from_arrays(rng.normal(size=(40, 5)).astype(np.float32), y).batch(10)


def during(context: Context, action: Callable[[], object]) -> threading.Thread:
    """Call ``action`` on another thread when the training is paused."""

    def run() -> None:
        until(lambda: context.progress.state == "paused")
        action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_pause_between_two_steps_can_be_resumed(strategy: SteppingStrategy, context: Context) -> None:
    control, seen = context.control, []
    strategy.pushing = lambda step: control.pause() if step == 3 else None

    def look() -> None:
        seen.append((context.progress.step, context.progress.state))
        control.resume()

    thread = during(context, look)
    history = model().fit(data(), epochs=2)
    thread.join(PATIENCE)
    assert seen == [(3, "paused")]
    assert (history.global_step, context.progress.state) == (8, "waiting for the others")


def test_a_pause_does_not_change_the_weights(strategy: SteppingStrategy, context: Context) -> None:
    expected = model()
    expected.fit(data(), epochs=2)
    strategy.pushing = lambda step: context.control.pause() if step == 5 else None
    thread = during(context, context.control.resume)
    paused = model()
    paused.fit(data(), epochs=2)
    thread.join(PATIENCE)
    for a, b in zip(paused.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_exclude_pauses(
    strategy: SteppingStrategy, context: Context, tmp_path: Path, passes: Callable[[float], None]
) -> None:
    """Steps exclude pauses of the replica and waits for a paused replica."""
    control = context.control

    def pushing(step: int) -> None:
        if step in (3, 5):
            control.pause()
        if step == 5:  # as if another replica was paused and this one waited for it
            control.rest(control.pause_number)
            control.check()
            assert control.waits
            passes(1000)
            control.resume()
            strategy.made.report.waited += 1000

    def resume_later() -> None:
        passes(100)
        control.resume()

    strategy.pushing = pushing
    context.recorder = Recorder(tmp_path / "metrics-0000.log", replica=0)
    thread = during(context, resume_later)
    model().fit(data(), epochs=2)
    thread.join(PATIENCE)
    context.recorder.close()
    assert control.rested() > 1100
    assert 0 < sum(context.progress.spent.values()) < 50
    assert 100 <= context.progress.rested < 150  # this replica's own pauses
    columns = columns_from_logs(tmp_path)
    steps = columns["value"][columns["series"] == "step_ms"]
    assert len(steps) == 8
    assert 0 < steps.max() < 50_000


@pytest.mark.parametrize("how", ["stop", "abort"])
def test_a_stop_and_an_abort_end_a_pause(strategy: SteppingStrategy, context: Context, how: str) -> None:
    control = context.control
    strategy.pushing = lambda step: control.pause() if step == 3 else None

    def end() -> None:
        if how == "stop":
            control.stop_requested = True
        else:
            control.aborted = "another failed"

    thread = during(context, end)
    one = model()
    if how == "stop":
        assert one.fit(data(), epochs=9).global_step == 3
        assert context.progress.rested == 0  # no step follows
    else:
        with pytest.raises(AbortedError, match="another failed"):
            one.fit(data(), epochs=9)
    thread.join(PATIENCE)


@pytest.mark.parametrize(
    "interrupt",
    [
        lambda: os.kill(os.getpid(), signal.SIGINT),
        # Another thread takes the signal: the waiting one isn't woken, as if it came just before the wait.
        lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT),
    ],
    ids=["in-the-wait", "just-before-it"],
)
def test_an_interrupt_ends_a_pause(
    strategy: SteppingStrategy, context: Context, interrupt: Callable[[], None]
) -> None:
    strategy.pushing = lambda step: context.control.pause() if step == 3 else None
    thread = during(context, interrupt)
    with pytest.raises(KeyboardInterrupt):
        model().fit(data(), epochs=9)
    thread.join(PATIENCE)


@pytest.mark.parametrize("optimizer", [lambda: SGD(0.2, momentum=0.5), lambda: Adam(0.02)])
def test_a_learning_rate_applies_from_the_next_step(
    strategy: SteppingStrategy, context: Context, optimizer: Callable[[], Any]
) -> None:
    """The result equals that of a rate set by hand between the same two steps."""
    seen = []
    strategy.pushing = lambda step: context.control.set_rate(0.05) if step == 3 else None
    strategy.before = lambda step: seen.append(context.progress.learning_rate)
    one = model(optimizer())
    one.fit(data(), epochs=2)
    first = optimizer().learning_rate
    assert seen == [first] * 3 + [0.05] * 5
    strategy.pushing = lambda step: None
    by_hand = optimizer()
    other = model(by_hand)
    strategy.before = lambda step: setattr(by_hand, "learning_rate", 0.05 if step > 3 else first)
    other.fit(data(), epochs=2)
    for a, b in zip(one.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_learning_rate_applies_to_the_current_training(
    strategy: SteppingStrategy, context: Context
) -> None:
    context.control.set_rate(0.01)  # before the first training
    one = model(SGD(0.2))
    one.fit(data())
    assert context.progress.learning_rate == one.optimizer.learning_rate == 0.01  # type: ignore[union-attr]
    other = model(SGD(0.3))
    other.fit(data())
    assert context.progress.learning_rate == other.optimizer.learning_rate == 0.3  # type: ignore[union-attr]


def test_a_replica_without_a_rate_refuses_a_schedule(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stepping, "rate", None)
    replica = Stepping([("w", np.ones(2, np.float32))], SGD(0.1))
    with pytest.raises(FailedPreconditionError, match="Stepping cannot change its learning rate"):
        RateSchedule(
            lambda updates, epoch: 0.2, Boundary(context, lambda: [replica], int, lambda path: path), context
        ).follow(replica)


def test_a_checkpoint_has_the_weights_of_its_step(strategy: SteppingStrategy, context: Context) -> None:
    control = context.control
    weights: dict[int, list[Array]] = {}
    one = model()
    strategy.before = lambda step: weights.update({step - 1: [w.copy() for w in strategy.made.values]})
    strategy.pushing = lambda step: control.ask_checkpoint(7) if step == 3 else None
    one.fit(data(), epochs=2)
    found = context.progress.checkpoint
    assert found is not None
    assert (found["number"], found["step"], found["error"]) == (7, 3, None)
    path = Path(found["path"])
    assert path.parent.name == "step-3"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    loaded = nn.load(path)
    trained = [w for w in loaded.weights if w.shape != (4,)]  # all but biases and the states of BatchNorm
    for a, b in zip(trained, [w for w in weights[3] if w.shape != (4,)], strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.to_config() == one.to_config()
    assert [p.name for p in path.parent.parent.iterdir()] == ["step-3"]


def test_a_paused_training_writes_one_checkpoint_per_step(
    strategy: SteppingStrategy, context: Context
) -> None:
    control = context.control
    found: list[dict[str, Any]] = []
    strategy.pushing = lambda step: control.pause() if step == 2 else None

    def ask() -> None:
        for number in (1, 2):
            control.ask_checkpoint(number)
            until(lambda: (context.progress.checkpoint or {}).get("number") == len(found) + 1)
            found.append(context.progress.checkpoint or {})
        assert context.progress.state == "paused"
        control.resume()

    thread = during(context, ask)
    model().fit(data(), epochs=1)
    thread.join(PATIENCE)
    assert [one["number"] for one in found] == [1, 2]
    assert found[0]["path"] == found[1]["path"]
    assert found[0]["step"] == 2


def test_a_checkpoint_requested_in_the_last_step_is_written(
    strategy: SteppingStrategy, context: Context
) -> None:
    strategy.pushing = lambda step: context.control.ask_checkpoint(1) if step == 4 else None
    one = model()
    one.fit(data(), epochs=1)
    found = context.progress.checkpoint
    assert found is not None
    assert found["step"] == 4
    for a, b in zip(nn.load(found["path"]).weights, one.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_two_trainings_may_end_and_begin_with_one_step(strategy: SteppingStrategy, context: Context) -> None:
    strategy.pushing = lambda step: context.control.ask_checkpoint(1) if step == 4 else None
    model().fit(data(), epochs=1)
    assert context.progress.checkpoint is not None
    first = Path(context.progress.checkpoint["path"])
    context.control.ask_checkpoint(2)
    strategy.pushing = lambda step: None
    model().fit(data(), epochs=1)
    second = Path(context.progress.checkpoint["path"])
    assert (first.parent.name, second.parent.name) == ("step-4", "step-4-training-2")


def test_a_full_disk_is_reported_and_training_continues(
    strategy: SteppingStrategy, context: Context, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "rename", full)
    strategy.pushing = lambda step: context.control.ask_checkpoint(3) if step == 2 else None
    assert model().fit(data(), epochs=2).global_step == 8
    found = context.progress.checkpoint
    assert found is not None
    assert (found["number"], found["step"], found["path"]) == (3, 2, None)
    assert "No space left on device" in found["error"]
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_checkpoint_without_a_model_has_the_variables(context: Context, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    control, strategy = context.control, context.strategy
    with strategy.scope():
        w, optimizer = Variable(np.float32(1), name="w"), SGD(0.1)

    def step(x: Any) -> None:
        optimizer.minimize(np.sum(x) * w)

    x = np.ones(2, np.float32)
    strategy.run(step, (x,))
    control.ask_checkpoint(1)
    control.set_rate(0.5)
    strategy.run(step, (x,))
    strategy.finish()
    found = context.progress.checkpoint
    assert found is not None
    assert (found["step"], Path(found["path"]).name) == (1, "variables.safetensors")
    np.testing.assert_allclose(load_file(found["path"])["w"], 0.8)
    np.testing.assert_allclose(strategy.read(w), -0.2)
    assert context.progress.learning_rate == 0.5


def test_a_custom_loop_pauses_and_saves_its_model(context: Context) -> None:
    control, strategy = context.control, context.strategy
    with strategy.scope():
        one, optimizer = model(), SGD(0.1)

    def step(x: Any, y: Any) -> None:
        optimizer.minimize(np.sum(nn.losses.sparse_categorical_crossentropy(y, one(x, training=True))))

    def look() -> None:
        control.ask_checkpoint(1)
        until(lambda: context.progress.checkpoint)
        control.resume()

    thread = during(context, look)
    weights: dict[int, list[Array]] = {}
    for number, batch in enumerate(strategy.distribute_dataset(data()), 1):
        strategy.run(step, batch)
        weights[number] = one.get_weights()
        if number == 2:
            control.pause()
    thread.join(PATIENCE)
    found = context.progress.checkpoint
    assert found is not None
    assert (found["step"], context.progress.step, context.progress.state) == (2, 4, "running")
    for a, b in zip(nn.load(found["path"]).weights, weights[2], strict=True):
        np.testing.assert_array_equal(a, b)


def test_paused_time_counts_from_the_pause(passes: Callable[[float], None]) -> None:
    control = Control()
    control.resume()
    control.pause()
    passes(2)
    assert (control.rested(), control.messages) == (0, 1)
    control.rest(1)
    passes(3)
    control.pause()  # no effect when repeated
    control.rest(1)
    passes(3)
    assert (round(control.rested()), control.messages) == (6, 2)
    control.resume()
    passes(4)
    assert (round(control.rested()), control.messages, control.rests) == (6, 3, False)


def test_the_chiefs_pause_message_may_arrive_late_or_early() -> None:
    control = Control()
    control.pause(7)
    control.resume()
    control.rest(7)  # arrives after the resume
    assert (control.paused, control.resting) == (False, False)
    control.rest(8)  # arrives before the client's pause
    assert (control.paused, control.resting) == (True, True)
    control.pause(8)
    control.resume()
    control.pause(8)
    assert not control.paused


def test_among_synchronous_replicas_the_chief_pauses_first(
    strategy: SteppingStrategy, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SteppingStrategy, "keeps_pace", True)
    control, rests = context.control, []
    context.rest_everywhere = rests.append
    strategy.pushing = lambda step: control.pause(9) if step == 3 else None
    thread = during(context, control.resume)
    model().fit(data(), epochs=2)
    thread.join(PATIENCE)
    assert (rests, control.resting) == ([9], False)
    context.is_chief, seen = False, []

    def pushing(step: int) -> None:
        seen.append(step)
        if step == 3:
            control.pause(10)
        if step == 6:
            control.rest(10)

    strategy.pushing = pushing
    thread = during(context, lambda: seen.append(0) or control.resume())
    model().fit(data(), epochs=2)
    thread.join(PATIENCE)
    assert (seen, rests) == ([1, 2, 3, 4, 5, 6, 0, 7, 8], [9])
