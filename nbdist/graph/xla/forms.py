"""The ops that XLA runs in another form than NumPy.

An op's ``forward`` on jax.numpy is its form by default. Some write into arrays, check values, or launch a
kernel of their own on a GPU: these have a function ``form(jax, *arrays, **attrs)`` here. ``FORMS`` is the
whole list; the tests compare each op of the table with NumPy on its examples.

Dropout masks are those of NumPy and CUDA: Philox4x64-10 with the same key and counter (Salmon et al. 2011).
Convolutions are XLA's own, and their gradients its transposes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.specs import Specs
from nbdist.graph.op import OPS, Spec, show
from nbdist.graph.ops.classify import TINY
from nbdist.graph.ops.indexing import full_key
from nbdist.graph.ops.random import PER_COUNT, mask_scale, mask_threshold
from nbdist.graph.ops.windows import Pair, axes_of
from nbdist.graph.tensor import Tensor

FORMS: dict[str, Callable[..., Any]] = {}
UPDATES: dict[str, Callable[..., list[Any]]] = {}
"""Of ops that change variables and slots, as optimizers do: ``form(jax, *arrays, **attrs)`` returns the new
values of all inputs in ``op.writes``, in their order."""


def refusal(node: Tensor, specs: Specs) -> str:
    """Return why XLA cannot compile an op, in words that follow its name; an empty text if it can."""
    assert node.op is not None
    if node.op.writes and node.op.name not in FORMS and node.op.name not in UPDATES:
        return "changes a variable in a way that XLA cannot compile"
    if node.op.has_value and _values_decide(node, specs):
        return (
            f"has the shape {show(specs[node].shape)}, with a size that depends on values, and XLA compiles "
            "static shapes"
        )
    return ""


def _values_decide(node: Tensor, specs: Specs) -> bool:
    """Whether a size of an op's value depends on values, also if all sizes of its inputs were known."""
    assert node.op is not None
    if specs.exact(node):
        return False
    known = [Spec(tuple(n or 1 for n in specs[i].shape), specs[i].dtype) for i in node.inputs]
    try:
        return None in node.op.spec(*known, **node.attrs).shape
    except InvalidArgumentError:  # these sizes do not fit each other
        return False


FORMS |= {
    "assign": lambda jax, v, value: value.astype(v.dtype),
    "assign_add": lambda jax, v, value: (v + value).astype(v.dtype),
    "assign_sub": lambda jax, v, value: (v - value).astype(v.dtype),
    "all_reduce": lambda jax, x, **how: x,  # one function for all devices: its values are those of all
    "softmax": lambda jax, x: jax.nn.softmax(x),
    "log_softmax": lambda jax, x: jax.nn.log_softmax(x),
    "one_hot": lambda jax, labels, depth, dtype: jax.nn.one_hot(labels, depth, dtype=dtype),
    "sigmoid": lambda jax, x: jax.nn.sigmoid(x),
    "erf": lambda jax, x: jax.lax.erf(x),
    "gather_rows": lambda jax, table, ids: jax.numpy.take(table, ids, axis=0),
    "add_rows": lambda jax, values, indices, shape: (
        jax.numpy.zeros(shape, values.dtype).at[indices].add(values)
    ),
    "setitem_like": lambda jax, x, like, key: jax.numpy.zeros(like.shape, x.dtype).at[key].set(x),
    "add_at_like": lambda jax, g, like, *positions, key: (
        jax.numpy.zeros(like.shape, g.dtype).at[full_key(positions, key)].add(g)
    ),
}


# Classification. A label that is not a class gives NaN, as on a GPU: XLA raises nothing.


def _of_label(jax: Any, p: Any, labels: Any) -> Any:
    """Return the element of each row that its label names; NaN for a label that is not a class."""
    inside = (labels >= 0) & (labels < p.shape[-1])
    safe = jax.numpy.where(inside, labels, 0)
    picked = jax.numpy.take_along_axis(p, safe[..., None], axis=-1)[..., 0]
    return jax.numpy.where(inside, picked, jax.numpy.asarray(jax.numpy.nan, p.dtype))


def _pick_log_likelihood(jax: Any, p: Any, labels: Any) -> Any:
    return -jax.numpy.log(jax.numpy.maximum(_of_label(jax, p, labels), jax.numpy.asarray(TINY, p.dtype)))


def _sparse_cross_entropy(jax: Any, logits: Any, p: Any, labels: Any) -> Any:
    largest = jax.numpy.max(logits, axis=-1) - _of_label(jax, logits, labels)
    return largest - jax.numpy.log(jax.numpy.max(p, axis=-1))


def _sparse_cross_entropy_grad(jax: Any, g: Any, p: Any, labels: Any) -> Any:
    return g[..., None] * (p - jax.nn.one_hot(labels, p.shape[-1], dtype=p.dtype))


# Indexing.


