"""Models called on tensors: in a strategy's steps, and in any other graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist import nn
from nbdist.data import Dataset
from nbdist.distribute import MirroredStrategy
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.tensor import Graph, placeholder
from nbdist.graph.variables import global_variables_initializer
from nbdist.nn import (
    AveragePool2D,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    MaxPool2D,
    Sequential,
    compute_average_loss,
    losses,
)
from nbdist.nn.layers import layer_from_config
from nbdist.optim import SGD, Adam
from nbdist.runtime.session.session import Session
from nbdist.train.context import Context, use
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.strategy import Strategy

Array = np.ndarray[Any, Any]


@pytest.fixture
def strategy() -> Iterator[Strategy]:
    context = Context(seed=3, quiet=True)
    with use(context):
        yield context.strategy


def points(rows: int = 20) -> tuple[Array, Array]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(rows, 4)).astype(np.float32), rng.integers(0, 3, rows)


def classifier(*between: Any) -> Sequential:
    return Sequential([Dense(5, "tanh"), *between, Dense(3, "softmax")], seed=1)


def test_what_a_model_computes_in_a_step_is_what_it_predicts(strategy: Strategy) -> None:
    x, _ = points()
    with strategy.scope():
        model = classifier(BatchNorm(), Dropout(0.5), LayerNorm())
    np.testing.assert_array_equal(strategy.run(lambda x: model(x), (x,)), model.predict(x))
    np.testing.assert_array_equal(model(x), model.predict(x))
    doubles = strategy.run(lambda x: model(x), (x.astype(np.float64),))
    assert doubles.dtype == np.float32
    trained = strategy.run(lambda x: model(x, training=True), (x,))
    assert not np.allclose(trained, model.predict(x))


def test_a_model_in_any_graph() -> None:
    x, _ = points()
    model = classifier()
    with Graph().as_default():
        fed = placeholder(np.float32, (None, 4))
        twice = model(fed) + model(fed)
        assert [v.name for v in model.variables] == [
            "dense/kernel",
            "dense/bias",
            "dense_1/kernel",
            "dense_1/bias",
        ]
        with Session() as session:
            session.run(global_variables_initializer())
            np.testing.assert_allclose(session.run(twice, {fed: x}), 2 * model.predict(x), rtol=1e-6)
    moving = classifier(BatchNorm())
    with Graph().as_default(), pytest.raises(FailedPreconditionError, match=r"that strategy\.run runs"):
        moving(placeholder(np.float32, (None, 4)), training=True)


def test_what_does_not_fit(strategy: Strategy) -> None:
    model = classifier()
    with pytest.raises(InvalidArgumentError, match=r"a model is trained by fit, or on tensors"):
        model(np.ones((2, 4), np.float32), training=True)
    strategy.run(lambda x: model(x), (np.ones((2, 4), np.float32),))
    with pytest.raises(
        InvalidArgumentError, match=r"takes examples of shape \(4,\), got a batch of \(2, 5\)"
    ):
        strategy.run(lambda x: model(x), (np.ones((2, 5), np.float32),))
    with (
        Graph().as_default(),
        pytest.raises(InvalidArgumentError, match=r"of one known shape, got \(\?, \?\)"),
    ):
        classifier()(placeholder(np.float32, (None, None)))
    with pytest.raises(FailedPreconditionError, match="variables in 0 graphs"):
        classifier().trainable_variables  # noqa: B018 (it raises)


def test_a_model_keeps_its_variables_in_all_traces(strategy: Strategy) -> None:
    """Built in the first one, for the first batch."""
    model, optimizer = classifier(), SGD(0.1)

    def step(x: Any, y: Any) -> None:
        each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
        optimizer.minimize(compute_average_loss(each, len(x)))

    x, y = points()
    for rows in (20, 7, 20):
        before = model.get_weights()
        strategy.run(step, (x[:rows], y[:rows]))
        assert not before or all((a != b).any() for a, b in zip(before, model.get_weights(), strict=True))
    assert model.count_params() == 43


def test_weights_are_the_newest_wherever_they_are_looked_at(strategy: Strategy, tmp_path: Path) -> None:
    x, y = points()
    with strategy.scope():
        model, optimizer = classifier(BatchNorm(momentum=0.5)), SGD(0.1)
        model.compile(SGD(0.5))
    data = Dataset.from_arrays(x, y).batch(20)

    def step(x: Any, y: Any) -> Any:
        each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
        loss = compute_average_loss(each, 20)
        optimizer.minimize(loss)
        return loss

    seen = [model.build((4,)).get_weights()]
    for _ in range(3):
        strategy.run(step, (x, y))
        seen.append(model.get_weights())
        saved = nn.load(model.save(tmp_path / "model"))
        for a, b, c in zip(seen[-1], seen[-2], saved.weights, strict=True):
            assert (a != b).any()
            np.testing.assert_array_equal(a, c)
    loss = model.evaluate(x, y)["loss"]
    model.fit(data, epochs=20)
    assert model.evaluate(x, y)["loss"] < loss
    fitted = model.get_weights()
    strategy.run(step, (x, y))  # continues from there
    assert all((abs(a - b) < 0.2).all() for a, b in zip(fitted[:2], model.get_weights()[:2], strict=True))
    model.set_weights(seen[0])
    first = float(strategy.run(step, (x, y)))
    model.set_weights(seen[0])
    assert float(strategy.run(step, (x, y))) == first


def test_two_models_that_train_against_each_other(strategy: Strategy) -> None:
    """Each by an optimizer of its own, on its own variables, in one step and in two."""
    with strategy.scope():
        maker, judge = Sequential([Dense(4)], seed=1), Sequential([Dense(1)], seed=2)
        makers, judges = Adam(0.01), Adam(0.01)

    def both(z: Any, x: Any) -> None:
        made = maker(z, training=True)
        score = np.mean(judge(made)) - np.mean(judge(x))
        judges.minimize(-score, var_list=judge.trainable_variables)
        makers.minimize(score, var_list=maker.trainable_variables)

    def alone(z: Any) -> None:
        makers.minimize(np.mean(judge(maker(z))), var_list=maker.trainable_variables)

    x, _ = points()
    rng = np.random.default_rng(0)
    maker.build((3,))
    for _ in range(3):
        z = rng.normal(size=(20, 3)).astype(np.float32)
        first = maker.get_weights()[0]
        strategy.run(both, (z, x))
        second, judged = maker.get_weights()[0], judge.get_weights()[0]
        strategy.run(alone, (z,))
        assert (second != first).all()
        assert (maker.get_weights()[0] != second).all()
        np.testing.assert_array_equal(judge.get_weights()[0], judged)


@pytest.mark.parametrize(
    ("layers", "shape", "dtype"),
    [
        ([Conv2D(3, 3, activation="relu"), MaxPool2D(2), Flatten(), Dense(2)], (8, 8, 1), np.float32),
        ([Conv2D(3, 3, strides=2, padding="same"), AveragePool2D(2), Flatten()], (8, 8, 2), np.float32),
        ([Conv2D(4, 3, padding="same"), BatchNorm(), Dropout(0.3), Flatten()], (5, 5, 1), np.float32),
        ([Embedding(10, 4), Flatten(), LayerNorm(), Dense(2, "sigmoid")], (6,), np.int64),
        ([Dense(4, "relu"), BatchNorm(), Dense(2, "softmax")], (3,), np.float32),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_a_share_without_examples_has_no_part_in_an_update(
    layers: list[Any], shape: tuple[int, ...], dtype: Any
) -> None:
    """Three replicas, two examples: the same as one replica with both."""
    x = (np.random.default_rng(0).random((2, *shape)) * 9).astype(dtype)

    def trained(strategy: Strategy) -> list[Array]:
        with strategy.scope():
            own = [layer_from_config(layer.to_config()) for layer in layers]
            model, optimizer = Sequential(own, seed=4), SGD(0.1)

        def step(x: Any) -> None:
            each = np.sum(np.square(model(x, training=True) - 1), axis=-1)
            optimizer.minimize(compute_average_loss(each, 2))

        for batch in strategy.distribute_dataset(Dataset.from_arrays(x).batch(2)):
            strategy.run(step, (batch,))
        return model.get_weights()

    with use(Context(seed=3, quiet=True)):
        weights = trained(MirroredStrategy(["CPU:0"] * 3))
        expected = trained(Context(seed=3).strategy)
    assert all(np.isfinite(w).all() for w in weights)
    if not any(isinstance(layer, BatchNorm) for layer in layers):
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_model_is_fitted_by_the_strategy_of_its_scope() -> None:
    x, y = points()
    strategy = MirroredStrategy(["CPU:0"] * 2)
    with strategy.scope():
        model = classifier()
        model.compile(SGD(0.1))
    history = model.fit(Dataset.from_arrays(x, y).batch(10), epochs=2)
    alone = classifier()
    alone.compile(SGD(0.1))
    alone.fit(Dataset.from_arrays(x, y).batch(10), epochs=2)
    assert history.global_step == 4
    for ours, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_strategy_after_another_trains_a_model() -> None:
    x, y = points()
    model, optimizers = classifier(), [SGD(0.1), SGD(0.1)]
    seen = [model.build((4,)).get_weights()]
    for strategy, optimizer in zip(
        (MirroredStrategy(["CPU:0"] * 2), OneDeviceStrategy()), optimizers, strict=True
    ):

        def step(x: Any, y: Any, optimizer: Any = optimizer) -> None:
            each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
            optimizer.minimize(compute_average_loss(each, 20))

        for batch in strategy.distribute_dataset(Dataset.from_arrays(x, y).batch(20)):
            strategy.run(step, batch)
        seen.append(model.get_weights())
    alone = classifier()
    alone.compile(SGD(0.1))
    alone.fit(Dataset.from_arrays(x, y).batch(20), epochs=2)
    for before, between, after, expected in zip(*seen, alone.get_weights(), strict=True):
        assert (before != between).any()
        np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)
