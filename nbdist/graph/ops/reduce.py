"""Ops that reduce along axes: sum, mean, max, min, prod, argmax, argmin.

Values of float16 are added and multiplied in float32, and rounded once at the end. So a sum of more than
2,048 ones is right; NumPy's own is right along some axes only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.op import Shape, Spec, define, normal_axes, number_dtype, whole, whole_axes
from nbdist.graph.ops.scan import products_of_others
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic

Axis = int | tuple[int, ...] | None


def reduced(name: str, x: Spec, axis: Axis, keepdims: bool) -> Shape:
    """Return the shape of ``x`` without some axes, or with size 1 along them."""
    axes = normal_axes(name, axis, len(x.shape))
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return tuple(n for i, n in enumerate(x.shape) if i not in axes)


def keep(y: Tensor, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    """Put the reduced axes back into ``y`` with size 1."""
    axes = normal_axes("reduce", axis, x.ndim)
    return y if keepdims or not axes else record("expand_dims", y, axis=axes)


def _spread(np: Any, g: Tensor, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    return record("broadcast_like", keep(g, x, axis, keepdims), x)


def _define(
    name: str,
    ufunc: str,
    vjp: Callable[..., Any] | None,
    dtype: Callable[[np.dtype[Any]], np.dtype[Any]],
) -> None:
    accumulates = ufunc in ("add", "multiply")

    def forward(xp: Any, x: Array, axis: Axis, keepdims: bool) -> Array:
        function = getattr(xp, name)
        if accumulates and x.dtype == np.float16:
            return function(x, axis=axis, dtype=np.float32, keepdims=keepdims).astype(x.dtype)  # type: ignore[no-any-return]
        return function(x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def kernel(xp: Any, axis: Axis, keepdims: bool) -> Callable[[Array, Array], None]:
        axes = whole_axes(name, axis)
        reduce = getattr(np, ufunc).reduce  # the ufunc's method avoids NumPy's dispatch in Python

        def run(x: Array, out: Array) -> None:
            if accumulates and x.dtype == np.float16:
                np.copyto(out, reduce(x, axes, np.float32, None, keepdims), casting="same_kind")
            else:
                reduce(x, axes, None, out, keepdims)

        function = getattr(xp, name)

        def copied(x: Array, out: Array) -> None:
            out[...] = function(x, axis=axes, keepdims=keepdims)

        if xp is np:
            return run
        if name == "min":  # CuPy 14 passes `out` of `min` to CUB as the dtype, and raises TypeError
            return copied
        return lambda x, out: function(x, axis=axes, out=out, keepdims=keepdims)

    define(
        name,
        forward=forward,
        into=kernel,
        spec=lambda x, axis, keepdims: Spec(reduced(name, x, axis, keepdims), dtype(x.dtype)),
        vjp=vjp,
    )

    def recorder(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
        return record(name, a, axis=whole_axes(name, axis), keepdims=bool(keepdims))

    FUNCTIONS[getattr(np, name)] = _with_dtype(recorder) if accumulates else recorder


def _with_dtype(recorder: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a recorder that also takes ``dtype``: the dtype of the computation and of the result."""

    def in_dtype(a: Any, axis: Any = None, dtype: Any = None, **options: Any) -> Tensor:
        if dtype is None:
            return recorder(a, axis=axis, **options)
        wanted = number_dtype("a reduction", dtype)
        found = recorder(record("cast", a, dtype=wanted), axis=axis, **options)
        return found if found.dtype == wanted else found.astype(wanted)

    taken = inspect.signature(recorder)
    dtype = inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default=None)
    in_dtype.__signature__ = taken.replace(parameters=[*taken.parameters.values(), dtype])  # type: ignore[attr-defined]
    return in_dtype


def _summed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    total: np.dtype[Any] = np.sum(np.zeros(1, dtype)).dtype
    return total


def _extreme(np: Any, g: Tensor, y: Tensor, x: Tensor, axis: Axis, keepdims: bool) -> tuple[Tensor]:
    """Share the gradient among all elements that equal the extreme."""
    hit = (x == keep(y, x, axis, keepdims)).astype(g.dtype)
    return (hit * keep(g, x, axis, keepdims) / np.sum(hit, axis=axis, keepdims=True),)


_define(
    "sum", "add", lambda np, g, y, x, axis, keepdims: (_spread(np, g, x, axis, keepdims),), _summed
)  # fmt: skip
_define("max", "maximum", _extreme, lambda dtype: dtype)
_define("min", "minimum", _extreme, lambda dtype: dtype)


