"""Every op's gradient against finite differences, and every program against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbdist.graph.gradients import gradients
from nbdist.graph.op import Example
from nbdist.graph.ops import OPS
from nbdist.graph.program import compile_program
from nbdist.graph.sparse import dense
from nbdist.graph.tensor import Graph, Variable, record
from nbdist.optim.training import MOST_SLOTS, op_name

NO_GRADIENT = {
    "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "isnan", "isfinite", "argmax", "argmin", "one_hot",
    "argsort", "isinf", "signbit", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "any", "all",
    "searchsorted",
}  # fmt: skip
TESTED_ELSEWHERE = {
    "sparse_cross_entropy",
    "size_ratio",
    "max_pool2d_which",
    "dropout_mask",  # in test_graph_gradients
    "initial_value",  # in test_graph_initial
    "all_reduce",  # in test_train_custom
    "distinct_rows", "rows_between", "spread_rows", "join_rows",  # in test_graph_sparse
}  # fmt: skip
EFFECTS = {"assign", "assign_add", "assign_sub", "check_finite", "group"}  # in test_graph_state
CHECKS = {"check_classes"}  # in test_distribute_reading
UPDATES = {op_name(n, sparse=sparse) for n in range(MOST_SLOTS + 1) for sparse in (False, True)}
# UPDATES are in test_optim_graph
CROSSING = {"send", "receive", "signal", "await"}  # in test_graph_partition
SOURCES = {"load_dataset", "begin_pass", "next_batch", "batch_part"}  # in test_runtime_sources
SHARED = {n for n in OPS if n.startswith(("Accumulator", "accumulator_", "TokenQueue", "token_"))}
# SHARED are in test_runtime_resources


def example_cases() -> list[Any]:
    return [
        pytest.param(op, example, id=f"{name}-{i}")
        for name, op in OPS.items()
        if op.examples is not None
        for i, example in enumerate(op.examples(np.random.default_rng(0)))
    ]


def test_every_op_has_examples_or_a_reason() -> None:
    without = {n for n, op in OPS.items() if op.examples is None} | {
        n for n, op in OPS.items() if op.vjp is None
    }
    effects = EFFECTS | CHECKS | UPDATES | CROSSING | SOURCES | SHARED
    assert without == NO_GRADIENT | TESTED_ELSEWHERE | effects


@pytest.mark.parametrize(("op", "example"), example_cases())
def test_value_through_a_program_equals_forward(op: Any, example: Example) -> None:
    with Graph().as_default():
        variables = [Variable(a) for a in example.inputs]
        y = record(op.name, *variables, **example.attrs)
    (value,) = compile_program([y], values=dict(zip(variables, example.inputs)))()
    expected = np.asarray(op.forward(np, *example.inputs, **example.attrs))
    assert value.shape == expected.shape == y.shape
    assert value.dtype == expected.dtype == y.dtype
    np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize(("op", "example"), [c for c in example_cases() if c.values[0].vjp is not None])
def test_gradient_equals_finite_differences(op: Any, example: Example) -> None:
    with Graph().as_default():
        variables = [Variable(np.array(a, copy=True)) for a in example.inputs]
        y = record(op.name, *variables, **example.attrs)
        weight = np.random.default_rng(1).normal(size=y.shape)
        total = np.sum(y * weight)
        wanted = [v for i, v in enumerate(variables) if v.dtype.kind == "f" and i not in op.shape_only]
        grads = [None if g is None else dense(g) for g in gradients(total, wanted)]
    values = {v: np.array(a, copy=True) for v, a in zip(variables, example.inputs)}
    forward = compile_program([total], values=values)
    missing = [v.name for v, g in zip(wanted, grads) if g is None]
    assert not missing
    results = [r.copy() for r in compile_program([g for g in grads if g is not None], values=values)()]
    for variable, result in zip(wanted, results):
        array, h = values[variable], 1e-6
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + h
            above = float(forward()[0])
            array[index] = kept - h
            below = float(forward()[0])
            array[index] = kept
            assert result[index] == pytest.approx((above - below) / (2 * h), rel=1e-4, abs=1e-6)
