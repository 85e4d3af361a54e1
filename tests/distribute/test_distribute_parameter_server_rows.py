"""Embedding tables: only a batch's rows are sent and changed, under every strategy that trains by rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parameter_town import SEED, Town

from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import InvalidArgumentError, NanLossError, ResourceExhaustedError
from nbdist.graph.tensor import Variable
from nbdist.nn import (
    Dense,
    Embedding,
    Flatten,
    Layer,
    Reshape,
    Sequential,
    functional,
    losses,
)
from nbdist.optim import SGD, Adam, LossScaleOptimizer, Optimizer
from nbdist.runtime.groups import World
from nbdist.runtime.ps.client import Link
from nbdist.runtime.ps.shard import Accumulator
from nbdist.runtime.tables import RowGradient, Tables, chunks
from nbdist.runtime.task import Task
from nbdist.train.context import Checkpoints, Context, get_strategy, use, use_here
from nbdist.train.custom.api import local_results
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.resume import TrainingStates
from nbdist.wire.rpc.client import Peer

Array = np.ndarray[Any, Any]
ROWS, USED = 60, 20


@pytest.fixture
def towns() -> Iterator[Callable[[int, int], Town]]:
    made: list[Town] = []

    def make(ps: int, replicas: int) -> Town:
        made.append(Town(ps, replicas))
        return made[-1]

    yield make
    for town in made:
        town.close()


def examples(rows: int = USED) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.integers(0, rows, (46, 5)), rng.integers(0, 3, 46)


def data(rows: int = USED) -> Dataset:
    # The last batch is one example: some replicas get none.
    return Dataset.from_arrays(*examples(rows)).batch(15)


def model(optimizer: Optimizer | None = None, rows: int = ROWS, *more: Layer) -> Sequential:
    layers = [Embedding(rows, 4), *more, Flatten(), Dense(3, "softmax")]
    made = Sequential(layers, seed=1).build((5,))
    made.compile(optimizer or Adam(0.05), "sparse_categorical_crossentropy", ["accuracy"])
    return made


def alone(optimizer: Optimizer | None = None) -> list[Array]:
    """Return the final weights of one replica."""
    made = model(optimizer)
    with use(Context(seed=SEED, quiet=True)):
        made.fit(data(), epochs=2)
    return made.weights


def test_one_device_changes_the_rows_of_its_batches_only() -> None:
    made, start = model(), model().weights[0]
    with use(Context(seed=SEED, quiet=True)):
        made.fit(data(), epochs=2)
    table = made.weights[0]
    np.testing.assert_array_equal(table[USED:], start[USED:])
    assert (table[:USED] != start[:USED]).all()


@pytest.mark.parametrize("optimizer", [SGD(0.5, momentum=0.9), Adam(0.05)], ids=repr)
def test_synchronous_replicas_equal_one_device(
    towns: Callable[[int, int], Town], optimizer: Optimizer
) -> None:
    expected = alone(optimizer)
    made = model(optimizer)
    with use(Context(seed=SEED, quiet=True, strategy=MirroredStrategy(["CPU:0"] * 3))):
        made.fit(data(), epochs=2)
    for own, weight in zip(made.weights, expected, strict=True):
        np.testing.assert_allclose(own, weight, rtol=1e-4, atol=1e-5)
    for ps in (1, 2):
        made_by = [model(optimizer) for _ in range(3)]
        town = towns(ps, 3)
        found = town.train(lambda i, made=made_by: made[i].fit(data(), epochs=2), synchronous=True)  # type: ignore[misc]
        assert not [e for e in found if isinstance(e, BaseException)]
        for one in made_by:
            for own, weight in zip(one.weights, expected, strict=True):
                np.testing.assert_allclose(own, weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{}, {"staleness": 1}, {"synchronous": True, "aggregate": 1}, {"synchronous": True, "aggregate": 4}],
    ids=str,
)
def test_every_kind_of_parameter_server_changes_these_rows_only(
    towns: Callable[[int, int], Town], options: dict[str, Any]
) -> None:
    made, start = [model(SGD(0.5)) for _ in range(2)], model().weights[0]
    losses = towns(2, 2).train(lambda i: made[i].fit(data(), epochs=4)["loss"], **options)
    for own in losses:
        assert own[-1] < own[0]
    for a, b in zip(made[0].weights, made[1].weights, strict=True):
        np.testing.assert_array_equal(a, b)  # all end with the final values
    np.testing.assert_array_equal(made[0].weights[0][USED:], start[USED:])
    assert (made[0].weights[0][:USED] != start[:USED]).any()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the table bytes in each message of a step, from or to a server."""
    moved: list[int] = []
    send, ask = Peer.send, Link._ask

    def sent(self: Peer, kind: str, meta: Any = None, arrays: Any = ()) -> Any:
        if kind == "ps.push":
            moved.append(sum(a.nbytes for a in arrays[1:]))
        return send(self, kind, meta, arrays)

    def asked(self: Link, wanted: Any) -> None:
        moved.append(sum(12 * 4 * len(ids) for ids in wanted))
        ask(self, wanted)

    monkeypatch.setattr(Peer, "send", sent)
    monkeypatch.setattr(Link, "_ask", asked)
    return moved


