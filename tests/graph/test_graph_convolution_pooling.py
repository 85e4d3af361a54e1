"""Convolution and pooling: what is refused, the gradient of equal elements, second derivatives; and erf."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.ops.windows import WindowAxis
from nbdist.graph.tensor import Graph, Variable, placeholder, record

POOL = {"size": (2, 2), "strides": (2, 2), "padding": "valid"}
CONV = {"strides": (1, 1), "padding": "same", "relu": False}


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 4, 5, 6])
def test_every_element_of_every_window_is_found_once(n: int, size: int, step: int, padding: str) -> None:
    axis = WindowAxis.of(n, size, step, padding)
    expected = {
        (window, offset, window * step + offset - axis.before)
        for window in range(axis.count)
        for offset in range(size)
        if 0 <= window * step + offset - axis.before < n
    }
    found = {
        (window, offset, element)
        for offset in range(size)
        for window, element in zip(
            range(axis.count)[axis.inside(offset)[0]], range(n)[axis.inside(offset)[1]], strict=True
        )
    }
    assert found == expected


def test_among_equals_the_first_gets_the_gradient() -> None:
    x = np.ones((1, 4, 4, 1))
    x[0, 1, 1] = x[0, 0, 1] = 2
    with Graph().as_default():
        v = Variable(x)
        (g,) = gradients(np.sum(record("max_pool2d", v, **POOL)), [v])
    assert g is not None
    value = compile_program([g], values={v: x})()[0][0, :, :, 0]
    np.testing.assert_array_equal(value, [[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])


def test_a_conv_through_relu_and_pool_has_second_derivatives() -> None:
    rng = np.random.default_rng(0)
    x, k, b = rng.normal(size=(2, 4, 4, 2)), rng.normal(size=(3, 3, 2, 2)), rng.normal(size=2)
    direction = rng.normal(size=k.shape)
    with Graph().as_default():
        variables = [Variable(a) for a in (x, k, b)]
        y = record("max_pool2d", record("conv2d", *variables, **(CONV | {"relu": True})), **POOL)
        first = gradients(np.sum(y**3), variables)
        assert first[1] is not None
        second = [g for g in gradients(np.sum(first[1] * direction), variables) if g is not None]
    assert len(second) == 3
    values = dict(zip(variables, (x, k, b)))
    analytic = [a.copy() for a in compile_program(second, values=values)()]
    f = compile_program([np.sum(first[1] * direction)], values=values)  # type: ignore[arg-type]
    for array, found in zip((x, k, b), analytic, strict=True):
        for index in list(np.ndindex(array.shape))[::5]:
            kept = array[index]
            array[index] = kept + 1e-6
            above = float(f()[0])
            array[index] = kept - 1e-6
            below = float(f()[0])
            array[index] = kept
            assert found[index] == pytest.approx((above - below) / 2e-6, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda x: record("conv2d", x, np.ones((3, 3, 2, 1)), **CONV),
            "images have 3 channels, the kernel is for 2",
        ),
        (lambda x: record("conv2d", x, np.ones((3, 3)), **CONV), r"kernel has shape .*got \(3, 3\)"),
        (
            lambda x: record("conv2d", x[0], np.ones((3, 3, 3, 1)), **CONV),
            r"takes images .*got shape \(8, 8, 3\)",
        ),
        (
            lambda x: record("conv2d", x, np.ones((9, 1, 3, 1)), **(CONV | {"padding": "valid"})),
            r"windows of 9 x 1 do not fit into images of shape \(8, 8, 3\)",
        ),
        (lambda x: record("max_pool2d", x[..., 0], **POOL), "max_pool2d takes images"),
    ],
)
def test_shapes_that_do_not_fit(make: Callable[[Any], Any], words: str) -> None:
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match=words):
        make(placeholder(np.float32, (None, 8, 8, 3)))


def test_sizes_that_are_not_known_yet() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (None, None, 8, 3))
        y = record("conv2d", x, np.ones((3, 3, 3, 4), np.float32), **(CONV | {"padding": "valid"}))
        assert y.shape == (None, None, 6, 4)
        assert record("max_pool2d", y, **POOL).shape == (None, None, 3, 4)
        assert y.dtype == np.float32


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-15), (np.float32, 5e-7)])
def test_erf(dtype: Any, tolerance: float) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20_001), [0, np.inf, -np.inf]]).astype(dtype)
    with Graph().as_default():
        v = Variable(x)
        y = record("erf", v)
    value = compile_program([y], values={v: x})()[0]
    assert value.dtype == dtype
    np.testing.assert_allclose(value, [math.erf(one) for one in x], rtol=0, atol=tolerance)
