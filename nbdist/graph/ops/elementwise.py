"""Elementwise ops: NumPy's ufuncs, where, cast, sigmoid, relu, erf."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.kernel import COMPUTE_IN_W, FLOATS, define_kernel, into_new
from nbdist.graph.op import Spec, broadcast, define, define_into, number_array, number_dtype
from nbdist.graph.tensor import FUNCTIONS, Constant, Tensor, constant, record, symbolic


def fit_to(g: Any, x: Tensor) -> Tensor:
    """Sum a gradient over the axes along which ``x`` was broadcast."""
    known = None not in x.shape and None not in g.shape
    return g if known and g.shape == x.shape else record("sum_to_like", g, x)


def _ufunc_spec(ufunc: np.ufunc) -> Callable[..., Spec]:
    def spec(*specs: Spec) -> Spec:
        dtypes = ufunc.resolve_dtypes((*(s.dtype for s in specs), None))
        return Spec(broadcast(ufunc.__name__, *(s.shape for s in specs)), dtypes[-1])

    return spec


def _define(name: str, vjp: Callable[..., Sequence[Any]] | None, cuda: str | None = None) -> None:
    """Define an op of a ufunc; ``cuda`` is it in fused kernels."""
    ufunc: np.ufunc = getattr(np, name)
    define(
        name,
        forward=lambda xp, *arrays: getattr(xp, name)(*arrays),
        into=lambda xp: (
            _extreme_kernel(xp, name) if name in ("maximum", "minimum", "fmax", "fmin") else getattr(xp, name)
        ),
        spec=_ufunc_spec(ufunc),
        vjp=vjp and _fitted(vjp),
        elementwise=True,
        cuda=cuda,
    )


def _extreme_kernel(xp: Any, name: str) -> Callable[[Array, Array, Array], None]:
    ufunc = getattr(xp, name)  # NumPy deprecates a positional out here
    return lambda a, b, out: ufunc(a, b, out=out)


def _fitted(vjp: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Apply a rule in the dtype of the value, and sum over broadcast axes."""

    def fitted(xp: Any, g: Tensor, y: Tensor, *xs: Tensor) -> list[Any]:
        parts = vjp(xp, g, y, *(_in_dtype(x, y.dtype) for x in xs))
        return [None if r is None or x.dtype.kind != "f" else fit_to(r, x) for r, x in zip(parts, xs)]

    return fitted


def _in_dtype(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    if x.dtype == dtype:
        return x
    return constant(x.value, dtype) if isinstance(x, Constant) else record("cast", x, dtype=dtype)


# Special functions that NumPy lacks.

LARGEST = 6.0  # erf is 1 there, to double precision
BLOCK = 1 << 13
TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)


@cache
def _coefficients(degree: int) -> tuple[float, ...]:
    """Return Chebyshev coefficients of log(erfc(x) / t) + x**2 in t = 2 / (2 + x), which is smooth."""

    def smooth(t: float) -> float:
        x = 2 / t - 2
        return math.log(math.erfc(x) / t) + x * x

    low = 2 / (2 + LARGEST)
    nodes = np.polynomial.chebyshev.chebpts1(degree + 1)
    values = [smooth(low + (1 - low) * (node + 1) / 2) for node in nodes]
    return tuple(float(c) for c in np.polynomial.chebyshev.chebfit(nodes, values, degree))


ERF = define_kernel(
    "erf",
    "S x",
    "T y",
    COMPUTE_IN_W + "y = T(erf(W(x)));",
    types={"S": (*FLOATS, "int32"), "T": (*FLOATS, "float64")},
)


def _erf(x: Array) -> Array:
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    size = np.minimum(np.abs(x), LARGEST)
    t = 2 / (2 + size)
    low = 2 / (2 + LARGEST)
    place = (t - low) * (2 / (1 - low)) - 1
    twice, b1, b2 = 2 * place, np.zeros_like(place), np.zeros_like(place)
    first, *rest = _coefficients(22 if x.dtype.itemsize > 4 else 10)
    for c in reversed(rest):  # Clenshaw 1955
        b1, b2 = twice * b1 - b2 + c, b1
    tail = t * np.exp(place * b1 - b2 + first - size * size)
    return np.copysign(1 - tail, x)  # type: ignore[no-any-return]


