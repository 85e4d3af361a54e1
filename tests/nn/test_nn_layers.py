"""Layers, initializers, losses and metrics: shapes, values, and what they refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, placeholder
from nbdist.nn import (
    Activation,
    AveragePool2D,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    MaxPool2D,
    Reshape,
    Sequential,
    initializers,
    losses,
    metrics,
)
from nbdist.nn.layers import ACTIVATIONS, LAYERS, layer_from_config
from nbdist.nn.network import Network

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng


def output(layers: list[Layer], x: Array) -> tuple[Array, Network]:
    """Return what layers make of x."""
    network = Network(layers, x.shape[1:], RNG(0))
    return network.prediction(len(x), network.drawn)(x.astype(np.float32))[0], network


def test_dense_is_a_product_a_sum_and_an_activation() -> None:
    x = RNG(1).normal(size=(5, 3))
    y, network = output([Dense(4, "tanh", bias_initializer="ones")], x)
    kernel, bias = network.drawn
    assert [v.name for v in network.variables] == ["dense/kernel", "dense/bias"]
    assert kernel.shape == (3, 4)
    assert bias.shape == (4,)
    assert kernel.dtype == bias.dtype == y.dtype == np.float32
    np.testing.assert_allclose(y, np.tanh(x @ kernel + bias), rtol=1e-5)


def test_dense_without_bias() -> None:
    x = RNG(1).normal(size=(5, 3))
    y, network = output([Dense(4, use_bias=False)], x)
    assert network.counts == [12]
    np.testing.assert_allclose(y, x @ network.drawn[0], rtol=1e-5)


@pytest.mark.parametrize("split", [None, "columns", "rows"])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_dense_of_any_rank(shape: tuple[int, ...], split: str | None) -> None:
    """As Keras: the kernel meets the last axis, and gradients are those of one product for each row."""
    x = RNG(1).normal(size=(5, *shape)).astype(np.float32)
    dense = Dense(6, "relu", bias_initializer="ones", split=split, shards=2 if split else 1)
    y, network = output([dense], x)
    parts = dict(zip([v.name.split("/")[-1] for v in network.variables], network.drawn))
    axis = 1 if split == "columns" else 0
    kernel = np.concatenate([a for n, a in parts.items() if n.startswith("kernel")], axis)
    np.testing.assert_allclose(y, np.maximum(x @ kernel + 1, 0), rtol=1e-5, atol=1e-5)
    assert network.predicted.shape == (None, *shape[:-1], 6)
    with network.graph.as_default():
        wanted = network.variables[0]
        (gradient,) = gradients(network.predicted.sum(), [wanted])
    values = dict(zip(network.variables, network.drawn))
    found = compile_program([gradient], feeds=[network.x], shapes=[x.shape], values=values)(x)[0]
    rows, units = x.reshape(-1, 4), (y > 0).reshape(-1, 6).astype(np.float32)
    whole = rows.T @ units
    expected = whole[:, : found.shape[1]] if axis else whole[: found.shape[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_flatten_and_activation_have_no_weights() -> None:
    x = RNG(2).normal(size=(2, 3, 4))
    y, network = output([Flatten(), Activation("relu")], x)
    np.testing.assert_allclose(y, np.maximum(x.reshape(2, 12), 0), rtol=1e-6)
    assert network.outputs == [(None, 12), (None, 12)]
    assert network.counts == [0, 0]


def test_names_of_equal_layers_differ() -> None:
    network = Network([Dense(2), Dense(2), Activation("linear")], (3,), RNG(0))
    assert [v.name for v in network.variables] == [
        "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations(name: str) -> None:
    formulas: dict[str, Callable[[Array], Array]] = {
        "linear": lambda x: x,
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
        "tanh": np.tanh,
        "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2,
        "silu": lambda x: x / (1 + np.exp(-x)),
        "softplus": lambda x: np.log1p(np.exp(x)),
        "elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    }
    x = RNG(3).normal(size=(2, 5))
    np.testing.assert_allclose(output([Activation(name)], x)[0], formulas[name](x), rtol=1e-5)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slopes_of_activations_at_0(name: str) -> None:
    """As Keras': where two formulas meet, the slope is that of one of them, never their mean."""
    slopes = {"relu": 0, "sigmoid": 0.25, "softmax": 0, "gelu": 0.5, "silu": 0.5, "softplus": 0.5}
    with Graph().as_default():
        x = placeholder(np.float64, (1,))
        (slope,) = gradients(ACTIVATIONS[name](x).sum(), [x])
    (value,) = compile_program([slope], feeds=[x], shapes=[(1,)])(np.zeros(1))
    assert value == pytest.approx(slopes.get(name, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dense(0), "units is a whole number above 0, got 0"),
        (lambda: Dense(2.5), "got 2.5"),
        (lambda: Dense(True), "got True"),
        (lambda: Dense("10"), "got '10'"),
        (lambda: Dense(2, "rely"), "no activation 'rely'; choose from elu, gelu, linear, relu"),
        (lambda: Dense(2, kernel_initializer="magic"), "no initializer 'magic'; choose from glorot_normal"),
        (lambda: Dense(2, bias_initializer="magic"), "no initializer 'magic'"),
        (lambda: Activation("rely"), "no activation 'rely'"),
        (lambda: Sequential([Dense(2), 5]), r"takes layers such as Dense\(10\), got 5"),
        (lambda: Sequential([Dense]), "got <class"),
        (lambda: Sequential(Dense(3)), r"a list of layers, got Dense\(units=3"),
        (lambda: Network([Dense(2)], (), RNG(0)), r"of shape \(\); single numbers need an axis"),
        (
            lambda: layer_from_config({"layer": "Conv9D"}),
            "no layer 'Conv9D'; choose from Activation, Av",
        ),
    ],
)
def test_what_cannot_be_a_layer(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


@pytest.mark.parametrize(
    "layer",
    [
        Dense(3),
        Dense(4, "relu", False, "he_normal", "ones"),
        Flatten(),
        Activation("tanh"),
        Reshape((2, -1)),
        Dropout(0.25),
        Embedding(10, 3, "normal"),
        Conv2D(4, 3),
        Conv2D(4, (1, 2), 2, "same", "gelu", False, "he_uniform"),
        MaxPool2D(),
        MaxPool2D(3, (2, 1), "SAME"),
        AveragePool2D(2, 1),
        BatchNorm(0.5, center=False),
        LayerNorm(1e-5),
    ],
    ids=repr,
)
def test_layers_survive_the_journey(layer: Layer) -> None:
    again = layer_from_config(json.loads(json.dumps(layer.to_config())))  # as in a file
    assert repr(again) == repr(layer)
    assert again.to_config() == layer.to_config()


def test_every_layer_is_tried_here() -> None:
    assert set(LAYERS) == {
        "Activation", "AveragePool2D", "BatchNorm", "Conv2D", "Dense", "Dropout", "Embedding", "Flatten",
        "LayerNorm", "MaxPool2D", "Reshape",
    }  # fmt: skip


def test_how_layers_look() -> None:
    assert repr(Dense(10, activation="softmax")) == "Dense(units=10, activation='softmax')"
    assert repr(Flatten()) == "Flatten()"


def test_initializers() -> None:
    for name, initializer in initializers.INITIALIZERS.items():
        value = initializer((400, 300), RNG(0))
        assert value.dtype == np.float32, name
        assert value.shape == (400, 300)
        np.testing.assert_array_equal(value, initializer((400, 300), RNG(0)))
    limit = np.sqrt(6 / 700)
    glorot = initializers.glorot_uniform((400, 300), RNG(0))
    assert 0.99 * limit < np.abs(glorot).max() <= limit
    assert np.std(initializers.he_normal((400, 300), RNG(0))) == pytest.approx(np.sqrt(2 / 400), rel=0.01)
    assert np.std(initializers.random_normal((400, 300), RNG(0))) == pytest.approx(0.05, rel=0.01)
    assert np.std(initializers.standard_normal((400, 300), RNG(0))) == pytest.approx(1, rel=0.01)
    assert not initializers.zeros((2, 2), RNG(0)).any()
    assert initializers.ones((2, 2), RNG(0)).all()


def loss_of(name: str, y: Array, predicted: Array, activation: str = "linear") -> Array:
    with Graph().as_default():
        p = placeholder(np.float32, predicted.shape)
        t = placeholder(y.dtype, y.shape)
        kind = metrics.METRICS if name == "accuracy" else losses.LOSSES
        value = kind[name](t, ACTIVATIONS[activation](p))
    return compile_program([value], feeds=[p, t], shapes=[p.shape, t.shape])(predicted.astype(np.float32), y)[
        0
    ].copy()


def test_losses_per_example() -> None:
    rng = RNG(4)
    z = rng.normal(size=(6, 3))
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    labels = rng.integers(0, 3, 6)
    hot = np.eye(3, dtype=np.float32)[labels]
    expected = -np.log(p[np.arange(6), labels])
    for y, name in ((labels, "sparse_categorical_crossentropy"), (hot, "categorical_crossentropy")):
        np.testing.assert_allclose(loss_of(name, y, z, "softmax"), expected, rtol=1e-5)  # from logits
        np.testing.assert_allclose(loss_of(name, y, p), expected, rtol=1e-5)  # from probabilities
    targets = rng.normal(size=(6, 3)).astype(np.float32)
    for name in ("mse", "mean_squared_error"):
        np.testing.assert_allclose(loss_of(name, targets, z), np.mean((z - targets) ** 2, -1), rtol=1e-5)


def test_certain_and_wrong_is_a_finite_loss() -> None:
    certain = np.array([[1.0, 0.0]])
    assert np.isfinite(loss_of("sparse_categorical_crossentropy", np.array([1]), certain)).all()
    hot = np.array([[0, 1]], np.float32)
    assert np.isfinite(loss_of("categorical_crossentropy", hot, certain)).all()
    assert np.isfinite(loss_of("categorical_crossentropy", hot, certain * 1e4, "softmax")).all()


def test_accuracy_takes_numbers_and_rows() -> None:
    p = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    np.testing.assert_array_equal(loss_of("accuracy", np.array([1, 1, 1]), p), [1, 0, 1])
    hot = np.array([[0, 1], [0, 1], [0, 1]], np.float32)
    np.testing.assert_array_equal(loss_of("accuracy", hot, p), [1, 0, 1])
