"""The training loop with fake strategies: stops, calls of the replica, results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import Dataset
from nbdist.distribute.central import CentralStorageStrategy
from nbdist.errors import AbortedError, InvalidArgumentError, NanLossError
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.store import columns_from_logs
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD
from nbdist.runtime.ps.client import StepStopped
from nbdist.train import Callback, EarlyStopping
from nbdist.train import context as contexts
from nbdist.train.callbacks import History
from nbdist.train.capabilities import Overlap, Programs
from nbdist.train.context import Context, get_strategy
from nbdist.train.loop import SYNCHRONOUS_STEPS
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.options import TrainingOptions
from nbdist.train.replica import Replica, itself
from nbdist.train.step_timing import StepLog
from nbdist.train.strategy import Strategy
from nbdist.train.trainable import ProgramSpec

Array = np.ndarray[Any, Any]


class Watched(OneDeviceReplica):
    """A replica on one device that records its calls and stops on request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: list[str] = []
        self.stop_at_pull: int | None = None
        self.pulls = 0
        self.notes = ["parameters travel by pigeon"]

    def pull(self) -> None:
        self.pulls += 1
        self.calls.append("pull")
        if self.pulls == self.stop_at_pull:
            raise StepStopped
        self.report.staleness = self.pulls % 3

    def push(self) -> None:
        self.calls.append("push")
        super().push()

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        self.calls.append("close")


class WatchedStrategy(Strategy):
    name = "watched"
    stop_at_pull: int | None = None

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Any) -> Replica:
        self.made = Watched(variables, optimizer)
        self.made.stop_at_pull = self.stop_at_pull
        return self.made


def model() -> Sequential:
    made = Sequential([Dense(2, activation="softmax")], seed=1)
    made.compile(SGD(0.1), "sparse_categorical_crossentropy", ["accuracy"])
    return made


def data(rows: int = 20, size: int = 5) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset.from_arrays(rng.normal(size=(rows, 3)).astype(np.float32), np.arange(rows) % 2).batch(size)


@pytest.fixture
def strategy() -> WatchedStrategy:
    return WatchedStrategy()


@pytest.fixture
def context(strategy: WatchedStrategy) -> Any:
    with contexts.use(Context(strategy=strategy, quiet=True)) as context:
        yield context


