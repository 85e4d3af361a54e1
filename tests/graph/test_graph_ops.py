"""Every op's gradient against finite differences, and every program against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import SHARE
from op_examples import of_every_op
from op_inputs import EXAMPLES, Example, examples_of

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.ops import OPS
from nbdist.graph.serialize.decode import ATTRIBUTES, check_attributes
from nbdist.graph.sparse import dense
from nbdist.graph.tensor import Graph, Variable, placeholder, record
from nbdist.optim.training import MOST_SLOTS, op_name

NO_GRADIENT = {
    "greater", "greater_equal", "less", "less_equal", "equal", "not_equal", "logical_and", "logical_or",
    "logical_xor", "logical_not", "isnan", "isfinite", "argmax", "argmin", "one_hot",
    "argsort", "isinf", "signbit", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "any", "all",
    "searchsorted", "from_singular",
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
CHECKS = {"check_classes"}  # in test_distribute_in_graph_dataset
UPDATES = {op_name(n, sparse=sparse) for n in range(MOST_SLOTS + 1) for sparse in (False, True)}
# UPDATES are in test_optim_graph
CROSSING = {"send", "receive", "signal", "await"}  # in test_graph_partition
SOURCES = {"load_dataset", "begin_pass", "next_batch", "batch_part"}  # in test_runtime_datasets
SHARED = {n for n in OPS if n.startswith(("Accumulator", "accumulator_", "TokenQueue", "token_"))}
# SHARED are in test_runtime_resources


@pytest.mark.parametrize(
    ("name", "shapes", "attrs"),
    [
        ("matmul", ((3, 300), (300, 4)), {}),
        ("matmul", ((2, 3, 300), (300,)), {}),
        ("einsum", ((2, 300), (300, 3)), {"inputs": ("bi", "ij"), "output": "jb"}),
        ("conv2d", ((2, 6, 6, 30), (3, 3, 30, 4)), {"strides": (1, 1), "padding": "same"}),
    ],
)
def test_products_of_float16_are_those_of_float32_rounded_once(
    name: str, shapes: tuple[tuple[int, ...], ...], attrs: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    halves = [rng.normal(size=shape).astype(np.float16) for shape in shapes]
    wide = OPS[name].forward(np, *(a.astype(np.float64) for a in halves), **attrs)
    with Graph().as_default():
        tensors = [placeholder(np.float16, shape) for shape in shapes]
        product = record(name, *tensors, **attrs)
    (found,) = compile_program([product], feeds=tensors, shapes=list(shapes))(*halves)
    for value in (found, OPS[name].forward(np, *halves, **attrs)):
        assert value.dtype == np.float16
        np.testing.assert_allclose(value, wide, rtol=1e-3, atol=1e-4)


def test_every_op_has_examples_or_a_reason() -> None:
    without = {n for n, op in OPS.items() if n not in EXAMPLES or op.vjp is None}
    effects = EFFECTS | CHECKS | UPDATES | CROSSING | SOURCES | SHARED
    assert without == NO_GRADIENT | TESTED_ELSEWHERE | effects


@of_every_op
def test_value_through_a_program_equals_forward(op: Any, example: Example) -> None:
    with Graph().as_default():
        variables = [Variable(a) for a in example.inputs]
        y = record(op.name, *variables, **example.attrs)
    (value,) = compile_program([y], values=dict(zip(variables, example.inputs)))()
    expected = np.asarray(op.forward(np, *example.inputs, **example.attrs))
    assert value.shape == expected.shape == y.shape
    assert value.dtype == expected.dtype == y.dtype
    np.testing.assert_allclose(value, expected, rtol=1e-12)


@of_every_op(gradients=True)
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 2)])
def test_sparse_cross_entropy_of_large_logits(dtype: Any, shape: tuple[int, ...]) -> None:
    """Where the true class has no probability left, the loss is the distance of the logits."""
    logits = np.zeros(shape, dtype)
    logits[..., 1] = 12 if dtype is np.float16 else 200
    for label in (0, 1):
        labels = np.full(shape[:-1], label)
        with Graph().as_default():
            x, y = Variable(logits), Variable(labels)
            loss = record("sparse_cross_entropy", x, record("softmax", x), y)
            (gradient,) = gradients(np.sum(loss), [x])
        value, found = (a.copy() for a in compile_program([loss, gradient], values={x: logits, y: labels})())
        wide = logits.astype(np.float64)
        expected = np.log(np.exp(wide).sum(-1)) - wide[..., label]
        assert value.dtype == dtype
        eps = float(np.finfo(dtype).eps)
        np.testing.assert_allclose(value, expected, rtol=4 * eps, atol=4 * eps)
        p = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
        np.testing.assert_allclose(found, p - np.eye(2)[label], rtol=8 * eps, atol=8 * eps)


@pytest.mark.parametrize("rows", [3, None])
@pytest.mark.parametrize("name", ["sparse_cross_entropy", "sparse_cross_entropy_grad", "pick_log_likelihood"])
@pytest.mark.parametrize(("labels", "words"), [
    ([0, -1, 1], r"label -1 is outside the 4 classes of the predictions \(0 to 3\)"),
    ([4, 1, 9], r"label 4 is outside .* \(2 of 3 labels are outside\)"),
])  # fmt: skip
def test_labels_that_are_no_class(name: str, rows: int | None, labels: list[int], words: str) -> None:
    for dtype in (np.int64, np.int32, np.uint8):
        if min(labels) < 0 and dtype is np.uint8:
            continue
        p = np.full((3, 4) if rows else (1, 3, 4), 0.25)
        y = np.array(labels, dtype).reshape(p.shape[:-1])
        first = {"sparse_cross_entropy": [p], "sparse_cross_entropy_grad": [np.ones(y.shape)]}.get(name, [])
        with Graph().as_default():
            variables = [Variable(a) for a in (*first, p, y)]
            value = record(name, *variables)
        with pytest.raises(InvalidArgumentError, match=words):
            compile_program([value], values=dict(zip(variables, (*first, p, y))))()
        with pytest.raises(InvalidArgumentError, match=words):
            OPS[name].forward(np, *first, p, y)


def test_labels_and_rows_that_differ_in_number() -> None:
    with Graph().as_default():
        x, y = placeholder(np.float32, (None, 4)), placeholder(np.int64, (None,))
        loss = record("sparse_cross_entropy", x, record("softmax", x), y)
        with pytest.raises(
            InvalidArgumentError, match=r"\(3, 4\) and labels of shape \(2,\) differ in number"
        ):
            compile_program([loss], feeds=[x, y], shapes=[(3, 4), (2,)])
        with pytest.raises(InvalidArgumentError, match="differ in number"):
            record("pick_log_likelihood", placeholder(np.float32, (3, 4)), placeholder(np.int64, (2,)))


MIXED = [
    (np.float32, np.float64),
    (np.float64, np.float32),
    (np.float16, np.float16),
    (np.float16, np.float32),
    (np.float32, np.int8),
    (np.int64, np.float32),
]
PAIRS = MIXED if SHARE == 1 else [MIXED[0], MIXED[3], MIXED[5]]  # in the first tier
LAPACK = {"inv", "det", "log_abs_det", "det_sign", "cholesky", "solve", "singular_values"}
# LAPACK knows no float16, and matrices that were rounded to whole numbers are others.


def in_dtypes(op: Any, example: Example, first: Any, others: Any) -> list[Any]:
    """Return an example's inputs with their floats in the dtype of the first or of the others."""
    arrays = [np.array(a, copy=True) for a in example.inputs]
    floats = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    for n, i in enumerate(floats):
        arrays[i] = arrays[i].astype(others if n else first)
    return arrays


