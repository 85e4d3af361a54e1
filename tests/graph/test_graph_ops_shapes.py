"""Any shapes: broadcasting, reductions, indexing and einsum mean what NumPy means, and gradients fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder

Array = np.ndarray[Any, Any]
untimed = settings(deadline=None)  # the machine may be busy
SIDES = st.integers(1, 4)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4)


def filled(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape)


def check(make: Callable[..., Any], *arrays: Array, unknown: bool = True) -> None:
    """Compare value and shape with NumPy's, and the gradient along one direction with differences."""
    expected = np.asarray(make(*arrays))
    with Graph().as_default():
        variables = [Variable(a) for a in arrays]
        y = make(*variables)
        assert isinstance(y, Tensor)
        weight = filled(expected.shape, 7)
        grads = gradients(np.sum(y * weight), variables)
    assert y.shape == expected.shape
    assert y.dtype == expected.dtype
    program = compile_program([y, *(g for g in grads if g is not None)], values=dict(zip(variables, arrays)))
    value, *found = [a.copy() for a in program()]
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    h = 1e-6
    for i, (array, gradient) in enumerate(zip(arrays, found, strict=True)):
        assert gradient.shape == array.shape
        step = h * filled(array.shape, 9 + i)
        ends = [np.sum(make(*arrays[:i], array + sign * step, *arrays[i + 1 :]) * weight) for sign in (1, -1)]
        assert np.sum(gradient * step) * 2 == pytest.approx(ends[0] - ends[1], rel=1e-4, abs=1e-9)
    if unknown:
        with Graph().as_default():
            feeds = [placeholder(a.dtype, (None,) * a.ndim) for a in arrays]
            y = make(*feeds)
        assert all(n in (None, m) for n, m in zip(y.shape, expected.shape, strict=True))
        (value,) = compile_program([y], feeds=feeds, shapes=[a.shape for a in arrays])(*arrays)
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)


@untimed
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4),
    st.sampled_from([np.add, np.subtract, np.multiply, np.divide, np.power, np.arctan2, np.logaddexp]),
)
def test_two_arrays_broadcast(shapes: Any, ufunc: Any) -> None:
    check(ufunc, *(filled(s, i) for i, s in enumerate(shapes.input_shapes)))


@untimed
@given(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3))
def test_three_arrays_broadcast(shapes: Any) -> None:
    a, b, c = (filled(s, i) for i, s in enumerate(shapes.input_shapes))
    check(lambda x, y, z: np.where(np.asarray(c) > 1, x, y) * z, a, b, c)


@untimed
@given(SHAPES, SHAPES)
def test_what_numpy_cannot_broadcast_is_refused(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    with Graph().as_default():
        x, y = placeholder(np.float64, first), placeholder(np.float64, second)
        try:
            expected = np.broadcast_shapes(first, second)
        except ValueError:
            with pytest.raises(InvalidArgumentError, match="do not broadcast"):
                x + y
        else:
            assert (x + y).shape == expected


@untimed
@given(
    st.data(),
    hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=3),
    st.sampled_from([np.sum, np.mean, np.prod, np.max, np.min, np.var, np.linalg.norm]),
    st.booleans(),
)
def test_reductions(data: Any, shape: tuple[int, ...], reduce: Any, keepdims: bool) -> None:
    axes = st.none() | st.integers(-len(shape), len(shape) - 1)
    if reduce is not np.linalg.norm:
        axes = axes | hnp.valid_tuple_axes(len(shape))
    axis = data.draw(axes)
    array = np.random.default_rng(1).permutation(np.arange(1.0, 1 + np.prod(shape))).reshape(shape) / 7
    check(lambda x: reduce(x, axis=axis, keepdims=keepdims), array)


@untimed
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
def test_scans_and_sorting(data: Any, shape: tuple[int, ...]) -> None:
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    function = data.draw(st.sampled_from([np.cumsum, np.cumprod, np.sort]))
    check(lambda x: function(x, axis=axis), filled(shape))


@untimed
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
def test_basic_indexing(data: Any, shape: tuple[int, ...]) -> None:
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    check(lambda x: x[key], filled(shape))


@untimed
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
def test_integer_array_indexing_among_slices(data: Any, shape: tuple[int, ...]) -> None:
    positions = hnp.array_shapes(min_dims=0, max_dims=2, max_side=3)
    result = data.draw(positions)
    key: list[Any] = []
    named = data.draw(st.integers(1, len(shape)))
    dots = data.draw(st.none() | st.integers(0, named))  # before which of the named axes, the last of them
    sizes = [*shape[: dots or 0], *shape[len(shape) - named + (dots or 0) :]]
    for place, n in enumerate(shape[:named] if dots is None else sizes):
        if place == dots:
            key.append(...)
        kind = data.draw(st.sampled_from(["array", "number", "slice", "new axis"]))
        if kind == "array":
            key.append(data.draw(hnp.arrays(np.int64, result, elements=st.integers(-n, n - 1))))
        elif kind == "number":
            key.append(data.draw(st.integers(-n, n - 1)))
        else:
            key.extend([None, slice(None)] if kind == "new axis" else [slice(0, data.draw(SIDES))])
    if dots == named:
        key.append(...)
    check(lambda x: x[tuple(key)], filled(shape))


@untimed
@given(st.data())
def test_einsum_of_two(data: Any) -> None:
    sizes = dict(zip("abcde", data.draw(st.lists(SIDES, min_size=5, max_size=5))))
    labels = st.lists(st.sampled_from("abcde"), max_size=4, unique=True).map("".join)
    left, right = data.draw(labels), data.draw(labels)
    every = sorted(set(left + right))
    output = "".join(data.draw(st.permutations(every))[: data.draw(st.integers(0, len(every)))])
    arrays = [filled(tuple(sizes[c] for c in part), i) for i, part in enumerate((left, right))]
    check(lambda x, y: np.einsum(f"{left},{right}->{output}", x, y), *arrays)


@untimed
@given(
    hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3),
    st.tuples(SIDES, SIDES, SIDES),
    st.booleans(),
)
def test_stacks_of_matrix_products(shapes: Any, sides: tuple[int, int, int], solve: bool) -> None:
    rows, inner, columns = sides
    first, second = shapes.input_shapes
    if solve:
        a = filled((*first, inner, inner)) + 3 * np.eye(inner)
        check(np.linalg.solve, a, filled((*second, inner, columns), 1))
    else:
        check(np.matmul, filled((*first, rows, inner)), filled((*second, inner, columns), 1))


@untimed
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
def test_rearranging(data: Any, shape: tuple[int, ...]) -> None:
    ndim = len(shape)
    axis = data.draw(st.integers(-ndim, ndim - 1))
    count = data.draw(st.integers(0, 3))
    widths = data.draw(st.lists(st.tuples(SIDES, st.integers(0, 2)), min_size=ndim, max_size=ndim))
    menu: dict[str, Callable[[Any], Any]] = {
        "tile": lambda x: np.tile(x, data_counts),
        "repeat": lambda x: np.repeat(x, count, axis),
        "roll": lambda x: np.roll(x, count - 2, axis),
        "flip": lambda x: np.flip(x, axis),
        "pad": lambda x: np.pad(x, widths, constant_values=count),
        "moveaxis": lambda x: np.moveaxis(x, axis, 0),
    }
    data_counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    check(menu[data.draw(st.sampled_from(sorted(menu)))], filled(shape))
