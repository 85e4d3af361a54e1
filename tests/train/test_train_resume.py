"""A stopped and continued training equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from examples import examples
from fake_cupy import FakeCupy
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import matrix

from nbdist import nn
from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy, Strategy
from nbdist.errors import AbortedError, DataLossError, InvalidArgumentError, NotFoundError
from nbdist.graph import backend
from nbdist.metrics.names import EPOCH, LEARNING_RATE
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import columns_from_logs
from nbdist.nn import BatchNorm, Conv2D, Dense, Dropout, Flatten, LayerNorm, Sequential
from nbdist.optim import SGD, Adagrad, Adam, AdamW, LossScaleOptimizer, Optimizer, RMSprop
from nbdist.optim.schedules import CosineDecay
from nbdist.train import Callback, EarlyStopping
from nbdist.train.context import Context, current, use_here
from nbdist.train.logging import log
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.options import TrainingOptions
from nbdist.train.resume import DataCursor, EpochBatches, TrainingStates, difference, read_saved

ROWS = 20
x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
y = np.arange(ROWS) % 3

OPTIMIZERS: list[Callable[[], Optimizer]] = [
    lambda: SGD(0.1),
    lambda: SGD(0.05, momentum=0.9),
    lambda: SGD(0.05, momentum=0.9, nesterov=True),
    lambda: Adam(0.01),
    lambda: Adam(0.01, amsgrad=True),
    lambda: AdamW(0.01, weight_decay=0.1),
    lambda: RMSprop(0.01, momentum=0.5, centered=True),
    lambda: Adagrad(0.05),
    lambda: SGD(CosineDecay(0.0, 9, warmup_target=0.3, warmup_steps=2), momentum=0.5),
    lambda: Adam(0.01, gradient_accumulation_steps=2, clipnorm=0.1),
]
LAYERS: dict[str, Callable[[], list[nn.Layer]]] = {
    "dense": lambda: [Dense(5, "tanh")],
    "dropout": lambda: [Dense(7, "relu"), Dropout(0.4)],
    "norms": lambda: [Dense(7), BatchNorm(), LayerNorm()],
    "images": lambda: [nn.Reshape((2, 3, 1)), Conv2D(3, 2), Flatten(), Dropout(0.2)],
}
DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {"data": x, "y": y, "batch_size": 6},
    "finite": lambda: {"data": Dataset.from_arrays(x, y).shuffle(7).batch(6)},
    "in order": lambda: {"data": Dataset.from_arrays(x, y).batch(6)},
    "cut": lambda: {"data": Dataset.from_arrays(x, y).shuffle(99).batch(3), "steps_per_epoch": 4},
    "endless": lambda: {
        "data": Dataset.from_arrays(x, y).shuffle(8).repeat().batch(6),
        "steps_per_epoch": 4,
    },
    "fetched ahead": lambda: {
        "data": Dataset.from_arrays(x, y).shuffle(8, seed=3).repeat(2).batch(10).map(scaled).prefetch(2)
    },
    "fetched ahead by fit": lambda: {
        "data": Dataset.from_arrays(x, y).shuffle(8, seed=3).repeat(2).batch(6).map(scaled),
        "steps_per_epoch": 3,  # of 4 of the first repetition: the second shuffle is opened ahead
    },
    "tuned": lambda: {
        "data": Dataset.from_arrays(x, y).shuffle(8).map(scaled, "auto").batch(6).prefetch("auto")
    },
    "shuffled twice a pass": lambda: {
        "data": (rows := Dataset.from_arrays(x, y).shuffle(9).batch(6)).concatenate(rows),
        "steps_per_epoch": 3,
    },
    "repeated within": lambda: {
        "data": Dataset.from_arrays(x, y)
        .shuffle(7)
        .repeat(2)
        .concatenate(Dataset.from_arrays(x, y))
        .batch(9),
        "steps_per_epoch": 4,
    },
    "generated": lambda: {"data": Dataset.from_generator(lambda: zip(x, y)).shuffle(9).batch(5)},
}


def scaled(a: Any, b: Any) -> Any:
    return a * np.float32(0.5), b


class Stopping(OneDeviceReplica):
    """One device that requests a stop after a given total number of steps."""

    at: int | None = None
    context: Context

    def after_step(self) -> None:
        if self.context.progress.step + 1 == self.at:
            self.context.control.stop_requested = True


class StoppingStrategy(OneDeviceStrategy):
    """Creates replicas that stop."""

    at: int | None = None
    context: Context

    def replica(self, variables: Any, optimizer: Optimizer) -> OneDeviceReplica:
        made = Stopping(variables, optimizer)
        made.at, made.context = self.at, self.context
        return made


class Ended(NamedTuple):
    """The results of a body."""

    model: Sequential
    history: dict[str, list[float]]
    points: dict[str, dict[int, float]]
    context: Context


class Bench:
    """Runs a body in a new context each time, like the attempts of a trial."""

    def __init__(
        self, folder: Path, strategy: Callable[[], Strategy] = StoppingStrategy, device: str = "CPU:0"
    ) -> None:
        self.folder, self._strategy, self._device, self._count = folder, strategy, device, 0

    def run(
        self,
        body: Callable[[], tuple[Sequential, Any]],
        stop: int | None = None,
        read: Path | None = None,
        seed: int | None = 5,
        epochs: int | None = None,
    ) -> Ended:
        self._count += 1
        own = self.folder / str(self._count)
        own.mkdir(parents=True)
        recorder = Recorder(own / "metrics-0000.log", replica=0)
        strategy = self._strategy()
        states = TrainingStates(write=own / "state.safetensors", read=read)
        context = Context(
            strategy=strategy,
            recorder=recorder,
            seed=seed,
            quiet=True,
            states=states,
            options=TrainingOptions(epochs=epochs),
            device=self._device,
        )
        if isinstance(strategy, StoppingStrategy):
            strategy.at, strategy.context = stop, context
        with use_here(context):
            model, history = body()
        recorder.close()
        columns = columns_from_logs(own)
        points: dict[str, dict[int, float]] = {}
        for name, step, value in zip(columns["series"], columns["step"], columns["value"], strict=True):
            if name not in ("step_ms", "epoch begins"):  # the first differs, the second is of whole epochs
                points.setdefault(str(name), {})[int(step)] = float(value)
        return Ended(model, history.history, points, context)

    @property
    def state(self) -> Path:
        """The state file of the last run."""
        return self.folder / str(self._count) / "state.safetensors"

    def check(self, body: Callable[[int], Any], epochs: int, stop: int, **options: Any) -> Ended:
        """Train without a stop, and in two parts; check that both are equal. Return the second part."""
        whole = self.run(lambda: body(epochs), **options)
        first = self.run(lambda: body(epochs), stop=stop, **options)
        assert first.context.progress.step == stop
        second = self.run(lambda: body(epochs), read=self.state, **options)
        same(whole, first, second)
        return second


def same(whole: Ended, first: Ended, second: Ended) -> None:
    for a, b in zip(whole.model.get_weights(), second.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert repr(second.history) == repr(whole.history)  # NaN too
    for name in whole.points.keys() - {EPOCH, LEARNING_RATE}:  # these are also recorded where one begins
        points = whole.points[name]
        parts = first.points.get(name, {}), second.points.get(name, {})
        assert not set(parts[0]) & set(parts[1])
        assert repr(sorted((parts[0] | parts[1]).items())) == repr(sorted(points.items()))
    mine, theirs = second.context.progress, whole.context.progress
    for field in ("step", "total", "examples", "global_step", "skipped", "trainings"):
        assert getattr(mine, field) == getattr(theirs, field), field
    assert second.context.last_epoch == whole.context.last_epoch or "nan" in repr(whole.context.last_epoch)


def body_of(
    layers: Callable[[], list[nn.Layer]] = LAYERS["dense"],
    optimizer: Callable[[], Optimizer] = OPTIMIZERS[3],
    data: Callable[[], dict[str, Any]] = DATA["arrays"],
    **options: Any,
) -> Callable[[int], tuple[Sequential, Any]]:
    def body(epochs: int) -> tuple[Sequential, Any]:
        model = Sequential([*layers(), Dense(3, "softmax")])
        model.compile(optimizer(), "sparse_categorical_crossentropy", ["accuracy"])
        return model, model.fit(**data(), epochs=epochs, **options)

    return body


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("stop", matrix([6], rest=[1, 4, 8]))
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda make: repr(make()))
def test_every_optimizer_continues_from_its_state(
    bench: Bench, optimizer: Callable[[], Optimizer], stop: int
) -> None:
    """Four steps make an epoch: stops in the middle of one, and between two."""
    bench.check(body_of(optimizer=optimizer), epochs=3, stop=stop)


@pytest.mark.parametrize("stop", [2, 6])
def test_a_loss_scale_continues_from_its_state(bench: Bench, stop: int) -> None:
    def body(epochs: int) -> tuple[Sequential, Any]:
        model = Sequential([Dense(5, "relu"), Dense(3, "softmax")])
        optimizer = LossScaleOptimizer(Adam(0.01), initial_scale=2.0**24, dynamic_growth_steps=3)
        model.compile(optimizer, precision="mixed_float16")
        return model, model.fit(**DATA["arrays"](), epochs=epochs)

    second = bench.check(body, epochs=4, stop=stop)
    assert second.context.progress.skipped > 2
    state = read_saved(bench.state).state
    assert state.loss_scale == [second.model.loss_scale, state.loss_scale and state.loss_scale[1]]


@pytest.mark.parametrize("stop", matrix([3], rest=[4]))
@pytest.mark.parametrize("layers", LAYERS)
def test_dropout_and_batchnorm_continue_from_their_state(bench: Bench, layers: str, stop: int) -> None:
    bench.check(body_of(LAYERS[layers], validation_data=(x[:7], y[:7])), epochs=3, stop=stop)


FIRST = [
    *((data, 7, 5) for data in DATA),
    *((data, 4, 5) for data in ("arrays", "endless", "fetched ahead by fit", "tuned")),  # between epochs
    *((data, 2, None) for data in ("arrays", "endless", "generated")),
]
ALL = [(data, stop, seed) for data in DATA for stop in (2, 4, 7) for seed in (5, None)]


@pytest.mark.parametrize(
    ("data", "stop", "seed"), matrix(FIRST, rest=[one for one in ALL if one not in FIRST])
)
def test_the_same_batches_follow(bench: Bench, data: str, stop: int, seed: int | None) -> None:
    """Without a seed runs differ, unless the model and the data have seeds."""
    if seed is not None:
        bench.check(body_of(data=DATA[data]), epochs=3, stop=stop)
        return
    first = bench.run(lambda: body_of(LAYERS["dropout"], data=DATA[data])(3), stop=stop, seed=None)
    ends = []
    for _ in range(2):
        ends.append(
            bench.run(
                lambda: body_of(LAYERS["dropout"], data=DATA[data])(3),
                read=bench.folder / "1" / "state.safetensors",
                seed=None,
            )
        )
    same(ends[0]._replace(points={}), first, ends[1])


@settings(max_examples=examples(25))
@given(
    epochs=st.integers(1, 4),
    part=st.floats(0, 1),
    again=st.floats(0, 1),
    batch=st.integers(1, 9),
    shuffle=st.sampled_from([None, 1, 5, 50]),
    endless=st.booleans(),
)
def test_stops_at_any_steps(
    tmp_path_factory: pytest.TempPathFactory,
    epochs: int,
    part: float,
    again: float,
    batch: int,
    shuffle: int | None,
    endless: bool,
) -> None:
    """Two stops at any steps do not change the result."""
    bench = Bench(tmp_path_factory.mktemp("cut"))

    def data() -> dict[str, Any]:
        rows = Dataset.from_arrays(x, y) if shuffle is None else Dataset.from_arrays(x, y).shuffle(shuffle)
        rows = rows.repeat() if endless else rows
        return {"data": rows.batch(batch), "steps_per_epoch": 3 if endless else None}

    body = body_of(LAYERS["dropout"], OPTIMIZERS[3], data)
    whole = bench.run(lambda: body(epochs))
    steps = whole.context.progress.step
    first_stop = 1 + round(part * (steps - 1))
    second_stop = first_stop + round(again * (steps - first_stop))
    first = bench.run(lambda: body(epochs), stop=first_stop)
    second = bench.run(lambda: body(epochs), stop=second_stop, read=bench.state)
    third = bench.run(lambda: body(epochs), read=bench.state)
    joined = {n: first.points.get(n, {}) | second.points.get(n, {}) for n in whole.points}
    same(whole, first._replace(points=joined), third)


def test_five_epochs_and_five_more_are_ten(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    body = body_of(LAYERS["norms"], OPTIMIZERS[1], validation_data=(x, y))
    whole = bench.run(lambda: body(10))
    first = bench.run(lambda: body(5))
    second = bench.run(lambda: body(10), read=bench.state)
    same(whole, first, second)
    assert second.context.progress.total == 40
    assert "training continues after step 20, in epoch 6\n" in capsys.readouterr().out


def test_updates_that_are_counted_late_are_not_lost(tmp_path: Path) -> None:
    class Late(Stopping):
        """Learns of its last update a moment later, as from a server."""

        made, late = 0, False

        @property  # type: ignore[override]
        def global_step(self) -> int:
            late, self.late = self.late, False
            return self.made - late

        @global_step.setter
        def global_step(self, value: int) -> None:
            self.made = value

        def push(self) -> None:
            super().push()
            self.late = True

    class LateStrategy(StoppingStrategy):
        keeps_slots = False

        def replica(self, variables: Any, optimizer: Optimizer) -> OneDeviceReplica:
            made = Late(variables, optimizer)
            made.at, made.context = self.at, self.context
            return made

    bench = Bench(tmp_path, LateStrategy)
    made = bench.run(lambda: body_of()(2)).context.progress.global_step
    state = read_saved(bench.state).state
    assert (state.updates_before, state.updates) == (0, made)


def test_the_epochs_of_the_run_count_too(bench: Bench) -> None:
    whole = bench.run(lambda: body_of()(1), epochs=4)
    first = bench.run(lambda: body_of()(1), epochs=2)
    same(whole, first, bench.run(lambda: body_of()(1), read=bench.state, epochs=4))


@pytest.mark.parametrize("epochs", [2, 1])
def test_after_all_epochs_nothing_is_trained(
    bench: Bench, capsys: pytest.CaptureFixture[str], epochs: int
) -> None:
    first = bench.run(lambda: body_of()(2))
    left = read_saved(bench.state).state
    second = bench.run(lambda: body_of()(epochs), read=bench.state)
    same(first, first, second._replace(points={}))
    assert second.points.keys() <= {LEARNING_RATE}  # that it begins with
    assert f"all {epochs} epochs are over: the training ended after step 8" in capsys.readouterr().out
    assert read_saved(bench.state).state == left, "the state is left once more"


def test_a_callback_that_ends_a_training_leaves_a_state(bench: Bench) -> None:
    def body(patience: int) -> tuple[Sequential, Any]:
        stopper = EarlyStopping("accuracy", patience=patience, min_delta=2.0)
        return body_of(callbacks=[stopper])(6)

    whole, first = bench.run(lambda: body(9)), bench.run(lambda: body(1))
    assert len(first.history["loss"]) == 2
    same(whole, first, bench.run(lambda: body(9), read=bench.state))


def test_a_stop_asked_for_between_epochs(bench: Bench) -> None:
    class Stop(Callback):
        def __init__(self, on: bool) -> None:
            self.on = on

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if self.on and epoch == 1:
                current().control.stop_requested = True

    def body(on: bool) -> tuple[Sequential, Any]:
        return body_of(LAYERS["dropout"], validation_data=(x, y), callbacks=[Stop(on)])(4)

    whole, first = bench.run(lambda: body(False)), bench.run(lambda: body(True))
    assert read_saved(bench.state).state.place == DataCursor(2, 0, (2,))
    same(whole, first, bench.run(lambda: body(False), read=bench.state))


def test_a_log_in_a_callback_does_not_end_fit_before_its_state(bench: Bench) -> None:
    """A stopping trial ends at its next ``nb.log``; inside fit it ends after the step."""

    class Log(Callback):
        def __init__(self, stops: bool) -> None:
            self.stops = stops

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            current().ends_in_log = True
            current().control.stop_requested = self.stops and epoch == 1
            log(twice=2 * logs["loss"])

    def body(stops: bool) -> tuple[Sequential, Any]:
        made = body_of(callbacks=[Log(stops)])(4)
        if stops:
            with pytest.raises(AbortedError, match="asked to stop"):
                log(afterwards=1)
        return made

    whole, first = bench.run(lambda: body(False)), bench.run(lambda: body(True))
    same(whole, first, bench.run(lambda: body(False), read=bench.state))
    assert sorted(first.points["twice"]) == [4, 8]


def test_a_learning_rate_changed_by_a_callback_is_kept(bench: Bench) -> None:
    """A callback changes the rate here, the control below; a new rate in the model is a wanted change."""

    class Halve(Callback):
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            self.optimizer.learning_rate /= 2

    def body(epochs: int, rate: float = 0.1) -> tuple[Sequential, Any]:
        optimizer = Adam(rate)
        return body_of(optimizer=lambda: optimizer, callbacks=[Halve(optimizer)])(epochs)

    second = bench.check(body, epochs=4, stop=10)
    assert second.context.progress.learning_rate == 0.1 / 8
    bench.run(lambda: body(4), stop=10)
    other = bench.run(lambda: body(4, 0.3), read=bench.state)
    assert other.context.progress.learning_rate == 0.3 / 2


def test_a_learning_rate_set_by_the_control_is_kept(bench: Bench) -> None:
    def body(epochs: int, rate: float | None = None) -> tuple[Sequential, Any]:
        if rate is not None:
            current().control.set_rate(rate)
        return body_of()(epochs)

    whole = bench.run(lambda: body(3, 0.2))
    first = bench.run(lambda: body(3, 0.2), stop=5)
    same(whole, first, bench.run(lambda: body(3), read=bench.state))


def test_steps_with_nan_are_skipped_again(bench: Bench) -> None:
    holed = x.copy()
    holed[[2, 11, 17]] = np.nan

    def data() -> dict[str, Any]:
        return {"data": Dataset.from_arrays(holed, y).shuffle(20).batch(2)}

    body = body_of(LAYERS["norms"], OPTIMIZERS[3], data, nan="skip")
    for stop in (9, 15):
        second = bench.check(body, epochs=3, stop=stop)
        assert second.context.progress.skipped >= 6


def test_the_stopped_training_continues_and_others_are_repeated(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first training is repeated and writes no state; the third had no step and starts anew."""
    seen: list[int] = []

    def body() -> tuple[Sequential, Any]:
        model, _ = body_of(LAYERS["dropout"])(2)
        seen.append(len(list(tmp_path.glob("*/state.safetensors"))))
        for batch_size in (5, 4):
            history = model.fit(x, y, batch_size=batch_size, epochs=3)
        return model, history

    def late(ended: Ended) -> Ended:  # the first training's points are there twice
        points = {n: {s: v for s, v in p.items() if s > 8} for n, p in ended.points.items()}
        return ended._replace(points=points)

    whole, first = bench.run(body), bench.run(body, stop=8 + 5)
    state = read_saved(bench.state).state
    assert (state.training, state.step, state.place) == (2, 13, DataCursor(1, 1, (1,)))
    assert "later part of the body" not in capsys.readouterr().out
    second = bench.run(body, read=bench.state)
    assert (
        capsys.readouterr().out.count("a later part of the body than this fit, whose steps are made again")
        == 1
    )
    same(late(whole), late(first), late(second))
    assert seen == [1, 2, 2], "none while the state that is continued is further"
    states = second.context.states
    assert states is not None
    assert (states.awaited, read_saved(bench.state).state.training) == (2, 3)