@of_every_op(first=2, gradients=True)
def test_a_gradient_has_the_dtype_of_its_variable(op: Any, example: Example) -> None:
    for first, others in PAIRS:
        if op.name in LAPACK and {first, others} - {np.float32, np.float64}:
            continue
        arrays = in_dtypes(op, example, first, others)
        with Graph().as_default():
            variables = [Variable(a) for a in arrays]
            try:
                y = record(op.name, *variables, **example.attrs)
            except (InvalidArgumentError, TypeError):  # it takes no such dtype
                continue
            if y.dtype.kind != "f":
                continue
            found = gradients(np.sum(y), variables)
        dtypes = [None if g is None else (g.dtype, g.shape) for g in found]
        wanted = [
            (v.dtype, v.shape) if v.dtype.kind == "f" and i not in op.shape_only else None
            for i, v in enumerate(variables)
        ]
        assert dtypes == wanted, (first, others)
        values = dict(zip(variables, arrays))
        results = compile_program([y, *(dense(g) for g in found if g is not None)], values=values)()
        assert [r.dtype for r in results] == [y.dtype, *(d[0] for d in wanted if d is not None)]


@of_every_op(first=2)
def test_what_a_call_returns_is_what_a_kernel_writes(op: Any, example: Example) -> None:
    """Kernels run where shapes are fixed, calls where they are not."""
    for first, others in (*PAIRS, (np.int64, np.int64), (np.uint8, np.uint8)):
        if op.name in LAPACK and {first, others} - {np.float32, np.float64}:
            continue
        arrays = in_dtypes(op, example, first, others)
        with Graph().as_default():
            variables = [Variable(a) for a in arrays]
            try:
                y = record(op.name, *variables, **example.attrs)
            except (InvalidArgumentError, TypeError):
                continue
        (written,) = compile_program([y], values=dict(zip(variables, arrays)))()
        with np.errstate(all="ignore"):
            returned = np.asarray(op.forward(np, *arrays, **example.attrs))
        assert (returned.dtype, returned.shape) == (written.dtype, written.shape) == (y.dtype, y.shape)
        floats = [np.finfo(a.dtype).eps for a in (*arrays, written) if a.dtype.kind == "f"]
        tolerance = 20 * max(floats, default=0) if y.dtype.kind == "f" else 0
        np.testing.assert_allclose(written, returned, rtol=tolerance, atol=tolerance)


