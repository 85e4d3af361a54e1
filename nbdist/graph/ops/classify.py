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
from nbdist.graph.op import Example, Op, Spec, floating, number_dtype, register, show, whole
from nbdist.graph.tensor import record

TINY = 1e-7  # keeps logarithms and quotients of probabilities finite, as in Keras


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

    return kernel if xp is np else lambda x, out: xp.copyto(out, _softmax(xp, x))


def _softmax(xp: Any, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _over_last(name: str) -> Callable[[Spec], Spec]:
    def spec(x: Spec) -> Spec:
        floating(name, x)
        if not x.shape:
            raise InvalidArgumentError(f"{name} works along the last axis, got a single number")
        return x

    return spec


def _matrix(rng: np.random.Generator) -> list[Example]:
    return [Example((rng.normal(size=s),), {}) for s in ((4,), (3, 4), (2, 3, 4))]


register(
    Op(
        "softmax",
        forward=_softmax,
        into=_softmax_kernel,
        spec=_over_last("softmax"),
        vjp=lambda np, g, y, x: (y * (g - np.sum(g * y, axis=-1, keepdims=True)),),
        in_place=frozenset({0}),
        examples=_matrix,
    )
)


def _log_softmax(xp: Any, x: Array) -> Array:
    shifted = x - xp.max(x, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))  # type: ignore[no-any-return]


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

    return kernel if xp is np else lambda x, powers, out: xp.copyto(out, _log_softmax(xp, x))


register(
    Op(
        "log_softmax",
        forward=_log_softmax,
        into=_log_softmax_kernel,
        in_place=frozenset({0}),
        scratch=lambda x: x.dtype,
        spec=_over_last("log_softmax"),
        vjp=lambda np, g, y, x: (g - np.exp(y) * np.sum(g, axis=-1, keepdims=True),),
        examples=_matrix,
    )
)


def _one_hot(xp: Any, labels: Array, depth: int, dtype: Any) -> Array:
    return (labels[..., None] == xp.arange(depth)).astype(dtype)  # type: ignore[no-any-return]


def _one_hot_kernel(xp: Any, depth: int, dtype: Any) -> Callable[[Array, Array], Any]:
    classes: Array = xp.arange(depth)
    if xp is np:
        return lambda labels, out: np.equal(labels[..., None], classes, out)
    return lambda labels, out: xp.copyto(out, labels[..., None] == classes)


def _one_hot_spec(labels: Spec, depth: int, dtype: Any) -> Spec:
    if labels.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"one_hot takes class numbers (integers), got {labels.dtype}; use labels.astype(np.int64)"
        )
    if whole("one_hot: depth", depth) < 0:
        raise InvalidArgumentError(f"one_hot: depth is the number of classes, 0 or more, got {depth}")
    return Spec((*labels.shape, depth), number_dtype("one_hot", dtype))


register(
    Op(
        "one_hot",
        forward=_one_hot,
        into=_one_hot_kernel,
        spec=_one_hot_spec,
    )
)


def _check_classes(xp: Any, labels: Array, classes: int) -> Array:
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidArgumentError(
            f"labels go from {labels.min()} to {labels.max()}, the model has {classes} outputs "
            f"(classes 0 to {classes - 1})"
        )
    return labels


register(
    Op(  # raises before any op that depends on it runs
        "check_classes",
        forward=_check_classes,
        spec=lambda labels, classes: labels,
        has_value=False,
    )
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


def _picked(xp: Any, x: Array, labels: Array) -> Array:
    """Return the element of each row at the index of its label.

    An invalid label raises with NumPy. On a GPU it gives NaN, because checking labels would stall the GPU.
    """
    classes = x.shape[-1]
    if xp is np:
        _require_classes(labels, classes)
        return xp.take_along_axis(x, labels[..., None], -1)[..., 0]  # type: ignore[no-any-return]
    inside = (labels >= 0) & (labels < classes)
    found = xp.sum(xp.where(labels[..., None] == xp.arange(classes), x, x.dtype.type(0)), axis=-1)
    return xp.where(inside, found, x.dtype.type(np.nan))  # type: ignore[no-any-return]


def _log_likelihood(xp: Any, p: Array, labels: Array) -> Array:
    """-log of the probability given to the true class; TINY keeps it finite, as in Keras."""
    picked = _picked(xp, p, labels)
    return -xp.log(xp.maximum(picked, p.dtype.type(TINY)))  # type: ignore[no-any-return]


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
    rows: list[Any] = []

    def kernel(p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2 or xp is not np:
            out[...] = _log_likelihood(xp, p, labels)
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


register(
    Op(
        "pick_log_likelihood",
        forward=_log_likelihood,
        into=_pick_kernel,
        spec=_labels_spec,
        vjp=_from_probabilities_vjp,
        examples=lambda rng: [Example((rng.uniform(0.1, 1, (3, 4)), np.array([0, 3, 1])), {})],
    )
)


def _sparse_forward(xp: Any, logits: Array, p: Array, labels: Array) -> Array:
    """log(sum(exp(z))) - z[label], from z's largest element m: its probability is 1 / sum(exp(z - m)).

    It does not use the probability of the true class, which would be 0 where the loss is large.
    """
    largest = xp.max(logits, axis=-1) - _picked(xp, logits, labels)
    return largest - xp.log(xp.max(p, axis=-1))  # type: ignore[no-any-return]


def _sparse_kernel(xp: Any) -> Callable[[Array, Array, Array, Array], None]:
    """The same with planned memory; the kernel owns the memory of the picked elements."""
    rows: list[Array] = []
    largest: Any = np.maximum.reduce

    def kernel(logits: Array, p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2 or xp is not np:
            out[...] = _sparse_forward(xp, logits, p, labels)
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


register(
    Op(
        # The probabilities are an input, so that forward and gradient share them.
        "sparse_cross_entropy",
        forward=_sparse_forward,
        into=_sparse_kernel,
        spec=lambda logits, p, labels: _labels_spec(p, labels),
        vjp=lambda np, g, y, logits, p, labels: (
            record("sparse_cross_entropy_grad", g, p, labels),
            None,
            None,
        ),
    )
)


def _sparse_grad(xp: Any, g: Array, p: Array, labels: Array) -> Array:
    if xp is np:
        _require_classes(labels, p.shape[-1])
    else:  # as in the forward direction
        g = xp.where((labels >= 0) & (labels < p.shape[-1]), g, g.dtype.type(np.nan))
    return g[..., None] * (p - _one_hot(xp, labels, p.shape[-1], p.dtype))  # type: ignore[no-any-return]


def _sparse_grad_kernel(xp: Any) -> Callable[[Array, Array, Array, Array], None]:
    rows: list[Any] = []

    def kernel(g: Array, p: Array, labels: Array, out: Array) -> None:
        if p.ndim != 2 or xp is not np:
            out[...] = _sparse_grad(xp, g, p, labels)
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


register(
    Op(
        "sparse_cross_entropy_grad",
        forward=_sparse_grad,
        into=_sparse_grad_kernel,
        spec=_sparse_grad_spec,
        in_place=frozenset({1}),
        vjp=lambda np, up, y, g, p, labels: (
            np.sum(up * (p - record("one_hot", labels, depth=p.shape[-1], dtype=p.dtype)), axis=-1),
            up * np.expand_dims(g, -1),
            None,
        ),
        examples=lambda rng: [
            Example((rng.normal(size=3), rng.uniform(size=(3, 4)), np.array([0, 3, 1])), {})
        ],
    )
)
