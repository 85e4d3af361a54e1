"""Ops that move elements without computing: reshape, transpose, broadcast, index, join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Example, Op, Spec, broadcast, normal_axes, register, show
from nbdist.graph.tensor import FUNCTIONS, Tensor, record


def _reshape_spec(x: Spec, shape: tuple[int, ...]) -> Spec:
    if sum(n < 0 for n in shape) > 1:
        raise InvalidArgumentError(f"reshape: {shape} has more than one -1")
    if None in x.shape:
        return Spec(tuple(None if n < 0 else n for n in shape), x.dtype)
    size, rest = prod(n for n in x.shape if n is not None), prod(n for n in shape if n >= 0)
    if (-1 in shape and (rest == 0 or size % rest)) or (-1 not in shape and size != rest):
        raise InvalidArgumentError(f"reshape: {show(x.shape)} has {size} elements, which do not fit {shape}")
    return Spec(tuple(size // rest if n < 0 else n for n in shape), x.dtype)


def _sizes(name: str, shape: Any) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if None in sizes:
        hint = "; let -1 stand for it" if name == "reshape" else "; np.ones_like(x) has x's shape as it runs"
        raise InvalidArgumentError(f"{name}: {show(sizes)} has a size that is known only at run time{hint}")
    return tuple(int(n) for n in sizes)


register(
    Op(
        "reshape",
        forward=lambda xp, x, shape: xp.reshape(x, shape),
        spec=_reshape_spec,
        vjp=lambda np, g, y, x, shape: (record("reshape_like", g, x),),
        view=True,
        examples=lambda rng: [
            Example((rng.normal(size=(2, 6)),), {"shape": s}) for s in ((12,), (3, 4), (-1, 2), (4, -1))
        ],
    )
)
FUNCTIONS[np.reshape] = lambda a, shape: record("reshape", a, shape=_sizes("reshape", shape))
FUNCTIONS[np.ravel] = lambda a: record("reshape", a, shape=(-1,))
register(
    Op(
        "reshape_like",
        forward=lambda xp, x, like: xp.reshape(x, like.shape),
        spec=lambda x, like: Spec(like.shape, x.dtype),
        vjp=lambda np, g, y, x, like: (record("reshape_like", g, x), None),
        view=True,
        shape_only=frozenset({1}),
        examples=lambda rng: [Example((rng.normal(size=6), np.zeros((2, 3))), {})],
    )
)


def _transpose_spec(x: Spec, axes: tuple[int, ...]) -> Spec:
    if sorted(a % max(len(x.shape), 1) for a in axes) != list(range(len(x.shape))):
        raise InvalidArgumentError(f"transpose: axes {axes} are no permutation for shape {show(x.shape)}")
    return Spec(tuple(x.shape[a] for a in axes), x.dtype)


register(
    Op(
        "transpose",
        forward=lambda xp, x, axes: xp.transpose(x, axes),
        spec=_transpose_spec,
        vjp=lambda np, g, y, x, axes: (
            record("transpose", g, axes=tuple(int(a) for a in np.argsort([a % x.ndim for a in axes]))),
        ),
        view=True,
        examples=lambda rng: [
            Example((rng.normal(size=(2, 3, 4)),), {"axes": axes})
            for axes in ((2, 0, 1), (0, 2, 1), (-1, 1, 0))
        ],
    )
)


def _transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    return record("transpose", x, axes=tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))


def _swapaxes(x: Tensor, a: int, b: int) -> Tensor:
    axes = list(range(x.ndim))
    axes[a], axes[b] = axes[b], axes[a]
    return _transpose(x, axes)


FUNCTIONS[np.transpose] = _transpose
FUNCTIONS[np.swapaxes] = _swapaxes


def _expanded(x: Spec, axis: tuple[int, ...]) -> Spec:
    ndim = len(x.shape) + len(axis)
    axes, sizes = normal_axes("expand_dims", axis, ndim), iter(x.shape)
    return Spec(tuple(1 if i in axes else next(sizes) for i in range(ndim)), x.dtype)


register(
    Op(
        "expand_dims",
        forward=lambda xp, x, axis: xp.expand_dims(x, axis),
        spec=_expanded,
        vjp=lambda np, g, y, x, axis: (record("reshape_like", g, x),),
        view=True,
        examples=lambda rng: [
            Example((rng.normal(size=(2, 3)),), {"axis": a}) for a in ((0,), (1,), (0, -1))
        ],
    )
)
FUNCTIONS[np.expand_dims] = lambda x, axis: record(
    "expand_dims", x, axis=(axis,) if isinstance(axis, int) else tuple(axis)
)


def _squeezed(x: Spec, axis: tuple[int, ...]) -> Spec:
    axes = normal_axes("squeeze", axis, len(x.shape))
    if any(x.shape[a] not in (1, None) for a in axes):
        raise InvalidArgumentError(f"squeeze: shape {show(x.shape)} is not 1 along axis {axis}")
    return Spec(tuple(n for i, n in enumerate(x.shape) if i not in axes), x.dtype)


register(
    Op(
        "squeeze",
        forward=lambda xp, x, axis: xp.squeeze(x, axis),
        spec=_squeezed,
        vjp=lambda np, g, y, x, axis: (record("reshape_like", g, x),),
        view=True,
        examples=lambda rng: [Example((rng.normal(size=(1, 3, 1)),), {"axis": a}) for a in ((0,), (0, 2))],
    )
)


def _squeeze(x: Tensor, axis: int | tuple[int, ...] | None = None) -> Tensor:
    if axis is None:
        axis = tuple(i for i, n in enumerate(x.shape) if n == 1)
    return record("squeeze", x, axis=(axis,) if isinstance(axis, int) else tuple(axis))


FUNCTIONS[np.squeeze] = _squeeze


def _broadcast_to_spec(x: Spec, shape: tuple[int, ...]) -> Spec:
    if broadcast("broadcast_to", x.shape, shape) != tuple(shape):
        raise InvalidArgumentError(f"broadcast_to: {show(x.shape)} does not broadcast to {shape}")
    return Spec(tuple(shape), x.dtype)


register(
    Op(
        "broadcast_to",
        forward=lambda xp, x, shape: xp.broadcast_to(x, shape),
        spec=_broadcast_to_spec,
        vjp=lambda np, g, y, x, shape: (record("sum_to_like", g, x),),
        view=True,
        examples=lambda rng: [Example((rng.normal(size=s),), {"shape": (2, 3)}) for s in ((3,), (2, 1), ())],
    )
)
FUNCTIONS[np.broadcast_to] = lambda x, shape: record("broadcast_to", x, shape=_sizes("broadcast_to", shape))
register(
    Op(
        "broadcast_like",
        forward=lambda xp, x, like: xp.broadcast_to(x, like.shape),
        spec=lambda x, like: Spec(like.shape, x.dtype),
        vjp=lambda np, g, y, x, like: (record("sum_to_like", g, x), None),
        view=True,
        shape_only=frozenset({1}),
        examples=lambda rng: [
            Example((rng.normal(size=s), np.zeros((2, 3))), {}) for s in ((3,), (2, 1), ())
        ],
    )
)


def _sum_to(xp: Any, x: Array, like: Array) -> Array:
    """Sum ``x`` down to a shape that broadcasts to it; the same shape is returned as it is."""
    if x.shape == like.shape:
        return x
    return xp.reshape(xp.sum(x, axis=_summed_axes(x.shape, like.shape)), like.shape)  # type: ignore[no-any-return]


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
            # The sum of rows is a product with ones, which BLAS does several times as fast.
            np.dot(ones[0], x.reshape(len(ones[0]), out.size), out.reshape(-1))  # of no rows, too
            return
        target = out.reshape(_kept(x.shape, axes[0]))
        if xp is np:
            np.add.reduce(x, axes[0], out=target)
        else:
            xp.sum(x, axis=axes[0], out=target)

    return kernel


register(
    Op(
        "sum_to_like",
        forward=_sum_to,
        into=_sum_to_kernel,
        spec=lambda x, like: Spec(like.shape, x.dtype),
        vjp=lambda np, g, y, x, like: (record("broadcast_like", g, x), None),
        view=True,
        shape_only=frozenset({1}),
        examples=lambda rng: [
            Example((rng.normal(size=(2, 3)), np.zeros(s)), {}) for s in ((3,), (2, 1), (), (2, 3), (1, 3))
        ],
    )
)
register(
    Op(
        "size_ratio",
        forward=lambda xp, a, b, dtype: xp.asarray(a.size / max(b.size, 1), dtype),
        spec=lambda a, b, dtype: Spec((), np.dtype(dtype)),
        vjp=lambda np, g, y, a, b, dtype: (None, None),
        view=True,
        shape_only=frozenset({0, 1}),
    )
)


def _concatenate_spec(*xs: Spec, axis: int | None) -> Spec:
    first = xs[0]
    if axis is None:
        raise NotImplementedError("np.concatenate on a Tensor needs an axis; ravel the arrays first")
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
    parts, start = [], 0
    for x in xs:
        size = x.shape[axis]
        if size is None:
            raise InvalidArgumentError(
                f"concatenate: no gradient while the size of {x!r} on axis {axis} is unknown"
            )
        index = (slice(None),) * (axis % x.ndim) + (slice(start, start + size),)
        parts.append(record("getitem", g, key=index))
        start += size
    return parts


register(
    Op(
        "concatenate",
        forward=lambda xp, *xs, axis: xp.concatenate(xs, axis=axis),
        into=lambda xp, axis: lambda *xs_out: xp.concatenate(xs_out[:-1], axis=axis, out=xs_out[-1]),
        spec=_concatenate_spec,
        vjp=_concatenate_vjp,
        examples=lambda rng: [
            Example((rng.normal(size=(2, 3)), rng.normal(size=s)), {"axis": a})
            for s, a in (((4, 3), 0), ((2, 1), 1))
        ],
    )
)
FUNCTIONS[np.concatenate] = lambda arrays, axis=0: record("concatenate", *arrays, axis=axis)
FUNCTIONS[np.stack] = lambda arrays, axis=0: record(
    "concatenate", *(np.expand_dims(a, axis) for a in arrays), axis=axis
)


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
    """Return the key with ``...`` and what is left out spelled as full slices."""
    consumed = sum(k is not None and k is not ... for k in key)
    dots = sum(k is ... for k in key)
    if consumed > len(x.shape) or dots > 1:
        problem = "more than one ..." if dots > 1 else f"{consumed} indices for {len(x.shape)} dimensions"
        raise InvalidArgumentError(f"index {key!r} does not fit shape {show(x.shape)}: {problem}")
    filled: list[Any] = []
    for k in key if dots else (*key, ...):
        filled.extend([slice(None)] * (len(x.shape) - consumed) if k is ... else [k])
    return filled


register(
    Op(
        "getitem",
        forward=lambda xp, x, key: x[key],
        spec=_getitem_spec,
        vjp=lambda np, g, y, x, key: (record("setitem_like", g, x, key=key),),
        view=True,
        examples=lambda rng: [
            Example((rng.normal(size=(3, 4)),), {"key": k})
            for k in (
                (0,),
                (slice(1, 3),),
                (..., 1),
                (slice(None, None, 2), None),
                (slice(None), slice(-2, None)),
            )
        ],
    )
)


def _setitem(xp: Any, x: Array, like: Array, key: tuple[Any, ...]) -> Array:
    out = xp.zeros(like.shape, x.dtype)
    out[key] = x
    return out  # type: ignore[no-any-return]


def _setitem_kernel(xp: Any, key: tuple[Any, ...]) -> Callable[[Array, Array, Array], None]:
    def kernel(x: Array, like: Array, out: Array) -> None:
        out.fill(0)
        out[key] = x

    return kernel


register(
    Op(
        "setitem_like",
        forward=_setitem,
        into=_setitem_kernel,
        spec=lambda x, like, key: Spec(like.shape, x.dtype),
        vjp=lambda np, g, y, x, like, key: (record("getitem", g, key=key), None),
        shape_only=frozenset({1}),
        examples=lambda rng: [Example((rng.normal(size=4), np.zeros((3, 4))), {"key": (1,)})],
    )
)