def test_what_is_no_class_number_and_what_has_no_softmax() -> None:
    with Graph().as_default():
        with pytest.raises(InvalidArgumentError, match=r"one_hot takes class .* got float32"):
            record("one_hot", placeholder(np.float32, (3,)), depth=4, dtype=np.float32)
        for name in ("softmax", "log_softmax"):
            with pytest.raises(InvalidArgumentError, match=f"^{name} takes floating.* int64"):
                record(name, placeholder(np.int64, (3,)))


HOSTILE: list[Any] = [
    -1, 0, 7, 2.5, "x", None, (), (-1, -1), (0, 0), (-2, 1), True, (0,), (5,), (1.5,), ((-1, 0),),
    slice(0, 9), ((1, 1), (1, 1)),
]  # fmt: skip


@of_every_op(first=2)
def test_no_attribute_makes_a_value_other_than_its_spec_says(op: Any, example: Example) -> None:
    """A shape that is not the inferred one would let kernels read outside of arrays."""
    for name in example.attrs:
        for hostile in HOSTILE:
            attrs = {**example.attrs, name: hostile}
            with Graph().as_default():
                variables = [Variable(a) for a in example.inputs]
                try:
                    check_attributes(attrs)
                    y = record(op.name, *variables, **attrs)
                except (InvalidArgumentError, NotImplementedError, TypeError, ValueError, LookupError):
                    continue
            try:
                program = compile_program([y], values=dict(zip(variables, example.inputs)))
                value, returned = program()[0], np.asarray(op.forward(np, *example.inputs, **attrs))
            except (TypeError, ValueError, LookupError):
                continue  # NumPy or the op refuses before it reads memory
            assert value.shape == returned.shape == y.shape, (name, hostile)


def test_every_attribute_of_an_op_has_a_check_for_graphs_from_afar() -> None:
    names = set()
    for name, op in OPS.items():
        for example in () if op.external else examples_of(name):
            names |= {*example.attrs}
    assert names <= {*ATTRIBUTES}