def _erf_kernel(xp: Any) -> Callable[[Array, Array], None]:
    """Compute block by block, so that the passes of a polynomial run in the L1 cache."""
    if xp is not np:
        return lambda x, out: ERF(xp, x, out)

    def kernel(x: Array, out: Array) -> None:
        if not x.flags.c_contiguous:
            out[...] = _erf(x)
            return
        source, target = x.reshape(-1), out.reshape(-1)
        for start in range(0, source.size, BLOCK):
            target[start : start + BLOCK] = _erf(source[start : start + BLOCK])

    return kernel


LOG_2, LOG_10 = float(np.log(2)), float(np.log(10))
# In a gradient rule np is a parameter: NumPy for arrays; on tensors its functions record.
_define("add", lambda np, g, y, a, b: (g, g), cuda="a + b")
_define("subtract", lambda np, g, y, a, b: (g, -g), cuda="a - b")
_define("multiply", lambda np, g, y, a, b: (g * b, g * a), cuda="a * b")
_define("divide", lambda np, g, y, a, b: (g / b, -g * y / b), cuda="a / b")


def _power_vjp(xp: Any, g: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Any, Any]:
    exponent: Any = b.value if isinstance(b, Constant) else b
    lowered: Any = np.where(exponent == 0, 1, exponent - 1)  # 0 * a**(-1) would be NaN at a = 0
    return g * b * a**lowered, g * y * symbolic.log(symbolic.where(a > 0, a, symbolic.ones_like(a)))


_define("power", _power_vjp, cuda="pow(a, b)")
_define("negative", lambda np, g, y, x: (-g,), cuda="-a")
_define("reciprocal", lambda np, g, y, x: (-g * y * y,), cuda="W(1) / a")
_define("exp", lambda np, g, y, x: (g * y,), cuda="exp(a)")
_define("expm1", lambda np, g, y, x: (g * (y + 1),), cuda="expm1(a)")
_define("log", lambda np, g, y, x: (g / x,), cuda="log(a)")
_define("log1p", lambda np, g, y, x: (g / (x + 1),), cuda="log1p(a)")
_define("sqrt", lambda np, g, y, x: (g / (2 * y),), cuda="sqrt(a)")
_define("square", lambda np, g, y, x: (g * 2 * x,), cuda="a * a")
_define("absolute", lambda np, g, y, x: (g * np.sign(x),), cuda="fabs(a)")
_define("sign", lambda np, g, y, x: (g * 0,))
_define("sin", lambda np, g, y, x: (g * np.cos(x),), cuda="sin(a)")
_define("cos", lambda np, g, y, x: (-g * np.sin(x),), cuda="cos(a)")
_define("tan", lambda np, g, y, x: (g * (1 + y * y),))
_define("arctan", lambda np, g, y, x: (g / (1 + x * x),))
_define("arcsin", lambda np, g, y, x: (g / np.sqrt(1 - x * x),))
_define("arccos", lambda np, g, y, x: (-g / np.sqrt(1 - x * x),))
_define("arcsinh", lambda np, g, y, x: (g / np.sqrt(x * x + 1),))
_define("arccosh", lambda np, g, y, x: (g / np.sqrt(x * x - 1),))
_define("arctanh", lambda np, g, y, x: (g / (1 - x * x),))
_define("arctan2", lambda np, g, y, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)))
_define("log2", lambda np, g, y, x: (g / (x * LOG_2),))
_define("log10", lambda np, g, y, x: (g / (x * LOG_10),))
_define("exp2", lambda np, g, y, x: (g * y * LOG_2,))
_define("logaddexp", lambda np, g, y, a, b: (g * np.exp(a - y), g * np.exp(b - y)))
_define("logaddexp2", lambda np, g, y, a, b: (g * np.exp2(a - y), g * np.exp2(b - y)))
_define("cbrt", lambda np, g, y, x: (g / (3 * y * y),))
_define("hypot", lambda np, g, y, a, b: (g * a / y, g * b / y))
_define("fabs", lambda np, g, y, x: (g * np.sign(x),))


