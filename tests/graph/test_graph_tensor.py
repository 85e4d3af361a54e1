"""Tensors: what records, what is refused, and with which words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.graph import ops as _ops  # fills the op table
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS, Op, register
from nbdist.graph.scopes import colocate_with
from nbdist.graph.tensor import (
    Graph,
    Tensor,
    Variable,
    constant,
    default_graph,
    name_scope,
    placeholder,
)
from nbdist.graph.variables import get_variable
from nbdist.nn import functional

assert _ops


def value_of(tensor: Tensor) -> Any:
    """Return the value of a tensor that needs no feeds."""
    variables = {v: v.initial_value for v in tensor.graph.variables()}
    return compile_program([tensor], values=variables)()[0]


@pytest.fixture(autouse=True)
def graph() -> Any:
    with Graph().as_default() as graph:
        yield graph


def image(*shape: int | None, dtype: Any = np.float32) -> Any:
    return placeholder(dtype, shape, name="image")


# Dtypes: NumPy's own rules (NEP 50).


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda x: x + 1, np.float32),
        (lambda x: 2.5 * x, np.float32),
        (lambda x: x**2, np.float32),
        (lambda x: 1 / x, np.float32),
        (lambda x: np.where(x > 0, x, 0), np.float32),
        (lambda x: np.where(x > 0, 1.0, 0.0), np.float64),
        (lambda x: np.maximum(x, 0), np.float32),
        (lambda x: x + True, np.float32),
        (lambda x: np.clip(x, -1, 1), np.float32),
        (lambda x: x + np.float64(1), np.float64),
        (lambda x: x + np.ones(3), np.float64),
        (lambda x: x + np.ones(3, np.float32), np.float32),
        (lambda x: x > 0, np.bool_),
        (lambda x: np.sum(x > 0), np.intp),
        (lambda x: np.mean(x > 0), np.float64),
        (lambda x: np.argmax(x, axis=-1), np.intp),
        (lambda x: np.var(x, axis=0), np.float32),
    ],
)
def test_dtypes_are_numpys(make: Callable[[Any], Any], dtype: Any) -> None:
    array = np.linspace(0.1, 1, 6, dtype=np.float32).reshape(2, 3)
    tensor = make(Variable(array))
    assert tensor.dtype == make(array).dtype == dtype
    assert value_of(tensor).dtype == dtype
    np.testing.assert_allclose(value_of(tensor), make(array), rtol=1e-6)


def test_integers_stay_integers_until_a_float_meets_them() -> None:
    i = placeholder(np.int32, (3,))
    assert (i + 1).dtype == np.int32
    assert (i * 1.5).dtype == np.float64
    assert np.sum(i).dtype == np.int64
    assert (i / 2).dtype == np.float64
    with pytest.raises(InvalidArgumentError, match="does not fit int32"):
        i + 2**40


def test_arrays_on_the_left_record_as_well() -> None:
    w = Variable(np.array([1.0, 2.0]))
    np.testing.assert_array_equal(value_of(np.array([3.0, 4.0]) - w), [2, 2])
    np.testing.assert_array_equal(value_of(np.ones((2, 2)) @ w), [3, 3])
    np.testing.assert_array_equal(value_of([3.0, 4.0] - w), [2, 2])


def test_constants_and_initial_values_are_copies() -> None:
    array = np.ones(2)
    c, w = constant(array), Variable(array)
    y = c + w + array
    array[:] = 100
    np.testing.assert_array_equal(value_of(y), [3, 3])


# Shapes.


def test_unknown_sizes_pass_through() -> None:
    x = image(None, 28, 28)
    assert x.reshape(-1, 784).shape == (None, 784)
    assert x.sum(axis=(1, 2)).shape == (None,)
    assert x.mean(axis=0, keepdims=True).shape == (1, 28, 28)
    assert (x + np.ones((28, 1), np.float32)).shape == (None, 28, 28)
    assert (x.reshape(-1, 784) @ np.ones((784, 10), np.float32)).shape == (None, 10)
    assert np.transpose(x, (2, 0, 1)).shape == (28, None, 28)
    assert np.swapaxes(x, 0, -1).shape == (28, 28, None)
    assert np.concatenate([x, x]).shape == (None, 28, 28)
    assert np.concatenate([x, x], axis=-1).shape == (None, 28, 56)
    assert np.stack([x, x], axis=1).shape == (None, 2, 28, 28)
    assert np.expand_dims(x, -1).shape == (None, 28, 28, 1)
    assert np.squeeze(np.expand_dims(x, -1)).shape == (None, 28, 28)
    assert np.ones_like(x).shape == (None, 28, 28)
    assert x.T.shape == (28, 28, None)


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        (0, (28,)),
        (slice(0, 5), (None, 28)),
        ((slice(None), slice(2, 5)), (None, 3)),
        ((..., -1), (None,)),
        ((slice(None), None), (None, 1, 28)),
        ((None, ..., 3), (1, None)),
        ((slice(None), slice(None, None, -3)), (None, 10)),
        ((3, ..., 4), ()),
        ((), (None, 28)),
        (..., (None, 28)),
        (2**21, (28,)),
    ],
)
def test_indexing_with_unknown_sizes(key: Any, shape: tuple[int | None, ...]) -> None:
    assert image(None, 28)[key].shape == shape


@pytest.mark.parametrize("key", [0, -1, slice(1, None), (..., 1), (slice(None), None, 2), slice(5, 1, -2)])
def test_indexing_is_numpys(key: Any) -> None:
    array = np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(value_of(Variable(array)[key]), array[key])


def test_iterating_and_len() -> None:
    x = Variable(np.arange(6.0).reshape(3, 2))
    assert len(x) == 3
    rows = list(x)
    assert [r.shape for r in rows] == [(2,)] * 3
    np.testing.assert_array_equal(value_of(rows[2]), [4, 5])
    with pytest.raises(TypeError, match="has no length: its first size is known only when the graph runs"):
        len(image(None, 2))
    with pytest.raises(TypeError, match="has no length"):
        iter(image(None, 2))
    with pytest.raises(TypeError, match="it is a single number"):
        len(image())


# What cannot be meant is refused where it is written.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: x + np.ones(5), r"add: shapes \(\?, 28\) and \(5,\) do not broadcast: sizes 5 and 28"),
        (lambda x: x @ np.ones((10, 2)), r"matmul: shapes \(\?, 28\) and \(10, 2\).*28 columns, 10 rows"),
        (lambda x: x @ 2, "a scalar has no product"),
        (lambda x: np.sum(x, axis=2), "sum: axis 2 is out of range for 2 dimensions"),
        (lambda x: np.sum(x, axis=(1, -1)), "names one axis twice"),
        (lambda x: x.reshape(-1, -1), "more than one -1"),
        (lambda x: x[0].reshape(3, 9), r"\(28,\) has 28 elements, which do not fit \(3, 9\)"),
        (lambda x: x.reshape(None, 28), r"reshape: \(\?, 28\) has a size that is known only at run time"),
        (lambda x: np.broadcast_to(x, (3, None, 28)), "known only at run time.*np.ones_like"),
        (lambda x: np.broadcast_to(x, (3, 5)), "broadcast_to"),
        (lambda x: np.transpose(x, (0, 0)), r"axes \(0, 0\) do not permute shape \(\?, 28\)"),
        (lambda x: np.squeeze(x, 1), r"squeeze: shape \(\?, 28\) is not 1 along axis"),
        (lambda x: np.concatenate([x, x[:, :4]]), r"concatenate: shapes .* differ outside axis 0"),
        (lambda x: x[:, 28], r"index 28 is out of range for axis 1 of shape \(\?, 28\)"),
        (lambda x: x[0, 0, 0], "3 indices for 2 dimensions"),
        (lambda x: x[..., 0, ...], r"more than one \.\.\."),
        (lambda x: x + "a", "add: expected a tensor, an array or a number, got 'a'"),
        (lambda x: x + None, "got None"),
        (lambda x: constant("text"), "a number, got 'text'"),
        (lambda x: Variable("text"), "a variable's initial value: .* a number, got 'text'"),
        (lambda x: Variable([1, "a"]), "a variable's initial value: .* a number"),
        (lambda x: constant([[1, 2], [3]]), "with rows of one length, got"),
        (lambda x: np.add(x, [[1, 2], [3]]), "add: .* with rows of one length, got"),
        (lambda x: constant(300, np.int8), "a constant: 300 does not fit int8"),
        (lambda x: constant(np.array([7, -1]), np.uint8), "whole numbers from 0 to 255; got -1"),
        (lambda x: constant(np.int64(300), np.int8), "whole numbers from -128 to 127; got 300"),
        (lambda x: np.broadcast_to(constant([1.0]), (-1, 1)), "broadcast_to: the shape .* size below 0"),
        (lambda x: np.full_like(x.astype(np.uint8), 300), "full_like: 300 does not fit uint8"),
        (lambda x: x.astype(np.uint8) + 300, "300 does not fit uint8"),
        (lambda x: np.where(x > 0, x.astype(np.uint8), -1), "where: -1 does not fit uint8"),
        (lambda x: constant(1, "flaot32"), "'flaot32' is not a dtype"),
        (lambda x: constant(1, name=3), "a name is text, got 3"),  # type: ignore[arg-type]
        (lambda x: name_scope(3).__enter__(), "name_scope: a name is text, got 3"),  # type: ignore[arg-type]
        (lambda x: colocate_with("x").__enter__(), "colocate_with takes a tensor.* got 'x'"),  # type: ignore[arg-type]
        (lambda x: placeholder(np.float32, (-1, 3)), r"placeholder: the shape \(-1, 3\) has a size below 0"),
        (
            lambda x: placeholder(np.float32, (2.5,)),
            "placeholder: a size in a shape is a whole number, got 2.5",
        ),  # type: ignore[list-item]
        (lambda x: placeholder(np.float32, 3), "placeholder: a shape is a tuple of sizes, got 3"),  # type: ignore[arg-type]
        (lambda x: placeholder("U5", (3,)), "placeholder: tensors hold numbers and booleans, not <U5"),
        (lambda x: np.sum(x, axis=1.5), "sum: axis is a whole number, got 1.5"),  # type: ignore[call-overload]
        (lambda x: np.mean(x, axis="x"), "mean: axis is a whole number, got 'x'"),  # type: ignore[call-overload]
        (lambda x: np.argmax(x, axis=0.5), "argmax: axis is a whole number, got 0.5"),  # type: ignore[call-overload]
        (lambda x: np.reshape(x, (2.0, 14)), "reshape: a size is a whole number, got 2.0"),  # type: ignore[call-overload]
        (lambda x: np.swapaxes(x, 0, 2), "swapaxes: axis 2 is out of range"),
        (lambda x: np.take(x, 0, axis=2), "take: axis 2 is out of range"),
        (lambda x: functional.one_hot(x, 3), r"one_hot takes class numbers \(integers\), got float32"),
        (lambda x: functional.softmax(x.astype(np.int64)), "softmax takes floating-point numbers, got int64"),
        (lambda x: functional.log_softmax(x.astype(np.int8)), "log_softmax takes floating-point numbers"),
        (lambda x: gradients(np.argmax(x, axis=1), [x]), "is not a floating point tensor"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_graph_is_built(make: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        make(image(None, 28))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: np.fmod(x, x), r"np\.fmod does not record.*define\('fmod', \.\.\.\)"),
        (lambda x: np.median(x), r"np\.median does not record.*nbdist\.graph\.tensor\.FUNCTIONS"),
        (lambda x: np.gcd(x, 2), r"np\.gcd does not record"),
        (lambda x: np.linalg.outer(x, x), r"np\.linalg\.outer does not record"),
        (lambda x: np.add.accumulate(x), r"np\.add\.accumulate"),
        (lambda x: np.sum(x, initial=3), r"np\.sum .* with these arguments.*'initial'.*axis"),
        (lambda x: np.sum(x, out=np.zeros(())), r"np\.sum .* with these arguments.*'out'"),
        (lambda x: np.where(x > 0), r"np\.where .* missing a required argument"),
        (lambda x: np.add(x, 1, where=x > 0), r"np\.add with where= does not record"),
        (lambda x: x[x > 0], "indexing a Tensor with the mask .*depends on its values; use np.where"),
        (lambda x: x["a"], "indexing a Tensor with"),
        (lambda x: x[True], "indexing a Tensor with"),
        (lambda x: np.repeat(x, x[0]), "counts that are a Tensor"),
        (lambda x: np.pad(x, 1, mode="mean"), r"np\.pad\(mode='mean'\)"),
        (lambda x: np.linalg.norm(x, 3), r"norm\(ord=3\) over 2 axes"),
    ],
)
def test_what_is_missing_is_named_with_the_way_to_add_it(make: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        make(image(None, 3))


def test_a_tensor_is_not_changed_in_place() -> None:
    x = image(3)
    with pytest.raises(NotImplementedError, match=r"never changed: .*x = x \+ 1, not x \+= 1"):
        x += 1
    with pytest.raises(TypeError, match="does not support item assignment"):
        x[0] = 1


def test_a_tensor_has_no_value_here() -> None:
    x = image(3)
    with pytest.raises(TypeError, match=r"'greater' \(3,\) bool> has no truth value.*np\.where"):
        bool(x > 0)
    with pytest.raises(TypeError, match="no truth value"):
        0 < x < 1  # noqa: B015
    with pytest.raises(TypeError, match="has no value until the graph runs"):
        np.asarray(x)
    with pytest.raises(TypeError):
        float(x[0])


def test_tensors_are_keys_by_identity() -> None:
    x, y = image(3), image(3)
    assert {x: 1, y: 2}[x] == 1
    assert isinstance(x == y, Tensor)


def test_an_op_of_ones_own_takes_one_record() -> None:
    x = Variable(np.array([3.0, 5.0]))
    with pytest.raises(NotImplementedError):
        np.fmod(x, 2.0)
    register(
        Op(
            "fmod",
            forward=lambda xp, a, b: xp.fmod(a, b),
            spec=OPS["add"].spec,
            vjp=lambda np, g, y, a, b: (g, -g * np.trunc(a / b)),
        )
    )
    try:
        y = np.fmod(np.array([7.0, -9.0]), x)
        np.testing.assert_allclose(value_of(y), [1, -4])  # type: ignore[arg-type]
        (g,) = gradients(np.sum(y), [x])
        assert g is not None
        np.testing.assert_allclose(value_of(g), [-2, 1])
        with pytest.raises(InvalidArgumentError, match="'fmod' is in the table already"):
            register(OPS["fmod"])
    finally:
        del OPS["fmod"]


# Names, scopes, graphs.


def test_names_are_unique_within_a_graph(graph: Graph) -> None:
    made = [constant(1.0, name=name).name for name in ("a", "a", "a_1", "a", "b")]
    assert made == ["a", "a_1", "a_1_1", "a_2", "b"]
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)


def test_name_scopes_nest_and_are_unique() -> None:
    with name_scope("net"):
        first = constant(1.0, name="c")
        with name_scope("layer"):
            second = constant(1.0, name="c")
        with name_scope(""):
            third = constant(1.0, name="c")
    with name_scope("net"):
        fourth = constant(1.0, name="c")
    assert [t.name for t in (first, second, third, fourth)] == ["net/c", "net/layer/c", "c", "net_1/c"]
    with pytest.raises(ZeroDivisionError), name_scope("net"):
        1 / 0  # noqa: B018
    assert constant(1.0, name="d").name == "d"


def test_tensors_of_two_graphs_do_not_meet() -> None:
    a = image(3)
    with Graph().as_default():
        b = image(3)
    with pytest.raises(InvalidArgumentError, match="belongs to another graph than 'image'"):
        a + b


def test_an_op_records_where_its_inputs_are_and_leaves_the_default_graph_alone() -> None:
    outer = default_graph()
    a = image(3)
    with Graph().as_default() as inner:
        b = a + 1
        assert default_graph() is inner
        with outer.as_default():
            assert default_graph() is outer
        assert default_graph() is inner
        c = constant(1.0)
    assert b.graph is outer
    assert c.graph is inner
    assert default_graph() is outer


def test_each_thread_has_a_default_graph_of_its_own(graph: Graph) -> None:
    seen: list[Graph] = []
    thread = threading.Thread(target=lambda: seen.append(default_graph()))
    thread.start()
    thread.join()
    assert seen[0] is not graph


def test_how_they_look() -> None:
    assert repr(image(None, 3) * 2) == "<Tensor 'multiply' (?, 3) float32>"
    assert repr(Variable(np.zeros(4), name="w")) == "<Variable 'w' (4,) float64>"
    v = Variable(lambda: [1, 2], dtype=np.float32, trainable=False)
    assert (v.dtype, v.trainable, v.shape, v.ndim) == (np.float32, False, (2,), 1)
    assert v.graph.variables()[-1] is v


# Complex numbers are refused wherever they could come in.


@pytest.mark.parametrize(
    "make",
    [
        lambda x: placeholder(np.complex64, (3,)),
        lambda x: constant(1j),
        lambda x: constant(1, np.complex128),
        lambda x: Variable([3j, 4]),
        lambda x: x * 1j,
        lambda x: x + np.array([1j, 2, 3]),
        lambda x: x.astype(complex),
        lambda x: np.astype(x, np.complex64),
        lambda x: np.sum(x, dtype=complex),
        lambda x: np.cumsum(x, dtype=complex),
        lambda x: np.zeros_like(x, dtype=complex),
        lambda x: np.where(x > 0, x, 1j),
        lambda x: get_variable("w", (3,), np.complex64),
    ],
)
def test_complex_numbers_are_refused_with_what_to_do(make: Callable[[Any], Any]) -> None:
    with pytest.raises(
        InvalidArgumentError, match="is complex, and tensors hold real numbers: keep the real"
    ):
        make(image(3))