@pytest.mark.parametrize(
    "options",
    [{}, {"staleness": 0}, {"synchronous": True}, {"synchronous": True, "aggregate": 4}],
    ids=str,
)
def test_steps_that_overflow_leave_rows_as_they_are(
    towns: Callable[[int, int], Town], options: dict[str, Any]
) -> None:
    made = [model() for _ in range(2)]
    for one in made:
        one.compile(LossScaleOptimizer(Adam(0.05), 2.0**24), precision="mixed_float16")
    start = [w.copy() for w in made[0].weights]
    town = towns(2, 2)
    found = town.train(lambda i: made[i].fit(data(), epochs=8), **options)
    assert not [e for e in found if isinstance(e, BaseException)]
    for one, own, before in zip(made[0].weights, made[1].weights, start, strict=True):
        np.testing.assert_array_equal(one, own)
        assert np.isfinite(one).all()
        assert (one != before).any()
    np.testing.assert_array_equal(made[0].weights[0][USED:], start[0][USED:])
    assert all(here.progress.skipped > 2 for here in town.contexts)
    scales = {one.loss_scale for one in made}
    assert max(scales) < 2.0**23
    assert len(scales) == 1 or "synchronous" not in options or "aggregate" in options


def test_only_rows_travel(towns: Callable[[int, int], Town], moved: list[int]) -> None:
    """A step of 15 x 5 ids sends at most as many rows each way, for any table size."""
    made = [model(SGD(0.5), 50_000) for _ in range(2)]
    found = towns(1, 2).train(lambda i: made[i].fit(data(50_000), epochs=1))
    assert not [e for e in found if isinstance(e, BaseException)]
    assert made[0].weights[0].nbytes == 800_000
    assert len(moved) >= 2 * 2 * 4
    assert 0 < max(moved) <= 15 * 5 * (4 * 12)


def test_a_model_that_is_nothing_but_a_table(towns: Callable[[int, int], Town]) -> None:
    def embedding() -> Sequential:
        made = Sequential([Embedding(ROWS, 3), Reshape((3,))], seed=1).build((1,))
        made.compile(SGD(0.5), "mse")
        return made

    x = np.arange(12)[:, None]
    batches = Dataset.from_arrays(x, np.ones((12, 3), np.float32)).batch(6)
    expected, start = embedding(), embedding().weights[0]
    with use(Context(seed=SEED, quiet=True)):
        expected.fit(batches, epochs=2)
    assert (expected.weights[0][:12] != start[:12]).all()
    mirrored = embedding()
    with use(Context(seed=SEED, quiet=True, strategy=MirroredStrategy(["CPU:0"] * 2))):
        mirrored.fit(batches, epochs=2)
    made = [embedding() for _ in range(2)]
    towns(2, 2).train(lambda i: made[i].fit(batches, epochs=2), synchronous=True)
    for one in (mirrored, *made):
        np.testing.assert_allclose(one.weights[0], expected.weights[0], rtol=1e-5)