def test_a_stop_before_a_training_keeps_the_state(bench: Bench) -> None:
    bench.run(lambda: body_of()(2), stop=3)
    earlier = bench.state

    def body() -> tuple[Sequential, Any]:
        current().control.stop_requested = True
        return body_of()(2)

    bench.run(body, read=earlier)
    assert not bench.state.exists()


def test_one_file_may_be_read_and_written(bench: Bench, tmp_path: Path) -> None:
    whole = bench.run(lambda: body_of()(4))
    context: Context | None = None
    for stop in (3, 4, 9, None):
        path = tmp_path / "state.safetensors"
        strategy = StoppingStrategy()
        context = Context(strategy=strategy, seed=5, quiet=True)
        context.states = TrainingStates(write=path, read=path if path.exists() else None)
        strategy.at, strategy.context = stop, context
        with use_here(context):
            model, history = body_of()(4)
    assert history.history == whole.history
    for a, b in zip(whole.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_state_is_a_model_that_can_be_loaded(bench: Bench) -> None:
    ended = bench.run(lambda: body_of(LAYERS["norms"], OPTIMIZERS[4])(2), stop=6)
    model = nn.load(bench.state)
    for a, b in zip(ended.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(model.predict(x), ended.model.predict(x))
    assert stat.S_IMODE(bench.state.stat().st_mode) == 0o600
    assert sorted(p.name for p in bench.state.parent.iterdir()) == ["metrics-0000.log", "state.safetensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": lambda: [Dense(6, "tanh")]}, r"layers\[0\].units was 5 and is 6 now"),
        ({"layers": lambda: [Dense(5, "relu")]}, r"layers\[0\].activation was 'tanh' and is 'relu'"),
        ({"layers": lambda: [Dense(5, "tanh"), Dropout(0.5)]}, r"layers\[1\]"),
        ({"optimizer": OPTIMIZERS[0]}, "optimizer.name was 'Adam' and is 'SGD' now"),
        ({"optimizer": OPTIMIZERS[4]}, "optimizer.amsgrad was False and is True now"),
        ({"data": lambda: {"data": x[:18], "y": y[:18], "batch_size": 6}}, "data.rows was 20 and is 18 now"),
        ({"data": lambda: {"data": x, "y": y, "batch_size": 5}}, r"data.steps\[2\]\[1\] was 6 and is 5 now"),
        ({"steps_per_epoch": 3}, "steps_per_epoch was None and is 3 now"),
    ],
)
def test_another_training_is_refused(bench: Bench, change: dict[str, Any], message: str) -> None:
    bench.run(lambda: body_of()(2), stop=3)
    with pytest.raises(InvalidArgumentError, match=f"is the state of another training: .*{message}"):
        bench.run(lambda: body_of(**change)(2), read=bench.state)