for _name in ("deg2rad", "radians"):
    _define(_name, lambda np, g, y, x: (g * (math.pi / 180),))
for _name in ("rad2deg", "degrees"):
    _define(_name, lambda np, g, y, x: (g * (180 / math.pi),))


for _name, _cuda in (("floor", "floor(a)"), ("ceil", "ceil(a)"), ("rint", None), ("trunc", None)):
    _define(_name, lambda np, g, y, x: (g * 0,), cuda=_cuda)  # a zero gradient except at the jumps


_define("floor_divide", lambda np, g, y, a, b: (g * 0, g * 0))
_define("remainder", lambda np, g, y, a, b: (g, -g * np.floor_divide(a, b)))
_define("sinh", lambda np, g, y, x: (g * np.cosh(x),))
_define("cosh", lambda np, g, y, x: (g * np.sinh(x),))
_define("tanh", lambda np, g, y, x: (g * (1 - y * y),), cuda="tanh(a)")


MASKED = 4096  # elements; below, np.where costs less than four passes


def _mask_dtype(condition: Spec, a: Spec, b: Spec) -> np.dtype[Any] | None:
    """Return an integer dtype as wide as the values, if they can be selected by masking bits."""
    size = prod(n or 0 for n in broadcast("where", condition.shape, a.shape, b.shape))
    if size < MASKED or a.dtype != b.dtype or condition.dtype != bool or a.dtype.itemsize > 8:
        return None
    return np.dtype(f"i{a.dtype.itemsize}")


WHERE = define_kernel(
    "where",
    "C condition, A a, B b",
    "T out",
    "out = condition ? T(a) : T(b);",
    types={
        "C": ("bool",) * 4,
        "A": (*FLOATS, "int64"),
        "B": (*FLOATS, "float32"),
        "T": (*FLOATS, "float64"),
    },
)


def _where_kernel(xp: Any) -> Callable[..., None]:
    """Select without a branch per element: branches of a random condition are mispredicted."""
    if xp is not np:
        return lambda condition, a, b, out: WHERE(xp, condition, a, b, out)

    def kernel(condition: Array, a: Array, b: Array, *mask_and_out: Array) -> None:
        out = mask_and_out[-1]
        if len(mask_and_out) == 1:
            np.copyto(out, np.where(condition, a, b))
            return
        mask = mask_and_out[0]
        np.negative(condition.view(np.int8), mask)  # all bits set where the condition is true
        a, b, out = a.view(mask.dtype), b.view(mask.dtype), out.view(mask.dtype)
        np.bitwise_xor(a, b, out)
        np.bitwise_and(out, mask, out)
        np.bitwise_xor(out, b, out)

    return kernel


def _shared(np: Any, g: Tensor, won: Tensor, lost: Tensor) -> tuple[Tensor, Tensor]:
    """Give the gradient to the input that was selected; equal inputs share it."""
    tie = (1 - won.astype(g.dtype) - lost.astype(g.dtype)) * 0.5
    return g * (won.astype(g.dtype) + tie), g * (lost.astype(g.dtype) + tie)


_define("maximum", lambda np, g, y, a, b: _shared(np, g, a > b, b > a), cuda="a > b || a != a ? a : b")
_define("minimum", lambda np, g, y, a, b: _shared(np, g, a < b, b < a), cuda="a < b || a != a ? a : b")


# As maximum and minimum, but a NaN loses.
_define("fmax", lambda np, g, y, a, b: _shared(np, g, (a > b) | np.isnan(b), (b > a) | np.isnan(a)))
_define("fmin", lambda np, g, y, a, b: _shared(np, g, (a < b) | np.isnan(b), (b < a) | np.isnan(a)))