def test_replicas_with_different_tables_are_refused(towns: Callable[[int, int], Town]) -> None:
    place = towns(1, 2)

    def body(i: int) -> None:
        try:
            model(rows=ROWS + i).fit(data(), epochs=1)
        except InvalidArgumentError:
            for control in place.controls:
                control.aborted = "run r was aborted"
            raise

    (wrong,) = [e for e in place.train(body, synchronous=True) if isinstance(e, InvalidArgumentError)]
    assert "built different models: variable 0 is embedding/embeddings" in str(wrong)


def test_a_checkpoint_has_the_whole_table(towns: Callable[[int, int], Town], tmp_path: Path) -> None:
    from nbdist.nn import load
    from nbdist.train import Callback

    town = towns(1, 1)
    made = model(SGD(0.5))
    start = made.weights[0].copy()
    seen: list[Array] = []

    class Look(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            seen.append(made.weights[0].copy())
            assert town.contexts[0].strategy is not None

    def body(index: int) -> Any:
        town.contexts[0].checkpoints = Checkpoints(tmp_path)
        return made.fit(data(), epochs=2, callbacks=[Look()], validation_data=(np.zeros((2, 5), int), [0, 1]))

    (history,) = town.train(body, synchronous=True)
    assert not isinstance(history, BaseException), history
    assert (seen[0][:USED] != start[:USED]).any()
    assert (seen[1] != seen[0]).any()
    np.testing.assert_array_equal(seen[1], made.weights[0])
    np.testing.assert_array_equal(load(made.save(tmp_path / "m")).weights[0], made.weights[0])


def test_a_training_continues_with_the_row_state(tmp_path: Path) -> None:
    def fit(epochs: int, states: TrainingStates | None) -> Sequential:
        made = model(Adam(0.05))
        context = Context(seed=SEED, quiet=True)
        if states is not None:
            context.states = states
        with use(context):
            made.fit(data(), epochs=epochs)
        return made

    whole, path = fit(4, None), tmp_path / "state.safetensors"
    fit(2, TrainingStates(write=path))
    again = fit(4, TrainingStates(read=path))
    for a, b in zip(again.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_that_is_not_a_number_leaves_rows_as_they_are() -> None:
    made = model(SGD(0.5))
    start = made.weights[0].copy()
    made.weights[2][:] = np.nan  # the bias
    with use_here(Context(seed=SEED, quiet=True)):
        made.fit(data(), nan="skip")
    np.testing.assert_array_equal(made.weights[0], start)


def test_rows_of_several_replicas_are_added_up() -> None:
    accumulator = Accumulator()
    for replica, (index, value) in enumerate([(3, 1.0), (0, 2.0), (3, 4.0)]):
        rows = RowGradient(np.array([index]), np.full((1, 2), value))
        assert accumulator.offer(replica, [np.array([value]), rows], 0)
    dense, rows = accumulator.take(3, scale=0.5)
    assert isinstance(rows, RowGradient)
    np.testing.assert_array_equal(dense, [3.5])
    tables = Tables([np.zeros((4, 2))], SGD(1.0))
    tables.apply([rows], 1)
    np.testing.assert_array_equal(tables.arrays[0][:, 0], [-1, 0, 0, -2.5])


def test_rows_that_do_not_fit_are_refused() -> None:
    tables = Tables([np.zeros((4, 2), np.float32)], SGD(1.0))
    good = np.array([3]), np.zeros((1, 2), np.float32)
    tables.checked([RowGradient(*good)])
    for indices, values in (
        (np.array([4]), good[1]),
        (np.array([-1]), good[1]),
        (np.array([3.0]), good[1]),
        (np.array([3, 3]), good[1]),
        (good[0], np.zeros((1, 3), np.float32)),
        (good[0], np.zeros((1, 2))),
    ):
        with pytest.raises(InvalidArgumentError):
            tables.checked([RowGradient(indices, values)])
    with pytest.raises(InvalidArgumentError, match="rows of 0 tables for 1"):
        tables.checked([])


def test_a_table_travels_in_parts_that_make_it_up() -> None:
    for shape in ((7, 2), (0, 3), (5, 1 << 23), (10_000_000, 20)):
        parts = chunks(shape, 4)
        assert [a for a, _ in parts] == [0, *(b for _, b in parts)][: len(parts)]
        assert (parts[-1][1] if parts else 0) == shape[0]


# Custom loops


def looped(
    made: Sequential, optimizer: Optimizer, epochs: int = 2, rows: int = USED, regular: float = 0.0
) -> list[float]:
    """Train by a custom loop like ``fit``, under the current strategy; return the losses of the epochs."""
    strategy = get_strategy()
    x, y = examples(rows)
    # Each example counts for one over the size of its batch: shares of the last one may be empty.
    weights = np.where(np.arange(len(x)) < 45, 1 / 15, 1).astype(np.float32)

    def step(x: Any, y: Any, weights: Any) -> Any:
        each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
        loss = np.sum(each * weights)
        if regular:
            loss = loss + regular * np.sum(np.square(made.variables[0]))
        optimizer.minimize(loss)
        return loss

    batches = strategy.distribute_dataset(Dataset.from_arrays(x, y, weights).batch(15))
    found = []
    for _ in range(epochs):
        parts = [part for batch in batches for part in local_results(strategy.run(step, batch))]
        found.append(float(np.sum(parts)))
    strategy.finish()
    return found


@pytest.mark.parametrize("optimizer", [SGD(0.5, momentum=0.9), Adam(0.05)], ids=repr)
def test_a_custom_loop_equals_fit(towns: Callable[[int, int], Town], optimizer: Optimizer) -> None:
    """Adam shows the difference between rows and tables: a dense gradient also moves unused rows."""
    expected = alone(optimizer)
    for strategy in (None, MirroredStrategy(["CPU:0"] * 3)):
        context = Context(seed=SEED, quiet=True)
        context.strategy = strategy or context.strategy
        made = model(optimizer)
        with use(context):
            looped(made, optimizer)
        for own, weight in zip(made.get_weights(), expected, strict=True):
            np.testing.assert_allclose(own, weight, rtol=1e-4, atol=1e-5)
    for ps in (1, 2):
        made_by = [model(optimizer) for _ in range(3)]
        body = lambda i, made=made_by: looped(made[i], replace(optimizer))
        found = towns(ps, 3).train(body, synchronous=True)
        assert not [e for e in found if isinstance(e, BaseException)], found
        for one in made_by:
            for own, weight in zip(one.get_weights(), expected, strict=True):
                np.testing.assert_allclose(own, weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"staleness": 1}, {"synchronous": True}, {"synchronous": True, "aggregate": 1}], ids=str
)
def test_only_rows_of_a_loop_of_ones_own_travel(
    towns: Callable[[int, int], Town], options: dict[str, Any], moved: list[int]
) -> None:
    made, start = [model(SGD(0.5), 50_000) for _ in range(2)], model(rows=50_000).weights[0]
    results = towns(2, 2).train(lambda i: looped(made[i], SGD(0.5), 4), **options)
    assert not [e for e in results if isinstance(e, BaseException)], results
    for found in results:
        assert found[-1] < found[0]
    assert len(moved) >= 2 * 2 * 4
    assert 0 < max(moved) <= 15 * 5 * (4 * 12)
    np.testing.assert_array_equal(made[0].weights[0], made[1].weights[0])
    np.testing.assert_array_equal(made[0].weights[0][USED:], start[USED:])
    assert (made[0].weights[0][:USED] != start[:USED]).any()


