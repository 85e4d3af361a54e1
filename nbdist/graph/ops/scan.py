"""Scans along an axis: cumsum, cumprod, and the recurrence in cumprod's gradient."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, check_gradient, define, normal_axes, number_dtype, whole
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic


def _spec(name: str) -> Any:
    def spec(x: Spec, axis: int, dtype: Any) -> Spec:
        normal_axes(name, whole(f"{name}: axis", axis), len(x.shape))
        scanned = getattr(np, name)(np.zeros(1, x.dtype), dtype=dtype)
        return Spec(x.shape, scanned.dtype)

    return spec


def _reverse(x: Tensor, axis: int) -> Tensor:
    return x[(slice(None),) * (axis % x.ndim) + (slice(None, None, -1),)]


def _cumsum_vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, axis: int, dtype: Any) -> tuple[Tensor]:
    return (_reverse(np.cumsum(_reverse(g, axis), axis=axis), axis),)


def _cumprod_vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, axis: int, dtype: Any) -> tuple[Tensor]:
    """dx_j is the product before j times s_j, where s_j = g_j + x_(j+1) s_(j+1): also right where x is 0."""
    after = _reverse(_before(_reverse(x, axis), axis, 0.0), axis)  # x_(j+1), and 0 behind the last
    later = record("recurrence", _reverse(after, axis), _reverse(g, axis), axis=axis)
    return (products_before(x, axis) * _reverse(later, axis),)


def products_before(x: Tensor, axis: int) -> Tensor:
    """Return, for each element along an axis, the product of those before it."""
    result: Tensor = symbolic.cumprod(_before(x, axis, 1.0), axis=axis)
    return result


def products_of_others(x: Tensor, axis: int) -> Tensor:
    """Return, for each element along an axis, the product of all others: no division, so zeros are fine."""
    after = _reverse(products_before(_reverse(x, axis), axis), axis)
    result: Tensor = products_before(x, axis) * after
    return result


def _before(x: Tensor, axis: int, first: float) -> Tensor:
    """Return ``x`` moved up by one along an axis, with ``first`` in front."""
    lead = (slice(None),) * (axis % x.ndim)
    widths = [(int(i == axis % x.ndim), 0) for i in range(x.ndim)]
    padded: Tensor = symbolic.pad(x, widths, constant_values=first)
    return padded[(*lead, slice(None, -1))]


for _name, _vjp in (("cumsum", _cumsum_vjp), ("cumprod", _cumprod_vjp)):

    def _forward(xp: Any, x: Array, axis: int, dtype: Any, name: str = _name) -> Array:
        return getattr(xp, name)(x, axis=axis, dtype=dtype)  # type: ignore[no-any-return]

    def _kernel(xp: Any, axis: int, dtype: Any, name: str = _name) -> Any:
        scan = getattr(xp, name)
        return lambda x, out: scan(x, axis=axis, dtype=dtype, out=out)

    def _recorder(a: Any, axis: int | None = None, dtype: Any = None, name: str = _name) -> Tensor:
        x, axis = (symbolic.ravel(a), 0) if axis is None else (a, whole(f"{name}: axis", axis))
        return record(name, x, axis=axis, dtype=None if dtype is None else number_dtype(name, dtype))

    define(_name, forward=_forward, into=_kernel, spec=_spec(_name), vjp=_vjp)
    FUNCTIONS[getattr(np, _name)] = _recorder


def _recurrence_spec(a: Spec, b: Spec, axis: int) -> Spec:
    normal_axes("recurrence", whole("recurrence: axis", axis), len(b.shape))
    check_gradient("recurrence", a, b)
    return Spec(b.shape, np.result_type(a.dtype, b.dtype))


def _recur(xp: Any, a: Array, b: Array, axis: int) -> Array:
    """Return s with s_j = b_j + a_j s_(j-1), by doubling (Hillis and Steele 1986): log2(n) passes."""
    dtype = xp.result_type(a, b)
    a, s = (xp.moveaxis(x, axis, 0).astype(dtype) for x in (a, b))
    step = 1
    while step < len(s):
        s[step:] += a[step:] * s[:-step]
        a[step:] *= a[:-step].copy()
        step *= 2
    return xp.moveaxis(s, 0, axis)  # type: ignore[no-any-return]


def _recurrence_vjp(np: Any, g: Tensor, y: Tensor, a: Tensor, b: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    next_a = _before(_reverse(a, axis), axis, 0.0)
    into_b = _reverse(record("recurrence", next_a, _reverse(g, axis), axis=axis), axis)
    return into_b * _before(y, axis, 0.0), into_b


define("recurrence", forward=_recur, spec=_recurrence_spec, vjp=_recurrence_vjp)
