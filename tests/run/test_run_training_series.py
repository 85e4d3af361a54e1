"""What a training records beside its loss: events, learning rates, epochs, the norm of its gradients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nbdist import nn
from nbdist.data import Dataset
from nbdist.metrics.names import EPOCH, EXAMPLES, GRADIENT_NORM, LEARNING_RATE
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_events import EventLog, events_path, read_events
from nbdist.metrics.store import columns_from_logs
from nbdist.optim import SGD
from nbdist.run.task.training_series import WINDOW_SECONDS, TrainingSeries
from nbdist.train import context as contexts
from nbdist.train.callbacks import Callback
from nbdist.train.context import Checkpoints, Context
from nbdist.train.rate_changes import MOST_CHANGES, RateChanges
from tests.waiting import PATIENCE, until

EPOCHS, STEPS = 3, 4  # steps of each


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    tmp_path.chmod(0o700)
    recorder = Recorder(tmp_path / "metrics-0000.log", replica=0)
    events = EventLog(events_path(tmp_path, 0))
    one = Context(
        seed=3,
        quiet=True,
        recorder=recorder,
        events=events,
        checkpoints=Checkpoints(tmp_path / "checkpoints"),
    )
    with contexts.use(one):
        yield one
    recorder.close()


class Acting(Callback):
    """Calls a function at the beginning of an epoch."""

    def __init__(self, actions: dict[int, object]) -> None:
        self.actions = actions

    def on_epoch_begin(self, epoch: int) -> None:
        action = self.actions.get(epoch)
        if callable(action):
            action()


def train(**actions: object) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10 * STEPS, 5)).astype(np.float32), np.arange(10 * STEPS) % 3
    model = nn.Sequential([nn.Dense(3, "softmax")], seed=5)
    model.compile(SGD(0.2))
    acting = Acting({int(name.removeprefix("epoch_")): action for name, action in actions.items()})
    model.fit(Dataset.from_arrays(x, y).batch(10), epochs=EPOCHS, callbacks=[acting])


def points(folder: Path, context: Context, series: str) -> list[tuple[int, float]]:
    assert context.recorder is not None
    context.recorder.flush()
    columns = columns_from_logs(folder)
    mine = columns["series"] == series
    return [*zip(columns["step"][mine].tolist(), columns["value"][mine].tolist(), strict=True)]


def said(folder: Path, context: Context) -> list[tuple[int, int | None, str, str]]:
    assert context.events is not None
    context.events.flush()
    return [(one.step, one.epoch, one.kind, one.text.partition(" after")[0]) for one in read_events(folder)]


def test_rates_of_the_user_and_of_callbacks_are_events_and_points(context: Context, tmp_path: Path) -> None:
    control = context.control
    train(epoch_1=lambda: control.set_rate(0.1), epoch_2=lambda: control.set_rate_of_fit(0.05))
    assert said(tmp_path, context) == [
        (4, 2, "rate", "learning rate 0.2 → 0.1, set by the user"),
        (8, 3, "schedule", "learning rate 0.1 → 0.05, set by a callback"),
    ]
    assert points(tmp_path, context, LEARNING_RATE) == [(1, 0.2), (4, 0.2), (5, 0.1), (8, 0.1), (9, 0.05)]
    assert points(tmp_path, context, EPOCH) == [(0, 1.0), (4, 2.0), (8, 3.0)]


def test_a_pause_and_a_checkpoint_are_events(context: Context, tmp_path: Path) -> None:
    control = context.control

    def resume() -> None:
        until(lambda: context.progress.state == "paused")
        control.ask_checkpoint(1)
        until(lambda: context.progress.checkpoint is not None)
        control.resume()

    thread = threading.Thread(target=resume, daemon=True)
    thread.start()
    train(epoch_1=control.pause)
    thread.join(PATIENCE)
    found = said(tmp_path, context)
    assert [(step, kind) for step, _, kind, _ in found] == [(4, "pause"), (4, "checkpoint"), (4, "resume")]
    assert [text for *_, text in found] == ["paused", "checkpoint of step 4", "resumed"]


def test_only_the_chief_records_events(context: Context, tmp_path: Path) -> None:
    context.is_chief = False
    train(epoch_1=lambda: context.control.set_rate(0.1))
    assert said(tmp_path, context) == []
    assert points(tmp_path, context, LEARNING_RATE)[-1] == (5, 0.1)


def test_series_are_sampled_between_the_steps_of_others(context: Context, tmp_path: Path) -> None:
    assert context.recorder is not None
    series, now = TrainingSeries(context.recorder), [0.0]

    def sample(ended: bool = False) -> None:
        now[0] += WINDOW_SECONDS
        series.sample(context, context.progress, now[0], ended)

    sample()  # nothing trains
    assert context.recorder.names == []
    train(epoch_0=sample, epoch_1=sample, epoch_2=sample)
    sample(ended=True)
    norms = points(tmp_path, context, GRADIENT_NORM)
    assert [step for step, _ in norms] == [4, 8, 12]
    assert all(0 < norm < 10 for _, norm in norms)
    assert points(tmp_path, context, EXAMPLES) == [(step, 40 / WINDOW_SECONDS) for step in (4, 8)]
    assert points(tmp_path, context, LEARNING_RATE) == [(1, 0.2), (4, 0.2), (12, 0.2)]


def test_the_norm_is_that_of_the_mean_gradient(context: Context, tmp_path: Path) -> None:
    assert context.recorder is not None
    series = TrainingSeries(context.recorder)
    context.trainings, context.progress.step = 1, 7
    context.gradient = 4.0, 10, 40  # its share of the sum of a batch of 40, divided by 40
    series.sample(context, context.progress, 0.0)
    series.sample(context, context.progress, 0.1)  # no further step
    assert points(tmp_path, context, GRADIENT_NORM) == [(7, 8.0)]


def test_a_schedule_of_many_changes_is_a_curve() -> None:
    changes = RateChanges()
    found = [changes.event(10 * n, 1 / (n + 1), 1 / (n + 2), "callback") for n in range(1, 40)]
    there = [one for one in found if one is not None]
    assert len(there) == MOST_CHANGES + 1
    assert there[-1][1].startswith("further changes")
    assert changes.event(900, 0.5, 0.25, "user") is not None
    assert changes.event(901, 0.25, np.float32(0.25), "user") is None
    assert changes.event(902, None, 0.25, "") is None
