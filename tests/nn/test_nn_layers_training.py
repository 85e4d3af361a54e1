"""Layers that do something else in training: Dropout, BatchNorm; and LayerNorm, Embedding."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist import nn
from nbdist.data import Dataset
from nbdist.distribute import MultiWorkerMirroredStrategy, OneDeviceStrategy, Strategy
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.tensor import Graph, placeholder
from nbdist.nn import (
    Activation,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    LayerNorm,
    Sequential,
    compute_average_loss,
    functional,
    load,
    losses,
)
from nbdist.nn.losses import SparseCategoricalCrossentropy
from nbdist.nn.network import Network, Objective
from nbdist.optim import SGD
from nbdist.testing import thread_world
from nbdist.testing.strategy import everywhere
from nbdist.train.context import Context, use
from nbdist.train.trainable import ProgramSpec

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng


def dropped(shape: tuple[int, ...], draw: tuple[int, int, int, int], rate: float, number: int = 0) -> Array:
    """Return the mask that dropout uses."""
    with Graph().as_default():
        x = placeholder(np.float32, shape)
        numbers = placeholder(np.int64, (4,))
        y = functional.dropout(x, rate, numbers, number)
    program = compile_program([y], feeds=[x, numbers], shapes=[shape, (4,)])
    return program(np.ones(shape, np.float32), np.array(draw))[0].copy()


def test_dropout_keeps_the_mean_and_drops_the_share() -> None:
    mask = dropped((400, 50), (7, 1, 0, 0), 0.3)
    assert set(np.unique(mask.round(4))) == {np.float32(0), np.float32(1.4286)}
    assert np.mean(mask == 0) == pytest.approx(0.3, abs=0.01)
    assert mask.mean() == pytest.approx(1, abs=0.015)
    columns = (mask == 0).mean(axis=0)
    assert 0.2 < columns.min() < columns.max() < 0.4


@pytest.mark.parametrize("shape", [(12, 5), (12, 16), (12, 3, 7), (12,)])
def test_an_examples_mask_follows_from_its_place(shape: tuple[int, ...]) -> None:
    whole = dropped(shape, (7, 1, 3, 100), 0.5)
    for start, stop in ((0, 5), (5, 12), (11, 12)):
        part = dropped((stop - start, *shape[1:]), (7, 1, 3, 100 + start), 0.5)
        np.testing.assert_array_equal(part, whole[start:stop])


def test_seed_training_step_and_layer_each_change_the_mask() -> None:
    masks = [
        dropped((20, 20), draw, 0.5, number)
        for draw, number in (
            ((1, 1, 1, 0), 0), ((2, 1, 1, 0), 0), ((1, 2, 1, 0), 0), ((1, 1, 2, 0), 0), ((1, 1, 1, 0), 1),
            ((1, 1, 1, 20), 0),
        )
    ]  # fmt: skip
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert 0.35 < np.mean((one == 0) == (other == 0)) < 0.65
    np.testing.assert_array_equal(masks[0], dropped((20, 20), (1, 1, 1, 0), 0.5))


def test_the_gradient_is_dropped_where_the_value_is() -> None:
    x, y = RNG(0).normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    network = Network([Dropout(0.5), Dense(3)], (6,), RNG(0))
    weights = network.drawn
    objective = Objective(network, weights, SparseCategoricalCrossentropy(from_logits=True), [])
    gradients = [np.empty_like(w) for w in weights]
    objective.seed, objective.training = 5, 2
    program = objective.training_program(ProgramSpec(((8, 6), (8,)), weights))
    program(x, y, np.float32(1), objective.draw(4, 0), *gradients)
    kept = x * dropped((8, 6), (5, 2, 4, 0), 0.5, 0)
    z = kept @ weights[0] + weights[1]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(gradients[0], kept.T @ (p - np.eye(3)[y]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parts", [(8,), (4, 4), (3, 3, 2), (8, 0)])
def test_any_number_of_replicas_computes_one_gradient(parts: tuple[int, ...]) -> None:
    x, y = RNG(0).normal(size=(8, 6)).astype(np.float32), np.arange(8) % 3
    network = Network([Dense(16, "relu"), Dropout(0.4), Dense(3, "softmax"), Dropout(0.2)], (6,), RNG(0))
    weights = network.drawn
    objective = Objective(network, weights, SparseCategoricalCrossentropy(), [])

    def gradient(start: int, stop: int) -> list[Array]:
        found = [np.zeros_like(w) for w in weights]
        if stop > start:
            shapes = ((stop - start, 6), (stop - start,))
            program = objective.training_program(ProgramSpec(shapes, weights))
            program(x[start:stop], y[start:stop], np.float32(1 / 8), objective.draw(9, start), *found)
        return found

    ends = np.cumsum((0, *parts))
    shares = [gradient(a, b) for a, b in pairwise(ends)]
    for expected, *found in zip(gradient(0, 8), *shares, strict=True):
        np.testing.assert_allclose(sum(found), expected, rtol=1e-4, atol=1e-6)


def points(rows: int = 120) -> tuple[Array, Array]:
    y = np.arange(rows) % 3
    return (RNG(0).normal(size=(rows, 4)) + 2 * np.eye(3, 4)[y]).astype(np.float32), y


def test_dropout_is_reproducible_and_only_in_training() -> None:
    x, y = points()

    def trained(seed: int, fits: int = 1) -> Sequential:
        model = Sequential([Dense(8, "relu"), Dropout(0.5), Dense(3, "softmax")], seed=seed)
        model.compile(SGD(0.1))
        for _ in range(fits):
            model.fit(Dataset.from_arrays(x, y).batch(30))
        return model

    one, same, other = trained(1), trained(1), trained(2)
    for a, b in zip(one.weights, same.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(one.weights[0], other.weights[0])
    np.testing.assert_array_equal(one.predict(x), one.predict(x))
    twice = trained(1, fits=2)
    again = trained(1)
    again.trainings = 0  # what a second training would draw if it began to count anew
    again.fit(Dataset.from_arrays(x, y).batch(30))
    assert not np.array_equal(twice.weights[0], again.weights[0])


def test_a_runs_seed_is_taken_where_the_model_has_none() -> None:
    x, y = points()
    results = []
    for seed in (3, 3, 4):
        model = Sequential([Dropout(0.5), Dense(3, "softmax", kernel_initializer="zeros")])
        model.compile(SGD(0.1))
        with use(Context(seed=seed, quiet=True)):
            model.fit(Dataset.from_arrays(x, y).batch(120))
        results.append(model.weights[0])
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_a_rate_of_zero_drops_nothing() -> None:
    assert not Network([Dropout(0), Dense(2)], (3,), RNG(0)).training.updates
    np.testing.assert_array_equal(dropped((2, 3), (0, 0, 0, 0), 1e-9), np.ones((2, 3)))
    for rate in (1, -0.1, "a", True):
        with pytest.raises(InvalidArgumentError, match="a dropout rate is a number from 0 to below 1"):
            Dropout(rate)  # type: ignore[arg-type]


# BatchNorm, LayerNorm


def test_batch_norm_trains_on_the_batch_and_keeps_moving_averages(tmp_path: Path) -> None:
    x, y = points(60)
    model = Sequential([BatchNorm(momentum=0.5, epsilon=1e-5), Dense(3, "softmax")], seed=1).build((4,))
    model.compile(SGD(0.0), metrics=["accuracy"])
    assert [w.shape for w in model.weights] == [(4,)] * 4 + [(4, 3), (3,)]
    assert model.count_params() == 16 + 15
    mean, variance = np.zeros(4), np.ones(4)
    for _ in range(3):
        model.fit(Dataset.from_arrays(x, y).batch(30))
        for part in (x[:30], x[30:]):
            mean = 0.5 * mean + 0.5 * part.mean(axis=0)
            variance = 0.5 * variance + 0.5 * part.var(axis=0)
    np.testing.assert_allclose(model.weights[2], mean, rtol=1e-4)
    np.testing.assert_allclose(model.weights[3], variance, rtol=1e-4)
    z = (x - mean) / np.sqrt(variance + 1e-5) @ model.weights[4]
    np.testing.assert_allclose(model.predict(x), np.exp(z) / np.exp(z).sum(1, keepdims=True), rtol=1e-3)
    again = nn.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    assert model.evaluate(x, y) == again.evaluate(x, y)


def test_batch_norm_trains_its_scale_and_its_shift() -> None:
    x, y = points()
    model = Sequential([Dense(8), BatchNorm(0.9), Dense(3, "softmax")], seed=1)
    model.compile(SGD(0.3), metrics=["accuracy"])
    history = model.fit(Dataset.from_arrays(x, y).shuffle(120, seed=1).batch(20), epochs=15)
    assert max(history["accuracy"]) > 0.85 > history["accuracy"][0]
    assert model.evaluate(x, y)["accuracy"] > 0.85
    gamma, beta = model.weights[2:4]
    assert not np.allclose(gamma, 1)
    assert not np.allclose(beta, 0)


def test_batch_norm_of_images_is_per_channel() -> None:
    x = RNG(1).normal(3, 2, size=(10, 4, 4, 2)).astype(np.float32)
    model = Sequential([BatchNorm(0.0, 0), Conv2D(1, 2), Flatten(), Dense(2)], seed=1)
    model.compile(SGD(0.0), "mse")
    model.fit(Dataset.from_arrays(x, np.zeros((10, 2), np.float32)).batch(10))
    np.testing.assert_allclose(model.weights[2], x.mean(axis=(0, 1, 2)), rtol=1e-4)
    np.testing.assert_allclose(model.weights[3], x.var(axis=(0, 1, 2)), rtol=1e-4)


def test_layer_norm() -> None:
    x = RNG(1).normal(3, 2, size=(5, 6)).astype(np.float32)
    network = Network([LayerNorm(1e-6)], (6,), RNG(0))
    y = network.prediction(5, network.drawn)(x)[0]
    expected = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert not network.training.updates


@pytest.mark.parametrize("make", [lambda: BatchNorm(1.0), lambda: LayerNorm(-1), lambda: BatchNorm("a")])  # type: ignore[arg-type]
def test_bad_settings_of_norms(make: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="is a number from 0 to below 1"):
        make()


# Embedding


def test_an_embedding_learns_what_its_numbers_mean() -> None:
    numbers = np.arange(60).reshape(20, 3) % 10
    labels = (numbers.sum(axis=1) % 2).astype(np.int64)
    model = Sequential([Embedding(10, 8), Flatten(), Dense(16, "tanh"), Dense(2, "softmax")], seed=1)
    model.compile("adam", metrics=["accuracy"])
    history = model.fit(Dataset.from_arrays(numbers, labels).batch(5), epochs=80)
    assert history["accuracy"][-1] == 1
    assert model.predict(numbers).shape == (20, 2)
    assert model.weights[0].shape == (10, 8)
    with pytest.raises(InvalidArgumentError, match="id 10 is outside the table, which has rows 0 to 9"):
        model.predict(np.full((1, 3), 10))


def test_large_numbers_reach_an_embedding_as_they_are() -> None:
    network = Network([Embedding((1 << 24) + 3, 1)], (1,), RNG(0))
    assert network.x.dtype == np.int64
    table = network.drawn[0]
    table[-1, 0] = 7
    assert network.prediction(1, [table])(np.array([[(1 << 24) + 2]]))[0].item() == 7


def test_only_the_rows_that_were_looked_up_change() -> None:
    x = np.array([[1, 1], [3, 1]])
    model = Sequential([Embedding(5, 2), Flatten(), Dense(1)], seed=1).build((2,))
    model.compile(SGD(0.5), "mse")
    before = model.weights[0].copy()
    model.fit(Dataset.from_arrays(x, np.ones((2, 1), np.float32)).batch(2))
    changed = (model.weights[0] != before).any(axis=1)
    assert changed.tolist() == [False, True, False, True, False]


def changed(model: Sequential, x: Array, y: Array) -> list[bool]:
    """Train; return which of the weights have changed."""
    before = model.get_weights()
    model.fit(x, y)
    return [bool((a != b).any()) for a, b in zip(before, model.get_weights(), strict=True)]


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_frozen_layers_are_not_trained(precision: str, tmp_path: Path) -> None:
    """As in Keras, a frozen BatchNorm also uses its moving averages, and keeps them."""
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 2
    first, norm = Dense(3), BatchNorm()
    model = Sequential([first, norm, Dense(2, activation="softmax")], seed=1)
    first.trainable = False
    model.compile("sgd", precision=precision)
    model.build((4,))
    assert changed(model, x, y) == [False] * 2 + [True] * 6
    norm.trainable = False  # takes effect in the next training
    assert changed(model, x, y) == [False] * 6 + [True] * 2
    model.save(tmp_path / "model.safetensors")
    assert changed(load(tmp_path / "model.safetensors"), x, y) == [False] * 6 + [True] * 2
    first.trainable = True
    assert changed(model, x, y) == [True] * 2 + [False] * 4 + [True] * 2
    model.trainable = False
    with pytest.raises(InvalidArgumentError, match="all layers of the model are frozen"):
        model.fit(x, y)


def test_frozen_layers_of_all_replicas_are_the_first_ones() -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32), np.arange(8) % 2

    def body(strategy: Strategy, _: Context) -> list[Array]:
        with strategy.scope():
            model = Sequential([Dense(3), Dense(2, activation="softmax")], seed=strategy.replica_index)
            model.layers[0].trainable = False
            model.compile("sgd")
            model.fit(Dataset.from_arrays(x, y).batch(4))
            return model.get_weights()

    world = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2)
    first, second = everywhere(world, body)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(first[0], Sequential([Dense(3)], seed=0).build((4,)).get_weights()[0])


def test_a_layer_has_one_place() -> None:
    shared = Dense(4)
    with pytest.raises(InvalidArgumentError, match=r"Dense\(units=4.*stands twice in the list"):
        Sequential([shared, shared]).build((4,))
    model = Sequential([Activation("relu"), Dense(4), Activation("relu")]).build((4,))
    with pytest.raises(InvalidArgumentError, match=r"is a layer of another model, <Sequential: 3 layers"):
        Sequential(model.layers).build((4,))
    relu = model.layers[0]  # without weights there is nothing to share
    assert Sequential([relu, relu, Dense(1)]).build((4,)).count_params() == 5


def test_freezing_after_the_steps_of_a_loop_are_recorded_is_refused() -> None:
    strategy = OneDeviceStrategy()
    with strategy.scope():
        model, optimizer = Sequential([Dense(2), Dense(2, activation="softmax")], seed=1), SGD(0.1)

    def step(x: Any, y: Any) -> None:
        each = losses.sparse_categorical_crossentropy(y, model(x, training=True))
        optimizer.minimize(compute_average_loss(each, 4))

    strategy.run(step, (np.ones((4, 3), np.float32), np.arange(4) % 2))
    model.layers[0].trainable = False
    with pytest.raises(FailedPreconditionError, match=r"layer\.trainable was changed after a loop"):
        model.predict(np.ones((1, 3)))


def test_a_note_says_that_a_single_example_is_normalised_by_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    x, y = np.ones((5, 4, 4, 1), np.float32), np.zeros(5, int)
    for layers, is_noted in (([Flatten(), BatchNorm()], True), ([BatchNorm(), Flatten()], False)):
        for size in (4, 5):
            model = Sequential([*layers, Dense(2, "softmax")])
            model.compile("sgd")
            model.fit(Dataset.from_arrays(x, y).batch(size), epochs=2)  # the last batch of 4 has 1 example
            expected = int(is_noted and size == 4)
            assert capsys.readouterr().out.count("BatchNorm normalises it by itself") == expected
            layers = [type(layer)() for layer in layers]