def test_a_step_that_reads_a_whole_table_trains_all_of_it(towns: Callable[[int, int], Town]) -> None:
    expected = model()
    with use(Context(seed=SEED, quiet=True)):
        looped(expected, SGD(0.5), regular=0.01)
    assert (expected.get_weights()[0][USED:] != model().weights[0][USED:]).all()
    made = [model() for _ in range(2)]
    results = towns(1, 2).train(lambda i: looped(made[i], SGD(0.5), regular=0.005), synchronous=True)
    assert not [e for e in results if isinstance(e, BaseException)], results
    for own, weight in zip(made[1].get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(own, weight, rtol=1e-4, atol=1e-5)


def test_steps_of_two_kinds_train_one_table(towns: Callable[[int, int], Town]) -> None:
    """The first looks up rows of its argument; others use a variable, all rows, or rows that it changed."""

    def loop(context: Context) -> tuple[Array, Array, list[tuple[int, ...]]]:
        strategy, optimizer = get_strategy(), SGD(1.0)
        with strategy.scope():
            table = Variable(np.zeros((6, 2), np.float32), name="table")
            fixed = Variable(np.array([5, 4]), trainable=False, name="fixed")

        def by_argument(ids: Any) -> None:
            optimizer.minimize(np.sum(functional.embedding_lookup(table, ids)))

        def by_variable() -> None:
            optimizer.minimize(np.sum(functional.embedding_lookup(table, fixed)))

        def whole() -> None:
            optimizer.minimize(np.sum(table * table))

        def read() -> Any:
            return table * np.float32(1)

        strategy.run(by_argument, (np.array([1, 3, 3], np.int32),))
        (group,) = strategy._runner.variables.groups  # type: ignore[attr-defined]
        tables = [tuple(replica.tables) for replica in group.replicas]
        strategy.run(by_variable)
        seen = np.array(strategy.run(read))
        strategy.run(whole)
        strategy.finish()
        return seen, np.array(strategy.read(table)), tables

    column = np.array([0, -1, 0, -2, -1, -1])
    context = Context(seed=SEED, quiet=True)
    with use(context):
        results = [loop(context)]
    town = towns(1, 1)
    results += town.train(lambda i: loop(town.contexts[i]))
    for seen, after, tables in results:
        assert tables == [(0,)]
        np.testing.assert_array_equal(seen[:, 0], column)
        np.testing.assert_array_equal(after[:, 1], -column)  # x - 2 x


def test_a_loop_skips_rows_that_are_not_numbers() -> None:
    made, strategy, optimizer = model(), OneDeviceStrategy(), SGD(0.5)
    start = made.weights[0].copy()

    def step(x: Any, factor: Any) -> None:
        optimizer.minimize(np.sum(made(x, training=True)[:, 0]) * factor)

    with use(Context(seed=SEED, quiet=True, strategy=strategy)):
        strategy.run(step, (np.zeros((1, 5), np.int64), np.float32(np.nan)), nan="skip")
        with pytest.raises(NanLossError):
            strategy.run(step, (np.zeros((1, 5), np.int64), np.float32(np.nan)))
        np.testing.assert_array_equal(made.get_weights()[0], start)


# Limits of memory


def test_a_model_over_the_limit_of_its_task_is_refused_before_it_is_drawn(
    towns: Callable[[int, int], Town],
) -> None:
    place = towns(1, 1)
    task = Task(place.workers[0], place.roster, place.servers[0], place.keys, "town")
    store = place.servers[0].sessions.store
    context = Context(seed=SEED, quiet=True, world=World(task, (0,)))
    with use(context):
        store.limit = 100_000
        tracemalloc.start()
        with pytest.raises(ResourceExhaustedError, match=r"the model's weights \(the largest is") as e:
            Sequential([Embedding(10**6, 20), Flatten(), Dense(3)]).build((5,))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert "(1000000, 20) with 80,000,000 bytes" in str(e.value)
        assert "limit of 100,000 bytes" in str(e.value)
        assert "raise the limit" in str(e.value)
        assert most < 1_000_000
        wide = Sequential([Dense(100), Dense(3, "softmax")]).build((100,))
        wide.compile(Adam(), "sparse_categorical_crossentropy")
        with pytest.raises(ResourceExhaustedError, match=r"the training: .* slots of Adam .*dense/kernel"):
            wide.fit(np.ones((4, 100), np.float32), np.zeros(4, int))
        store.limit = 300_000
        assert len(wide.fit(np.ones((4, 100), np.float32), np.zeros(4, int))["loss"]) == 1


def test_a_parameter_server_has_a_limit_too(towns: Callable[[int, int], Town]) -> None:
    place = towns(1, 1)
    store = place.servers[0].sessions.store
    store.limit = 1000
    (error,) = place.train(lambda i: model(rows=5000).fit(data(), epochs=1))
    assert isinstance(error, ResourceExhaustedError)
    assert "the variables of r/0 and their gradients" in str(error)
    assert store.used() == 0
    store.limit = 10**6
    (history,) = towns(1, 1).train(lambda i: model(rows=5000).fit(data(), epochs=1))
    assert len(history["loss"]) == 1
