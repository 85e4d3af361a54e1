"""Callbacks as Keras has them: rates, files, ends."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist import nn, optim
from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.train import (
    Callback,
    CSVLogger,
    EarlyStopping,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from nbdist.train.callbacks import History
from nbdist.train.context import Checkpoints, Context, use_here

X = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0]])).astype(np.float32)


@pytest.fixture
def context(tmp_path: Path) -> Any:
    tmp_path.chmod(0o700)
    with use_here(Context(seed=1, quiet=True, checkpoints=Checkpoints(tmp_path / "checkpoints"))) as found:
        yield found


def fit(callbacks: list[Callback], epochs: int = 4, optimizer: Any = None, y: Any = Y, **how: Any) -> Any:
    model = nn.Sequential([nn.Dense(1)], seed=1)
    model.compile(optimizer or optim.SGD(0.1), "mse")
    data = Dataset.from_arrays(X, y).batch(8)
    return model, model.fit(data, epochs=epochs, callbacks=callbacks, **how)


def plateau(values: list[float], patience: int, cooldown: int, factor: float, least: float) -> list[float]:
    """The rates after each epoch, as keras.callbacks.ReduceLROnPlateau.on_epoch_end computes them."""
    best, wait, cooling, rate, found = math.inf, 0, 0, 1.0, []
    for current in values:
        if cooling > 0:
            cooling -= 1
            wait = 0
        if current < best - 0.01:
            best, wait = current, 0
        elif cooling <= 0:
            wait += 1
            if wait >= patience and rate > least:
                rate, cooling, wait = max(rate * factor, least), cooldown, 0
        found.append(rate)
    return found


@given(
    values=st.lists(st.floats(0, 1), min_size=1, max_size=20),
    patience=st.integers(1, 4),
    cooldown=st.integers(0, 3),
    factor=st.floats(0.1, 0.9),
)
@settings(max_examples=examples(200))
def test_a_plateau_is_that_of_keras(values: list[float], patience: int, cooldown: int, factor: float) -> None:
    callback = ReduceLROnPlateau("loss", factor, patience, min_delta=0.01, cooldown=cooldown, min_lr=1e-9)
    found = []
    with use_here(Context()) as context:
        context.progress.learning_rate = context.control.rate = 1.0
        callback.on_train_begin()
        for epoch, value in enumerate(values):
            logs = {"loss": value}
            callback.on_epoch_end(epoch, logs)
            assert logs["learning_rate"] == context.progress.learning_rate
            context.progress.learning_rate = context.control.rate
            found.append(context.control.rate)
    np.testing.assert_allclose(found, plateau(values, patience, cooldown, factor, 1e-9))


def test_a_scheduler_sets_the_rate_of_each_epoch(context: Context) -> None:
    rates = [0.1, 0.05, 0.02, 0.0]
    model, history = fit([LearningRateScheduler(lambda epoch: rates[epoch])], optimizer=optim.Adam(9.0))
    assert history["learning_rate"] == rates

    own = nn.Sequential([nn.Dense(1)], seed=1)
    own.build((2,))
    flat = np.concatenate([w.ravel() for w in own.get_weights()]).astype(np.float64)
    adam = optim.Adam()
    slots, step = adam.new_slots(flat), 0
    for rate in rates:
        adam.learning_rate = rate
        for start in range(0, 24, 8):
            x, y = X[start : start + 8], Y[start : start + 8]
            error = x @ flat[:2, None] + flat[2] - y
            gradient = np.concatenate([(2 * x.T @ error / 8).ravel(), 2 * error.mean(0)])
            adam.apply(flat, gradient, slots, step := step + 1)
    np.testing.assert_allclose(np.concatenate([w.ravel() for w in model.get_weights()]), flat, rtol=1e-4)


def test_a_scheduler_may_take_the_rate_of_now(context: Context) -> None:
    _, history = fit([LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)])
    assert history["learning_rate"] == [0.1, 0.05, 0.025, 0.0125]

    def wrong(epoch: int, rate: float) -> float:
        return epoch + "x"  # type: ignore[operator,no-any-return]

    with pytest.raises(TypeError, match="unsupported operand"):  # its own error, and not one of the call
        fit([LearningRateScheduler(wrong)])
    with pytest.raises(InvalidArgumentError, match="what schedule returns is a number, got None"):
        fit([LearningRateScheduler(lambda epoch: None)])  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("make", [lambda: LearningRateScheduler(lambda epoch: 0.1), ReduceLROnPlateau])
def test_an_optimizer_that_follows_a_schedule_is_refused(context: Context, make: Any) -> None:
    schedule = optim.schedules.CosineDecay(0.1, 10)
    with pytest.raises(
        InvalidArgumentError, match=r"follows a schedule \(CosineDecay\): give the optimizer a"
    ):
        fit([make()], optimizer=optim.SGD(schedule))


def test_the_best_model_is_in_the_folder_of_the_run(context: Context, tmp_path: Path) -> None:
    logs = iter([3.0, 1.0, 2.0, 0.5])

    class Measure(Callback):
        def on_epoch_end(self, epoch: int, given: dict[str, float]) -> None:
            given["score"] = next(logs)
            weights.append(self.model.get_weights()[0].copy())

    weights: list[Any] = []
    best = ModelCheckpoint("models/best.safetensors", "score", save_best_only=True, mode="max")
    few = ModelCheckpoint("{epoch:02d}-{score:.1f}.safetensors", "score", save_top_k=2)
    every = ModelCheckpoint("every-{epoch}.safetensors")
    fit([Measure(), best, few, every])
    assert best.best == 3.0
    np.testing.assert_array_equal(nn.load(tmp_path / "models/best.safetensors").get_weights()[0], weights[0])
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["02-1.0.safetensors", "04-0.5.safetensors"]
    np.testing.assert_array_equal(nn.load(tmp_path / "02-1.0.safetensors").get_weights()[0], weights[1])
    assert len(list(tmp_path.glob("every-*"))) == 4
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=12, unique=True), k=st.integers(1, 4))
@settings(max_examples=examples(50), deadline=None)
def test_the_best_of_all_epochs_are_kept(values: list[float], k: int, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("kept")

    class Saved:
        def save(self, path: Path) -> None:
            path.write_text("")

    callback = ModelCheckpoint(folder / "{epoch}", "loss", save_top_k=k)
    callback.model = Saved()
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {"loss": value})
    best = sorted(range(len(values)), key=lambda number: values[number])[:k]
    assert {int(path.name) for path in folder.iterdir()} == {number + 1 for number in best}


def test_a_name_with_an_unknown_metric_and_a_model_without_save_are_refused(context: Context) -> None:
    with pytest.raises(InvalidArgumentError, match=r"names 'val_loss'; there are epoch, loss"):
        fit([ModelCheckpoint("{val_loss}.safetensors")])
    callback = ModelCheckpoint("x")
    callback.model = object()
    with pytest.raises(InvalidArgumentError, match=r"calls model.save\(path\), which object does not have"):
        callback.on_train_begin()


def test_a_csv_file_has_a_line_for_each_epoch(context: Context, tmp_path: Path) -> None:
    scheduler = LearningRateScheduler(lambda epoch: 0.1)
    _, history = fit([scheduler, CSVLogger("log.csv")], validation_data=(X, Y))
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["epoch", "learning_rate", "loss", "val_loss"]
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3]
    for name in ("loss", "val_loss"):
        assert [float(row[name]) for row in rows] == history[name]
    fit([CSVLogger("log.csv", append=True)], epochs=1)
    with (tmp_path / "log.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["epoch"], last["val_loss"], len(last)) == ("0", "NA", 4)
    fit([CSVLogger("log.csv", separator=";")], epochs=2)
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "epoch;loss"
    assert (tmp_path / "log.csv").stat().st_mode & 0o777 == 0o600


def test_replicas_that_are_not_the_chief_write_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with use_here(Context(quiet=True, is_chief=False, checkpoints=Checkpoints(tmp_path / "checkpoints"))):
        fit([CSVLogger("log.csv"), ModelCheckpoint("m.safetensors")])
    assert not list(tmp_path.iterdir())


def test_a_training_ends_at_a_step_that_is_not_finite(context: Context, capsys: Any) -> None:
    y = Y.copy()
    y[8] = np.nan  # in the second of three steps
    with pytest.raises(NanLossError):
        fit([], y=y)
    stop = TerminateOnNaN()
    before = context.progress.step
    model, _ = fit([stop], y=y)
    assert context.progress.step - before == 2
    assert stop.stop_training
    assert np.isfinite(model.get_weights()[0]).all()
    assert "TerminateOnNaN: the training ends with this step" in capsys.readouterr().out
    assert len(fit([stop])[1]["loss"]) == 4


def test_what_callbacks_know_is_continued() -> None:
    early, rate = EarlyStopping("loss", patience=3), ReduceLROnPlateau("loss", patience=5)
    context = Context()
    with use_here(context):
        first = History([early, rate], context)
        first.begin([])
        for epoch, value in enumerate([1.0, 2.0]):
            first.step(epoch + 1, value, [value], None, 0.1, 1)
            first.end_epoch(epoch)
        again = [EarlyStopping("loss", patience=3), ReduceLROnPlateau("loss", patience=5)]
        second = History(again, context)
        second.load_state_dict(first.state_dict())
        second.begin([])
    assert [one.state_dict() for one in again] == [
        {"best": 1.0, "waited": 1},
        {"best": 1.0, "waited": 1, "cooling": 0},
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LearningRateScheduler(0.1), "schedule is a function of the epoch and the rate, got 0.1"),  # type: ignore[arg-type]
        (lambda: LearningRateScheduler(float, verbose=1), "Scheduler has no verbose: leave it out"),  # type: ignore[call-arg]
        (lambda: ReduceLROnPlateau(factor=1.0), "factor is above 0 and below 1, got 1.0"),
        (lambda: ReduceLROnPlateau(patience=1.5), "patience is a whole number of 0 or more, got 1.5"),  # type: ignore[arg-type]
        (lambda: ReduceLROnPlateau(mode="large"), "no mode='large'; choose from auto, min, max"),
        (lambda: ModelCheckpoint("x", save_freq=5), "has no save_freq: leave it out: it saves after epochs"),  # type: ignore[call-arg]
        (lambda: ModelCheckpoint("x", save_top_k=2), r"save_top_k=2 keeps several files, and 'x' names one"),
        (lambda: ModelCheckpoint("{epoch}", save_top_k=0), "save_top_k is a whole number of 1"),
        (lambda: CSVLogger("x", separator=", "), "separator is one character, got ', '"),
        (lambda: EarlyStopping(mode="up"), "EarlyStopping: no mode='up'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()
