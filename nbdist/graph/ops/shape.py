"""Ops that move elements without computing: reshape, transpose, broadcast, index, join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import (
    Spec,
    broadcast,
    define,
    define_into,
    gradient_spec,
    listed_axes,
    normal_axes,
    shape_of,
    show,
    whole,
)
from nbdist.graph.tensor import FUNCTIONS, Tensor, record


def _reshape_spec(x: Spec, shape: tuple[int, ...]) -> Spec:
    if sum(n < 0 for n in shape) > 1 or any(whole("reshape: a size", n) < -1 for n in shape):
        raise InvalidArgumentError(f"reshape: {shape} has more than one -1, or a size below it")
    if None in x.shape:
        return Spec(tuple(None if n < 0 else n for n in shape), x.dtype)
    size, rest = prod(n for n in x.shape if n is not None), prod(n for n in shape if n >= 0)
    if (-1 in shape and (rest == 0 or size % rest)) or (-1 not in shape and size != rest):
        raise InvalidArgumentError(f"reshape: {show(x.shape)} has {size} elements, which do not fit {shape}")
    return Spec(tuple(size // rest if n < 0 else n for n in shape), x.dtype)


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    given = shape.tolist() if isinstance(shape, np.ndarray) else shape
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if any(n is None for n in sizes):
        hint = "; let -1 stand for it" if name == "reshape" else "; np.ones_like(x) has x's shape as it runs"
        raise InvalidArgumentError(f"{name}: {show(sizes)} has a size that is known only at run time{hint}")
    return tuple(whole(f"{name}: a size", n) for n in sizes)


define(
    "reshape",
    forward=lambda xp, x, shape: xp.reshape(x, shape),
    spec=_reshape_spec,
    vjp=lambda np, g, y, x, shape: (record("reshape_like", g, x),),
    view=True,
)
FUNCTIONS[np.reshape] = lambda a, shape: record("reshape", a, shape=_sizes("reshape", shape))
FUNCTIONS[np.ravel] = lambda a: record("reshape", a, shape=(-1,))
define(
    "reshape_like",
    forward=lambda xp, x, like: xp.reshape(x, like.shape),
    spec=lambda x, like: Spec(like.shape, x.dtype),
    vjp=lambda np, g, y, x, like: (record("reshape_like", g, x), None),
    view=True,
    shape_only=frozenset({1}),
)


def _transpose_spec(x: Spec, axes: tuple[int, ...]) -> Spec:
    if sorted(a % max(len(x.shape), 1) for a in axes) != list(range(len(x.shape))):
        raise InvalidArgumentError(f"transpose: axes {axes} do not permute shape {show(x.shape)}")
    return Spec(tuple(x.shape[a] for a in axes), x.dtype)


define(
    "transpose",
    forward=lambda xp, x, axes: xp.transpose(x, axes),
    spec=_transpose_spec,
    vjp=lambda np, g, y, x, axes: (
        record("transpose", g, axes=tuple(int(a) for a in np.argsort([a % x.ndim for a in axes]))),
    ),
    view=True,
)


def _transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    order = range(a.ndim)[::-1] if axes is None else [whole("transpose: axis", n) for n in axes]
    return record("transpose", a, axes=tuple(order))


def _swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor:
    first, second = (normal_axes("swapaxes", axis, a.ndim)[0] for axis in (axis1, axis2))
    axes = list(range(a.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return _transpose(a, axes)


FUNCTIONS[np.transpose] = _transpose
FUNCTIONS[np.swapaxes] = _swapaxes


def _expanded(x: Spec, axis: tuple[int, ...]) -> Spec:
    ndim = len(x.shape) + len(axis)
    axes, sizes = normal_axes("expand_dims", axis, ndim), iter(x.shape)
    return Spec(tuple(1 if i in axes else next(sizes) for i in range(ndim)), x.dtype)


define(
    "expand_dims",
    forward=lambda xp, x, axis: xp.expand_dims(x, axis),
    spec=_expanded,
    vjp=lambda np, g, y, x, axis: (record("reshape_like", g, x),),
    view=True,
)


FUNCTIONS[np.expand_dims] = lambda a, axis: record("expand_dims", a, axis=listed_axes("expand_dims", axis))


def _squeezed(x: Spec, axis: tuple[int, ...]) -> Spec:
    axes = normal_axes("squeeze", axis, len(x.shape))
    if any(x.shape[a] not in (1, None) for a in axes):
        raise InvalidArgumentError(f"squeeze: shape {show(x.shape)} is not 1 along axis {axis}")
    return Spec(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)


define(
    "squeeze",
    forward=lambda xp, x, axis: xp.squeeze(x, axis),
    spec=_squeezed,
    vjp=lambda np, g, y, x, axis: (record("reshape_like", g, x),),
    view=True,
)


def _squeeze(a: Tensor, axis: Any = None) -> Tensor:
    if axis is None:
        axis = tuple(i for i, n in enumerate(a.shape) if n == 1)
    return record("squeeze", a, axis=listed_axes("squeeze", axis))


FUNCTIONS[np.squeeze] = _squeeze


def _broadcast_to_spec(x: Spec, shape: tuple[int, ...]) -> Spec:
    shape_of("broadcast_to", shape)
    if broadcast("broadcast_to", x.shape, shape) != tuple(shape):
        raise InvalidArgumentError(f"broadcast_to: {show(x.shape)} does not broadcast to {shape}")
    return Spec(tuple(shape), x.dtype)


define(
    "broadcast_to",
    forward=lambda xp, x, shape: xp.broadcast_to(x, shape),
    spec=_broadcast_to_spec,
    vjp=lambda np, g, y, x, shape: (record("sum_to_like", g, x),),
    view=True,
)
FUNCTIONS[np.broadcast_to] = lambda array, shape: record(
    "broadcast_to", array, shape=_sizes("broadcast_to", shape)
)
define(
    "broadcast_like",
    forward=lambda xp, x, like: xp.broadcast_to(x, like.shape),
    spec=lambda x, like: Spec(like.shape, x.dtype),
    vjp=lambda np, g, y, x, like: (record("sum_to_like", g, x), None),
    view=True,
    shape_only=frozenset({1}),
)


def _sum_to(xp: Any, x: Array, like: Array) -> Array:
    """Sum ``x`` down to a shape that broadcasts to it; the same shape is returned as it is."""
    if x.shape == like.shape:
        return x
    total = xp.sum(x, axis=_summed_axes(x.shape, like.shape), dtype=accumulator(x))
    return xp.reshape(total.astype(x.dtype, copy=False), like.shape)  # type: ignore[no-any-return]


def accumulator(x: Array) -> Any:
    """Return the dtype to sum in: that of ``x``, but float32 for float16 (there 2,048 + 1 is 2,048)."""
    return np.float32 if x.dtype == np.float16 else x.dtype


def _summed_axes(shape: tuple[int, ...], like: tuple[int, ...]) -> tuple[int, ...]:
    lead = len(shape) - len(like)
    return (*range(lead), *(i + lead for i, n in enumerate(like) if n == 1 and shape[i + lead] != 1))


def _kept(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def _sum_to_kernel(xp: Any) -> Callable[[Array, Array, Array], None]:
    axes: list[tuple[int, ...]] = []
    ones: list[Array] = []

    def kernel(x: Array, like: Array, out: Array) -> None:
        if not axes:
            axes.append(_summed_axes(x.shape, like.shape))
            leading = axes[0] == tuple(range(len(axes[0]))) and 0 < len(axes[0]) < x.ndim
            if leading and xp is np and x.dtype.char in "fd" and x.flags.c_contiguous:
                ones.append(np.ones(prod(x.shape[: len(axes[0])]), x.dtype))
        if ones and out.flags.c_contiguous:
            # A sum of rows as a product with ones: BLAS is several times as fast.
            np.dot(ones[0], x.reshape(len(ones[0]), out.size), out.reshape(-1))  # works for no rows, too
            return
        target = out.reshape(_kept(x.shape, axes[0]))
        if xp is np and x.dtype != np.float16:
            np.add.reduce(x, axes[0], out=target)
        elif xp is np:
            np.copyto(target, np.add.reduce(x, axes[0], np.float32), casting="same_kind")
        else:
            xp.sum(x, axis=axes[0], out=target)

    return kernel


define(
    "sum_to_like",
    forward=_sum_to,
    into=_sum_to_kernel,
    spec=lambda x, like: Spec(like.shape, x.dtype),
    vjp=lambda np, g, y, x, like: (record("broadcast_like", g, x), None),
    view=True,
    shape_only=frozenset({1}),
)
define(
    "size_ratio",
    forward=lambda xp, a, b, dtype: xp.asarray(a.size / max(b.size, 1), dtype),
    spec=lambda a, b, dtype: Spec((), np.dtype(dtype)),
    vjp=lambda np, g, y, a, b, dtype: (None, None),
    view=True,
    shape_only=frozenset({0, 1}),
)


def _concatenate_spec(*xs: Spec, axis: int) -> Spec:
    first = xs[0]
    (axis,) = normal_axes("concatenate", axis, len(first.shape))
    for x in xs:
        if len(x.shape) != len(first.shape) or any(
            a != b and None not in (a, b) for i, (a, b) in enumerate(zip(x.shape, first.shape)) if i != axis
        ):
            shapes = ", ".join(show(x.shape) for x in xs)
            raise InvalidArgumentError(f"concatenate: shapes {shapes} differ outside axis {axis}")
    sizes = [x.shape[axis] for x in xs]
    total = None if None in sizes else sum(n for n in sizes if n is not None)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return Spec(shape, np.result_type(*(x.dtype for x in xs)))


def _concatenate_vjp(np: Any, g: Tensor, y: Tensor, *xs: Tensor, axis: int) -> list[Tensor]:
    parts: list[Tensor] = []
    for i, x in enumerate(xs):
        parts.append(record("leading_like", g, x, axis=axis) if i < len(xs) - 1 else g)
        g = g if i == len(xs) - 1 else record("behind_like", g, x, axis=axis)
    return parts


def _cut(name: str, behind: bool) -> Callable[..., Spec]:
    def spec(g: Spec, like: Spec, axis: int) -> Spec:
        (axis,) = normal_axes(name, whole(f"{name}: axis", axis), len(g.shape))
        if len(like.shape) != len(g.shape):
            raise InvalidArgumentError(f"{name}: {show(g.shape)} and {show(like.shape)} differ in dimensions")
        total, part = g.shape[axis], like.shape[axis]
        if total is not None and part is not None and part > total:
            raise InvalidArgumentError(f"{name}: {part} do not fit {total} along axis {axis}")
        size = part if not behind else None if total is None or part is None else total - part
        return Spec((*g.shape[:axis], size, *g.shape[axis + 1 :]), g.dtype)

    return spec


def _with_zeros(up: Tensor, g: Tensor, like: Tensor, axis: int, other: str) -> Tensor:
    zeros = record("broadcast_like", np.zeros((), up.dtype), record(other, g, like, axis=axis))
    return record("concatenate", *((up, zeros) if other == "behind_like" else (zeros, up)), axis=axis)


# The gradient of concatenate: sizes along its axis may be known only at run time.
define(
    "leading_like",  # the first part of the first input, of the second's size along the axis
    forward=lambda xp, g, like, axis: g[(slice(None),) * (axis % g.ndim) + (slice(like.shape[axis]),)],
    spec=_cut("leading_like", behind=False),
    vjp=lambda np, up, y, g, like, axis: (_with_zeros(up, g, like, axis, "behind_like"), None),
    view=True,
    shape_only=frozenset({1}),
)
define(
    "behind_like",  # the rest
    forward=lambda xp, g, like, axis: g[(slice(None),) * (axis % g.ndim) + (slice(like.shape[axis], None),)],
    spec=_cut("behind_like", behind=True),
    vjp=lambda np, up, y, g, like, axis: (_with_zeros(up, g, like, axis, "leading_like"), None),
    view=True,
    shape_only=frozenset({1}),
)
define(
    "concatenate",
    forward=lambda xp, *xs, axis: xp.concatenate(xs, axis=axis),
    into=lambda xp, axis: lambda *xs_out: xp.concatenate(xs_out[:-1], axis=axis, out=xs_out[-1]),
    spec=_concatenate_spec,
    vjp=_concatenate_vjp,
)


def _concatenate(arrays: Sequence[Any], axis: Any = 0) -> Tensor:
    if not isinstance(arrays, (list, tuple)) or not arrays:
        raise InvalidArgumentError(f"concatenate takes a list of arrays, got {arrays!r}")
    if axis is None:
        return _concatenate([np.ravel(a) for a in arrays], 0)
    return record("concatenate", *arrays, axis=whole("concatenate: axis", axis))


def _stack(arrays: Sequence[Any], axis: Any = 0) -> Tensor:
    if not isinstance(arrays, (list, tuple)) or not arrays:
        raise InvalidArgumentError(f"stack takes a list of arrays, got {arrays!r}")
    at = whole("stack: axis", axis)
    return record("concatenate", *(np.expand_dims(a, at) for a in arrays), axis=at)


FUNCTIONS[np.concatenate], FUNCTIONS[np.stack] = _concatenate, _stack


def _getitem_spec(x: Spec, key: tuple[Any, ...]) -> Spec:
    """Basic indexing: integers, slices, None and one Ellipsis."""
    basic = (int, np.integer, slice, type(None), type(...))
    if any(not isinstance(k, basic) or isinstance(k, bool) for k in key):
        raise NotImplementedError(
            f"indexing a Tensor with {key!r} does not record; use integers, slices, None or ..."
        )
    sizes: list[int | None] = []
    axes = iter(enumerate(x.shape))
    for k in per_axis(key, x):
        if k is None:
            sizes.append(1)
            continue
        axis, n = next(axes)
        if isinstance(k, slice):
            sizes.append(None if n is None else len(range(*k.indices(n))))
        elif n is not None and not -n <= k < n:
            raise InvalidArgumentError(f"index {k} is out of range for axis {axis} of shape {show(x.shape)}")
    return Spec(tuple(sizes), x.dtype)


def per_axis(key: tuple[Any, ...], x: Spec) -> list[Any]:
    """Return the key with ``...`` and missing indices written as full slices."""
    consumed = sum(k is not None and k is not ... for k in key)
    dots = sum(k is ... for k in key)
    if consumed > len(x.shape) or dots > 1:
        problem = "more than one ..." if dots > 1 else f"{consumed} indices for {len(x.shape)} dimensions"
        raise InvalidArgumentError(f"index {key!r} does not fit shape {show(x.shape)}: {problem}")
    filled: list[Any] = []
    for k in key if dots else (*key, ...):
        filled.extend([slice(None)] * (len(x.shape) - consumed) if k is ... else [k])
    return filled


define(
    "getitem",
    forward=lambda xp, x, key: x[key],
    spec=_getitem_spec,
    vjp=lambda np, g, y, x, key: (record("setitem_like", g, x, key=key),),
    view=True,
)


def _setitem_kernel(xp: Any, key: tuple[Any, ...]) -> Callable[[Array, Array, Array], None]:
    def kernel(x: Array, like: Array, out: Array) -> None:
        out.fill(0)
        out[key] = x

    return kernel


define_into(
    "setitem_like",
    into=_setitem_kernel,
    spec=gradient_spec("setitem_like", _getitem_spec),
    vjp=lambda np, g, y, x, like, key: (record("getitem", g, key=key), None),
    shape_only=frozenset({1}),
)
