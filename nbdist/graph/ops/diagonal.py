"""Diagonals and triangles of matrices: diagonal, trace, diag, triu, tril."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, define, gradient_spec, normal_axes, show, whole
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic


def _length(rows: int | None, columns: int | None, offset: int) -> int | None:
    if rows is None or columns is None:
        return None
    return max(min(rows + min(offset, 0), columns - max(offset, 0)), 0)


def _diagonal_spec(x: Spec, offset: int, axis1: int, axis2: int) -> Spec:
    if len(x.shape) < 2:
        raise InvalidArgumentError(f"diagonal: {show(x.shape)} has fewer than two dimensions")
    normal_axes("diagonal", (axis1, axis2), len(x.shape))
    pair = {axis1 % len(x.shape), axis2 % len(x.shape)}
    rest = tuple(n for i, n in enumerate(x.shape) if i not in pair)
    return Spec((*rest, _length(x.shape[axis1], x.shape[axis2], offset)), x.dtype)


def _put(xp: Any, g: Array, like: Array, offset: int, axis1: int, axis2: int) -> Array:
    out = xp.zeros(like.shape, g.dtype)
    matrix = xp.moveaxis(out, (axis1, axis2), (-2, -1))
    i = xp.arange(g.shape[-1])
    matrix[..., i + max(-offset, 0), i + max(offset, 0)] = g
    return out  # type: ignore[no-any-return]


define(
    "diagonal",
    forward=lambda xp, x, offset, axis1, axis2: xp.diagonal(x, offset, axis1, axis2),
    spec=_diagonal_spec,
    vjp=lambda np, g, y, x, **where: (record("put_diagonal_like", g, x, **where),),
    view=True,
)
define(
    "put_diagonal_like",
    forward=_put,
    spec=gradient_spec("put_diagonal_like", _diagonal_spec),
    vjp=lambda np, up, y, g, like, **where: (record("diagonal", up, **where), None),
    shape_only=frozenset({1}),
)
define(
    "diag",
    forward=lambda xp, x, offset: xp.diag(x, offset),
    spec=lambda x, offset: Spec((None if x.shape[0] is None else x.shape[0] + abs(offset),) * 2, x.dtype),
    vjp=lambda np, g, y, x, offset: (np.diagonal(g, offset),),
)


def _diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    first, second = whole("diagonal: axis1", axis1), whole("diagonal: axis2", axis2)
    return record("diagonal", a, offset=whole("diagonal: offset", offset), axis1=first, axis2=second)


def _diag(v: Tensor, k: int = 0) -> Tensor:
    if v.ndim not in (1, 2):
        raise InvalidArgumentError(f"diag: takes a vector or a matrix, got {show(v.shape)}")
    return record("diag", v, offset=whole("diag: k", k)) if v.ndim == 1 else _diagonal(v, k)


FUNCTIONS[np.diagonal] = _diagonal
FUNCTIONS[np.diag] = _diag
FUNCTIONS[np.trace] = lambda a, offset=0, axis1=0, axis2=1, dtype=None: symbolic.sum(
    _diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype
)


def _triangle_spec(x: Spec, k: int) -> Spec:
    if len(x.shape) < 2:
        raise InvalidArgumentError(f"triu and tril take matrices, got {show(x.shape)}")
    return x


for _name in ("triu", "tril"):

    def _forward(xp: Any, x: Array, k: int, name: str = _name) -> Array:
        return getattr(xp, name)(x, k)  # type: ignore[no-any-return]

    def _vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, k: int, name: str = _name) -> tuple[Tensor]:
        return (record(name, g, k=k),)

    def _recorder(m: Tensor, k: int = 0, name: str = _name) -> Tensor:
        return record(name, m, k=whole(f"{name}: k", k))

    define(_name, forward=_forward, spec=_triangle_spec, vjp=_vjp)
    FUNCTIONS[getattr(np, _name)] = _recorder
