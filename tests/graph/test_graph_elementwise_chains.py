"""Elementwise ops that run together, block by block, compute what they do one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_expressions import Expression, expressions, leaves_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.graph.compile.elementwise import BlockSizes
from nbdist.graph.compile.program import Program, compile_program
from nbdist.graph.compile.specs import value_order
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder, record

Array = np.ndarray[Any, Any]

NEVER = BlockSizes(cache_bytes=1 << 60)
TINY = BlockSizes(cache_bytes=0, least_bytes=16, block_bytes=64)


def both(sizes: BlockSizes, fetches: list[Tensor], **how: Any) -> tuple[Program, Program]:
    """Return two programs for the same: one with chains, one without."""
    return compile_program(fetches, blocks=sizes, **how), compile_program(fetches, blocks=NEVER, **how)


def assert_same_bits(one: Array, other: Array) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert bits(one) == bits(other)


def bits(array: Array) -> bytes:
    """Return an array's bytes, with one kind of NaN: arithmetic leaves its sign open."""
    array = np.array(array)  # a copy
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    for part in parts if array.dtype.kind in "fc" else ():
        part[np.isnan(part)] = np.nan
    return array.tobytes()


@settings(deadline=None, max_examples=examples(300))
@given(expressions(), st.data())
def test_any_expression_has_the_same_bits(expression: Expression, data: st.DataObject) -> None:
    leaves = leaves_of(expression, 0)
    with Graph().as_default():
        inputs: list[Any] = [
            placeholder(np.float64, a.shape) if i < expression.feeds else Variable(a)
            for i, a in enumerate(leaves)
        ]
        tensors = expression.run(inputs)
    index = st.integers(0, len(tensors) - 1)
    fetched = [tensors[i] for i in data.draw(st.lists(index, max_size=3), "fetched")]
    written = [tensors[i] for i in data.draw(st.lists(index, max_size=3), "written into")]
    sizes = BlockSizes(0, 16, data.draw(st.sampled_from([32, 64, 128]), "block"))
    feeds = inputs[: expression.feeds]
    programs = both(
        sizes,
        fetched,
        feeds=feeds,
        shapes=[f.shape for f in feeds],
        values={v: a for v, a in zip(inputs, leaves) if isinstance(v, Variable)},
        into=written,
    )
    strided = data.draw(st.booleans(), "strided")
    results = []
    for program in programs:
        outputs = [np.zeros((*t.shape, 2))[..., 0] if strided else np.zeros(t.shape) for t in written]
        given = [np.repeat(a[..., None], 2, -1)[..., 0] if strided else a for a in leaves[: len(feeds)]]
        for _ in range(2):
            fetches = program(*given, *outputs)
        results.append([a.copy() for a in (*fetches, *outputs)])
        assert program.peak_live_bytes <= program.buffer_bytes
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": np.tanh, "exp": np.exp, "negative": np.negative, "square": np.square, "sin": np.sin,
    "relu": lambda x: record("relu", x), "sigmoid": lambda x: record("sigmoid", x),
    "erf": lambda x: record("erf", x), "double": lambda x: 2 * x, "power": lambda x: np.abs(x) ** 1.5,
    "single": lambda x: x.astype(np.float32), "wide": lambda x: x.astype(np.float64),
    "same": lambda x: np.reshape(x, x.shape), "reverse": lambda x: x[::-1],
    "clip": lambda x: np.clip(x, -0.5, 0.5),
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "maximum": np.maximum, "where": lambda a, b: np.where(a > b, a, b * 2),
    "self": lambda a, b: (a + b) * (a - b), "copysign": lambda a, b: np.where(np.signbit(b), -a, a),
}  # fmt: skip
SHAPES = {(7, 9): [(9,), (7, 1), (1, 9), ()], (40,): [(1,), ()], (3, 4, 5): [(5,), (4, 5), (3, 1, 1), (4, 1)]}