for _name, _cuda in {
    "greater": "a > b", "greater_equal": "a >= b", "less": "a < b", "less_equal": "a <= b",
    "equal": "a == b", "not_equal": "a != b", "logical_and": "a && b", "logical_or": "a || b",
    "logical_xor": None, "logical_not": "!a", "isnan": "a != a", "isfinite": None, "isinf": None,
    "signbit": None, "bitwise_and": None, "bitwise_or": None, "bitwise_xor": None, "invert": None,
}.items():  # fmt: skip
    _define(_name, None, cuda=_cuda)


define(
    "where",
    forward=lambda xp, c, a, b: xp.where(c, a, b),
    into=_where_kernel,
    spec=lambda condition, a, b: Spec(
        broadcast("where", condition.shape, a.shape, b.shape), np.result_type(a.dtype, b.dtype)
    ),
    vjp=lambda np, g, y, c, a, b: (
        None,
        fit_to(np.where(c, g, 0), a),
        fit_to(np.where(c, 0, g), b),
    ),
    elementwise=True,
    cuda="a ? b : c",
    in_place=frozenset({1}),
    scratch=_mask_dtype,
)


def _copy(xp: Any) -> Callable[[Array, Array], None]:
    return lambda x, out: xp.copyto(out, x, casting="unsafe")


def _where(condition: Any, x: Any, y: Any) -> Tensor:
    pair = [v if isinstance(v, Tensor | bool | int | float | complex) else np.asarray(v) for v in (x, y)]
    dtype = np.result_type(*(getattr(v, "dtype", v) for v in pair))
    # A bare number takes the other's dtype, whatever the condition's is.
    values = (v if hasattr(v, "dtype") else number_array("where", v, dtype) for v in pair)
    return record("where", condition, *values)


FUNCTIONS[np.where] = _where
define(
    "cast",
    forward=lambda xp, x, dtype: x.astype(dtype),
    into=lambda xp, dtype: _copy(xp),
    spec=lambda x, dtype: Spec(x.shape, number_dtype("cast", dtype)),
    # No gradient passes through integers.
    vjp=lambda np, g, y, x, dtype: (
        record("cast", g, dtype=x.dtype) if x.dtype.kind in "fc" and y.dtype.kind in "fc" else None,
    ),
    elementwise=True,
    cuda="a",
)


def _sigmoid_grad_kernel(xp: Any) -> Callable[..., None]:
    """g * (y - y * y); the output may be g, so y - y * y needs separate memory."""

    def kernel(g: Array, y: Array, work: Array, out: Array) -> None:
        np.multiply(y, y, work)
        np.subtract(y, work, work)
        np.multiply(g, work, out)

    return kernel if xp is np else lambda g, y, out: SIGMOID_GRAD(xp, g, y, out)


def _full_like(value: float) -> Callable[..., Tensor]:
    def recorder(a: Tensor, dtype: Any = None) -> Tensor:
        return record("broadcast_like", number_array("full_like", value, dtype or a.dtype), a)

    return recorder


FUNCTIONS[np.zeros_like] = _full_like(0)
FUNCTIONS[np.ones_like] = _full_like(1)
FUNCTIONS[np.full_like] = lambda a, fill_value, dtype=None: (
    record("broadcast_like", fill_value.astype(dtype or a.dtype), a)
    if isinstance(fill_value, Tensor)
    else _full_like(fill_value)(a, dtype)
)
FUNCTIONS[np.astype] = lambda x, dtype, copy=True: record("cast", x, dtype=number_dtype("astype", dtype))
FUNCTIONS[np.clip] = lambda a, a_min=None, a_max=None, min=None, max=None: _clip(
    a, a_min if min is None else min, a_max if max is None else max
)


