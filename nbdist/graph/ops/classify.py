"""Ops for classification that NumPy lacks: softmax, log-softmax, cross-entropies, one-hot.

The cross-entropies work on logits, per example, and save the probabilities for the gradient: the
gradient of softmax cross-entropy is (probabilities - labels), one subtraction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.kernel import COMPUTE_IN_W, FLOATS, INTEGERS, Kernel, define_kernel, into_new
from nbdist.graph.op import Spec, define, define_into, floating, number_dtype, show, whole
from nbdist.graph.tensor import record

TINY = 1e-7  # keeps logarithms and quotients of probabilities finite, as in Keras


# On a GPU a warp computes a row, in three passes.
ROW_MAXIMUM = """
const long long start = i / 32 * classes, lane = i % 32;
W top = x[start];
for (long long k = lane; k < classes; k += 32) top = W(x[start + k]) > top ? W(x[start + k]) : top;
top = largest_of_warp(top);
"""
ROW_TOTAL = """
W total = 0;
for (long long k = lane; k < classes; k += 32) total += exp(W(x[start + k]) - top);
total = sum_of_warp(total);
"""
SOFTMAX = define_kernel(
    "softmax",
    "raw T x, int64 classes",
    "raw T y",
    COMPUTE_IN_W
    + ROW_MAXIMUM
    + ROW_TOTAL
    + "for (long long k = lane; k < classes; k += 32) "
    + "y[start + k] = T(exp(W(x[start + k]) - top) / total);",
    rows=True,
)
LOG_SOFTMAX = define_kernel(
    "log_softmax",
    "raw T x, int64 classes",
    "raw T y",
    COMPUTE_IN_W
    + ROW_MAXIMUM
    + ROW_TOTAL
    + "total = log(total); for (long long k = lane; k < classes; k += 32) "
    + "y[start + k] = T(W(x[start + k]) - top - total);",
    rows=True,
)


def _by_rows(kernel: Kernel, xp: Any) -> Callable[[Array, Array], None]:
    return lambda x, out: kernel(xp, x, x.shape[-1], out, size=_rows_of(x))


def _rows_of(x: Array) -> int:
    return int(x.size // max(x.shape[-1], 1))


def _softmax_kernel(xp: Any) -> Callable[[Array, Array], None]:
    """Softmax over the last axis; the kernel owns the memory of the row sums."""
    rows: list[Array] = []
    largest: Any = np.maximum.reduce
    total: Any = np.add.reduce

    def kernel(x: Array, out: Array) -> None:
        if not rows:
            rows.append(np.empty((*x.shape[:-1], 1), out.dtype))
        row = rows[0]
        largest(x, -1, None, row, True)
        np.subtract(x, row, out)
        np.exp(out, out)
        total(out, -1, None, row, True)
        np.divide(out, row, out)

    return kernel if xp is np else _by_rows(SOFTMAX, xp)


def _over_last(name: str) -> Callable[[Spec], Spec]:
    def spec(x: Spec) -> Spec:
        floating(name, x)
        if not x.shape:
            raise InvalidArgumentError(f"{name} works along the last axis, got a single number")
        return x

    return spec


define_into(
    "softmax",
    into=_softmax_kernel,
    spec=_over_last("softmax"),
    vjp=lambda np, g, y, x: (y * (g - np.sum(g * y, axis=-1, keepdims=True)),),
    in_place=frozenset({0}),
)


def _log_softmax(xp: Any, x: Array) -> Array:
    if xp is not np:
        return into_new(xp, x.shape, x.dtype, lambda out: _by_rows(LOG_SOFTMAX, xp)(x, out))
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))  # type: ignore[no-any-return]


def _log_softmax_kernel(xp: Any) -> Callable[..., None]:
    """The same with planned memory; the kernel owns the memory of the row sums."""
    rows: list[Array] = []
    largest: Any = np.maximum.reduce
    total: Any = np.add.reduce

    def kernel(x: Array, powers: Array, out: Array) -> None:
        if not rows:
            rows.append(np.empty((*x.shape[:-1], 1), out.dtype))
        row = rows[0]
        largest(x, -1, None, row, True)
        np.subtract(x, row, out)
        np.exp(out, powers)
        total(powers, -1, None, row, True)
        np.log(row, row)
        np.subtract(out, row, out)

    return kernel if xp is np else _by_rows(LOG_SOFTMAX, xp)


define(
    "log_softmax",
    forward=_log_softmax,
    into=_log_softmax_kernel,
    in_place=frozenset({0}),
    scratch=lambda x: x.dtype,
    spec=_over_last("log_softmax"),
    vjp=lambda np, g, y, x: (g - np.exp(y) * np.sum(g, axis=-1, keepdims=True),),
)


ONE_HOT = define_kernel(
    "one_hot",
    "raw I labels, int64 depth",
    "raw T out",
    "out[i] = T((long long)labels[i / depth] == i % depth);",
    types={"T": (*FLOATS, "bool"), "I": (*INTEGERS, "int64")},
)


def _one_hot_kernel(xp: Any, depth: int, dtype: Any) -> Callable[[Array, Array], Any]:
    if xp is not np:
        return lambda labels, out: ONE_HOT(xp, labels, depth, out, size=out.size)
    classes = np.arange(depth)
    return lambda labels, out: np.equal(labels[..., None], classes, out)


def _one_hot_spec(labels: Spec, depth: int, dtype: Any) -> Spec:
    if labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"one_hot takes class numbers (integers), got {labels.dtype}; use labels.astype(np.int64)"
        )
    if whole("one_hot: depth", depth) < 0:
        raise InvalidArgumentError(f"one_hot: depth is the number of classes, 0 or more, got {depth}")
    return Spec((*labels.shape, depth), number_dtype("one_hot", dtype))


define_into("one_hot", _one_hot_kernel, _one_hot_spec)


def _check_classes(xp: Any, labels: Array, classes: int) -> Array:
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidArgumentError(
            f"labels go from {labels.min()} to {labels.max()}, the model has {classes} outputs "
            f"(classes 0 to {classes - 1})"
        )
    return labels


define(  # raises before any op that depends on it runs
    "check_classes",
    forward=_check_classes,
    spec=lambda labels, classes: labels,
    has_value=False,
)


def _require_classes(labels: Array, classes: int) -> None:
    """Raise an InvalidArgumentError that names the first label that is not a class. For NumPy arrays."""
    if labels.dtype == np.int64:  # one pass: negative numbers are large as unsigned ones
        if labels.size == 0 or np.maximum.reduce(labels.view(np.uint64), None) < classes:
            return
    elif labels.size == 0 or (labels.max() < classes and labels.min() >= 0):
        return
    flat = labels.reshape(-1)
    outside = flat[(flat < 0) | (flat >= classes)]
    more = f" ({len(outside)} of {len(flat)} labels are outside)" if len(outside) > 1 else ""
    raise InvalidArgumentError(
        f"label {outside[0]} is outside the {classes} classes of the predictions (0 to {classes - 1}){more}"
    )


# A label that is not a class raises with NumPy. On a GPU it gives NaN: to check labels would stall the GPU.
OF_LABEL = """
const long long label = labels[row];
const bool inside = label >= 0 && label < classes;
const W missing = sqrt(W(-1));
"""
LOG_LIKELIHOOD = define_kernel(
    "pick_log_likelihood",
    "raw T p, raw I labels, int64 classes, float64 tiny",
    "raw T out",
    COMPUTE_IN_W
    + "const long long row = i;"
    + OF_LABEL
    + "const W picked = inside ? W(p[row * classes + label]) : missing;"
    + "out[row] = T(-log(picked < W(tiny) ? W(tiny) : picked));",
    types={"T": FLOATS, "I": INTEGERS},
)
CROSS_ENTROPY = define_kernel(
    "sparse_cross_entropy",
    "raw T x, raw T p, raw I labels, int64 classes",
    "raw T out",
    COMPUTE_IN_W
    + "const long long row = i / 32;"
    + OF_LABEL
    + ROW_MAXIMUM
    + """
    W share = p[start];
    for (long long k = lane; k < classes; k += 32)
      share = W(p[start + k]) > share ? W(p[start + k]) : share;
    share = largest_of_warp(share);
    if (lane == 0) out[row] = T(inside ? top - W(x[start + label]) - log(share) : missing);
    """,
    types={"T": FLOATS, "I": INTEGERS},
    rows=True,
)
CROSS_ENTROPY_GRAD = define_kernel(
    "sparse_cross_entropy_grad",
    "raw T g, raw T p, raw I labels, int64 classes",
    "raw T out",
    COMPUTE_IN_W
    + "const long long row = i / classes;"
    + OF_LABEL
    + "const W hot = i % classes == label;"
    + "out[i] = T((inside ? W(g[row]) : missing) * (W(p[i]) - hot));",
    types={"T": FLOATS, "I": INTEGERS},
)


def _log_likelihood(p: Array, labels: Array) -> Array:
    """-log of the probability given to the true class; TINY keeps it finite, as in Keras."""
    return -np.log(np.maximum(_picked(p, labels), np.asarray(TINY, p.dtype)))  # type: ignore[no-any-return]


def _picked(x: Array, labels: Array) -> Array:
    """Return the element of each row at the index of its label. For NumPy arrays."""
    _require_classes(labels, x.shape[-1])
    return np.take_along_axis(x, labels[..., None], -1)[..., 0]


def _labels_spec(p: Spec, labels: Spec) -> Spec:
    floating("sparse cross-entropy", p)
    if labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"sparse cross-entropy: labels are class numbers (int), got {labels.dtype}; "
            "for one-hot labels use categorical_crossentropy"
        )
    if len(labels.shape) != len(p.shape) - 1:
        raise InvalidArgumentError(
            f"sparse cross-entropy: predictions {show(p.shape)} need labels of "
            f"{len(p.shape) - 1} dimensions, got {show(labels.shape)}"
        )
    pairs = list(zip(p.shape[:-1], labels.shape, strict=True))
    if any(a is not None and b is not None and a != b for a, b in pairs):
        raise InvalidArgumentError(
            f"sparse cross-entropy: predictions of shape {show(p.shape)} and labels of shape "
            f"{show(labels.shape)} differ in number: one label belongs to each row of predictions"
        )
    return Spec(tuple(b if a is None else a for a, b in pairs), p.dtype)


def _pick_kernel(xp: Any) -> Callable[[Array, Array, Array], None]:
    if xp is not np:
        return lambda p, labels, out: LOG_LIKELIHOOD(xp, p, labels, p.shape[-1], TINY, out, size=labels.size)
    rows: list[Any] = []

    def kernel(p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2:
            out[...] = _log_likelihood(p, labels)
            return
        if not rows:
            rows.extend((np.arange(len(p)), p.dtype.type(TINY)))
        _require_classes(labels, p.shape[1])
        np.maximum(p[rows[0], labels], rows[1], out=out)
        np.log(out, out)
        np.negative(out, out)

    return kernel


def _from_probabilities_vjp(np: Any, g: Any, y: Any, p: Any, labels: Any) -> tuple[Any, None]:
    hot = record("one_hot", labels, depth=p.shape[-1], dtype=p.dtype)
    above = p >= TINY  # below, the loss is constant
    return np.where(above, -np.expand_dims(g, -1) * hot / np.where(above, p, 1), 0), None


define_into(
    "pick_log_likelihood",
    into=_pick_kernel,
    spec=_labels_spec,
    vjp=_from_probabilities_vjp,
)


def _sparse_cross_entropy(logits: Array, p: Array, labels: Array) -> Array:
    """log(sum(exp(z))) - z[label], from z's largest element m: its probability is 1 / sum(exp(z - m)).

    It does not use the probability of the true class, which would be 0 where the loss is large.
    """
    largest = np.max(logits, axis=-1) - _picked(logits, labels)
    return largest - np.log(np.max(p, axis=-1))  # type: ignore[no-any-return]


def _sparse_kernel(xp: Any) -> Callable[[Array, Array, Array, Array], None]:
    """The same with planned memory; the kernel owns the memory of the picked elements."""
    if xp is not np:
        return lambda logits, p, labels, out: CROSS_ENTROPY(
            xp, logits, p, labels, p.shape[-1], out, size=_rows_of(p)
        )
    rows: list[Array] = []
    largest: Any = np.maximum.reduce

    def kernel(logits: Array, p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2:
            out[...] = _sparse_cross_entropy(logits, p, labels)
            return
        if not rows:
            rows.extend((np.arange(len(p)), np.empty_like(out)))
        numbers, scratch = rows
        _require_classes(labels, p.shape[1])
        largest(p, -1, None, out)
        np.log(out, out)
        largest(logits, -1, None, scratch)
        np.subtract(scratch, logits[numbers, labels], scratch)
        np.subtract(scratch, out, out)

    return kernel


define_into(
    # The probabilities are an input, so that forward and gradient share them.
    "sparse_cross_entropy",
    into=_sparse_kernel,
    spec=lambda logits, p, labels: _labels_spec(p, labels),
    vjp=lambda np, g, y, logits, p, labels: (
        record("sparse_cross_entropy_grad", g, p, labels),
        None,
        None,
    ),
)


def _sparse_grad(g: Array, p: Array, labels: Array) -> Array:
    _require_classes(labels, p.shape[-1])
    result: Array = g[..., None] * (p - (labels[..., None] == np.arange(p.shape[-1])))
    return result


def _sparse_grad_kernel(xp: Any) -> Callable[[Array, Array, Array, Array], None]:
    if xp is not np:
        return lambda g, p, labels, out: CROSS_ENTROPY_GRAD(xp, g, p, labels, p.shape[-1], out, size=p.size)
    rows: list[Any] = []

    def kernel(g: Array, p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2:
            out[...] = _sparse_grad(g, p, labels)
            return
        if not rows:
            rows.extend((np.arange(len(p)), np.may_share_memory(out, p)))
        _require_classes(labels, p.shape[1])
        if not rows[1]:  # not in place
            np.copyto(out, p)
        out[rows[0], labels] -= 1
        np.multiply(out, g[:, None], out)

    return kernel


def _sparse_grad_spec(g: Spec, p: Spec, labels: Spec) -> Spec:
    if g.dtype != p.dtype:
        raise InvalidArgumentError(f"sparse cross-entropy: a gradient of {g.dtype} for {p.dtype}")
    _labels_spec(p, labels)
    return p


define_into(
    "sparse_cross_entropy_grad",
    into=_sparse_grad_kernel,
    spec=_sparse_grad_spec,
    in_place=frozenset({1}),
    vjp=lambda np, up, y, g, p, labels: (
        np.sum(up * (p - record("one_hot", labels, depth=p.shape[-1], dtype=p.dtype)), axis=-1),
        up * np.expand_dims(g, -1),
        None,
    ),
)