def _put_diagonal_like(jax: Any, g: Any, like: Any, offset: int, axis1: int, axis2: int) -> Any:
    matrix = jax.numpy.moveaxis(jax.numpy.zeros(like.shape, g.dtype), (axis1, axis2), (-2, -1))
    i = np.arange(g.shape[-1])
    matrix = matrix.at[..., i + max(-offset, 0), i + max(offset, 0)].set(g)
    return jax.numpy.moveaxis(matrix, (-2, -1), (axis1, axis2))


def _take_back_like(jax: Any, g: Any, like: Any, positions: Any, axis: int) -> Any:
    at = axis % len(like.shape)
    key = (*(slice(None),) * at, positions)
    return jax.numpy.zeros(like.shape, g.dtype).at[key].add(g)


def _add_along_like(jax: Any, g: Any, like: Any, positions: Any, axis: int) -> Any:
    at = axis % g.ndim
    shape = tuple(like.shape[i] if i == at else n for i, n in enumerate(g.shape))
    key: list[Any] = [np.arange(n).reshape((-1,) + (1,) * (g.ndim - 1 - i)) for i, n in enumerate(g.shape)]
    key[at] = positions
    return jax.numpy.zeros(shape, g.dtype).at[tuple(key)].add(g)


def _repeat(jax: Any, x: Any, repeats: Any, axis: int) -> Any:
    each = repeats if isinstance(repeats, int) else np.array(repeats)
    return jax.numpy.repeat(
        x, each, axis, total_repeat_length=int(np.sum(each * np.ones(x.shape[axis], int)))
    )


def _sum_runs(jax: Any, g: Any, like: Any, repeats: Any, axis: int) -> Any:
    numbers = np.repeat(np.arange(like.shape[axis]), repeats)
    rows = jax.numpy.moveaxis(g, axis, 0)
    shape = (like.shape[axis], *rows.shape[1:])
    return jax.numpy.moveaxis(jax.numpy.zeros(shape, g.dtype).at[numbers].add(rows), 0, axis)


