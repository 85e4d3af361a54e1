"""Layers for images: shapes, values against sums written out, and a network that learns from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset, digits
from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.tensor import Graph, placeholder
from nbdist.nn import AveragePool2D, Conv2D, Dense, Flatten, Layer, MaxPool2D, Reshape, Sequential, functional
from nbdist.nn.network import Network
from nbdist.optim import Adam

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng


def output(layers: list[Layer], x: Array) -> tuple[Array, Network]:
    network = Network(layers, x.shape[1:], RNG(0))
    return network.prediction(len(x), network.drawn)(x.astype(np.float32))[0].copy(), network


def padded(x: Array, size: int, step: int, value: float) -> Array:
    """Pad as TensorFlow says: the output has ceil(n / step), the odd element comes after."""
    ends = [(0, 0)]
    for n in x.shape[1:3]:
        missing = max((-(-n // step) - 1) * step + size - n, 0)
        ends.append((missing // 2, missing - missing // 2))
    return np.pad(x, [*ends, (0, 0)], constant_values=value)


def windows(x: Array, size: int, step: int) -> Array:
    """(batch, rows, columns, channels, size, size)"""
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))[:, ::step, ::step]


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_a_convolution_is_a_sum_over_windows(channels: int, size: int, step: int, padding: str) -> None:
    x = RNG(1).normal(size=(3, 7, 8, channels))
    y, network = output([Conv2D(4, size, step, padding, "relu", bias_initializer="normal")], x)
    kernel, bias = network.drawn
    inside = padded(x, size, step, 0) if padding == "same" else x
    expected = np.einsum("brcnij,ijno->brco", windows(inside, size, step), kernel) + bias
    np.testing.assert_allclose(y, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)
    assert network.outputs == [(None, *expected.shape[1:])]


def test_many_images_take_many_blocks() -> None:
    x = RNG(2).normal(size=(23, 26, 26, 32))
    y, _ = output([Conv2D(8, 3)], x)
    one_by_one = [output([Conv2D(8, 3)], x[i : i + 1])[0][0] for i in (0, 11, 22)]
    np.testing.assert_allclose(y[[0, 11, 22]], one_by_one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize(("size", "step"), [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_pooling(size: int, step: int, padding: str) -> None:
    x = RNG(3).normal(size=(2, 7, 6, 3))
    low, zero, one = (
        windows(padded(a, size, step, value) if padding == "same" else a, size, step)
        for a, value in ((x, -np.inf), (x, 0), (np.ones_like(x), 0))
    )
    y, _ = output([MaxPool2D(size, step, padding)], x)
    np.testing.assert_allclose(y, low.max(axis=(-1, -2)), rtol=1e-6)
    y, _ = output([AveragePool2D(size, step, padding)], x)
    np.testing.assert_allclose(y, zero.sum(axis=(-1, -2)) / one.sum(axis=(-1, -2)), rtol=1e-4, atol=1e-6)


def test_images_that_a_batch_brings_anew() -> None:
    """A fed batch is another array each time, and a kernel may not keep looking at the first."""
    network = Network([Conv2D(3, 3, padding="same")], (6, 6, 2), RNG(0))
    program = network.prediction(4, network.drawn)
    batches = [RNG(i).normal(size=(4, 6, 6, 2)).astype(np.float32) for i in range(3)]
    apart = [network.prediction(4, network.drawn)(b)[0].copy() for b in batches]
    for _ in range(2):
        for batch, expected in zip(batches, apart, strict=True):
            np.testing.assert_array_equal(program(batch)[0], expected)


def test_digits_are_learned_by_a_convolutional_network() -> None:
    x, y, x_test, y_test = digits()
    model = Sequential(
        [
            Reshape((8, 8, 1)),
            Conv2D(8, 3, activation="relu"),
            Conv2D(16, 3, activation="relu", padding="same"),
            MaxPool2D(),
            Flatten(),
            Dense(10, "softmax"),
        ],
        seed=1,
    )
    model.compile(Adam(0.005), metrics=["accuracy"])
    model.fit(Dataset.from_arrays(x, y).shuffle(len(x), seed=1).batch(50), epochs=6)
    assert model.evaluate(x_test, y_test)["accuracy"] > 0.93
    rows = model.summary().splitlines()
    assert rows[1].split() == ["Reshape(target_shape=(8,", "8,", "1))", "(?,", "8,", "8,", "1)", "0"]


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (
            Conv2D(2, 3),
            (28, 28),
            r"of shape \(28, 28\); put Reshape\(\(28, 28, 1\)\) before it",
        ),
        (Conv2D(2, 3), (784,), r"put Reshape\(\(height, width, channels\)\) before it"),
        (MaxPool2D(), (784,), "MaxPool2D takes images"),
        (Conv2D(2, 5), (4, 8, 1), r"windows of 5 x 5 do not fit into images of shape \(4, 8, 1\)"),
        (AveragePool2D(3), (2, 2, 1), "use smaller windows or padding='same'"),
        (Reshape((5, -1)), (12,), r"examples of shape \(12,\) have 12 elements, which do not fit \(5, -1\)"),
        (Reshape((5, 2)), (12,), "do not fit"),
    ],
)
def test_examples_that_do_not_fit(layer: Layer, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        Network([layer], shape, RNG(0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conv2D(0, 3), "filters is a whole number above 0"),
        (lambda: Conv2D(2, 0), "kernel_size is a whole number above 0, or a pair of them, got 0"),
        (lambda: Conv2D(2, (3, 3, 3)), "kernel_size"),
        (lambda: Conv2D(2, 3, strides=1.5), "strides is .*got 1.5"),
        (lambda: Conv2D(2, 3, padding="full"), "padding is 'valid' or 'same', got 'full'"),
        (lambda: MaxPool2D(True), "pool_size"),
        (lambda: Reshape((0, 2)), "target_shape holds sizes above 0"),
        (lambda: Reshape((-1, -1)), "one of which may be -1"),
    ],
)
def test_bad_settings(make: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, (2, 1), 3])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_dilated_and_grouped_convolution(groups: int, dilation: Any, padding: str) -> None:
    """Against the definition: a kernel with zeros between its elements and across groups."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 9, 8, 4)).astype(np.float32)
    layer = Conv2D(8, (3, 2), padding=padding, dilation_rate=dilation, groups=groups, activation="relu")
    y, network = output([layer], x)
    kernel, bias = network.drawn
    assert kernel.shape == (3, 2, 4 // groups, 8)
    down, along = layer.dilation_rate
    whole = np.zeros((2 * down + 1, along + 1, 4, 8), np.float32)
    for g in range(groups):
        channels = slice(g * 4 // groups, (g + 1) * 4 // groups)
        filters = slice(g * 8 // groups, (g + 1) * 8 // groups)
        whole[::down, ::along, channels, filters] = kernel[..., filters]
    with Graph().as_default():
        images = placeholder(np.float32, x.shape)
        plain = functional.conv2d(images, whole, bias, padding=padding, relu=True)
    expected = compile_program([plain], feeds=[images], shapes=[x.shape])(x)[0]
    assert network.predicted.shape == (None, *expected.shape[1:])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_groups_that_do_not_divide() -> None:
    with pytest.raises(InvalidArgumentError, match="6 filters cannot be cut into 4 groups"):
        Conv2D(6, 3, groups=4)
    with pytest.raises(InvalidArgumentError, match="3 channels cannot be cut into 2 groups"):
        output([Conv2D(4, 3, groups=2)], np.ones((1, 5, 5, 3), np.float32))
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match="2 groups of images of 3 channels"):
        functional.conv2d(placeholder(np.float32, (1, 5, 5, 3)), np.ones((2, 2, 3, 4), np.float32), groups=2)
