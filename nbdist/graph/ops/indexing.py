"""Advanced indexing: integer arrays, constant masks, take, take_along_axis.

Positions are inputs like any other, so that a placeholder of row numbers can select rows. The gradient adds
each selected element's gradient at its position.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import (
    Shape,
    Spec,
    broadcast,
    check_gradient,
    define,
    define_into,
    gradient_spec,
    normal_axes,
    show,
    whole,
)
from nbdist.graph.ops.shape import per_axis
from nbdist.graph.tensor import FUNCTIONS, Constant, Tensor, record, symbolic

HERE = "array"
"""A placeholder in a key for the next array of positions."""


def _index(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """Record ``x[key]``; an index without arrays is recorded as a view."""
    key = tuple(np.asarray(k) if isinstance(k, list) else k for k in key)
    if not any(isinstance(k, (Tensor, np.ndarray)) for k in key):
        return record("getitem", x, key=key)
    spelled: list[Any] = []
    positions: list[tuple[Any, int | None]] = []  # with the size of the axis that a mask needs
    for k in key:
        if isinstance(k, (Tensor, np.ndarray)):
            found = _positions(k, key)
            spelled.extend([HERE] * len(found))
            positions.extend(found)
        elif isinstance(k, (int, np.integer, slice, type(None), type(...))) and not isinstance(k, bool):
            spelled.append(k)
        else:
            raise NotImplementedError(f"indexing a Tensor with {key!r} does not record: what is {k!r}?")
    per = [k for k in per_axis(tuple(spelled), x.spec) if k is not None]
    following = iter(positions)
    for axis, (k, n) in enumerate(zip(per, x.shape, strict=True)):
        if isinstance(k, str):
            _check_range(*next(following), n, axis)
    return record("index", x, *(array for array, _ in positions), key=tuple(spelled))


def _positions(k: Any, key: tuple[Any, ...]) -> list[tuple[Any, int | None]]:
    """Return the arrays of positions for one part of a key; a mask selects where it is true."""
    values = k.value if isinstance(k, Constant) else k
    if k.dtype.kind == "b":
        if isinstance(values, Tensor):
            raise NotImplementedError(
                f"indexing a Tensor with the mask {k!r} does not record: the shape of the result depends on "
                "its values; use np.where, or a mask that is an array"
            )
        if values.ndim == 0:
            raise NotImplementedError(f"indexing a Tensor with {key!r} does not record: a mask is an array")
        return list(zip(np.nonzero(values), values.shape, strict=True))
    if k.dtype.kind not in "iu" and k.shape != (0,):
        raise InvalidArgumentError(f"an index is an array of whole numbers or a mask, got {k!r}")
    return [(k if isinstance(k, Tensor) else k.astype(np.intp), None)]


def _check_range(positions: Any, masked: int | None, n: int | None, axis: int) -> None:
    values = positions.value if isinstance(positions, Constant) else positions
    if n is not None and masked not in (None, n):
        raise InvalidArgumentError(f"a mask of {masked} along axis {axis} does not fit its size {n}")
    if n is None or isinstance(values, Tensor) or values.size == 0:
        return
    for value in (int(values.min()), int(values.max())):
        if not -n <= value < n:
            raise InvalidArgumentError(f"index {value} is out of range for axis {axis} of size {n}")


def _index_spec(x: Spec, *positions: Spec, key: tuple[Any, ...]) -> Spec:
    """NumPy's rule: indexed axes stay in place if they are adjacent, and move to the front if not.

    A ``...`` between them separates them, even if it covers no axis.
    """
    sizes: list[int | None] = []
    picked = [at for at, k in enumerate(key) if k is not None and k is not ... and not isinstance(k, slice)]
    place = None
    axes = iter(x.shape)
    for k in per_axis(key, x):
        n = 1 if k is None else next(axes)
        if k is None:
            sizes.append(1)
        elif isinstance(k, slice):
            sizes.append(None if n is None else len(range(*k.indices(n))))
        else:
            if not isinstance(k, str) and n is not None and not -n <= k < n:
                raise InvalidArgumentError(f"index {k} is out of range for a size of {n} in {show(x.shape)}")
            place = len(sizes) if place is None else place
    together = picked[-1] - picked[0] == len(picked) - 1
    first = place if together and place is not None else 0
    if sum(isinstance(k, str) for k in key) != len(positions):
        raise InvalidArgumentError(
            f"index: the key {key!r} does not name {len(positions)} arrays of positions"
        )
    common = broadcast("index", *(p.shape for p in positions))
    return Spec((*sizes[:first], *common, *sizes[first:]), x.dtype)


def full_key(positions: tuple[Array, ...], key: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the index of an array: ``key`` with the positions in their places."""
    following = iter(positions)
    return tuple(next(following) if isinstance(k, str) else k for k in key)


def _add_at(xp: Any, g: Array, like: Array, *positions: Array, key: tuple[Any, ...]) -> Array:
    out = xp.zeros(like.shape, g.dtype)
    xp.add.at(out, full_key(positions, key), g)
    return out  # type: ignore[no-any-return]


define(
    "index",
    forward=lambda xp, x, *positions, key: x[full_key(positions, key)],
    spec=_index_spec,
    vjp=lambda np, g, y, x, *positions, key: (
        record("add_at_like", g, x, *positions, key=key),
        *(None for _ in positions),
    ),
)
define(
    "add_at_like",
    forward=_add_at,
    spec=gradient_spec("add_at_like", _index_spec),
    vjp=lambda np, up, y, g, like, *positions, key: (
        record("index", up, *positions, key=key),
        None,
        *(None for _ in positions),
    ),
    shape_only=frozenset({1}),
)
FUNCTIONS[operator.getitem] = _index