def _product(np: Any, g: Tensor, y: Tensor, x: Tensor, axis: Axis, keepdims: bool) -> tuple[Tensor]:
    """Multiply by the product of all others, axis by axis: unlike y / x it is right where x is 0."""
    result = keep(g, x, axis, keepdims)
    for a in normal_axes("prod", axis, x.ndim):
        result = result * products_of_others(x, a)
        x = x.prod(axis=a, keepdims=True)
    return (result,)


_define("prod", "multiply", _product, _summed)
for _name, _ufunc in (("any", "logical_or"), ("all", "logical_and")):
    _define(_name, _ufunc, None, lambda dtype: np.dtype(np.bool_))
FUNCTIONS[np.amax], FUNCTIONS[np.amin] = FUNCTIONS[np.max], FUNCTIONS[np.min]


def _mean_kernel(xp: Any, axis: Axis, keepdims: bool) -> Callable[[Array, Array], None]:
    """A sum and one scaling: np.mean itself spends several microseconds in Python."""
    reduce: Any = np.add.reduce

    def kernel(x: Array, out: Array) -> None:
        total, count = out, x.size / max(out.size, 1)
        if out.dtype == np.float16:
            total = reduce(x, axis, np.float32, None, keepdims)
        else:
            reduce(x, axis, out.dtype, out, keepdims)
        np.divide(total, count, out)  # not times 1/n, so that the mean of ones is exactly 1

    return kernel if xp is np else lambda x, out: xp.mean(x, axis=axis, out=out, keepdims=keepdims)


define(
    "mean",
    forward=lambda xp, x, axis, keepdims: xp.mean(x, axis=axis, keepdims=keepdims),
    into=_mean_kernel,
    spec=lambda x, axis, keepdims: Spec(
        reduced("mean", x, axis, keepdims), x.dtype if x.dtype.kind in "fc" else np.dtype(np.float64)
    ),
    vjp=lambda np, g, y, x, axis, keepdims: (
        _spread(np, g * record("size_ratio", y, x, dtype=g.dtype), x, axis, keepdims),
    ),
)


def _mean(a: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return record("mean", a, axis=whole_axes("mean", axis), keepdims=bool(keepdims))


def _variance(
    a: Tensor, axis: Any = None, ddof: float = 0, keepdims: bool = False, correction: float | None = None
) -> Tensor:
    x = a
    ddof = ddof if correction is None else correction
    if x.dtype == np.float16:
        wide = _variance(x.astype(np.float32), axis, ddof, keepdims)
        return wide.astype(np.float16)
    spread = symbolic.square(x - x.mean(axis=axis, keepdims=True))
    result: Tensor = symbolic.mean(spread, axis=axis, keepdims=keepdims)
    if not ddof:
        return result
    n = record("size_ratio", x, result, dtype=result.dtype)
    corrected: Tensor = result * (n / symbolic.maximum(n - ddof, 0))
    return corrected


FUNCTIONS[np.mean], FUNCTIONS[np.var] = _with_dtype(_mean), _with_dtype(_variance)
define(  # not differentiable where all values are equal: 0 is a subgradient, as 1 / 1 times a deviation of 0
    "root_of_variance",
    forward=lambda xp, x: xp.sqrt(x),
    into=lambda xp: xp.sqrt,
    spec=lambda x: Spec(x.shape, np.sqrt.resolve_dtypes((x.dtype, None))[-1]),
    vjp=lambda np, g, y, x: (g / (2 * np.where(y == 0, np.ones_like(y), y)),),
    elementwise=True,
    cuda="sqrt(a)",
)


def _deviation(
    a: Tensor, axis: Any = None, ddof: float = 0, keepdims: bool = False, correction: float | None = None
) -> Tensor:
    x = a
    if x.dtype == np.float16:
        return _deviation(x.astype(np.float32), axis, ddof, keepdims, correction).astype(np.float16)
    result: Tensor = record("root_of_variance", _variance(x, axis, ddof, keepdims, correction))
    return result


FUNCTIONS[np.std] = _with_dtype(_deviation)


def _define_position(name: str) -> None:
    """Define argmax or argmin; a name parameter of the op could be set by attributes of a received graph."""

    def kernel(xp: Any, axis: int | None, keepdims: bool) -> Callable[[Array, Array], None]:
        find = getattr(xp, name)
        return lambda x, out: find(x, axis=axis, out=out, keepdims=keepdims)

    define(
        name,
        forward=lambda xp, x, axis, keepdims: getattr(xp, name)(x, axis=axis, keepdims=keepdims),
        into=kernel,
        spec=lambda x, axis, keepdims: Spec(reduced(name, x, axis, keepdims), np.dtype(np.intp)),
    )
    FUNCTIONS[getattr(np, name)] = lambda a, axis=None, keepdims=False: record(
        name, a, axis=None if axis is None else whole(f"{name}: axis", axis), keepdims=bool(keepdims)
    )


for _name in ("argmax", "argmin"):
    _define_position(_name)