def _recurrence(jax: Any, a: Any, b: Any, axis: int) -> Any:
    """Return s with s_j = b_j + a_j s_(j-1), by composing the maps s -> b + a s."""

    def after(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[1] + second[0] * first[1]

    return jax.lax.associative_scan(after, (a, b), axis=axis % b.ndim)[1]


# Windows of images (batch, height, width, channels).


def _convolution(jax: Any, x: Any, kernel: Any, strides: Pair, padding: str, dilation: Pair = (1, 1)) -> Any:
    axes = axes_of(x.shape, kernel.shape[:2], strides, padding, dilation)
    dtype = jax.numpy.result_type(x, kernel)
    return jax.lax.conv_general_dilated(
        x.astype(dtype),
        kernel.astype(dtype),
        window_strides=strides,
        padding=[(axis.before, axis.after) for axis in axes],
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _conv2d(jax: Any, x: Any, kernel: Any, *bias: Any, relu: bool = False, **how: Any) -> Any:
    y = sum(bias, _convolution(jax, x, kernel, **how))
    return jax.numpy.maximum(y, 0) if relu else y


def _conv2d_to_input(jax: Any, g: Any, kernel: Any, like: Any, **how: Any) -> Any:
    images = jax.ShapeDtypeStruct(like.shape, g.dtype)
    (found,) = jax.linear_transpose(lambda x: _convolution(jax, x, kernel, **how), images)(g)
    return found


def _conv2d_to_kernel(jax: Any, g: Any, x: Any, like: Any, **how: Any) -> Any:
    kernel = jax.ShapeDtypeStruct(like.shape, g.dtype)
    (found,) = jax.linear_transpose(lambda k: _convolution(jax, x, k, **how), kernel)(g)
    return found


def _windows(jax: Any, x: Any, size: Pair, strides: Pair, padding: str, empty: Any = 0) -> Any:
    """Return for each element of a window its values: (elements, batch, rows, columns, channels).

    It is linear in ``x`` where padding is 0, so that its transpose adds windows up.
    """
    height, width = axes_of(x.shape, size, strides, padding)
    ends = ((0, 0), (height.before, height.after), (width.before, width.after), (0, 0))
    images = jax.numpy.pad(x, ends, constant_values=empty)
    found = []
    for i in range(size[0]):
        for j in range(size[1]):
            stop = (i + (height.count - 1) * height.step + 1, j + (width.count - 1) * width.step + 1)
            start, end = (0, i, j, 0), (images.shape[0], *stop, images.shape[3])
            found.append(jax.lax.slice(images, start, end, (1, height.step, width.step, 1)))
    return jax.numpy.stack(found)


def _from_windows(jax: Any, parts: Any, like: Any, **how: Any) -> Any:
    """Return images in which the parts of all windows are added up: the transpose of `_windows`."""
    images = jax.ShapeDtypeStruct(like.shape, parts.dtype)
    return jax.linear_transpose(lambda x: _windows(jax, x, **how), images)(parts)[0]


def _inside(jax: Any, x: Any, **how: Any) -> Any:
    """Return which elements of windows are in the image; padding is not."""
    return _windows(jax, jax.numpy.ones((1, *x.shape[1:3], 1), bool), **how, empty=False)


def _max_pool2d(jax: Any, x: Any, **how: Any) -> Any:
    floating = jax.numpy.issubdtype(x.dtype, jax.numpy.floating)  # bfloat16, too
    least = -np.inf if floating else np.iinfo(x.dtype).min
    return jax.numpy.max(_windows(jax, x, **how, empty=least), axis=0)


def _max_pool2d_which(jax: Any, y: Any, x: Any, **how: Any) -> Any:
    hit = (_windows(jax, x, **how) == y) & _inside(jax, x, **how)
    return jax.numpy.where(hit.any(axis=0), jax.numpy.argmax(hit, axis=0), hit.shape[0] - 1)


def _chosen(jax: Any, which: Any, size: Pair) -> Any:
    elements = jax.numpy.arange(prod(size), dtype=which.dtype)
    return elements.reshape(-1, 1, 1, 1, 1) == which


def _max_pool2d_to_which(jax: Any, g: Any, which: Any, like: Any, **how: Any) -> Any:
    return _from_windows(jax, g * _chosen(jax, which, how["size"]), like, **how)


def _max_pool2d_of_which(jax: Any, u: Any, which: Any, **how: Any) -> Any:
    return jax.numpy.sum(_windows(jax, u, **how) * _chosen(jax, which, how["size"]), axis=0)


def _avg_pool2d(jax: Any, x: Any, **how: Any) -> Any:
    return jax.numpy.sum(_windows(jax, x, **how), axis=0) / _inside(jax, x, **how).sum(axis=0).astype(x.dtype)


def _avg_pool2d_grad(jax: Any, g: Any, like: Any, **how: Any) -> Any:
    share = g / _inside(jax, like, **how).sum(axis=0).astype(g.dtype)
    return _from_windows(jax, jax.numpy.stack([share] * prod(how["size"])), like, **how)


# Dropout.

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def _dropout_mask(jax: Any, x: Any, draw: Any, rate: float, number: int) -> Any:
    """Return 0 or the factor that keeps the mean, for each element: NumPy's `_kept`, with tracers."""
    xp, u64 = jax.numpy, jax.numpy.uint64
    seed, training, step, first = (draw.reshape(-1)[n].astype(u64) for n in range(4))
    elements = prod(x.shape[1:])
    counts = -(-elements // PER_COUNT)
    begin = first * u64(counts)
    c0 = begin + xp.arange(1, x.shape[0] * counts + 1, dtype=u64)
    carry = (c0 < begin).astype(u64)  # the 256-bit counter wraps into its second number
    c1 = step + carry
    c2 = carry * (c1 == 0).astype(u64)
    key = (seed, training << u64(32) | u64(number % (1 << 64)))
    drawn = xp.stack(_philox(jax, (c0, c1, c2, xp.zeros_like(c0)), key), axis=-1)
    shifts = xp.arange(0, 64, 16, dtype=u64)
    levels = (drawn[..., None] >> shifts & u64(0xFFFF)).reshape(x.shape[0], counts * PER_COUNT)
    kept = levels[:, :elements].reshape(x.shape) >= u64(mask_threshold(rate))
    return xp.where(kept, xp.asarray(mask_scale(rate), x.dtype), xp.zeros((), x.dtype))


def _philox(jax: Any, counter: tuple[Any, ...], key: tuple[Any, Any]) -> tuple[Any, ...]:
    """Return the four numbers of a counter: ten rounds of Philox4x64."""
    u64 = jax.numpy.uint64
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = _product(u64, u64(MULTIPLIERS[0]), c0)
        high1, low1 = _product(u64, u64(MULTIPLIERS[1]), c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + u64(WEYL[0]), k1 + u64(WEYL[1])
    return c0, c1, c2, c3


def _product(u64: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return the upper and the lower 64 bits of a product, from products of halves."""
    half, low = u64(32), u64(0xFFFFFFFF)
    a1, a0, b1, b0 = a >> half, a & low, b >> half, b & low
    middle = a1 * b0 + (a0 * b0 >> half)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> half) + (other >> half), a * b


FORMS |= {
    one.__name__.removeprefix("_"): one
    for one in (
        _pick_log_likelihood, _sparse_cross_entropy, _sparse_cross_entropy_grad, _put_diagonal_like,
        _take_back_like, _add_along_like, _repeat, _sum_runs, _recurrence, _conv2d, _conv2d_to_input,
        _conv2d_to_kernel, _max_pool2d, _max_pool2d_which, _max_pool2d_to_which, _max_pool2d_of_which,
        _avg_pool2d, _avg_pool2d_grad, _dropout_mask,
    )
}  # fmt: skip
assert FORMS.keys() <= OPS.keys(), FORMS.keys() - OPS.keys()