@st.composite
def elementwise(draw: Any) -> tuple[list[Any], list[Tensor], list[Array]]:
    """Return leaves, values of one shape made of them, op by op, and the leaves' arrays."""
    shape = draw(st.sampled_from(sorted(SHAPES)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    leaves: list[Any] = []
    arrays: list[Array] = []
    for n, one in enumerate([shape, shape, *draw(st.lists(st.sampled_from(SHAPES[shape]), max_size=3))]):
        arrays.append(rng.normal(size=one).astype(draw(st.sampled_from([np.float32, np.float64]))))
        fed = n % 2 == 0
        leaves.append(placeholder(arrays[-1].dtype, one) if fed else Variable(arrays[-1]))
    values: list[Any] = list(leaves)
    for _ in range(draw(st.integers(2, 14))):
        one = values[draw(st.integers(0, len(values) - 1))]
        if draw(st.booleans()):
            values.append(UNARY[draw(st.sampled_from(sorted(UNARY if one.shape else ["tanh"])))](one))
        else:
            other = values[draw(st.integers(0, len(values) - 1))]
            values.append(BINARY[draw(st.sampled_from(sorted(BINARY)))](one, other))
    if draw(st.booleans()):
        values += [g for g in gradients(np.sum(values[-1] * 1.0), leaves) if g is not None]
    return leaves, values, arrays


@settings(deadline=None, max_examples=examples(300))
@given(st.data())
def test_chains_of_any_dtypes_and_broadcasts_have_the_same_bits(data: st.DataObject) -> None:
    with Graph().as_default():
        leaves, values, arrays = data.draw(elementwise())
    index = st.integers(0, len(values) - 1)
    fetched = [values[-1], *(values[i] for i in data.draw(st.lists(index, max_size=3), "fetched"))]
    written = [values[i] for i in data.draw(st.lists(index, max_size=2), "written into")]
    feeds = [leaf for leaf in leaves if not isinstance(leaf, Variable)]
    fed = [a for leaf, a in zip(leaves, arrays, strict=True) if not isinstance(leaf, Variable)]
    results = []
    for program in both(
        BlockSizes(0, 16, data.draw(st.sampled_from([64, 100, 256]), "block")),
        fetched,
        feeds=feeds,
        shapes=[f.shape for f in feeds],
        values={leaf: a for leaf, a in zip(leaves, arrays, strict=True) if isinstance(leaf, Variable)},
        into=written,
    ):
        outputs = [np.zeros(t.shape, t.dtype) for t in written]
        results.append([a.copy() for a in (*program(*fed, *outputs), *outputs)])
    for one, other in zip(*results, strict=True):
        assert_same_bits(one, other)


def long_chain(x: Any, b: Any) -> Any:
    return np.where(x > b, np.tanh(x + b) * x, np.exp(x * 0.5) - 1)


def chained(rows: int, columns: int, sizes: BlockSizes) -> tuple[Program, Array, Array]:
    with Graph().as_default():
        x, b = placeholder(np.float32, (rows, columns)), Variable(np.ones(columns, np.float32))
        y = long_chain(x, b)
    a = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    program = compile_program([y], feeds=[x], shapes=[a.shape], values={b: b.initial_value}, blocks=sizes)
    return program, a, b.initial_value


def test_what_only_a_chain_uses_takes_no_memory_of_its_size() -> None:
    program, a, b = chained(3000, 100, BlockSizes(cache_bytes=0, block_bytes=1 << 14))
    assert len(program.chains) == 1
    assert program.source.count("chain") == 1
    assert program.buffer_bytes < 1.2 * a.nbytes
    plain, _, _ = chained(3000, 100, NEVER)
    assert plain.buffer_bytes > 2.5 * a.nbytes
    assert program.value_bytes == plain.value_bytes
    assert_same_bits(program(a)[0], plain(a)[0])
    np.testing.assert_allclose(program(a)[0], long_chain(a, b), rtol=1e-6)


def test_ops_whose_values_fit_the_cache_run_by_themselves() -> None:
    assert not chained(100, 100, BlockSizes())[0].chains
    assert chained(20_000, 100, BlockSizes())[0].chains


def test_many_values_are_chosen_without_branches_and_few_as_numpy_does() -> None:
    for size in (10, 10_000):
        with Graph().as_default():
            c, x = placeholder(np.bool_, (size,)), placeholder(np.float64, (size,))
            y = np.where(c, x * 1.0, np.float64(0.0))
        rng = np.random.default_rng(0)
        a = np.where(rng.random(size) < 0.1, np.nan, rng.normal(size=size) * np.inf)
        chosen = rng.random(size) < 0.5
        program = compile_program([y], feeds=[c, x], shapes=[(size,), (size,)])
        assert_same_bits(program(chosen, a)[0], np.where(chosen, a, 0.0))


def test_an_error_in_a_chain_is_of_the_op_that_failed() -> None:
    with Graph().as_default():
        x = placeholder(np.int64, (100,))
        y = (np.power(x + 1, x) * 2) - 1
    program = compile_program([y], feeds=[x], shapes=[(100,)], blocks=TINY)
    assert len(program.chains) == 1
    assert program(np.arange(100))[0][2] == 17
    for run in (program, program.traced):
        with pytest.raises(ValueError, match="negative integer powers") as caught:
            run(np.arange(100) - 50)
        assert program.node_at(caught.tb) is y.inputs[0].inputs[0]


def test_ops_around_a_change_of_a_variable_are_no_chain() -> None:
    """What reads the variable before must not run after it."""
    with Graph().as_default():
        v = Variable(np.zeros(64))
        before = np.exp(v + 1.0)
        changed = v.assign_add(np.ones(64))
        after = before * 2 + before
    order = value_order([before, changed, after])
    array = np.zeros(64)
    program = compile_program([after], values={v: array}, order=order, blocks=TINY)
    np.testing.assert_allclose(program()[0], np.full(64, 3 * np.e))
    np.testing.assert_array_equal(array, np.ones(64))