def test_other_data_that_ends_too_early_is_refused(bench: Bench) -> None:
    def body(rows: int) -> tuple[Sequential, Any]:
        made = Dataset.from_generator(lambda: zip(x[:rows], y[:rows])).batch(5)
        return body_of(data=lambda: {"data": made})(2)

    bench.run(lambda: body(20), stop=3)
    with pytest.raises(InvalidArgumentError, match=r"ended after 1 batches, and .* had had 3"):
        bench.run(lambda: body(5), read=bench.state)


def test_a_damaged_or_foreign_file_is_refused(bench: Bench, tmp_path: Path) -> None:
    model = bench.run(lambda: body_of()(2), stop=3).model
    good = bench.state.read_bytes()
    where = good.index(b'given_rate\\": 0.') + len(b'given_rate\\": 0.')
    flipped = bytearray(good)
    flipped[-5] ^= 4
    flipped_text = bytearray(good)
    flipped_text[where] ^= 1
    path = tmp_path / "other"
    for content in (good[:-7], good[:40], b"", bytes(flipped), bytes(flipped_text), b"{}" * 99):
        path.write_bytes(content)
        with pytest.raises(DataLossError, match="is not a state of a training, or is damaged"):
            bench.run(lambda: body_of()(2), read=path)
    model.save(path)
    with pytest.raises(DataLossError, match="it says nothing of a training"):
        bench.run(lambda: body_of()(2), read=path)
    with pytest.raises(NotFoundError, match="no state of a training at"):
        bench.run(lambda: body_of()(2), read=tmp_path / "none")


