"""NumPy's functions that are a line or two of others: stacking, splitting, differences, products, selection.

They record what they are made of, so values, gradients and kernels are those of the functions that they call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import normal_axes, show, whole, whole_axes
from nbdist.graph.tensor import FUNCTIONS, Tensor, constant, symbolic


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else constant(np.asarray(value))


def _axis(name: str, axis: Any, ndim: int) -> int:
    return normal_axes(name, whole(f"{name}: axis", axis), ndim)[0]


def _slice(x: Tensor, axis: int, start: int | None, stop: int | None) -> Tensor:
    return x[(slice(None),) * axis + (slice(start, stop),)]


# With more axes, and stacked along them.


def _at_least(ndim: int) -> Callable[[Any], Tensor]:
    def raised(value: Any) -> Tensor:
        x = _tensor(value)
        if ndim == 3 and x.ndim == 2:
            return x[:, :, None]
        if ndim == 3 and x.ndim == 1:
            return x[None, :, None]
        return x[(None,) * max(ndim - x.ndim, 0) + (...,)] if x.ndim < ndim else x

    return raised


_at_least_1d, _at_least_2d, _at_least_3d = _at_least(1), _at_least(2), _at_least(3)


def _each(raised: Callable[[Any], Tensor]) -> Callable[..., Any]:
    return lambda *arys: raised(arys[0]) if len(arys) == 1 else tuple(map(raised, arys))


FUNCTIONS[np.atleast_1d] = _each(_at_least_1d)
FUNCTIONS[np.atleast_2d] = _each(_at_least_2d)
FUNCTIONS[np.atleast_3d] = _each(_at_least_3d)


def _joined(parts: Sequence[Tensor], axis: int) -> Tensor:
    result: Tensor = symbolic.concatenate(parts, axis)
    return result


def _hstack(tup: Sequence[Any]) -> Tensor:
    parts = [_at_least_1d(x) for x in tup]
    return _joined(parts, 0 if parts and parts[0].ndim == 1 else 1)


def _column_stack(tup: Sequence[Any]) -> Tensor:
    return _joined([x[:, None] if x.ndim == 1 else _at_least_2d(x) for x in map(_at_least_1d, tup)], 1)


FUNCTIONS[np.hstack] = _hstack
FUNCTIONS[np.vstack] = lambda tup: _joined([_at_least_2d(x) for x in tup], 0)
FUNCTIONS[np.dstack] = lambda tup: _joined([_at_least_3d(x) for x in tup], 2)
FUNCTIONS[np.column_stack] = _column_stack


def _append(arr: Any, values: Any, axis: int | None = None) -> Tensor:
    x, more = _tensor(arr), _tensor(values)
    if axis is None:
        return _joined([x.ravel(), more.ravel()], 0)
    return _joined([x, more], _axis("append", axis, x.ndim))


FUNCTIONS[np.append] = _append


def _cut(name: str, least: int, axis: int) -> Callable[..., list[Tensor]]:
    def cut(ary: Tensor, indices_or_sections: Any) -> list[Tensor]:
        if ary.ndim < least:
            raise InvalidArgumentError(
                f"{name} takes an array of {least} dimensions or more, got shape {show(ary.shape)}"
            )
        parts: list[Tensor] = symbolic.split(ary, indices_or_sections, min(axis, ary.ndim - 1))
        return parts

    return cut


FUNCTIONS[np.vsplit] = _cut("vsplit", 2, 0)
FUNCTIONS[np.hsplit] = _cut("hsplit", 1, 1)
FUNCTIONS[np.dsplit] = _cut("dsplit", 3, 2)

# In another order.


def _rollaxis(a: Tensor, axis: Any, start: Any = 0) -> Tensor:
    at, before = _axis("rollaxis", axis, a.ndim), whole("rollaxis: start", start)
    before += a.ndim if before < 0 else 0
    if not 0 <= before <= a.ndim:
        raise InvalidArgumentError(f"rollaxis: start {start} for shape {show(a.shape)}")
    result: Tensor = symbolic.moveaxis(a, at, before - (at < before))
    return result


def _rot90(m: Tensor, k: Any = 1, axes: Any = (0, 1)) -> Tensor:
    given = whole_axes("rot90", axes)
    if not isinstance(given, tuple) or len(given) != 2:
        raise InvalidArgumentError(f"rot90: axes are two, got {axes!r}")
    first, second = (_axis("rot90", axis, m.ndim) for axis in given)
    if first == second:
        raise InvalidArgumentError(f"rot90: axes are two different ones, got {axes!r}")
    turns = whole("rot90: k", k) % 4
    if turns == 0:
        return m
    if turns == 2:
        return symbolic.flip(m, (first, second))  # type: ignore[no-any-return]
    if turns == 1:
        return symbolic.swapaxes(symbolic.flip(m, second), first, second)  # type: ignore[no-any-return]
    return symbolic.flip(symbolic.swapaxes(m, first, second), second)  # type: ignore[no-any-return]


# All in order is one of the orders that a partition may have.
FUNCTIONS[np.partition] = lambda a, kth, axis=-1: symbolic.sort(a, axis=axis)
FUNCTIONS[np.rollaxis], FUNCTIONS[np.rot90] = _rollaxis, _rot90

# Differences.


def _diff(a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None) -> Tensor:
    x, times = _tensor(a), whole("diff: n", n)
    if times < 0:
        raise InvalidArgumentError(f"diff: n is 0 or more, got {n!r}")
    if not times:
        return x
    at = _axis("diff", axis, x.ndim)
    ends = [None if end is None else _beside(end, x, at) for end in (prepend, append)]
    x = (
        _joined([part for part in (ends[0], x, ends[1]) if part is not None], at)
        if any(end is not None for end in ends)
        else x
    )
    for _ in range(times):
        later, earlier = _slice(x, at, 1, None), _slice(x, at, None, -1)
        x = symbolic.not_equal(later, earlier) if x.dtype == bool else later - earlier
    return x


def _beside(end: Any, x: Tensor, axis: int) -> Tensor:
    """Return what diff puts before or after an array; a number is repeated across the other axes."""
    part = _tensor(end)
    if part.ndim:
        return part
    edge = _slice(x, axis, 0, 1)
    result: Tensor = symbolic.zeros_like(edge, dtype=part.dtype) + part
    return result


def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: Any = 1) -> Any:
    x = _tensor(f)
    axes = normal_axes("gradient", whole_axes("gradient", axis), x.ndim)
    order = whole("gradient: edge_order", edge_order)
    if order not in (1, 2):
        raise InvalidArgumentError(f"gradient: edge_order is 1 or 2, got {edge_order!r}")
    spacings = varargs * len(axes) if len(varargs) == 1 else varargs or (1.0,) * len(axes)
    if len(spacings) != len(axes):
        raise InvalidArgumentError(f"gradient: {len(varargs)} spacings for {len(axes)} axes")
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    slopes = tuple(_slope(x, at, spacing, order) for at, spacing in zip(axes, spacings, strict=True))
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(x: Tensor, axis: int, spacing: Any, order: int) -> Tensor:
    """Return the slope along an axis: from both neighbours, at the ends from 1 or 2 (``order``)."""
    n = x.shape[axis]
    if n is None or n < order + 1:
        raise InvalidArgumentError(
            f"gradient: an axis of known size, {order + 1} or more, is needed; axis {axis} of {show(x.shape)}"
        )
    places = np.asarray(spacing, np.float64)
    if places.ndim > 1 or (places.ndim and len(places) != n):
        raise InvalidArgumentError(
            f"gradient: a spacing is a number or {n} coordinates for axis {axis}, got shape {places.shape}"
        )
    steps = np.diff(places) if places.ndim else np.full(n - 1, float(places))
    rows: dict[int, list[tuple[int, float]]] = {}
    for i in range(1, n - 1):
        before, after = float(steps[i - 1]), float(steps[i])
        rows[i] = [
            (i - 1, -after / (before * (before + after))),
            (i, (after - before) / (before * after)),
            (i + 1, before / (after * (before + after))),
        ]
    for end, step, sign in ((0, 1, 1.0), (n - 1, -1, -1.0)):
        near = float(steps[0 if end == 0 else -1])
        if order == 1:
            rows[end] = [(end, -sign / near), (end + step, sign / near)]
            continue
        far = float(steps[1 if end == 0 else -2])
        rows[end] = [
            (end, -sign * (2 * near + far) / (near * (near + far))),
            (end + step, sign * (near + far) / (near * far)),
            (end + 2 * step, -sign * near / (far * (near + far))),
        ]
    matrix = np.zeros((n, n), x.dtype)
    for row, terms in rows.items():
        for column, weight in terms:
            matrix[row, column] = weight
    slope = symbolic.tensordot(x, matrix.T, axes=((axis,), (0,)))
    return symbolic.moveaxis(slope, -1, axis)  # type: ignore[no-any-return]


FUNCTIONS[np.diff], FUNCTIONS[np.gradient] = _diff, _gradient

# Products and means.


def _cross(a: Any, b: Any, axisa: Any = -1, axisb: Any = -1, axisc: Any = -1, axis: Any = None) -> Tensor:
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _tensor(a), _tensor(b)
    x, y = (symbolic.moveaxis(v, _axis("cross", at, v.ndim), -1) for v, at in ((x, axisa), (y, axisb)))
    if x.shape[-1] != 3 or y.shape[-1] != 3:
        raise InvalidArgumentError(
            f"cross takes vectors of 3 numbers, a size that is known: got shapes {show(x.shape)} and "
            f"{show(y.shape)}, with the vectors last"
        )
    parts = [x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return symbolic.stack(parts, _axis("cross", axisc, parts[0].ndim + 1))  # type: ignore[no-any-return]


def _kron(a: Any, b: Any) -> Tensor:
    x, y = _tensor(a), _tensor(b)
    ndim = max(x.ndim, y.ndim)
    x, y = (v[(None,) * (ndim - v.ndim) + (...,)] if v.ndim < ndim else v for v in (x, y))
    sizes = [m * n for m, n in zip(x.shape, y.shape, strict=True) if m is not None and n is not None]
    if len(sizes) < ndim:
        raise InvalidArgumentError(
            f"kron needs sizes that are known, got shapes {show(x.shape)} and {show(y.shape)}"
        )
    product: Tensor = x[(slice(None), None) * ndim] * y[(None, slice(None)) * ndim]
    return product.reshape(sizes)


def _average(a: Any, axis: Any = None, weights: Any = None, keepdims: bool = False) -> Tensor:
    x = _tensor(a)
    if weights is None:
        return symbolic.mean(x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]
    w = _tensor(weights)
    if w.ndim != x.ndim:
        if axis is None or w.ndim != 1:
            raise InvalidArgumentError(
                f"average: weights have the shape of the values, or one axis and axis= is given; "
                f"got {show(w.shape)} for {show(x.shape)}"
            )
        w = w[(slice(None),) + (None,) * (x.ndim - 1 - _axis("average", axis, x.ndim))]
    exact = () if x.dtype.kind == "f" else (np.float64,)
    w = symbolic.zeros_like(x, dtype=np.result_type(x.dtype, w.dtype, *exact)) + w
    total = symbolic.sum(x * w, axis=axis, keepdims=keepdims)
    return total / symbolic.sum(w, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


FUNCTIONS[np.cross], FUNCTIONS[np.kron], FUNCTIONS[np.average] = _cross, _kron, _average
FUNCTIONS[np.vdot] = lambda a, b: symbolic.dot(_tensor(a).ravel(), _tensor(b).ravel())
FUNCTIONS[np.ptp] = lambda a, axis=None, keepdims=False: (
    symbolic.max(a, axis=axis, keepdims=keepdims) - symbolic.min(a, axis=axis, keepdims=keepdims)
)

# Selection.


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Tensor:
    if len(condlist) != len(choicelist) or not condlist:
        raise InvalidArgumentError(
            f"select takes as many conditions as choices, got {len(condlist)} and {len(choicelist)}"
        )
    chosen = default
    for condition, choice in reversed(list(zip(condlist, choicelist, strict=True))):
        chosen = symbolic.where(condition, choice, chosen)
    return chosen  # type: ignore[no-any-return]


FUNCTIONS[np.select] = _select