def _take_spec(x: Spec, positions: Spec, axis: int) -> Spec:
    if positions.dtype.kind not in "iu":
        raise InvalidArgumentError(f"take: positions are whole numbers, got {positions.dtype}")
    (axis,) = normal_axes("take", axis, len(x.shape))
    return Spec((*x.shape[:axis], *positions.shape, *x.shape[axis + 1 :]), x.dtype)


def _add_rows_kernel(xp: Any, axis: int) -> Any:
    """Add up the rows of one position first: sort, then one sum for each run of equal positions."""

    def kernel(g: Array, like: Array, positions: Array, out: Array) -> None:
        out.fill(0)
        if positions.size == 0 or out.size == 0:
            return
        n, at = like.shape[axis], axis % like.ndim
        rows = xp.moveaxis(g.reshape(*like.shape[:at], positions.size, *like.shape[at + 1 :]), at, 0)
        target, flat = xp.moveaxis(out, at, 0), positions.reshape(-1) % n
        if xp is not np:
            xp.add.at(target, flat, rows)
            return
        order = np.argsort(flat, kind="stable")
        in_order = flat[order]
        starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
        target[in_order[starts]] = np.add.reduceat(rows[order], starts, axis=0)

    return kernel


define(
    "take",
    forward=lambda xp, x, positions, axis: xp.take(x, positions, axis),
    into=lambda xp, axis: lambda x, positions, out: xp.take(x, positions, axis, out),
    spec=_take_spec,
    vjp=lambda np, g, y, x, positions, axis: (
        record("take_back_like", g, x, positions, axis=axis),
        None,
    ),
)
define_into(
    "take_back_like",
    into=_add_rows_kernel,
    spec=gradient_spec("take_back_like", _take_spec),
    vjp=lambda np, up, y, g, like, positions, axis: (
        record("take", up, positions, axis=axis),
        None,
        None,
    ),
    shape_only=frozenset({1}),
)


def _take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> Tensor:
    x = a if isinstance(a, Tensor) else np.asarray(a)
    if axis is None:
        x, axis = symbolic.ravel(x), 0
    (axis,) = normal_axes("take", whole("take: axis", axis), x.ndim)
    n = x.shape[axis]
    positions = indices if isinstance(indices, Tensor) else np.asarray(indices)
    if mode != "raise":
        if n is None or mode not in ("clip", "wrap"):
            raise NotImplementedError(f"np.take(mode={mode!r}) on a Tensor whose size is {n} does not record")
        positions = symbolic.clip(positions, 0, n - 1) if mode == "clip" else positions % n
    elif isinstance(positions, np.ndarray):
        _check_range(positions, None, n, axis)
    return record("take", x, positions, axis=axis)


FUNCTIONS[np.take] = _take


def _along_spec(x: Spec, positions: Spec, axis: int) -> Spec:
    if len(x.shape) != len(positions.shape) or positions.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"take_along_axis: {show(x.shape)} needs whole numbers of as many dimensions, "
            f"got {show(positions.shape)} of {positions.dtype}"
        )
    (axis,) = normal_axes("take_along_axis", axis, len(x.shape))
    shape: Shape = broadcast(
        "take_along_axis",
        (*x.shape[:axis], 1, *x.shape[axis + 1 :]),
        (*positions.shape[:axis], 1, *positions.shape[axis + 1 :]),
    )
    return Spec((*shape[:axis], positions.shape[axis], *shape[axis + 1 :]), x.dtype)


def _add_along_spec(g: Spec, like: Spec, positions: Spec, axis: int) -> Spec:
    (at,) = normal_axes("add_along_like", axis, len(g.shape))
    if len(like.shape) != len(g.shape):
        raise InvalidArgumentError(f"add_along_like: {show(g.shape)} into {show(like.shape)}")
    check_gradient(
        "add_along_like",
        g,
        _along_spec(Spec(_spread_along(g.shape, like.shape, at), g.dtype), positions, axis),
    )
    return Spec(_spread_along(g.shape, like.shape, axis), g.dtype)


def _add_along(xp: Any, g: Array, like: Array, positions: Array, axis: int) -> Array:
    out = xp.zeros(_spread_along(g.shape, like.shape, axis), g.dtype)
    key: list[Any] = [xp.arange(n).reshape((-1,) + (1,) * (g.ndim - 1 - i)) for i, n in enumerate(g.shape)]
    key[axis] = positions
    xp.add.at(out, tuple(key), g)
    return out  # type: ignore[no-any-return]


def _spread_along(g: Shape, like: Shape, axis: int) -> Shape:
    return tuple(like[i] if i == axis % len(g) else n for i, n in enumerate(g))


define(
    "take_along_axis",
    forward=lambda xp, x, positions, axis: xp.take_along_axis(x, positions, axis),
    spec=_along_spec,
    vjp=lambda np, g, y, x, positions, axis: (
        record("sum_to_like", record("add_along_like", g, x, positions, axis=axis), x),
        None,
    ),
)
define(
    "add_along_like",  # broadcast like its positions: its user sums it down to the shape it needs
    forward=_add_along,
    spec=_add_along_spec,
    vjp=lambda np, up, y, g, like, positions, axis: (
        record("take_along_axis", up, positions, axis=axis),
        None,
        None,
    ),
    shape_only=frozenset({1}),
)


def _take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> Tensor:
    if axis is None:
        return record("take_along_axis", symbolic.ravel(arr), indices, axis=0)
    ndim = np.ndim(arr) if not isinstance(arr, Tensor) else arr.ndim
    (axis,) = normal_axes("take_along_axis", axis, ndim)
    return record("take_along_axis", arr, indices, axis=axis)


FUNCTIONS[np.take_along_axis] = _take_along_axis