def test_a_step_calls_pull_and_push_and_the_end_finish_and_close(
    strategy: WatchedStrategy, context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    history = model().fit(data(), epochs=2)
    assert strategy.made.calls == ["pull", "push"] * 8 + ["finish", "close"]
    assert history.global_step == context.progress.global_step == 8
    assert (context.progress.step, context.progress.total, context.progress.examples) == (8, 8, 40)
    assert context.progress.state == "waiting for the others"
    assert capsys.readouterr().out == "parameters travel by pigeon\n"
    assert context.last_epoch == {name: values[-1] for name, values in history.history.items()}


def test_the_runs_epochs_override_fit_and_steps_continue_in_a_second_training(context: Context) -> None:
    context.options = TrainingOptions(epochs=3)
    one = model()
    assert one.fit(data(), epochs=1).epoch == [0, 1, 2]
    one.fit(data(), epochs=7)
    assert context.trainings == 2
    assert context.progress.step == context.progress.total == 24


def test_a_stopped_training_keeps_the_weights(strategy: WatchedStrategy, context: Context) -> None:
    class Stop(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            context.control.stop_requested = epoch == 1

    one = model().build((3,))
    before = one.get_weights()[0]
    history = one.fit(data(), epochs=50, callbacks=[Stop()])
    assert history.epoch == [0, 1]
    assert strategy.made.calls[-2:] == ["finish", "close"]
    assert not np.array_equal(one.weights[0], before)


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_step_that_cannot_complete_ends_the_training(
    strategy: WatchedStrategy, context: Context, at: int
) -> None:
    strategy.stop_at_pull = at
    history = model().fit(data(), epochs=5)
    assert strategy.made.calls.count("push") == at - 1
    assert strategy.made.calls[-3:] == ["pull", "finish", "close"]
    assert history.global_step == at - 1
    assert len(history.epoch) == (at > 1)


def test_a_stop_before_the_chiefs_validation(strategy: WatchedStrategy, context: Context) -> None:
    """Another replica ended after the epoch's last step: a stop, not a failure."""
    strategy.stop_at_pull = 5
    history = model().fit(data(), epochs=5, validation_data=data(), callbacks=[EarlyStopping()])
    assert sorted(history.history) == ["accuracy", "loss"]
    assert strategy.made.calls[-3:] == ["pull", "finish", "close"]


def test_a_stop_inside_an_epoch_does_not_confuse_early_stopping(
    strategy: WatchedStrategy, context: Context
) -> None:
    strategy.stop_at_pull = 8  # four steps and a validation, then two steps of the second epoch
    history = model().fit(data(), epochs=5, validation_data=data(), callbacks=[EarlyStopping(patience=9)])
    assert len(history["loss"]) == 2
    assert len(history["val_loss"]) == 1


def test_an_aborted_run_raises_and_closes(strategy: WatchedStrategy, context: Context) -> None:
    context.control.aborted = "run r was aborted: /job:worker/task:1 failed"
    with pytest.raises(AbortedError, match="task:1 failed"):
        model().fit(data())
    assert strategy.made.calls == ["close"]


def test_a_failing_training_closes_and_keeps_the_weights(strategy: WatchedStrategy, context: Context) -> None:
    class Broken(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            raise KeyError("mine")

    one = model().build((3,))
    before = one.get_weights()[0]
    with pytest.raises(KeyError, match="mine"):
        one.fit(data(), callbacks=[Broken()])
    assert strategy.made.calls[-1] == "close"
    assert not np.array_equal(one.weights[0], before)


def test_nan_is_not_pushed(strategy: WatchedStrategy, context: Context) -> None:
    x = np.ones((10, 3), np.float32)
    x[7] = np.inf
    with pytest.raises(NanLossError, match="NaN at step 2"):
        model().fit(Dataset.from_arrays(x, np.zeros(10, int)).batch(5))
    assert strategy.made.calls == ["pull", "push", "pull", "close"]


def test_every_point_is_recorded(strategy: WatchedStrategy, context: Context, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    context.recorder = Recorder(tmp_path / "metrics-0000.log", replica=0)
    one = model()
    history = one.fit(data(), epochs=2, validation_data=data())
    context.recorder.close()
    points = columns_from_logs(tmp_path)

    def series(name: str) -> tuple[list[int], list[float]]:
        chosen = points["series"] == name
        return points["step"][chosen].tolist(), points["value"][chosen].tolist()

    assert sorted(set(points["series"])) == [
        "accuracy", "epoch begins", "learning rate", "loss", "staleness", "step_ms", "val_accuracy",
        "val_loss",
    ]  # fmt: skip
    assert series("epoch begins") == ([0, 4], [1.0, 2.0])
    assert series("loss")[0] == series("accuracy")[0] == series("staleness")[0] == list(range(1, 9))
    assert series("val_loss") == ([4, 8], pytest.approx(history["val_loss"]))
    assert np.mean(series("loss")[1][4:]) == pytest.approx(history["loss"][1])
    assert min(series("step_ms")[1]) > 0


def test_only_the_chief_validates(strategy: WatchedStrategy, context: Context) -> None:
    context.is_chief = False
    history = model().fit(data(), validation_data=data(), callbacks=[EarlyStopping("val_loss")])
    assert sorted(history.history) == ["accuracy", "loss"]
    with pytest.raises(InvalidArgumentError, match="watches 'speed'"):
        model().fit(data(), callbacks=[EarlyStopping("speed")])


def test_the_seed_of_a_run_fixes_orders_and_weights() -> None:
    def train(seed: int | None) -> tuple[list[Array], dict[str, list[float]]]:
        with contexts.use(Context(seed=seed, quiet=True)):
            one = Sequential([Dense(2, activation="softmax")])
            one.compile(SGD(0.1), "sparse_categorical_crossentropy")
            x = np.random.default_rng(0).normal(size=(20, 3))
            first = one.fit(x, np.arange(20) % 2, batch_size=3, epochs=2)
            second = one.fit(x, np.arange(20) % 2, batch_size=3)
            return one.get_weights(), {"loss": [*first["loss"], *second["loss"]]}

    (w1, h1), (w2, h2), (w3, h3) = train(4), train(4), train(5)
    np.testing.assert_array_equal(w1[0], w2[0])
    assert h1 == h2 != h3
    assert not np.array_equal(w1[0], w3[0])


def test_without_a_run_every_training_counts_from_zero(capsys: pytest.CaptureFixture[str]) -> None:
    one = model()
    one.fit(data())
    x = np.full((5, 3), np.nan, np.float32)
    with pytest.raises(NanLossError, match="NaN at step 1;"):
        one.fit(x, np.zeros(5, int))
    assert isinstance(get_strategy(), OneDeviceStrategy)
    assert "epoch 1: loss " in capsys.readouterr().out


@pytest.mark.parametrize("devices", [1, 2])
def test_a_loss_of_a_share_says_so_where_it_is_read(devices: int, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = CentralStorageStrategy(["CPU:0"] * devices)
    with strategy.scope():
        history = model().fit(data())
    share = "replica 0's share of each batch" if devices > 1 else ""
    assert (history.share, History.from_config(history.to_config()).share) == (share, share)
    printed = capsys.readouterr().out.splitlines()[-1]
    for shown in (repr(history).removesuffix(">"), printed):
        assert shown.endswith(f" (of {share})") if share else "share" not in shown


@given(size=st.integers(0, 300), replicas=st.integers(1, 9))
def test_shares_add_up_and_differ_by_at_most_one(size: int, replicas: int) -> None:
    strategy, rows = WatchedStrategy(), np.arange(size)
    strategy.num_replicas_in_sync = replicas
    parts = []
    for strategy.replica_index in range(replicas):
        parts.append(rows[strategy.share(size)])
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == max(lengths)


def test_a_replica_sees_its_share_of_each_batch_and_the_size_of_all() -> None:
    strategy = WatchedStrategy()
    strategy.num_replicas_in_sync, strategy.replica_index = 2, 1
    seen = [(arrays[0].tolist(), size) for arrays, size in strategy.batches(Dataset.range(9).batch(2))]
    assert seen == [([1], 2), ([3], 2), ([5], 2), ([7], 2), ([], 1)]
    strategy.replica_index = 0
    seen = [(arrays[0].tolist(), size) for arrays, size in strategy.batches(Dataset.range(9).batch(2))]
    assert seen[-1] == ([8], 1)  # the chief always has examples


# Callbacks and histories.


def stops_after(stop: EarlyStopping, values: list[float]) -> int:
    """Return the number of epochs after which a callback ends a training; 0 for never."""
    stop.on_train_begin()
    for epoch, value in enumerate(values):
        stop.on_epoch_end(epoch, {stop.monitor: value})
        if stop.stop_training:
            return epoch + 1
    return 0


@pytest.mark.parametrize(
    ("stop", "values", "expected"),
    [
        (EarlyStopping(), [3, 2, 1, 0.5], 0),
        (EarlyStopping(), [3, 2, 2], 3),
        (EarlyStopping(patience=1), [3, 2, 2], 3),
        (EarlyStopping(patience=2), [3, 2, 2, 2], 4),
        (EarlyStopping(patience=2), [3, 2, 2.5, 1.9, 2, 2], 6),
        (EarlyStopping(min_delta=0.5), [3, 2, 1.8], 3),
        (EarlyStopping("val_accuracy", patience=1), [0.1, 0.2, 0.3, 0.3], 4),
        (EarlyStopping("loss", patience=1), [float("nan"), float("nan")], 1),
    ],
)
def test_early_stopping_waits_for_its_patience(
    stop: EarlyStopping, values: list[float], expected: int
) -> None:
    assert stops_after(stop, values) == expected
    assert stops_after(stop, values) == expected  # a new training resets it


def test_a_callback_has_methods_for_trainings_and_epochs_only() -> None:
    class Rates(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_epoch_begin(self, epoch: int) -> None:
            self.seen.append(epoch)
            contexts.current().control.set_rate_of_fit(0.5)

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            logs["epochs"] = epoch + 1
            self.seen.append(contexts.current().progress.learning_rate)
            contexts.current().control.set_rate_of_fit(0.25)

    class Misspelt(Callback):
        def on_epochs_end(self, epoch: int, logs: dict[str, float]) -> None: ...

    model, rates = Sequential([Dense(1)], seed=0), Rates()
    model.compile(SGD(0.1), "mse")
    x = np.ones((8, 2), np.float32)
    with contexts.use(Context(OneDeviceStrategy())) as context:
        history = model.fit(x, x[:, :1], epochs=2, callbacks=[rates])
        assert rates.seen == [0, 0.5, 1, 0.5]
        assert history["epochs"] == [1, 2]
        model.compile(SGD(0.1), "mse")
        model.fit(x, x[:, :1])
    assert context.progress.learning_rate == 0.1  # the rate of a training ends with it
    with pytest.raises(InvalidArgumentError, match=r"Misspelt\.on_epochs_end\(\) would not.*on_epoch_end"):
        model.fit(x, x[:, :1], callbacks=[Misspelt()])


def test_a_history_is_like_keras_and_round_trips() -> None:
    history = History(metric_names=["accuracy"])
    for epoch in range(2):
        for step in range(3):
            history.step(step, 1.0 + step, (None, 0.5), None, 0.001, 8)
        history.end_epoch(epoch)
    history.end(6)
    assert history["loss"] == history.history["loss"] == [2.0, 2.0]
    assert history["accuracy"] == [0.5, 0.5]
    assert list(history) == ["loss", "accuracy"]
    assert repr(history) == "<History: 2 epochs, loss 2, accuracy 0.5>"
    again = History.from_config(history.to_config())
    assert (again.history, again.epoch, again.global_step) == (history.history, [0, 1], 6)
    assert repr(History()) == "<History: empty>"
    with pytest.raises(InvalidArgumentError, match="patience must be 0 or more"):
        EarlyStopping(patience=-1)


def test_contexts_nest() -> None:
    outer, inner = Context(), Context()
    with contexts.use(outer):
        with contexts.use(inner):
            assert contexts.current() is inner
        assert contexts.current() is outer
        with pytest.raises(ZeroDivisionError), contexts.use(inner):
            1 / 0  # noqa: B018
        assert contexts.current() is outer


def test_an_infinite_loss_is_reported() -> None:
    model = Sequential([Dense(1, kernel_initializer="ones")])
    model.compile(SGD(0.1), "mean_squared_error")
    with pytest.raises(NanLossError, match="the loss is infinite at step 1; that gradient was not applied"):
        model.fit(np.full((4, 2), 1e30, np.float32), np.zeros((4, 1), np.float32))


def test_a_ragged_last_batch_counts_by_its_examples() -> None:
    x, y = np.zeros((5, 2), np.float32), np.array([[0.0], [0.0], [0.0], [0.0], [10.0]], np.float32)
    model = Sequential([Dense(1, kernel_initializer="zeros")])
    model.compile(SGD(0.0), "mean_squared_error")
    history = model.fit(Dataset.from_arrays(x, y).batch(4))
    assert history["loss"] == pytest.approx([100 / 5])


def test_the_parts_of_a_step_add_up_to_its_time() -> None:
    model = Sequential([Dense(2, "softmax")])
    model.compile(SGD(0.1), "sparse_categorical_crossentropy")
    context = Context(quiet=True)
    with contexts.use(context):
        model.fit(np.eye(4, dtype=np.float32), np.arange(4) % 2, epochs=3)
    spent = context.progress.spent
    assert list(spent) == ["data", "compute", "exchange", "wait"]
    assert spent["compute"] > 0
    assert spent["data"] > 0
    assert spent["wait"] == 0  # one device never waits


class Late(Watched, Overlap, Programs):
    """A replica whose steps are read when the next one has begun, as those that XLA makes."""

    overlap = programs = itself
    on_begin: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made: list[list[Array]] = []

    def program(self, model: Any, shapes: tuple[tuple[int, ...], ...]) -> Any:
        program = model.training_program(ProgramSpec(shapes, self.values))

        def run(*arrays: Array) -> Sequence[Array]:
            self.calls.append("begin")
            if self.on_begin is not None:
                self.on_begin(self.calls.count("begin"))
            found = program(*arrays)
            self.made.append([gradient.copy() for gradient in self.gradients()])
            return found

        return run

    def read_results(self, values: Sequence[Array]) -> Sequence[Array]:
        self.calls.append("read")
        for gradient, own in zip(self.gradients(), self.made.pop(0), strict=True):
            np.copyto(gradient, own)
        return values

    def is_ready(self, values: Sequence[Array]) -> bool:
        return False

    def interrupt(self) -> None:
        """Do nothing: its program returns when all is computed."""

    def pull(self) -> None:
        self.pulls += 1


class LateStrategy(Strategy):
    name = "late"

    def __init__(self, on_begin: Any = None) -> None:
        super().__init__()
        self.on_begin = on_begin

    def replica(self, variables: Sequence[tuple[str, Array]], optimizer: Any) -> Replica:
        self.made = Late(variables, optimizer)
        self.made.on_begin = self.on_begin
        return self.made


def test_a_step_is_read_when_the_next_one_has_begun() -> None:
    strategy = LateStrategy()
    with contexts.use(Context(strategy=strategy, quiet=True)) as context:
        history = model().fit(data(), epochs=2)
    at_once, epoch = ["begin", "read", "push"], ["begin", "begin", "read", "push", "read", "push"]
    epoch = [*at_once * SYNCHRONOUS_STEPS, *epoch]
    assert strategy.made.calls == [*epoch, *epoch, "finish", "close"]
    assert history.global_step == context.progress.step == 8
    assert context.progress.examples == 40


def test_the_step_under_way_is_read_before_a_training_stops() -> None:
    def on_begin(number: int) -> None:
        context.control.stop_requested = number == 4

    strategy = LateStrategy(on_begin=on_begin)
    with contexts.use(Context(strategy=strategy, quiet=True)) as context:
        history = model().fit(data(40))
    assert strategy.made.calls[-5:] == ["push", "read", "push", "finish", "close"]
    assert history.global_step == context.progress.step == strategy.made.calls.count("begin") == 4


@pytest.mark.parametrize("skips", [False, True])
def test_a_loss_that_is_not_finite_belongs_to_its_own_step(
    skips: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.ones((20, 3), np.float32)
    x[13] = np.nan
    batches = Dataset.from_arrays(x, np.arange(20) % 2).batch(5)
    with contexts.use(Context(strategy=LateStrategy(), quiet=True)) as context:
        if skips:
            assert model().fit(batches, nan="skip").global_step == 3
        else:
            with pytest.raises(NanLossError, match="at step 3;"):
                model().fit(batches)
    assert context.progress.step == (4 if skips else 2)
    assert ("step 3: " in capsys.readouterr().out) == skips


def test_a_device_that_computes_does_not_wait_for_batches() -> None:
    context = Context(strategy=LateStrategy(), quiet=True)
    context.step_log = StepLog("CPU:0")
    with contexts.use(context):
        model().fit(data(30))
    waits = {span.step for span in context.step_log.spans("task") if span.kind == "data"}
    assert waits == {1, 2, 3}


@pytest.mark.parametrize("fails", ["data", "abort", ""])
def test_a_step_in_flight_is_counted_before_an_error(fails: str) -> None:
    def on_begin(number: int) -> None:
        if fails == "abort" and number == 5:
            context.control.aborted = "another replica failed"

    def batches() -> Iterator[tuple[Array, Array]]:
        for number in range(8):
            if fails == "data" and number == 5:
                raise ValueError("no such file")
            yield np.ones((5, 3), np.float32), np.zeros(5, np.int64)

    strategy = LateStrategy(on_begin=on_begin)
    with contexts.use(Context(strategy=strategy, quiet=True)) as context:
        if not fails:
            model().fit(Dataset.from_generator(batches))
        else:
            with pytest.raises((ValueError, AbortedError)):
                model().fit(Dataset.from_generator(batches))
    assert context.progress.step == strategy.made.calls.count("begin") == (8 if not fails else 5)
    assert strategy.made.calls.count("push") == strategy.made.calls.count("begin")
