"""Gradients of compositions against finite differences; what has none; gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_expressions import Expression, expressions, leaves_of
from hypothesis import assume, given, settings

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.nn import functional

Array = np.ndarray[Any, Any]


def run(tensors: list[Tensor], values: dict[Any, Array]) -> list[Array]:
    """Return the values of tensors; ``values`` holds variables and placeholders."""
    feeds = [t for t in values if not isinstance(t, Variable)]
    program = compile_program(
        tensors,
        feeds=feeds,
        shapes=[values[f].shape for f in feeds],
        values={v: a for v, a in values.items() if isinstance(v, Variable)},
    )
    return [np.array(r) for r in program(*(values[f] for f in feeds))]


def slopes(total: Tensor, values: dict[Any, Array], of: Any, h: float = 1e-6) -> Array:
    """Return the gradient of a scalar by central differences."""
    array = values[of]
    result = np.zeros(array.shape)
    for index in np.ndindex(array.shape):
        kept = array[index]
        ends = []
        for step in (h, -h):
            array[index] = kept + step
            ends.append(float(run([total], values)[0]))
        array[index] = kept
        result[index] = (ends[0] - ends[1]) / (2 * h)
    return result


@settings(deadline=None, max_examples=examples(60))
@given(expressions(most=6))
def test_any_expression_against_finite_differences(expression: Expression) -> None:
    leaves = leaves_of(expression, 3)
    kinks = ("relu", "clip", "max", "min", "where", "cast")
    assume(not any(s.name.startswith(kinks) for s in expression.steps))
    with Graph().as_default():
        variables = [Variable(a) for a in leaves]
        total = np.sum(expression.run(list(variables))[-1])
        found = gradients(total, variables)
    values: dict[Any, Array] = dict(zip(variables, leaves, strict=True))
    assume(abs(run([total], values)[0]) < 1e4)
    for variable, gradient in zip(variables, found, strict=True):
        expected = slopes(total, values, variable)
        if gradient is None:
            np.testing.assert_allclose(expected, 0, atol=1e-9)
        else:
            assert gradient.shape == variable.shape
            (actual,) = run([gradient], values)
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_network_with_an_unknown_batch_size() -> None:
    rng = np.random.default_rng(0)
    with Graph().as_default():
        x = placeholder(np.float64, (None, 3))
        y = placeholder(np.int64, (None,))
        w = Variable(rng.normal(size=(3, 4)))
        b = Variable(rng.normal(size=4))
        v = Variable(rng.normal(size=(4, 5)))
        hidden = functional.sigmoid(x @ w + b)
        loss = functional.sparse_softmax_cross_entropy(y, np.tanh(hidden) @ v).mean()
        found = gradients(loss, [w, b, v])
    for rows in (6, 1):
        values: dict[Any, Array] = {t: t.initial_value.copy() for t in (w, b, v)}
        values |= {x: rng.normal(size=(rows, 3)), y: rng.integers(0, 5, rows)}
        for variable, gradient in zip((w, b, v), found, strict=True):
            assert gradient is not None
            np.testing.assert_allclose(
                run([gradient], values)[0], slopes(loss, values, variable), rtol=1e-5, atol=1e-8
            )


def test_what_a_loss_does_not_depend_on_has_no_gradient() -> None:
    with Graph().as_default():
        a, b, c = (Variable(np.ones(3), name=n) for n in "abc")
        y = np.sum(a * 2) + np.sum(b) * 0
        found = gradients(y, [a, b, c, constant(1.0)])
        through_choice = gradients(np.sum(np.argmax(a) * 2.0), [a])
        through_integers = gradients(np.sum(a.astype(np.int64) * 1.0), [a])
    assert [g is None for g in found] == [False, False, True, True]
    assert through_choice[0] is None
    assert through_integers[0] is None


def test_the_gradient_with_respect_to_itself_is_one() -> None:
    with Graph().as_default():
        a = Variable(np.arange(3.0))
        (g,) = gradients(a, [a])
    assert g is not None
    np.testing.assert_array_equal(run([g], {a: a.initial_value})[0], [1, 1, 1])


def test_a_value_used_twice_collects_both() -> None:
    with Graph().as_default():
        a = Variable(np.array([2.0, 3.0]))
        b = a * a
        (to_a, to_b) = gradients(np.sum(b * b + b), [a, b])
    assert to_a is not None
    assert to_b is not None
    np.testing.assert_allclose(run([to_b], {a: a.initial_value})[0], [9, 19])
    np.testing.assert_allclose(run([to_a], {a: a.initial_value})[0], [36, 114])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.sum(x**3),
        lambda x: np.sum(np.tanh(x) ** 2),
        lambda x: np.sum(np.exp(x) @ np.arange(6.0).reshape(3, 2)),
        lambda x: np.sum(functional.sigmoid(x) * x),
        lambda x: np.sum(functional.softmax(x)[:, 0] ** 2),
        lambda x: np.mean(np.var(x, axis=0)),
        lambda x: np.sum(functional.sparse_softmax_cross_entropy(np.array([2, 0]), x) ** 2),
        lambda x: np.sum(functional.softmax_cross_entropy(np.eye(3)[[2, 0]], x) ** 2),
        lambda x: np.sum((x[::-1, 1:] / (x[:, :2] + 5)) ** 2),
    ],
)
def test_gradients_of_gradients(function: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(5)
    with Graph().as_default():
        x = Variable(rng.normal(size=(2, 3)))
        (first,) = gradients(function(x), [x])
        assert first is not None
        directed = np.sum(first * rng.normal(size=(2, 3)))
        (second,) = gradients(directed, [x])
    assert second is not None
    values: dict[Any, Array] = {x: x.initial_value.copy()}
    np.testing.assert_allclose(run([second], values)[0], slopes(directed, values, x), rtol=1e-5, atol=1e-7)


def test_gradients_join_the_graph_of_their_loss() -> None:
    with Graph().as_default() as graph:
        a = Variable(np.ones(2))
        y = np.sum(np.square(a))
    with Graph().as_default():
        (g,) = gradients(y, [a])
    assert g is not None
    assert g.graph is graph


def test_only_floating_point_numbers_have_gradients() -> None:
    with Graph().as_default():
        a = Variable(np.ones(2))
        with pytest.raises(InvalidArgumentError, match="is not a floating point tensor"):
            gradients(np.sum(a > 0), [a])


@pytest.mark.parametrize("rows", [1, 4])
def test_sparse_cross_entropy(rows: int) -> None:
    """(probabilities - one-hot) times what comes in, whatever the scale, as TensorFlow defines it."""
    rng = np.random.default_rng(rows)
    logits, labels = rng.normal(size=(rows, 5)), rng.integers(0, 5, rows)
    weight = rng.normal(size=rows)
    with Graph().as_default():
        z = Variable(logits)
        per_example = functional.sparse_softmax_cross_entropy(labels, z)
        dense = functional.softmax_cross_entropy(np.eye(5)[labels], z)
        (sparse_gradient,) = gradients(np.sum(per_example * weight), [z])
        (dense_gradient,) = gradients(np.sum(dense * weight), [z])
    assert sparse_gradient is not None
    assert dense_gradient is not None
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    a, b, c, d = run([per_example, dense, sparse_gradient, dense_gradient], {z: logits})
    np.testing.assert_allclose(a, -np.log(p[np.arange(rows), labels]))
    np.testing.assert_allclose(b, a)
    np.testing.assert_allclose(c, weight[:, None] * (p - np.eye(5)[labels]))
    np.testing.assert_allclose(d, c)


def test_cross_entropy_of_huge_logits_is_finite() -> None:
    logits = np.array([[1000.0, -1000.0, 0.0], [-1e30, 1e30, 0.0]], np.float32)
    with Graph().as_default():
        z = Variable(logits)
        loss = functional.sparse_softmax_cross_entropy(np.array([1, 1]), z)
        (g,) = gradients(np.sum(loss), [z])
    assert g is not None
    value, gradient = run([loss, g], {z: logits})
    assert np.isfinite(value).all()
    assert value[0] > 80
    assert value[1] == 0
    np.testing.assert_allclose(gradient, [[1, -1, 0], [0, 0, 0]], atol=1e-6)


def test_cross_entropy_checks_its_labels() -> None:
    with Graph().as_default():
        z = placeholder(np.float32, (None, 5))
        with pytest.raises(InvalidArgumentError, match=r"labels are class numbers \(int\), got float64"):
            functional.sparse_softmax_cross_entropy(np.zeros(3), z)
        with pytest.raises(InvalidArgumentError, match=r"\(\?, 5\) need labels of 1 dim.*, got \(3, 5\)"):
            functional.sparse_softmax_cross_entropy(np.zeros((3, 5), int), z)


def test_functions_of_networks_are_what_they_say() -> None:
    x = np.array([[-2.0, 0.0, 3.0], [900.0, -900.0, 0.0]])
    with Graph().as_default():
        v = Variable(x)
        made = [
            functional.sigmoid(v),
            functional.relu(v),
            functional.softmax(v),
            functional.log_softmax(v),
            functional.one_hot(np.array([2, 0]), 3),
        ]
    sigmoid, relu, softmax, log_softmax, hot = run(made, {v: x})
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x)))
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_allclose(softmax.sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(log_softmax), softmax, atol=1e-300)
    np.testing.assert_array_equal(hot, np.eye(3, dtype=np.float32)[[2, 0]])


def test_a_power_of_zero_has_a_gradient() -> None:
    with Graph().as_default():
        v = Variable(np.array([0.0, 2.0]))
        found = [gradients(np.sum(v**n), [v])[0] for n in (0, 1, 2)]
    results = run([g for g in found if g is not None], {v: v.initial_value})
    np.testing.assert_allclose(results, [[0, 0], [1, 1], [0, 4]])


def test_a_gradient_has_the_dtype_of_what_it_is_for() -> None:
    with Graph().as_default():
        w, table = Variable(np.ones((4, 3), np.float32), name="w"), Variable(np.ones((4, 3), np.float32))
        n = Variable(np.ones(3, np.int64), name="n")
        rows: Any = functional.embedding_lookup(table, np.array([1, 1, 2]))
        total = np.sum(w * np.float64(2)) + np.sum(np.sum(rows.astype(np.float64) * n))
        found = gradients(total, [w, table, n])
        seeded = gradients([w * 2], [w], grad_ys=[np.ones((4, 3))])
    assert [g if g is None else g.dtype for g in found] == [np.float32, np.float32, None]
    assert seeded[0].dtype == np.float32


def test_nothing_flows_through_whole_numbers() -> None:
    with Graph().as_default():
        n = Variable(np.arange(3), name="n")
        y = np.sum(np.sqrt(n * 2 + 1))
        assert gradients(y, [n]) == [None]


def test_the_gradient_of_concatenate_along_an_unknown_axis() -> None:
    with Graph().as_default():
        a, b = placeholder(np.float64, (None, 2)), placeholder(np.float64, (None, 2))
        joined: Any = np.concatenate([a, b, a * 2])
        weight = np.arange(10.0).reshape(5, 2)
        found = gradients(np.sum(joined * weight), [a, b])
        twice = gradients(np.sum(np.square(found[0])) + np.sum(np.square(joined)), [b])
    values: dict[Any, Array] = {a: np.ones((2, 2)), b: np.full((1, 2), 3.0)}
    first, second, third = run([*found, *twice], values)
    np.testing.assert_array_equal(first, weight[:2] + 2 * weight[3:])
    np.testing.assert_array_equal(second, weight[2:3])
    np.testing.assert_array_equal(third, 2 * values[b])
