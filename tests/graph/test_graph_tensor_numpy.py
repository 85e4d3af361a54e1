"""NumPy is the op language: each listed function records, and means on a Tensor what it means on an array."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import FUNCTIONS, PARAMETERS, Graph, Tensor, Variable, placeholder, signature

# As docs list them; a name that is not tried below fails the test.
NAMES = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "negative",
    "exp",
    "log",
    "log1p",
    "expm1",
    "sqrt",
    "square",
    "abs",
    "sign",
    "sin",
    "cos",
    "tan",
    "tanh",
    "arctan",
    "sinh",
    "cosh",
    "maximum",
    "minimum",
    "where",
    "clip",
    "matmul",
    "dot",
    "tensordot",
    "einsum",
    "outer",
    "transpose",
    "swapaxes",
    "moveaxis",
    "reshape",
    "ravel",
    "squeeze",
    "expand_dims",
    "broadcast_to",
    "concatenate",
    "stack",
    "split",
    "tile",
    "repeat",
    "pad",
    "flip",
    "roll",
    "sum",
    "mean",
    "prod",
    "var",
    "std",
    "max",
    "min",
    "argmax",
    "argmin",
    "sort",
    "argsort",
    "cumsum",
    "cumprod",
    "trace",
    "diagonal",
    "triu",
    "tril",
    "diag",
    "linalg.norm",
    "linalg.inv",
    "linalg.solve",
    "linalg.cholesky",
    "linalg.det",
    "linalg.slogdet",
    "take",
    "take_along_axis",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "equal",
    "not_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "isnan",
    "isfinite",
    "astype",
    "zeros_like",
    "ones_like",
    "full_like",
]

rng = np.random.default_rng(3)
M = rng.uniform(0.5, 2, (3, 4)).astype(np.float32)
S = (rng.normal(size=(3, 3)) + 4 * np.eye(3)).astype(np.float32)
P = (S @ S.T).astype(np.float32)
T = rng.uniform(0.5, 2, (2, 3, 4)).astype(np.float32)
V = rng.uniform(0.5, 2, 4).astype(np.float32)

Call = tuple[str, Callable[..., Any], tuple[Any, ...]]


def call(name: str, *arrays: Any, **options: Any) -> Call:
    """Return one call of ``np.<name>`` with arrays that become tensors, then options."""
    function: Any = np
    for part in name.split("."):
        function = getattr(function, part)
    return name, lambda *xs: function(*xs, **options), arrays


def of(name: str, make: Callable[..., Any], *arrays: Any) -> Call:
    return name, make, arrays


CALLS: list[Call] = [
    *(call(n, M) for n in NAMES[5:19] if n not in ("power", "divide")),
    *(
        call(n, M)
        for n in ("tanh", "sinh", "cosh", "arctan", "logical_not", "isnan", "isfinite", "zeros_like")
    ),
    *(
        call(n, M, V)
        for n in (
            "add",
            "subtract",
            "multiply",
            "divide",
            "power",
            "maximum",
            "minimum",
            "greater",
            "greater_equal",
            "less",
            "less_equal",
            "equal",
            "not_equal",
            "logical_and",
            "logical_or",
            "logical_xor",
        )
    ),
    of("where", lambda x, y: np.where(x > y, x, y), M, V),
    of("where", lambda x, y: np.where(x > y, x, 0), M, V),
    of("where", lambda x: np.where(x, 1.5, x), rng.integers(0, 2, (3, 4))),
    of("clip", lambda x: np.clip(x, 0.7, 1.2), M),
    of("clip", lambda x: np.clip(x, min=1), M),
    call("matmul", M, M.T),
    call("matmul", T, M.T),
    call("matmul", V, M.T),
    call("matmul", T, V),
    call("matmul", rng.normal(size=(2, 1, 3, 4)), rng.normal(size=(5, 4, 2))),
    call("dot", M, M.T),
    call("dot", V, V),
    call("dot", T, V),
    call("dot", T, rng.normal(size=(5, 4, 2))),
    call("dot", V, np.float32(2)),
    call("tensordot", M, M.T, axes=1),
    call("tensordot", T, T, axes=((0, 2), (0, 2))),
    call("tensordot", M, V, axes=((-1,), (0,))),
    call("tensordot", M, V, axes=0),
    of("einsum", lambda a, b: np.einsum("ij,kj->ik", a, b), M, M),
    of("einsum", lambda a: np.einsum("ii", a), S),
    of("einsum", lambda a: np.einsum("ii->i", a), S),
    of("einsum", lambda a: np.einsum("iji->j", a), rng.normal(size=(2, 3, 2))),
    of("einsum", lambda a, b: np.einsum("...ij,...jk", a, b), T, M.T),
    of("einsum", lambda a, b: np.einsum("i...,i", a, b), M, V[:3]),
    of("einsum", lambda a: np.einsum("ba", a), M),
    of("einsum", lambda a, b, c: np.einsum("ij,jk,ik->", a, b, c, optimize=True), M, M.T, S),
    call("outer", V, M),
    call("outer", M, V),
    call("transpose", T),
    call("transpose", T, axes=(1, 0, 2)),
    of("swapaxes", lambda x: np.swapaxes(x, 0, -1), T),
    of("moveaxis", lambda x: np.moveaxis(x, 0, -1), T),
    of("moveaxis", lambda x: np.moveaxis(x, (0, 1), (2, 0)), T),
    of("reshape", lambda x: np.reshape(x, (2, -1)), M),
    call("ravel", M),
    of("squeeze", lambda x: np.squeeze(x[:1]), M),
    of("expand_dims", lambda x: np.expand_dims(x, (0, -1)), M),
    of("broadcast_to", lambda x: np.broadcast_to(x, (3, 4)), V),
    of("concatenate", lambda a, b: np.concatenate([a, b]), M, M),
    of("stack", lambda a, b: np.stack([a, b], 1), M, M),
    *(of("split", lambda x, i=i: np.split(x, 2, axis=-1)[i], M) for i in (0, 1)),
    *(of("split", lambda x, i=i: np.split(x, [1, 3], axis=1)[i], M) for i in (0, 1, 2)),
    of("array_split", lambda x: np.array_split(x, 3, axis=1)[0], M),
    of("tile", lambda x: np.tile(x, 2), M),
    of("tile", lambda x: np.tile(x, (2, 1, 3)), M),
    of("tile", lambda x: np.tile(x, (2,)), T),
    of("repeat", lambda x: np.repeat(x, 2), M),
    of("repeat", lambda x: np.repeat(x, [1, 0, 2], axis=0), M),
    of("repeat", lambda x: x.repeat(3, axis=-1), M),
    of("pad", lambda x: np.pad(x, 1), M),
    of("pad", lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=5), M),
    of("pad", lambda x: np.pad(x, (1, 2), constant_values=((1, 2), (3, 4))), M),
    of("pad", lambda x: np.pad(x, {-1: (1, 2)}), M),
    *(
        of("pad", lambda x, m=m: np.pad(x, ((0, 2), (2, 1)), mode=m), M)
        for m in ("edge", "reflect", "symmetric", "wrap")
    ),
    call("flip", M),
    call("flip", M, axis=1),
    call("flip", T, axis=(0, -1)),
    of("roll", lambda x: np.roll(x, 2), M),
    of("roll", lambda x: np.roll(x, -9, axis=1), M),
    of("roll", lambda x: np.roll(x, (1, 2), axis=(0, 1)), M),
    *(
        call(n, T, axis=a, keepdims=k)
        for n in ("sum", "mean", "prod", "var", "std", "max", "min")
        for a in (None, 1, (0, -1))
        for k in (False, True)
    ),
    call("var", M, ddof=1),
    call("std", M, axis=0, ddof=1),
    call("var", M, axis=1, correction=1),
    call("argmax", M),
    call("argmax", M, axis=1),
    call("argmin", M, axis=0, keepdims=True),
    call("sort", M),
    call("sort", M, axis=0),
    call("sort", M, axis=None),
    call("argsort", M),
    call("argsort", M, axis=0, kind="stable"),
    call("argsort", M, axis=None, stable=True),
    call("cumsum", M),
    call("cumsum", M, axis=1),
    call("cumprod", M),
    call("cumprod", M, axis=0),
    call("cumsum", M, axis=0, dtype=np.float64),
    call("cumsum", np.array([[True, False]]), axis=1),
    call("trace", S),
    of("trace", lambda x: np.trace(x, 1, 1, 2), T),
    call("diagonal", M, offset=1),
    of("diagonal", lambda x: np.diagonal(x, -1, 2, 0), T),
    call("diag", V),
    call("diag", V, k=-2),
    call("diag", M, k=1),
    call("triu", M),
    call("triu", T, k=1),
    call("tril", M, k=-1),
    call("tril", T),
    *(
        call("linalg.norm", M, ord=o, axis=a)
        for o, a in (
            (None, None),
            ("fro", None),
            (1, None),
            (np.inf, None),
            (-1, (1, 0)),
            (-np.inf, (0, 1)),
            (2, None),
            (-2, (1, 0)),
            ("nuc", None),
            (None, 0),
            (2, 1),
            (1, 0),
            (np.inf, -1),
            (-np.inf, 0),
            (0, 1),
            (3, 1),
        )
    ),
    call("linalg.norm", T),
    call("linalg.norm", T, ord=2, axis=(0, 2)),
    call("linalg.norm", T, ord="nuc", axis=(2, 0), keepdims=True),
    call("linalg.norm", M, keepdims=True),
    call("linalg.norm", M, ord=1, keepdims=True),
    call("linalg.norm", V, ord=3),
    call("linalg.norm", np.arange(3)),
    call("linalg.inv", S),
    call("linalg.inv", np.stack([S, P])),
    call("linalg.inv", np.array([[2, 1], [1, 1]])),
    call("linalg.solve", S, V[:3]),
    call("linalg.solve", S, M),
    call("linalg.solve", np.stack([S, P]), M),
    call("linalg.cholesky", P),
    call("linalg.cholesky", P, upper=True),
    call("linalg.det", S),
    of("linalg.slogdet", lambda x: np.linalg.slogdet(x)[0], -S),
    of("linalg.slogdet", lambda x: np.linalg.slogdet(x).logabsdet, -S),
    of("take", lambda x: np.take(x, [2, 0, -1]), M),
    of("take", lambda x: np.take(x, [[2, 0]], axis=1), M),
    of("take", lambda x: np.take(x, [-7, 9], axis=1, mode="clip"), M),
    of("take", lambda x: np.take(x, [-7, 9], axis=1, mode="wrap"), M),
    of("take", lambda x, i: np.take(x, i, axis=0), M, np.array([1, 1, 0])),
    of("take", lambda x: x.take(1, axis=0), M),
    of("take_along_axis", lambda x: np.take_along_axis(x, np.argsort(x, axis=1), axis=1), M),
    of("take_along_axis", lambda x: np.take_along_axis(x, np.array([[0, 1, 0, 2]]), axis=0), M),
    of("take_along_axis", lambda x: np.take_along_axis(x, np.array([3, 3]), axis=None), M),
    of("astype", lambda x: np.astype(x, np.float64), M),
    of("astype", lambda x: x.astype(np.int32), M),
    call("ones_like", M),
    call("ones_like", M, dtype=np.int8),
    of("full_like", lambda x: np.full_like(x, 2.5), M),
    of("operators", lambda x: x // 0.3 + x % 0.3 - (-x) ** 2 / 7, M),
    of("operators", lambda x: abs(-x), M),
    of("operators", lambda x: (x > 1) & ~(x > 1.5) | (x < 0.6), M),
    of("any", lambda x: np.any(x > 1.9, axis=0), M),
    of("all", lambda x: np.all(x > 0.7), M),
    of("operators", lambda x: x @ x.T, M),
    *(call(n, M) for n in ("fabs", "cbrt", "deg2rad", "radians", "rad2deg", "degrees")),
    *(call(n, M, V) for n in ("fmax", "fmin", "logaddexp2", "hypot")),
    *(call(n, np.array([np.nan, 1, 2, np.nan]), np.array([3, np.nan, 1, np.nan])) for n in ("fmax", "fmin")),
    *(call(n, x) for n in ("atleast_1d", "atleast_2d", "atleast_3d") for x in (np.float64(2), V, M, T)),
    of("atleast_1d", lambda x: np.atleast_1d(x, 3)[1], V),
    *(
        of(n, lambda a, b, n=n: getattr(np, n)((a, b)), x, x)
        for n in ("vstack", "hstack", "dstack")
        for x in (np.float64(2), V, M, T)
    ),
    of("column_stack", lambda v, x: np.column_stack((v, x, 2 * v)), V[:3], M),
    of("append", lambda x, v: np.append(x, v), M, V),
    of("append", lambda x, v: np.append(x, v[None], axis=-2), M, V),
    *(of("hsplit", lambda x, i=i: np.hsplit(x, [1, 3])[i], M) for i in (0, 1, 2)),
    of("hsplit", lambda x: np.hsplit(x, 2)[1], V),
    of("vsplit", lambda x: np.vsplit(x, 3)[2], M),
    of("dsplit", lambda x: np.dsplit(x, 2)[1], T),
    *(of("rollaxis", lambda x, a=a, s=s: np.rollaxis(x, a, s), T) for a in (0, 1, -1) for s in (-1, 0, 2, 3)),
    *(of("rot90", lambda x, k=k: np.rot90(x, k), M) for k in (-1, 0, 1, 2, 7)),
    of("rot90", lambda x: np.rot90(x, axes=(2, 1)), T),
    call("diff", M),
    call("diff", T, n=2, axis=1),
    call("diff", M > 1),
    call("diff", M, n=0),
    call("diff", M, axis=0, prepend=0.0, append=M),
    *(call("gradient", x) for x in (V, np.arange(4) ** 2)),
    *(of("gradient", lambda x, i=i: np.gradient(x, edge_order=2)[i], M) for i in (0, 1)),
    *(of("gradient", lambda x, i=i: np.gradient(x, 0.5, [0, 1, 3, 7])[i], M) for i in (0, 1)),
    of("gradient", lambda x: np.gradient(x, np.array([0, 1, 3, 7]), axis=-1, edge_order=2), M),
    call("cross", M.T, V[:3]),
    of("cross", lambda a, b: np.cross(a, b, 1, 0, 1), T, M),
    call("cross", M, M[::-1], axis=0),
    call("kron", M, V),
    call("kron", M, T),
    call("average", M),
    call("average", M, axis=0, keepdims=True),
    call("average", M, weights=M),
    of("average", lambda x, w: np.average(x, axis=1, weights=w), M, V),
    call("average", np.arange(4), weights=np.array([0, 1, 2, 1])),
    call("vdot", M, M[::-1]),
    call("ptp", M, axis=1),
    of("select", lambda x: np.select([x > 1.5, x > 1], [x, -x], 0.5), M),
    of("select", lambda x: np.select([x > 1], [x]), np.arange(4)),
    of("partition", lambda x: np.partition(x, 1)[..., 1], M),
    of("partition", lambda x: np.partition(x, 5, axis=None)[5], M),
    of("einsum", lambda a, b: np.einsum(a, [0, 30], b, [1, 30], [1, 0]), M, M),
    of("einsum", lambda a, b: np.einsum(a, [3, 30], b, [..., 30]), M, T),
    of("operators", lambda x: 5 - x, np.arange(3)),
    of("operators", lambda x: x / 2, np.arange(3)),
    of("operators", lambda x: x**2, np.arange(3, dtype=np.int8)),
]
KEYS: list[Any] = [
    np.array([2, 0]),
    [0, -1],
    (slice(None), [3, 1, 1]),
    (np.array([[0], [2]]), np.array([1, 3])),
    ([0, 1], 2),
    (0, [1, 1]),
    M > 1,
    (M[:, 0] > 1),
    (slice(1, None), V > 1),
    (..., np.array([0, 1])),
    (None, [0, 0]),
    ([2, 1], slice(None, None, 2)),
    ([2, 1], None, [0, 1]),
    (np.array(1), slice(None)),
    [],
    np.zeros((0, 2), int),
    (np.int64(1), [2]),
    np.zeros((3, 4), bool),
]
CALLS += [of("indexing", lambda x, k=k: x[k], M) for k in KEYS]
CALLS += [
    of("indexing", lambda x, k=k: x[k], T)
    for k in (
        (0, slice(None), [1, 2]),
        ([1, 0], slice(1, 3), [2, 2]),
        (slice(None), [0, 2], [1, 3]),
        ([1], ..., 0),
    )
]


def evaluate(tensor: Tensor, feeds: list[Any], arrays: list[Any]) -> Any:
    return compile_program([tensor], feeds=feeds, shapes=[a.shape for a in arrays])(*arrays)[0]


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__name__)
def test_the_parameters_are_those_of_the_newest_numpy(function: Callable[..., Any]) -> None:
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        assert str(signature(function)) == str(inspect.signature(function))


def test_the_parameters_of_each_function_are_known() -> None:
    for function in FUNCTIONS:
        if not isinstance(function, np.ufunc):
            assert signature(function).parameters


def test_every_listed_name_is_tried() -> None:
    assert set(NAMES) <= {name for name, _, _ in CALLS}


@pytest.mark.parametrize(("name", "make", "arrays"), CALLS, ids=lambda v: v if isinstance(v, str) else "")
def test_values_shapes_and_dtypes_are_numpys(
    name: str, make: Callable[..., Any], arrays: tuple[Any, ...]
) -> None:
    expected = np.asarray(make(*arrays))
    with Graph().as_default():
        feeds = [placeholder(a.dtype, a.shape) for a in map(np.asarray, arrays)]
        result = make(*feeds)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    value = evaluate(result, feeds, [np.asarray(a) for a in arrays])
    assert value.shape == expected.shape
    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)


NEED_SIZES = {
    "split",
    "squeeze",
    "broadcast_to",
    "array_split",
    "hsplit",
    "vsplit",
    "dsplit",
}  # what is known too late for them, they say


@pytest.mark.parametrize(
    ("name", "make", "arrays"),
    [c for c in CALLS if c[0] not in NEED_SIZES],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_sizes_that_are_not_known_yet(name: str, make: Callable[..., Any], arrays: tuple[Any, ...]) -> None:
    """With no size known either the same is computed, or an error says that a size is needed."""
    shapes = [np.shape(a) for a in arrays]
    with Graph().as_default():
        feeds = [placeholder(np.asarray(a).dtype, (None,) * len(s)) for a, s in zip(arrays, shapes)]
        try:
            result = make(*feeds)
        except (InvalidArgumentError, NotImplementedError) as error:
            assert any(word in str(error) for word in ("size", "known"))  # noqa: PT017
            return
    expected = np.asarray(make(*arrays))
    assert all(n in (None, m) for n, m in zip(result.shape, expected.shape, strict=True))
    value = evaluate(result, feeds, [np.asarray(a) for a in arrays])
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)


# Higher orders: a gradient is a graph, so it has gradients.

SECOND: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "einsum": (lambda x: np.einsum("ij,jk,ik->", x, x.T, x @ x.T), M),
    "einsum diagonal": (lambda x: np.einsum("ii,ij->", x, x * x), S),
    "tensordot": (lambda x: np.tensordot(x, x * x, axes=2), M),
    "index": (lambda x: np.sum(x[[0, 2, 0]] ** 3), M),
    "mask": (lambda x: np.sum(np.sin(x[M > 1])), M),
    "take": (lambda x: np.sum(np.take(x, [1, 1], axis=1) ** 3), M),
    "take_along_axis": (
        lambda x: np.sum(np.take_along_axis(x, np.array([[0, 0], [1, 2], [3, 3]]), 1) ** 3),
        M,
    ),
    "sort": (lambda x: np.sum(np.sort(x, axis=1) ** 3 * np.arange(4.0)), M),
    "cumsum": (lambda x: np.sum(np.cumsum(x, axis=1) ** 3), M),
    "cumprod": (lambda x: np.sum(np.cumprod(x, axis=1)), M),
    "cumprod at 0": (lambda x: np.sum(np.cumprod(x) * np.arange(1, 5)), np.array([2.0, 0.0, 3.0, 0.0])),
    "prod": (lambda x: np.sum(np.prod(x, axis=1)), M),
    "prod at 0": (lambda x: np.prod(x), np.array([[2.0, 0.0], [3.0, 4.0]])),
    "tile": (lambda x: np.sum(np.tile(x, (2, 3)) ** 3), M),
    "repeat": (lambda x: np.sum(np.repeat(x, [2, 0, 1], axis=0) ** 3), M),
    "pad": (lambda x: np.sum(np.pad(x, 2, constant_values=1) ** 3), M),
    "reflect": (lambda x: np.sum(np.pad(x, 2, mode="reflect") ** 3), M),
    "roll": (lambda x: np.sum(np.roll(x, 1, 0) * x * x), M),
    "flip": (lambda x: np.sum(np.flip(x) * x * x), M),
    "trace": (lambda x: np.trace(x @ x @ x), S),
    "diag": (lambda x: np.sum(np.diag(x) @ np.outer(x, x)), V),
    "triu": (lambda x: np.sum(np.triu(x) ** 3 + np.tril(x, -1) ** 2), M),
    "inv": (lambda x: np.sum(np.linalg.inv(x)), S),
    "solve": (lambda x: np.sum(np.linalg.solve(x, x * x)), S),
    "det": (lambda x: np.linalg.det(x), S),
    "slogdet": (lambda x: np.linalg.slogdet(x).logabsdet, S),
    "cholesky": (lambda x: np.sum(np.linalg.cholesky(x @ x.T + np.eye(3)) ** 2 * np.arange(3.0)), S),
    "norm": (lambda x: np.linalg.norm(x) ** 3, M),
    "norm 3": (lambda x: np.sum(np.linalg.norm(x, 3, axis=1)), M),
    "std": (lambda x: np.sum(np.std(x, axis=0, ddof=1)), M),
    "split": (lambda x: np.sum(np.split(x, 2, axis=1)[0] ** 3 * np.split(x, 2, axis=1)[1]), M),
    "fmax": (lambda x: np.sum(np.fmax(x**3, np.fmin(x, 1.0) ** 2)), M),
    "gradient": (lambda x: np.sum(np.gradient(x**3, axis=1, edge_order=2) ** 2), M),
    "diff": (lambda x: np.sum(np.diff(x, 2) ** 3), M),
    "cross and kron": (lambda x: np.sum(np.kron(np.cross(x.T, x.T[::-1] ** 2), x)), M),
    "select": (lambda x: np.sum(np.select([x > 1.5, x > 1], [x**3, x**2], x)), M),
    "stacks": (lambda x: np.sum(np.hstack([np.vstack([x, x**2]), np.vstack([x**3, x])]) ** 2), M),
    "batched matmul": (lambda x: np.sum((x[None] @ np.stack([x.T, x.T])) ** 2), M),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_equal_finite_differences(name: str) -> None:
    make, array = SECOND[name]
    array = np.asarray(array, np.float64)
    direction = np.random.default_rng(5).normal(size=array.shape)
    with Graph().as_default():
        x = Variable(array)
        (first,) = gradients(make(x), [x])
        assert first is not None
        (second,) = gradients(np.sum(first * direction), [x])  # type: ignore[arg-type]
        assert second is not None
    h = 1e-5
    analytic = compile_program([second], values={x: array})()[0].copy()
    near = [
        compile_program([first], values={x: array + sign * h * direction})()[0].copy() for sign in (1, -1)
    ]
    np.testing.assert_allclose(analytic, (near[0] - near[1]) / (2 * h), rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_symmetric_matrix_reaches_what_it_was_made_of() -> None:
    with Graph().as_default():
        x = Variable(np.asarray(S, np.float64))
        value = np.sum(np.linalg.cholesky(x @ x.T) * np.arange(9.0).reshape(3, 3))
        (g,) = gradients(value, [x])
    assert g is not None
    array = np.asarray(S, np.float64)
    result = compile_program([g], values={x: array})()[0]
    f = lambda a: np.sum(np.linalg.cholesky(a @ a.T) * np.arange(9.0).reshape(3, 3))
    for i in np.ndindex(3, 3):
        step = np.zeros((3, 3))
        step[i] = 1e-6
        assert result[i] == pytest.approx((f(array + step) - f(array - step)) / 2e-6, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: np.tensordot(x, x, 1), r"axis 1 of \(3, 4\) and axis 0 of \(3, 4\) differ"),
        (lambda x: np.tensordot(x, x, 3), "3 axes do not fit"),
        (lambda x: np.einsum("ij,jk", x, x), "label 'j'.*sizes 3 and 4 differ"),
        (lambda x: np.einsum("ijk->i", x), r"labels 'ijk' do not fit shape \(3, 4\)"),
        (lambda x: np.einsum("ij->ik", x), "'k' in the output and in no operand"),
        (lambda x: np.einsum("ii", x), r"axes 'i' of shape \(3, 4\) differ"),
        (lambda x: np.einsum("ij,jk", x), "names 2 operands, got 1"),
        (lambda x: np.einsum("i1", x), "labels are letters"),
        (lambda x: np.einsum("ij->ii", x), "each once in the output"),
        (lambda x: np.linalg.inv(x), r"inv takes square matrices, got shape \(3, 4\)"),
        (lambda x: np.linalg.solve(x[:, :3], x.T), r"a right side \(4, 3\) do not fit"),
        (lambda x: np.linalg.norm(x[0], "fro"), "over two axes"),
        (lambda x: x[[0, 3]], "index 3 is out of range for axis 0 of size 3"),
        (lambda x: x[:, [-5]], "index -5 is out of range for axis 1 of size 4"),
        (lambda x: x[np.ones((3, 3), bool)], "a mask of 3 along axis 1 does not fit its size 4"),
        (lambda x: x[[0.5]], "an index is an array of whole numbers"),
        (lambda x: x[[0], [0], [0]], "3 indices for 2 dimensions"),
        (lambda x: np.take(x, 3, axis=0), "index 3 is out of range"),
        (lambda x: np.take(x, [0.5]), "positions are whole numbers, got float64"),
        (lambda x: np.take_along_axis(x, np.array([0]), 1), "as many dimensions"),
        (lambda x: np.split(x, 3, axis=1), "4 along axis 1 cannot be cut into 3"),
        (lambda x: np.tile(x, -1), "counts are 0 or more"),
        (lambda x: np.repeat(x, [1, 2], axis=0), "2 counts for 3 elements"),
        (lambda x: np.repeat(x, 0.5), "counts are whole numbers"),
        (lambda x: np.pad(x, -1), "widths are 0 or more"),
        (lambda x: np.pad(x, ((1, 1), (1, 1), (1, 1))), "does not fit 2 dimensions"),
        (lambda x: np.roll(x, 1, axis=2), "roll: axis 2 is out of range"),
        (lambda x: np.moveaxis(x, 0, (0, 1)), "1 axes cannot go to 2 places"),
        (lambda x: np.diag(x[None]), "takes a vector or a matrix"),
        (lambda x: np.diagonal(x[0]), "fewer than two dimensions"),
        (lambda x: np.triu(x[0]), "take matrices"),
        (lambda x: np.sort(x, axis=2), "sort: axis 2 is out of range"),
        (lambda x: np.cumsum(x, axis=2), "cumsum: axis 2 is out of range"),
        (lambda x: np.bitwise_and(x, 1), "bitwise_and"),
        (lambda x: np.einsum(x, x), "einsum takes subscripts as text"),
        (lambda x: np.einsum(x, [0, 99]), "labels in lists are integers from 0 to 51"),
        (lambda x: np.vsplit(x[0], 2), "vsplit takes an array of 2 dimensions or more"),
        (lambda x: np.rollaxis(x, 0, 5), "rollaxis: start 5"),
        (lambda x: np.rot90(x, axes=(0, -2)), "two different ones"),
        (lambda x: np.diff(x, -1), "n is 0 or more"),
        (lambda x: np.gradient(x, edge_order=3), "edge_order is 1 or 2"),
        (lambda x: np.gradient(x, 1, 2, 3), "3 spacings for 2 axes"),
        (lambda x: np.gradient(x, [1.0, 2.0]), "a number or 3 coordinates"),
        (lambda x: np.cross(x, x), "takes vectors of 3 numbers"),
        (lambda x: np.average(x, weights=np.ones(2)), "weights have the shape of the values"),
        (lambda x: np.select([x > 1], []), "as many conditions as choices"),
    ],
)
def test_what_does_not_fit_is_said_when_the_graph_is_built(make: Callable[[Any], Any], words: str) -> None:
    with Graph().as_default(), pytest.raises((InvalidArgumentError, TypeError), match=words):
        make(placeholder(np.float32, (3, 4)))


def test_positions_may_be_fed() -> None:
    with Graph().as_default():
        rows = placeholder(np.int64, (None,))
        x = Variable(np.asarray(M, np.float64))
        picked = x[rows]
        (g,) = gradients(np.sum(picked * picked), [x])
    assert picked.shape == (None, 4)
    assert g is not None
    values = {x: np.asarray(M, np.float64)}
    program = compile_program([picked, g], feeds=[rows], shapes=[(4,)], values=values)
    value, gradient = program(np.array([2, 0, 2, 2]))
    np.testing.assert_array_equal(value, values[x][[2, 0, 2, 2]])
    np.testing.assert_allclose(gradient, 2 * values[x] * np.array([[1], [0], [3]]))
    with pytest.raises(IndexError):
        program(np.array([0, 0, 0, 3]))


WIDE = rng.uniform(0, 600, (3000, 2)).astype(np.float16)
HALVES: list[tuple[str, Callable[[Any], Any]]] = [
    ("sum", lambda x: np.sum(x / 100, axis=0)),
    ("mean", lambda x: np.mean(x)),
    ("mean of rows", lambda x: np.mean(x, axis=0)),
    ("var", lambda x: np.var(x, axis=0)),
    ("std", lambda x: np.std(x, axis=0, keepdims=True)),
    ("std with ddof", lambda x: np.std(x, ddof=1)),
    ("norm", lambda x: np.linalg.norm(x)),
    ("norm of columns", lambda x: np.linalg.norm(x, axis=0)),
    ("matmul", lambda x: (x / 6000).T @ x / 10),
    ("einsum", lambda x: np.einsum("ij,ij->j", x / 600, x / 6000)),
]


@pytest.mark.parametrize(("name", "function"), HALVES, ids=[name for name, _ in HALVES])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_float16_is_accumulated_in_float32(name: str, function: Callable[[Any], Any], known: bool) -> None:
    with Graph().as_default():
        x = placeholder(np.float16, WIDE.shape if known else (None, None))
        y = function(x)
        (gradient,) = gradients(np.sum(y), [x])
    shapes = [(None, None) if not known else WIDE.shape]
    value, slope = compile_program([y, gradient], feeds=[x], shapes=shapes)(WIDE)
    assert value.dtype == slope.dtype == np.float16
    expected = function(WIDE.astype(np.float64))
    if name in ("var", "sum"):
        expected = np.where(expected > np.finfo(np.float16).max, np.inf, expected)
    np.testing.assert_allclose(value, expected, rtol=4e-3)
    assert np.isfinite(slope).all()


def test_a_bias_of_float16_gets_the_sum_of_all_rows() -> None:
    with Graph().as_default():
        x, b = placeholder(np.float16, (None, 2)), Variable(np.zeros(2, np.float16))
        (gradient,) = gradients(np.sum(x + b), [b])
    for shape in ((3000, 2), (None, 2)):
        program = compile_program([gradient], feeds=[x], shapes=[shape], values={b: np.zeros(2, np.float16)})
        np.testing.assert_array_equal(program(WIDE)[0], [3000, 3000])


def test_the_exponents_gradient_of_an_integer_base_is_exact() -> None:
    with Graph().as_default():
        x = Variable(np.array([2.0, 3.0]))
        (gradient,) = gradients(np.sum(np.power(np.int8(3), x)), [x])
    (value,) = compile_program([gradient], values={x: np.array([2.0, 3.0])})()
    np.testing.assert_allclose(value, np.array([9, 27]) * np.log(3), rtol=1e-14)


def test_the_deviation_of_one_element_has_no_slope() -> None:
    with Graph().as_default():
        x = Variable(np.full((2, 1), 3.0))
        (gradient,) = gradients(np.sum(np.std(x, axis=1)), [x])
    (value,) = compile_program([gradient], values={x: np.full((2, 1), 3.0)})()
    np.testing.assert_array_equal(value, [[0], [0]])


N = np.int64
ROW = np.array([[1, 0, 2, 2]])
FORMS: list[tuple[Any, dict[str, Any]]] = [
    *((f, {"a": T, "axis": N(1), "keepdims": True}) for f in (np.max, np.min, np.argmax, np.argmin)),
    *((f, {"a": T > 1, "axis": (N(0), np.int32(-1)), "keepdims": True}) for f in (np.any, np.all)),
    *((f, {"a": T, "axis": np.array(2), "dtype": np.float64}) for f in (np.sum, np.mean, np.prod)),
    *((f, {"a": T, "axis": (N(0), N(2)), "dtype": "f8", "ddof": N(1)}) for f in (np.var, np.std)),
    *((f, {"a": T, "axis": N(2), "dtype": np.float64}) for f in (np.cumsum, np.cumprod)),
    *((f, {"a": T, "axis": N(1), "kind": "stable", "order": None}) for f in (np.sort, np.argsort)),
    (np.transpose, {"a": T, "axes": np.array([2, 0, 1])}),
    (np.swapaxes, {"a": T, "axis1": N(0), "axis2": N(-1)}),
    (np.moveaxis, {"a": T, "source": N(0), "destination": N(2)}),
    (np.expand_dims, {"a": T, "axis": N(1)}),
    (np.expand_dims, {"a": T, "axis": [0, N(-1)]}),
    (np.squeeze, {"a": T[:1], "axis": N(0)}),
    (np.squeeze, {"a": T[:1], "axis": (N(0),)}),
    (np.ravel, {"a": T, "order": "C"}),
    (np.broadcast_to, {"array": V, "shape": np.array([3, 4])}),
    (np.diagonal, {"a": T, "offset": N(1), "axis1": N(1), "axis2": N(2)}),
    (np.trace, {"a": T, "offset": N(1), "axis1": N(1), "axis2": N(2), "dtype": np.float64}),
    (np.diag, {"v": V, "k": N(1)}),
    *((f, {"m": M, "k": N(1)}) for f in (np.triu, np.tril)),
    (np.tile, {"A": M, "reps": np.array([2, 1])}),
    (np.repeat, {"a": M, "repeats": N(2), "axis": N(1)}),
    (np.roll, {"a": M, "shift": N(1), "axis": N(1)}),
    (np.flip, {"m": M, "axis": N(0)}),
    *((f, {"m": M}) for f in (np.flipud, np.fliplr)),
    (np.pad, {"array": M, "pad_width": N(1), "mode": "constant", "constant_values": N(2)}),
    (np.take, {"a": M, "indices": [0, 2], "axis": N(0), "mode": "raise"}),
    (np.take_along_axis, {"arr": M, "indices": ROW, "axis": N(0)}),
    (np.clip, {"a": M, "a_min": N(1), "a_max": None}),
    (np.clip, {"a": M, "min": 0.7, "max": 1.2}),
    (np.dot, {"a": M, "b": M.T}),
    (np.outer, {"a": V, "b": V}),
    (np.tensordot, {"a": M, "b": M.T, "axes": N(1)}),
    (np.tensordot, {"a": T, "b": T, "axes": (np.array([0, 2]), np.array([0, 2]))}),
    (np.zeros_like, {"a": M, "dtype": np.int8}),
    (np.ones_like, {"a": M, "dtype": None, "subok": True}),
    (np.full_like, {"a": M, "fill_value": 2, "dtype": np.float64}),
    (np.searchsorted, {"a": np.sort(V), "v": M, "side": "right"}),
    (np.linalg.norm, {"x": M, "ord": None, "axis": N(1), "keepdims": True}),
    *((f, {"a": S}) for f in (np.linalg.inv, np.linalg.det, np.linalg.slogdet)),
    (np.linalg.solve, {"a": S, "b": M}),
    (np.array_split, {"ary": M, "indices_or_sections": N(3), "axis": N(1)}),
    (np.split, {"ary": M, "indices_or_sections": np.array([1, 3]), "axis": N(1)}),
    *((f, {"a": M}) for f in (np.ndim, np.shape)),
    (np.append, {"arr": M, "values": M, "axis": N(1)}),
    (np.hsplit, {"ary": M, "indices_or_sections": N(2)}),
    (np.vsplit, {"ary": M, "indices_or_sections": N(3)}),
    (np.dsplit, {"ary": T, "indices_or_sections": N(2)}),
    (np.rollaxis, {"a": T, "axis": N(2), "start": N(1)}),
    (np.rot90, {"m": M, "k": N(1), "axes": (N(1), N(0))}),
    (np.diff, {"a": M, "n": N(2), "axis": N(0), "prepend": 1.0, "append": 2.0}),
    (np.gradient, {"f": M, "axis": N(1), "edge_order": N(2)}),
    (np.cross, {"a": M.T, "b": M.T, "axisa": N(1), "axisb": N(1), "axisc": N(0)}),
    (np.kron, {"a": M, "b": V}),
    (np.average, {"a": M, "axis": N(0), "weights": M, "keepdims": True}),
    (np.ptp, {"a": M, "axis": N(0), "keepdims": True}),
    (np.partition, {"a": np.sort(M), "kth": N(1), "axis": N(1)}),
]
# These take their operands by position, in NumPy too, or in other forms that CALLS has.
POSITIONAL = {
    np.where,
    np.inner,
    np.einsum,
    np.concatenate,
    np.stack,
    np.reshape,
    np.astype,
    np.linalg.cholesky,
    *(np.atleast_1d, np.atleast_2d, np.atleast_3d, np.vstack, np.hstack, np.dstack, np.column_stack),
    *(np.vdot, np.select),
}


def test_every_function_is_tried_with_numpys_names() -> None:
    functions = {f for f in FUNCTIONS if f is not operator.getitem}
    assert functions == {f for f, _ in FORMS} | POSITIONAL | {np.amax, np.amin}


@pytest.mark.parametrize(("function", "given"), FORMS, ids=lambda v: getattr(v, "__name__", ""))
def test_arguments_have_numpys_names_and_numbers(function: Any, given: dict[str, Any]) -> None:
    first, *others = given
    with Graph().as_default():
        x = placeholder(given[first].dtype, given[first].shape)
        made = function(**{first: x, **{name: given[name] for name in others}})
        also = function(x, *(given[name] for name in others)) if function in BY_POSITION else made
    expected = function(**given)
    for result in (made, also):
        if not isinstance(result, (tuple, list)):
            result, expected_parts = [result], [expected]
        else:
            expected_parts = list(expected)
        for one, wanted in zip(result, expected_parts, strict=True):
            value = evaluate(one, [x], [given[first]]) if isinstance(one, Tensor) else one
            np.testing.assert_allclose(value, wanted, rtol=2e-5)
            assert np.asarray(value).dtype == np.asarray(wanted).dtype


BY_POSITION = {np.sum, np.prod, np.cumsum, np.take_along_axis, np.swapaxes, np.trace, np.full_like}


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.int64])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: x / 256, lambda x: 300 / (x + 1), lambda x: x < 256, lambda x: x == -1, lambda x: x <= 300,
        lambda x: x != 1 << 70, lambda x: x > -(1 << 70), lambda x: np.clip(x, 0, 300),
        lambda x: np.clip(x, -5, 300),
        lambda x: np.clip(x, -1000, None), lambda x: np.clip(x, 0, 2.5), lambda x: np.arctan2(x, 300),
        lambda x: np.logaddexp(x, 300), lambda x: np.logical_and(x, 300), lambda x: x * 1.5, lambda x: x + 3,
        lambda x: x < 2.5,
    ],
)  # fmt: skip
def test_python_numbers_that_a_dtype_does_not_hold(dtype: Any, make: Callable[[Any], Any]) -> None:
    array = np.array([0, 1, 2, 100], dtype)
    with Graph().as_default():
        x = placeholder(dtype, array.shape)
        try:
            expected = make(array)
        except OverflowError:
            with pytest.raises(InvalidArgumentError, match="does not fit"):
                make(x)
            return
        y = make(x)
    value = evaluate(y, [x], [array])
    assert value.dtype == y.dtype == expected.dtype
    np.testing.assert_allclose(value, expected)


def test_forms_that_take_arrays_by_position() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, M.shape)
        found = [
            np.reshape(x, np.array([4, 3])),
            np.reshape(x, shape=(N(2), -1)),
            np.reshape(x, N(12)),
            np.concatenate([x, x], axis=N(1)),
            np.concatenate([x, x], axis=None),
            np.stack([x, x], axis=N(-1)),
            x.reshape(np.array([2, 6])),
        ]
    assert [y.shape for y in found] == [(4, 3), (2, 6), (12,), (3, 8), (24,), (3, 4, 2), (2, 6)]
    np.testing.assert_array_equal(evaluate(found[4], [x], [M]), np.concatenate([M, M], axis=None))
