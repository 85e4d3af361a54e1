"""Towers that read their batches train like fed ones, and the client sends them almost nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import exhaustive, matrix

from nbdist.data import Dataset, digits
from nbdist.distribute.in_graph.strategy import InGraphStrategy
from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.graph.ops.datasets import READS
from nbdist.nn import BatchNorm, Conv2D, Dense, Dropout, Flatten, Sequential
from nbdist.optim import SGD, Adam
from nbdist.runtime.server import Server
from nbdist.runtime.session.executor import RUN
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, use
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.strategy import Strategy
from nbdist.wire.channel.sender import MessageSender

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Array = np.ndarray[Any, Any]
Layers = Callable[[], list[Any]]
Servers = Callable[[int, int], list[Server]]


def plain() -> list[Any]:
    return [Dense(16, "tanh"), Dense(3, "softmax")]


def points(count: int = 45) -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count)


def rows(count: int = 45, batch: int = 10) -> Dataset:
    return Dataset.from_arrays(*points(count)).shuffle(100).batch(batch)


def fit(
    strategy: Strategy,
    dataset: Dataset,
    layers: Layers = plain,
    *,
    optimizer: Any = None,
    loss: str = "sparse_categorical_crossentropy",
    metrics: tuple[str, ...] = ("accuracy",),
    epochs: int = 3,
    steps: int | None = None,
    seed: int | None = 7,
    callbacks: tuple[Callback, ...] = (),
    **model_options: Any,
) -> tuple[list[Array], History]:
    with use(Context(strategy=strategy, seed=seed, quiet=True)):
        model = Sequential(layers(), **model_options)
        model.compile(optimizer or SGD(0.1), loss, metrics=list(metrics))
        history = model.fit(dataset, epochs=epochs, steps_per_epoch=steps, callbacks=callbacks)
    return model.get_weights(), history


@pytest.fixture
def strategies(servers: Servers) -> Callable[..., InGraphStrategy]:
    """Return strategies that drive the same workers with each kind of data."""
    made: list[Server] = []

    def make(data: str, workers: int = 2, ps: int = 1, **options: Any) -> InGraphStrategy:
        if not made:
            made.extend(servers(workers, ps))
        devices = [f"{one.name}/device:CPU:0" for one in made]
        return InGraphStrategy(made[0].target, devices[:workers], devices[workers:], data=data, **options)

    return make


def assert_same(
    strategies: Callable[..., InGraphStrategy],
    dataset: Callable[[], Dataset],
    layers: Layers = plain,
    *,
    workers: int = 2,
    ps: int = 1,
    **options: Any,
) -> None:
    """Check that reading towers equal fed ones bit for bit, and one device to rounding."""
    reading, history = fit(strategies("workers", workers, ps), dataset(), layers, **options)
    fed, expected = fit(strategies("client", workers, ps), dataset(), layers, **options)
    for ours, theirs in zip(reading, fed, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert history.history == expected.history
    assert history.global_step == expected.global_step
    alone, _ = fit(OneDeviceStrategy(), dataset(), layers, **options)
    for ours, theirs in zip(reading, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize(
    ("workers", "ps", "optimizer"),
    matrix(
        [(1, 1, SGD(0.1)), (2, 0, Adam(0.01)), (3, 2, Adam(0.01))],
        rest=[(1, 1, Adam(0.01)), (2, 0, SGD(0.1)), (3, 2, SGD(0.1))],
    ),
    ids=repr,
)
def test_reading_is_fed_training_bit_for_bit(
    strategies: Callable[..., InGraphStrategy], workers: int, ps: int, optimizer: Any
) -> None:
    assert_same(strategies, rows, workers=workers, ps=ps, optimizer=optimizer)


X, Y = points()


@pytest.mark.parametrize(
    "dataset",
    [
        lambda: (
            Dataset.from_arrays(X, Y).shuffle(7).repeat(2).shuffle(30, seed=2).batch(10, drop_remainder=True)
        ),
        lambda: (
            Dataset.from_arrays(X, Y).shuffle(45).batch(44)
        ),  # the last batch leaves a tower without examples
        lambda: Dataset.from_arrays(X, Y).skip(3).take(40).shard(2, 1).shuffle(20).batch(6).prefetch(2),
        lambda: Dataset.from_arrays(X, Y).batch(4).shuffle(20, seed=1),  # the smaller batch is at any place
        lambda: Dataset.from_arrays(X.astype("f8"), Y.astype("u1")).shuffle(45).batch(10),
        lambda: Dataset.from_arrays((X * 9).astype(">i2"), Y.astype(">i4")).shuffle(45).batch(10),
        pytest.param(lambda: Dataset.from_arrays(X, Y).batch(10), marks=exhaustive),
    ],
)
def test_any_chain_of_transforms(
    strategies: Callable[..., InGraphStrategy], dataset: Callable[[], Dataset]
) -> None:
    assert_same(strategies, dataset, epochs=2)


@pytest.mark.parametrize("endless", [False, True])
def test_passes_that_are_cut(strategies: Callable[..., InGraphStrategy], endless: bool) -> None:
    def dataset() -> Dataset:
        made = Dataset.from_arrays(X, Y).shuffle(45)
        return (made.repeat() if endless else made).batch(10).prefetch(1)

    assert_same(strategies, dataset, epochs=4, steps=3)


def test_one_output_and_labels_without_an_axis(strategies: Callable[..., InGraphStrategy]) -> None:
    def dataset() -> Dataset:
        return Dataset.from_arrays(X, Y > 1).shuffle(45).batch(10)

    assert_same(strategies, dataset, lambda: [Dense(1, "sigmoid")], loss="binary_crossentropy", metrics=())


@pytest.mark.slow
def test_random_numbers_and_states(strategies: Callable[..., InGraphStrategy]) -> None:
    assert_same(strategies, rows, lambda: [Dense(16), Dropout(0.4), Dense(3, "softmax")], workers=3)
    assert_same(strategies, rows, lambda: [Dense(16), BatchNorm(), Dense(3, "softmax")], workers=1)


def test_images(strategies: Callable[..., InGraphStrategy]) -> None:
    images = np.random.default_rng(0).integers(0, 255, (20, 6, 6, 1)).astype(np.uint8)

    def layers() -> list[Any]:
        return [Conv2D(2, 3, activation="relu"), Flatten(), Dense(3, "softmax")]

    assert_same(strategies, lambda: Dataset.from_arrays(images, Y[:20]).batch(8), layers, epochs=1)


@pytest.mark.parametrize(
    "pipeline",
    matrix(
        [{"stages": 3, "micro_batches": 4, "schedule": "1f1b"}, {"stages": 1, "micro_batches": 3}],
        rest=[{"stages": 2, "micro_batches": 1}],
    ),
    ids=repr,
)
def test_stages_and_micro_batches(
    strategies: Callable[..., InGraphStrategy], pipeline: dict[str, Any]
) -> None:
    def layers() -> list[Any]:
        return [Dense(16, "tanh"), Dense(12, "relu"), Dense(3, "softmax")]

    assert_same(strategies, rows, layers, workers=3, ps=0, **pipeline)


def test_one_strategy_trains_again(strategies: Callable[..., InGraphStrategy]) -> None:
    strategy = strategies("workers")
    first, _ = fit(strategy, rows(30))
    again, _ = fit(strategy, rows(30))
    _, history = fit(strategy, rows(45), epochs=1)
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert history.global_step == 5
    assert strategy.reading is None


@pytest.mark.parametrize("seed", [7, None])
def test_asynchronous_towers_each_read_all_the_data_in_an_order_of_their_own(
    strategies: Callable[..., InGraphStrategy], monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    orders: dict[str, list[list[int]]] = {}
    from nbdist.runtime.session.datasets import Reader

    own = Reader.part

    def noted(self: Reader, index: int, *rest: Any) -> Array:
        found = own(self, index, *rest)
        if index == 0:
            orders.setdefault(self.name, []).append(found[:, 0].tolist())
        return found

    monkeypatch.setattr(Reader, "part", noted)
    x = np.repeat(np.arange(45, dtype=np.float32)[:, None], 6, axis=1)
    dataset = Dataset.from_arrays(x, Y).shuffle(45).batch(10)
    weights, history = fit(strategies("workers", 3, synchronous=False), dataset, seed=seed)
    assert history.global_step == 3 * 3 * 5
    assert all(np.isfinite(w).all() for w in weights)
    assert len(orders) == 3
    passes = []
    for batches in orders.values():
        assert [len(batch) for batch in batches] == [10, 10, 10, 10, 5] * 3
        for epoch in range(3):
            order = [row for batch in batches[5 * epoch : 5 * epoch + 5] for row in batch]
            assert sorted(order) == list(range(45))
            passes.append(tuple(order))
    assert len(set(passes)) == 9
    assert not [t for t in threading.enumerate() if t.name.startswith("nbdist replica")]
    if seed is not None:
        expected = [row for x, _ in dataset.with_seed(seed, 2).iterate(epoch=0) for row in x[:, 0].tolist()]
        assert tuple(expected) in passes


def test_one_asynchronous_tower_reads_its_fed_batches(
    strategies: Callable[..., InGraphStrategy],
) -> None:
    found = [fit(strategies(data, 1, synchronous=False), rows()) for data in ("client", "workers")]
    for a, b in zip(found[0][0], found[1][0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_data_is_freed_with_the_training(servers: Servers) -> None:
    made = servers(2, 1)
    devices = [f"{one.name}/device:CPU:0" for one in made]
    held: list[bool] = []

    class Look(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            held.extend(one.sessions.store.used() >= 4500 * (6 * 4 + 8) for one in made)

    strategy = InGraphStrategy(made[0].target, devices[:2], devices[2:], data="workers")
    fit(strategy, rows(4500, 1000), epochs=1, callbacks=(Look(),))
    assert held == [True, True, False]
    deadline, pause = time.monotonic() + 10, threading.Event()
    while any(one.sessions.store.used() for one in made):  # an executor takes a moment to end
        assert time.monotonic() < deadline
        pause.wait(0.005)


def test_reading_is_in_the_timeline(strategies: Callable[..., InGraphStrategy]) -> None:
    traces: list[Any] = []
    fit(strategies("workers", on_trace=traces.append), rows(), epochs=40)
    found = {(span.task, span.name.rpartition("/")[2]) for span in traces[-1] if span.kind == "data"}
    names = {name.rstrip("_0123456789") for _, name in found}
    assert names == set(READS)
    assert {task for task, _ in found} == {"/job:worker/task:0", "/job:worker/task:1"}


# What is refused, and where errors come from


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (rows().map(lambda x, y: (x * 2, y)), r"map\(\) in a dataset holds a function.*feed from the client"),
        (Dataset.from_generator(lambda: iter([(X[:4], Y[:4])])), r"from_generator\(\).*feed from the client"),
        (Dataset.from_arrays(X, Y), "single examples, not batches"),
        (Dataset.from_arrays(X).batch(5), r"training takes batches of \(x, y\)"),
        (Dataset.from_arrays({"x": X, "y": Y}).batch(5), r"batches of the dataset are dicts \('x', 'y'\)"),
        (Dataset.from_arrays((X, Y), Y).batch(5), r"training takes batches of \(x, y\)"),
        (Dataset.from_arrays(X, Y.astype("f4")).batch(5), r"takes class numbers \(integers\)"),
        (Dataset.from_arrays(X, Y).batch(3).batch(2), r"a batch of the dataset is \(\?, \?, 6\)"),
        (Dataset.from_arrays(X[:0], Y[:0]).batch(3), "the dataset is empty"),
    ],
)
def test_unreadable_data_is_refused_before_a_step(
    strategies: Callable[..., InGraphStrategy], dataset: Dataset, message: str, synchronous: bool
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        fit(strategies("workers", synchronous=synchronous), dataset)
    assert not [t for t in threading.enumerate() if t.name.startswith("nbdist replica")]


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_out_of_range_are_found_on_the_worker(
    strategies: Callable[..., InGraphStrategy], wrong: int, synchronous: bool
) -> None:
    y = Y.copy()
    y[8] = wrong
    place = "task:1" if synchronous else "task:[01]"  # synchronous: in the second half of the first batch
    message = (
        r"labels go from .* the model has 3 outputs \(classes 0 to 2\), at 'replica_\w+/check_classes.*"
        rf"\(check_classes.*on /job:worker/replica:0/{place}/device:CPU:0"
    )
    with pytest.raises(InvalidArgumentError, match=message):
        fit(strategies("workers", synchronous=synchronous), Dataset.from_arrays(X, y).batch(10))


@pytest.mark.parametrize("wrong", [-1, 0.5])
def test_labels_of_rows_are_looked_at_before_they_are_sent(
    strategies: Callable[..., InGraphStrategy], wrong: float
) -> None:
    rows = np.eye(3, dtype=np.float32)[Y]
    loss = "categorical_crossentropy"
    fit(strategies("workers"), Dataset.from_arrays(X, rows).batch(10), loss=loss, epochs=1)
    rows[8] = wrong
    with pytest.raises(
        InvalidArgumentError, match="categorical_crossentropy takes rows of labels from 0 to 1"
    ):
        fit(strategies("workers"), Dataset.from_arrays(X, rows).batch(10), loss=loss, epochs=1)


def test_a_loss_that_is_no_number(strategies: Callable[..., InGraphStrategy]) -> None:
    x = X.copy()
    x[17] = np.nan
    with pytest.raises(NanLossError, match=r"the loss is NaN.* at step 2; that gradient was not applied"):
        fit(strategies("workers"), Dataset.from_arrays(x, Y).batch(10))


def test_only_two_know_of_data() -> None:
    with pytest.raises(InvalidArgumentError, match="no data 'somewhere'; choose from client, workers"):
        InGraphStrategy("nbdist://nowhere", ["/job:worker/task:0"], data="somewhere")


# On engines


@pytest.mark.engines
@pytest.mark.parametrize("synchronous", matrix([True], rest=[False]))
def test_workers_read_the_digits(cluster: Cluster, synchronous: bool) -> None:
    """The same training on two engines, fed and read; what the client sends is counted."""
    x, y, x_test, y_test = digits()
    x, y = x[:1150], y[:1150]  # 11 batches of 100, and a smaller one
    steps = 12 * 6 * (1 if synchronous else 2)
    names = [f"/job:worker/task:{i}" for i in range(2)] + ["/job:ps/task:0"]
    places = {info.name: f"{info.name}/device:{info.device}" for info in cluster.tasks}
    *workers, ps = (places[name] for name in names)
    sent: list[tuple[int, int]] = []
    own = MessageSender.send

    def counting(self: MessageSender, kind: int, *message: Any, **more: Any) -> None:
        arrays = message[3] if len(message) > 3 else more.get("arrays", ())
        sent.append((kind, sum(np.asarray(a).nbytes for a in arrays)))
        own(self, kind, *message, **more)

    weights, run, whole = {}, {}, {}
    for data in ("client", "workers"):
        sent.clear()
        strategy = InGraphStrategy(cluster.target, workers, [ps], data=data, synchronous=synchronous)
        with pytest.MonkeyPatch.context() as patch, use(Context(strategy=strategy, seed=3, quiet=True)):
            patch.setattr(MessageSender, "send", counting)
            model = Sequential([Dense(32, "relu"), Dense(10, "softmax")])
            model.compile(SGD(0.5), metrics=["accuracy"])
            history = model.fit(Dataset.from_arrays(x, y).shuffle(len(x)).batch(100), epochs=6)
        assert history.global_step == steps
        assert model.evaluate(x_test, y_test)["accuracy"] > 0.85
        weights[data] = model.get_weights()
        run[data] = sum(size for kind, size in sent if kind == RUN) / steps
        whole[data] = sum(size for _, size in sent)
    if synchronous:
        for ours, theirs in zip(weights["workers"], weights["client"], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    batch = (x.nbytes + y.nbytes) / 12
    assert run["client"] >= batch
    assert run["workers"] <= 16  # one shuffle number per pass; nothing per step
    assert 2 * 12 * batch <= whole["workers"] <= 2 * 12 * batch + 50_000  # to each worker once