def _clip(x: Any, low: Any, high: Any) -> Tensor:
    kind = getattr(x, "dtype", None)
    if kind is not None and kind.kind in "iu":  # an infinite limit has no effect
        limits = np.iinfo(kind)
        low = None if type(low) is int and low <= limits.min else low
        high = None if type(high) is int and high >= limits.max else high
        if low is None and high is None:
            return record("copy", x)
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)  # type: ignore[no-any-return]


def _same(x: Spec | Array) -> np.dtype[Any]:
    return x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)


SIGMOID = define_kernel(
    "sigmoid",
    "S x",
    "T y",
    COMPUTE_IN_W + "y = T(W(1) / (exp(-W(x)) + W(1)));",
    types={"S": (*FLOATS, "int32"), "T": (*FLOATS, "float64")},
)
SIGMOID_GRAD = define_kernel(
    "sigmoid_grad",
    "G g, Y y",
    "T out",
    COMPUTE_IN_W + "out = T(W(g) * (W(y) - W(y) * W(y)));",
    types={"G": FLOATS, "Y": FLOATS, "T": FLOATS},
)


def _sigmoid_kernel(xp: Any) -> Callable[[Array, Array], None]:
    """Logistic function in place; exp may overflow to inf, whose reciprocal is the right 0."""

    def kernel(x: Array, out: Array) -> None:
        np.negative(x, out, dtype=out.dtype)
        np.exp(out, out)
        np.add(out, 1, out)
        np.reciprocal(out, out)

    return kernel if xp is np else lambda x, out: SIGMOID(xp, x, out)


define_into(
    "sigmoid",
    into=_sigmoid_kernel,
    spec=lambda x: Spec(x.shape, _same(x)),
    vjp=lambda np, g, y, x: (record("sigmoid_grad", g, y),),
    elementwise=True,
    cuda="W(1) / (exp(-a) + W(1))",
)


define(
    "sigmoid_grad",
    forward=lambda xp, g, y: g * (y - y * y),
    into=_sigmoid_grad_kernel,
    spec=_ufunc_spec(np.multiply),
    vjp=lambda np, g, y, up, s: (g * (s - s * s), g * up * (1 - 2 * s)),
    elementwise=True,
    cuda="a * (b - b * b)",
    scratch=lambda g, y: np.result_type(g.dtype, y.dtype),
)


define(
    "relu",
    forward=lambda xp, x: xp.maximum(x, 0),
    into=lambda xp: lambda x, out: xp.maximum(x, 0, out=out),
    spec=lambda x: x,
    vjp=lambda np, g, y, x: (record("relu_grad", g, y),),
    elementwise=True,
    cuda="a <= 0 ? W(0) : a",
)


RELU_GRAD = define_kernel(
    "relu_grad",
    "T g, Y y",
    "T out",
    COMPUTE_IN_W + "out = T(W(g) * W(Wide<Y>::type(y) > 0));",
    types={"T": FLOATS, "Y": FLOATS},
)


def _relu_grad_kernel(xp: Any) -> Callable[..., None]:
    def kernel(g: Array, y: Array, positive: Array, out: Array) -> None:
        np.greater(y, 0, positive)
        np.multiply(g, positive, out)

    return kernel if xp is np else lambda g, y, out: RELU_GRAD(xp, g, y, out)


define(
    "relu_grad",  # from the result of relu: 0 where that is 0
    forward=lambda xp, g, y: g * (y > 0),
    into=_relu_grad_kernel,
    spec=lambda g, y: Spec(y.shape, g.dtype),
    vjp=lambda np, up, out, g, y: (record("relu_grad", up, y), np.zeros_like(y)),
    elementwise=True,
    cuda="a * W(b > 0)",
    scratch=lambda g, y: np.dtype(bool),
)


define(
    "erf",
    forward=lambda xp, x: _erf(x) if xp is np else into_new(xp, x.shape, _same(x), partial(ERF, xp, x)),
    into=_erf_kernel,
    spec=lambda x: Spec(x.shape, _same(x)),
    vjp=lambda np, g, y, x: (g * TWO_OVER_ROOT_PI * np.exp(-x * x),),
    elementwise=True,
    cuda="erf(a)",
)
