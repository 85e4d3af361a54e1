"""Programs compute what NumPy computes, whatever is fetched, written into, viewed or reused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_expressions import Expression, expressions, leaves_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.compile.buffers import ALIGNMENT
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.nn.functional import relu, sigmoid, softmax, sparse_softmax_cross_entropy

Array = np.ndarray[Any, Any]


def as_graph(
    expression: Expression, leaves: list[Array], known: bool = True
) -> tuple[list[Any], list[Tensor]]:
    """Return the leaves as placeholders and variables, and every value as a tensor."""
    with Graph().as_default():
        inputs: list[Any] = [
            placeholder(np.float64, a.shape if known else (None,) * a.ndim)
            if i < expression.feeds
            else Variable(a)
            for i, a in enumerate(leaves)
        ]
        return inputs, expression.run(inputs)


def check(expression: Expression, fetched: list[int], written: list[int], strided: bool) -> None:
    leaves = leaves_of(expression, 0)
    inputs, tensors = as_graph(expression, leaves)
    feeds = inputs[: expression.feeds]
    values = {v: a for v, a in zip(inputs, leaves) if isinstance(v, Variable)}
    program = compile_program(
        [tensors[i] for i in fetched],
        feeds=feeds,
        shapes=[f.shape for f in feeds],
        values=values,
        into=[tensors[i] for i in written],
    )
    assert program.buffer_bytes <= program.value_bytes + ALIGNMENT * len(tensors)
    for seed in (1, 2):  # the second call meets what the first left in the buffers
        fresh = leaves_of(expression, seed)
        for (variable, array), value in zip(values.items(), fresh[expression.feeds :], strict=True):
            assert variable.shape == value.shape
            np.copyto(array, value)
        expected = [np.asarray(v) for v in expression.run(fresh)]
        outputs = [empty_like(expected[i], strided) for i in written]
        kept = [a.copy() for a in fresh[: expression.feeds]]
        results = program(*fresh[: expression.feeds], *outputs)
        for i, result in [*zip(fetched, results, strict=True), *zip(written, outputs, strict=True)]:
            assert result.shape == expected[i].shape == tensors[i].shape
            assert result.dtype == expected[i].dtype == tensors[i].dtype
            np.testing.assert_allclose(result, expected[i], rtol=1e-9, atol=1e-12)
        for before, after in zip(kept, fresh, strict=False):
            np.testing.assert_array_equal(before, after, err_msg="a fed array was changed")


def empty_like(array: Array, strided: bool) -> Array:
    """Return memory for a value; strided: every second number of a larger array."""
    if not strided:
        return np.full(array.shape, np.nan)
    return np.full((*array.shape, 2), np.nan)[..., 0]


@settings(deadline=None, max_examples=examples(150))
@given(expressions(), st.data())
def test_any_expression_equals_numpy(expression: Expression, data: st.DataObject) -> None:
    index = st.integers(0, len(expression.shapes) + len(expression.steps) - 1)
    fetched = data.draw(st.lists(index, max_size=5), "fetched")
    written = data.draw(st.lists(index, max_size=5), "written into")
    check(expression, fetched, written, strided=data.draw(st.booleans(), "strided"))


@settings(deadline=None, max_examples=examples(60))
@given(expressions(), st.data())
def test_the_same_with_sizes_that_only_the_run_knows(expression: Expression, data: st.DataObject) -> None:
    leaves = leaves_of(expression, 0)
    try:
        inputs, tensors = as_graph(expression, leaves, known=False)
    except (TypeError, InvalidArgumentError, NotImplementedError):
        return  # such as broadcast_to(x, (2, *x.shape)), which needs the size
    feeds = inputs[: expression.feeds]
    program = compile_program(
        tensors,
        feeds=feeds,
        shapes=[a.shape for a in leaves[: expression.feeds]],
        values={v: a for v, a in zip(inputs, leaves) if isinstance(v, Variable)},
    )
    results = program(*leaves[: expression.feeds])
    for tensor, result, expected in zip(tensors, results, expression.run(leaves), strict=True):
        assert len(tensor.shape) == result.ndim
        assert all(size in (None, got) for size, got in zip(tensor.shape, result.shape, strict=True))
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_a_view_that_is_written_into_keeps_its_memory_until_the_end() -> None:
    """Views and leaves among the targets are copied last; their memory was given to later values."""
    with Graph().as_default():
        x = placeholder(np.float64, (4, 6))
        first = np.reshape(np.exp(x) * 2, (24,))
        second = np.sin(np.cos(np.tanh(x) + 1) + 1) + 3
    program = compile_program([], feeds=[x], shapes=[(4, 6)], into=[first, second])
    a = np.random.default_rng(0).normal(size=(4, 6))
    out = np.zeros(24), np.zeros((4, 6))
    program(a, *out)
    np.testing.assert_allclose(out[0], (np.exp(a) * 2).ravel())
    np.testing.assert_allclose(out[1], np.sin(np.cos(np.tanh(a) + 1) + 1) + 3)


def test_targets_may_be_leaves_views_of_feeds_and_given_twice() -> None:
    with Graph().as_default():
        x = placeholder(np.float64, (2, 3), name="x")
        w = Variable(np.arange(6.0).reshape(2, 3))
        c = constant(7.0)
        y = x * w
    targets = [x, w, c, x[:, 1], y, y, np.transpose(y)]
    program = compile_program([y, x], feeds=[x], shapes=[(2, 3)], values={w: w.initial_value}, into=targets)
    a = np.full((2, 3), 2.0)
    out = [np.zeros(t.shape) for t in targets]
    fetched, fed = program(a, *out)
    for got, expected in zip(
        out, (a, w.initial_value, 7.0, a[:, 1], *[a * w.initial_value] * 2), strict=False
    ):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(out[-1], (a * w.initial_value).T)
    np.testing.assert_array_equal(fetched, a * w.initial_value)
    np.testing.assert_array_equal(fed, a)


def test_a_target_is_written_straight_into_the_callers_memory() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (8, 4))
        w = Variable(np.ones((4, 3), np.float32))
        (gradient,) = gradients(np.sum(np.tanh(x @ w)), [w])
    assert gradient is not None
    program = compile_program([], feeds=[x], shapes=[(8, 4)], values={w: w.initial_value}, into=[gradient])
    assert "copyto" not in program.source


def chain(length: int) -> tuple[Any, Tensor]:
    with Graph().as_default():
        x = y = placeholder(np.float64, (50, 20), name="x")
        for _ in range(length):
            y = np.tanh(y + 0.1)
    return x, y


def test_a_chain_of_elementwise_ops_needs_one_buffer() -> None:
    x, y = chain(10)
    program = compile_program([y], feeds=[x], shapes=[(50, 20)])
    assert program.value_bytes == 20 * 50 * 20 * 8
    assert program.buffer_bytes < 1.1 * 50 * 20 * 8


def test_a_training_step_shares_buffers() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (64, 30))
        y = placeholder(np.int64, (64,))
        sizes = (30, 40, 40, 40, 10)
        ws = [Variable(np.zeros(pair, np.float32)) for pair in pairwise(sizes)]
        h = x
        for w in ws:
            h = sigmoid(h @ w)
        loss = sparse_softmax_cross_entropy(y, h).mean()
        found = [g for g in gradients(loss, ws) if g is not None]
    program = compile_program(
        [loss], feeds=[x, y], shapes=[(64, 30), (64,)], values={w: w.initial_value for w in ws}, into=found
    )
    assert len(found) == 4
    assert program.buffer_bytes < 0.75 * program.value_bytes


def test_a_program_reads_variables_in_place() -> None:
    with Graph().as_default():
        w = Variable(np.zeros(3))
        y = w + 1
    array = np.zeros(3)
    program = compile_program([y], values={w: array})
    array[:] = 5
    np.testing.assert_array_equal(program()[0], [6, 6, 6])


def test_another_batch_size_is_another_program() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (None, 4), name="x")
        w = Variable(np.ones((4, 2), np.float32))
        y = softmax(x @ w).mean(axis=0)
    for rows in (7, 3, 1, 0):
        program = compile_program([y], feeds=[x], shapes=[(rows, 4)], values={w: w.initial_value})
        (mean,) = program(np.ones((rows, 4), np.float32))
        np.testing.assert_array_equal(mean, np.full(2, 0.5 if rows else np.nan, np.float32))


def test_a_mean_of_ones_is_one() -> None:
    """An accuracy of 1 must not come out as 0.99999994."""
    for n in (3, 7, 49, 93, 187):
        with Graph().as_default():
            y = np.mean(Variable(np.ones(n, np.float32)))
        assert compile_program([y], values={y.inputs[0]: np.ones(n, np.float32)})()[0] == 1.0


@pytest.mark.parametrize("shape", [(3, 4), (2, 5), (4,), (2, 4, 1)])
def test_a_feed_of_another_shape_is_refused_with_both_shapes(shape: tuple[int, ...]) -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (2, 4), name="image")
    with pytest.raises(InvalidArgumentError, match=r"'image' was declared with shape \(2, 4\) and is fed"):
        compile_program([x + 1], feeds=[x], shapes=[shape])


def test_what_is_not_fed_or_not_initialised_is_named() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (None,), name="x")
        w = Variable(np.zeros(3), name="w")
    with pytest.raises(InvalidArgumentError, match=r"'x' \(\?,\) float32 has to be fed"):
        compile_program([x + 1])
    with pytest.raises(FailedPreconditionError, match="'w' is not initialised"):
        compile_program([w + 1])


def test_sizes_that_do_not_fit_at_run_time_are_refused_when_compiled() -> None:
    with Graph().as_default():
        a = placeholder(np.float32, (None,), name="a")
        b = placeholder(np.float32, (None,), name="b")
        c = a + b
    with pytest.raises(InvalidArgumentError, match=r"\(2,\) and \(3,\) do not broadcast: sizes 2 and 3"):
        compile_program([c], feeds=[a, b], shapes=[(2,), (3,)])


def test_only_the_shape_of_an_unfed_placeholder_may_be_used() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (2, 3), name="x")
        y = np.zeros_like(x) + 1
    np.testing.assert_array_equal(compile_program([y])()[0], np.ones((2, 3)))


def test_a_deep_graph_needs_no_deep_stack() -> None:
    with Graph().as_default():
        v = Variable(np.ones(3))
        y: Any = v
        for _ in range(1500):
            y = y + 1
        found = gradients(y, [v])
    assert found[0] is not None
    np.testing.assert_array_equal(compile_program([found[0]], values={v: np.ones(3)})()[0], np.ones(3))
    np.testing.assert_array_equal(compile_program([y], values={v: np.ones(3)})()[0], np.full(3, 1501.0))


def test_inf_and_nan_are_values_not_warnings() -> None:
    with Graph().as_default():
        x = placeholder(np.float64, (2,))
        y = np.log(x) / x
    with np.errstate(all="raise"):
        (value,) = compile_program([y], feeds=[x], shapes=[(2,)])(np.array([0.0, -1.0]))
    assert value[0] == -np.inf
    assert np.isnan(value[1])


def test_a_kernel_with_scratch_memory_runs_on_no_elements() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (None, 3), name="x")
        slope = gradients(relu(x), [x])[0]
    program = compile_program([slope], feeds=[x], shapes=[(0, 3)])
    assert program(np.zeros((0, 3), np.float32))[0].shape == (0, 3)


def test_a_sum_of_no_rows_is_nothing() -> None:
    with Graph().as_default():
        x, b = placeholder(np.float32, (None, 3), name="x"), Variable(np.ones(3, np.float32))
        slope = gradients(np.sum(x + b), [b])[0]
    program = compile_program([slope], feeds=[x], shapes=[(0, 3)], values={b: np.ones(3, np.float32)})
    np.testing.assert_array_equal(program(np.zeros((0, 3), np.float32))[0], 0)