def test_an_error_leaves_no_state(bench: Bench) -> None:
    class Fail(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            raise RuntimeError("of the user's own")

    with pytest.raises(RuntimeError, match="of the user's own"):
        bench.run(lambda: body_of(callbacks=[Fail()])(2))
    assert not bench.state.exists()


def test_training_continues_if_its_state_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = Context(seed=5, quiet=True)
    context.states = states = TrainingStates(write=tmp_path / "none" / "state.safetensors")
    with use_here(context):
        for _ in range(2):
            _, history = body_of()(2)
            assert len(history["loss"]) == 2
    printed = capsys.readouterr().out
    assert printed.count("what was trained could not be kept") == 1
    assert states.error is not None
    assert "No such file" in states.error
    (tmp_path / "none").mkdir()
    with use_here(context):
        body_of()(1)
    assert states.error is None
    assert read_saved(tmp_path / "none" / "state.safetensors").state.training == 3


def test_arrays_on_a_device_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are on the device, and what the optimizer keeps is on the host."""
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    bench = Bench(tmp_path, device="GPU:0")
    bench.check(body_of(LAYERS["norms"], OPTIMIZERS[3], validation_data=(x, y)), epochs=3, stop=6)


def test_mirrored_replicas_of_this_process(tmp_path: Path) -> None:
    """Two threads: each takes in the state, and only the first one writes."""
    bench = Bench(tmp_path, lambda: MirroredStrategy(["CPU:0", "CPU:0"]))

    class Stop(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            current().control.stop_requested = True

    def body(*callbacks: Callback) -> tuple[Sequential, Any]:
        layers = lambda: [*LAYERS["norms"](), Dropout(0.3)]
        return body_of(layers, validation_data=(x, y), callbacks=callbacks)(3)

    whole, first = bench.run(body), bench.run(lambda: body(Stop()))
    assert 0 < first.context.progress.step < 12
    path = bench.state
    same(whole, first, bench.run(body, read=path))
    alone = Bench(tmp_path / "other").run(body, read=path)  # the same steps, up to the order of additions
    assert alone.context.progress.step == whole.context.progress.step


class Unsaved(OneDeviceStrategy):
    """A strategy without a state, as an in-graph one."""

    name = "unsaved"
    continues = False


def test_a_strategy_without_a_state_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Unsaved)
    ended = bench.run(lambda: body_of()(1))
    assert ended.context.states is not None
    assert "leaves no state" in str(ended.context.states.error)
    assert not bench.state.exists()
    alone = Bench(tmp_path / "alone")
    alone.run(lambda: body_of()(1))
    with pytest.raises(InvalidArgumentError, match="cannot continue a training"):
        bench.run(lambda: body_of()(2), read=alone.state)


def test_the_place_between_two_passes_is_at_the_orders_of_the_next_one() -> None:
    data = Dataset.range(12).shuffle(12, seed=1).batch(4)
    batches = EpochBatches(OneDeviceStrategy(), data, None, DataCursor(), lambda: None)
    for steps, _ in enumerate(batches.next_epoch()):
        assert batches.cursor_within(steps) == DataCursor(0, steps, (0,))
    batches.end_epoch(3, whole=True)
    assert batches.cursor_within(0) == batches.cursor == DataCursor(1, 0, (1,))


def test_the_first_difference_is_reported() -> None:
    assert difference("", {"a": [1, (2, 3)]}, {"a": [1, [2, 3]]}) is None
    assert difference("", {"a": [1, 2]}, {"a": [1, 2, 3]}) == "a had 2 parts and has 3 now"
    assert difference("", {"a": 1}, {"a": 1, "b": 2}) == "b was None and is 2 now"
