"""Linear algebra: matrix products, inv, solve, cholesky, det, slogdet, norm, on matrices and stacks of them.

The gradients follow Giles, "Collected matrix derivative results for forward and reverse mode" (2008).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import (
    Shape,
    Spec,
    broadcast,
    define,
    gradient_spec,
    listed_axes,
    normal_axes,
    show,
)
from nbdist.graph.ops.elementwise import fit_to
from nbdist.graph.ops.half import in_float32, product_forward
from nbdist.graph.ops.reduce import keep, reduced
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic


def raising(xp: Any) -> AbstractContextManager[Any]:
    """Return a context in which CuPy raises LinAlgError for a singular matrix, as NumPy does.

    By default CuPy returns garbage, because a check waits for the GPU.
    """
    return nullcontext() if xp is np else import_module("cupyx").errstate(linalg="raise")


def _checked(name: str) -> Callable[[Any, Array], Array]:
    """Return a function of numpy.linalg that raises LinAlgError on a GPU, too."""

    def forward(xp: Any, x: Array) -> Array:
        with raising(xp):
            return getattr(xp.linalg, name)(x)  # type: ignore[no-any-return]  # CuPy has no types

    return forward


def _square(name: str, x: Spec) -> None:
    if len(x.shape) < 2 or (x.shape[-1] != x.shape[-2] and None not in x.shape[-2:]):
        raise InvalidArgumentError(f"{name} takes square matrices, got shape {show(x.shape)}")


def _float(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that LAPACK computes in, as numpy.linalg reports it."""
    found: np.dtype[Any] = np.linalg.inv(np.eye(1, dtype=dtype)).dtype
    return found


def _t(x: Tensor) -> Tensor:
    return x.swapaxes(-1, -2)


def _define(
    name: str,
    forward: Callable[[Any, Array], Array],
    vjp: Callable[..., tuple[Tensor]],
    shape: Callable[[Shape], Shape] = lambda s: s,
) -> None:
    def spec(x: Spec) -> Spec:
        _square(name, x)
        return Spec(shape(x.shape), _float(x.dtype))

    define(name, forward=forward, spec=spec, vjp=vjp)


def _per_matrix(g: Tensor) -> Tensor:
    return record("expand_dims", g, axis=(-2, -1))


# Matrix products.


def _matmul_spec(a: Spec, b: Spec) -> Spec:
    if not a.shape or not b.shape:
        raise InvalidArgumentError(
            f"matmul: shapes {show(a.shape)} and {show(b.shape)}: a scalar has no product"
        )
    inner_a, inner_b = a.shape[-1], b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if inner_a != inner_b and None not in (inner_a, inner_b):
        raise InvalidArgumentError(
            f"matmul: shapes {show(a.shape)} and {show(b.shape)} do not fit: "
            f"{inner_a} columns, {inner_b} rows"
        )
    batch = broadcast("matmul", a.shape[:-2], b.shape[:-2])
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    return Spec((*batch, *rows, *columns), np.result_type(a.dtype, b.dtype))


def _matmul_into(xp: Any) -> Callable[..., Any]:
    if xp is np:
        return in_float32(np.matmul)

    def product(a: Array, b: Array, out: Array) -> None:
        if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and out.flags.c_contiguous:
            # One product of matrices; CuPy would repeat b for each matrix of a.
            xp.matmul(a.reshape(-1, a.shape[-1]), b, out=out.reshape(-1, out.shape[-1]))
        else:
            xp.matmul(a, b, out=out)  # CuPy takes `out` by keyword only

    return product


def _matmul_vjp(np: Any, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.ndim == 1 and b.ndim == 1:
        return g * b, g * a
    # A vector is a matrix of one row (left) or one column (right).
    left = np.expand_dims(a, 0) if a.ndim == 1 else a
    right = np.expand_dims(b, 1) if b.ndim == 1 else b
    if a.ndim == 1:
        g = np.expand_dims(g, -2)
    if b.ndim == 1:
        g = np.expand_dims(g, -1)
    to_left = fit_to(np.matmul(g, np.swapaxes(right, -1, -2)), left)
    rows, columns = left.shape[-1], g.shape[-1]
    if left.ndim > 2 and right.ndim == 2 and None not in (rows, columns):
        # One product of matrices; else there would be one for each matrix of `a`, and their sum.
        left, g = np.reshape(left, (-1, rows)), np.reshape(g, (-1, columns))
    to_right = fit_to(np.matmul(np.swapaxes(left, -1, -2), g), right)
    return (
        np.squeeze(to_left, 0) if a.ndim == 1 else to_left,
        np.squeeze(to_right, 1) if b.ndim == 1 else to_right,
    )


def _solve_spec(a: Spec, b: Spec) -> Spec:
    _square("solve", a)
    if not b.shape:
        raise InvalidArgumentError("solve: the right side is a vector or a matrix, got a single number")
    rows = b.shape[0] if len(b.shape) == 1 else b.shape[-2]
    if rows != a.shape[-1] and None not in (rows, a.shape[-1]):
        raise InvalidArgumentError(
            f"solve: a matrix of shape {show(a.shape)} and a right side {show(b.shape)} do not fit"
        )
    dtype = np.linalg.solve(np.eye(1, dtype=a.dtype), np.eye(1, dtype=b.dtype)).dtype
    if len(b.shape) == 1:
        return Spec((*a.shape[:-2], a.shape[-1]), dtype)
    batch = broadcast("solve", a.shape[:-2], b.shape[:-2])
    return Spec((*batch, *b.shape[-2:]), dtype)


def _solve(xp: Any, a: Array, b: Array) -> Array:
    if b.ndim > 1 and a.shape[:-2] != b.shape[:-2]:  # CuPy does not broadcast
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        a = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
        b = xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    with raising(xp):
        return xp.linalg.solve(a, b)  # type: ignore[no-any-return]  # CuPy has no types


def _solve_vjp(np: Any, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if b.ndim > 1:
        to_b = record("solve", _t(a), g)
        return fit_to(-to_b @ _t(y), a), fit_to(to_b, b)
    g, y = np.expand_dims(g, -1), np.expand_dims(y, -1)
    to_b = record("solve", _t(a), g)
    return -to_b @ _t(y), fit_to(np.squeeze(to_b, -1), b)


_define(
    "det",
    lambda xp, x: xp.linalg.det(x),
    lambda np, g, y, x: (_per_matrix(g * y) * _t(record("inv", x)),),
    lambda s: s[:-2],
)


_define(
    "log_abs_det",
    lambda xp, x: xp.linalg.slogdet(x)[1],
    lambda np, g, y, x: (_per_matrix(g) * _t(record("inv", x)),),
    lambda s: s[:-2],
)


_define(
    "det_sign",
    lambda xp, x: xp.linalg.slogdet(x)[0],
    lambda np, g, y, x: (_per_matrix(g * 0) * x,),
    lambda s: s[:-2],
)


def _half_lower(x: Tensor) -> Tensor:
    """Return the lower triangle with half its diagonal."""
    half: Tensor = symbolic.tril(x) - symbolic.tril(symbolic.triu(x)) * 0.5
    return half


def _cholesky_vjp(np: Any, g: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
    """LAPACK reads the lower triangle only, so only that has a gradient."""
    inverse = record("inv", y)
    s = _t(inverse) @ _half_lower(_t(y) @ np.tril(g)) @ inverse
    return (_half_lower(s + _t(s)),)


_define("cholesky", _checked("cholesky"), _cholesky_vjp)


define("solve", forward=_solve, spec=_solve_spec, vjp=_solve_vjp)


def _singular_spec(x: Spec) -> Spec:
    if len(x.shape) < 2:
        raise InvalidArgumentError(f"singular_values takes matrices, got shape {show(x.shape)}")
    sides = x.shape[-2:]
    least = None if None in sides else min(n for n in sides if n is not None)
    return Spec((*x.shape[:-2], least), _float(x.dtype))


class SlogdetResult(NamedTuple):
    """Sign of a determinant and logarithm of its absolute value."""

    sign: Tensor
    logabsdet: Tensor


FUNCTIONS[np.linalg.inv] = lambda a: record("inv", a)
FUNCTIONS[np.linalg.det] = lambda a: record("det", a)
FUNCTIONS[np.linalg.solve] = lambda a, b: record("solve", a, b)
FUNCTIONS[np.linalg.slogdet] = lambda a: SlogdetResult(record("det_sign", a), record("log_abs_det", a))
FUNCTIONS[np.linalg.cholesky] = lambda a, upper=False: (
    _t(record("cholesky", _t(a))) if upper else record("cholesky", a)
)


def _from_singular(xp: Any, g: Array, x: Array) -> Array:
    """Return u diag(g) v of the singular vectors of x."""
    u, _, v = xp.linalg.svd(x, full_matrices=False)
    return ((u * g[..., None, :]) @ v).astype(g.dtype, copy=False)  # type: ignore[no-any-return]


define(
    "singular_values",  # the largest first
    forward=lambda xp, x: xp.linalg.svd(x, compute_uv=False),
    spec=_singular_spec,
    # x = u diag(s) v, so that ds = diag(u^T dx v^T); for equal singular values the basis is not unique.
    vjp=lambda np, g, y, x: (record("from_singular", g, x),),
)


def _length_spec(x: Spec, axis: tuple[int, ...], keepdims: bool) -> Spec:
    shape = reduced("norm", x, axis, keepdims)
    return Spec(shape, x.dtype if x.dtype.kind == "f" else np.dtype(np.float64))


def _length(xp: Any, x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return the root of the sum of squares; float16 is squared and added up in float32."""
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    found = xp.sqrt(xp.sum(xp.square(wide), axis=axis, keepdims=keepdims))
    return found.astype(_length_spec(Spec(x.shape, x.dtype), axis, keepdims).dtype, copy=False)  # type: ignore[no-any-return]


def _length_vjp(
    np: Any, g: Tensor, y: Tensor, x: Tensor, axis: tuple[int, ...], keepdims: bool
) -> tuple[Tensor]:
    g, y = (keep(v, x, axis, keepdims) for v in (g, y))
    return (g * x / np.where(y == 0, np.ones_like(y), y),)  # not differentiable at 0: 0 is a subgradient


define("from_singular", forward=_from_singular, spec=gradient_spec("from_singular", _singular_spec))


define("length", forward=_length, spec=_length_spec, vjp=_length_vjp)


define(
    "matmul",
    forward=product_forward(lambda xp, a, b: xp.matmul(a, b)),
    into=_matmul_into,
    spec=_matmul_spec,
    vjp=_matmul_vjp,
)


_define("inv", _checked("inv"), lambda np, g, y, x: (-_t(y) @ g @ _t(y),))


def _norm(x: Tensor, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Record np.linalg.norm, of vectors and of matrices."""
    axes = normal_axes("norm", axis, x.ndim)
    axes = axes if axis is None else listed_axes("norm", axis)
    if ord is None or (ord == 2 and len(axes) == 1) or (ord == "fro" and len(axes) == 2):
        return record("length", x, axis=axes, keepdims=keepdims)
    magnitude = symbolic.absolute(x if x.dtype.kind == "f" else x.astype(np.float64))
    if len(axes) == 1:
        return _vector_norm(magnitude, ord, axes[0], keepdims)
    if len(axes) == 2 and ord in (1, -1, np.inf, -np.inf):
        rows, columns = (a % x.ndim for a in axes)
        summed, other = (rows, columns) if abs(ord) == 1 else (columns, rows)
        totals = magnitude.sum(axis=summed, keepdims=True)
        extreme: Any = symbolic.max if ord > 0 else symbolic.min
        result: Tensor = extreme(totals, axis=other, keepdims=True)
        return result if keepdims else result.squeeze((rows, columns))
    if len(axes) == 2 and ord in (2, -2, "nuc"):
        rows, columns = (a % x.ndim for a in axes)
        order = [*(i for i in range(x.ndim) if i not in (rows, columns)), rows, columns]
        values = record("singular_values", symbolic.transpose(x, order))
        if ord == "nuc":
            found: Tensor = values.sum(axis=-1)
        else:
            found = (symbolic.max if ord > 0 else symbolic.min)(values, axis=-1)
        return record("expand_dims", found, axis=tuple(sorted((rows, columns)))) if keepdims else found
    raise NotImplementedError(
        f"np.linalg.norm(ord={ord!r}) over {len(axes)} axes does not record on a Tensor"
    )


def _vector_norm(magnitude: Tensor, ord: Any, axis: int, keepdims: bool) -> Tensor:
    if ord == np.inf:
        return magnitude.max(axis=axis, keepdims=keepdims)
    if ord == -np.inf:
        return magnitude.min(axis=axis, keepdims=keepdims)
    if ord == 0:
        counted: Tensor = (magnitude != 0).astype(magnitude.dtype)
        return counted.sum(axis=axis, keepdims=keepdims)
    if ord == 1:
        return magnitude.sum(axis=axis, keepdims=keepdims)
    if isinstance(ord, str):
        raise InvalidArgumentError(f"norm: {ord!r} is a norm of matrices, over two axes")
    return (magnitude**ord).sum(axis=axis, keepdims=keepdims) ** (1 / ord)  # type: ignore[no-any-return]


FUNCTIONS[np.linalg.norm] = _norm
