"""Products summed over labelled axes: einsum; tensordot, dot, inner and outer are made of it.

    np.einsum("bij,bjk->bik", a, b)

Labels are made unique within each operand first (``ii`` is the diagonal), and ``...`` is replaced by labels
of its own. For two operands the sum is one matrix product of planned views.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, broadcast, define, normal_axes, show
from nbdist.graph.ops.elementwise import fit_to
from nbdist.graph.ops.half import in_float32, product_forward
from nbdist.graph.tensor import FUNCTIONS, Tensor, constant, record, symbolic


def _einsum_spec(*specs: Spec, inputs: tuple[str, ...], output: str) -> Spec:
    sizes: dict[str, int | None] = {}
    for labels, spec in zip(inputs, specs, strict=True):
        for label, n in zip(labels, spec.shape, strict=True):
            (sizes[label],) = broadcast(f"einsum, label {label!r}", (sizes.get(label, 1),), (n,))
    return Spec(tuple(sizes[label] for label in output), np.result_type(*(s.dtype for s in specs)))


def _for_operand(i: int, g: Tensor, xs: Sequence[Tensor], inputs: tuple[str, ...], output: str) -> Tensor:
    """The gradient of one operand is the product of all others with ``g``, summed to its labels."""
    x, labels = xs[i], inputs[i]
    others = [j for j in range(len(xs)) if j != i]
    elsewhere = set(output).union(*(inputs[j] for j in others))
    found = "".join(label for label in labels if label in elsewhere)
    gx = record(
        "einsum", g, *(xs[j] for j in others), inputs=(output, *(inputs[j] for j in others)), output=found
    )
    alone = tuple(axis for axis, label in enumerate(labels) if label not in elsewhere)
    if not alone:
        # A broadcast size of 1: the product broadcasts it again, and fitting sums over it.
        return fit_to(gx if gx.shape == x.shape else gx * symbolic.ones_like(x), x)
    # A label that only this operand has gets the same gradient everywhere.
    wide = record("expand_dims", gx, axis=alone)
    keep = symbolic.mean(x, axis=alone, keepdims=True)  # x's shape, except for the broadcast axes
    return record("broadcast_like", record("sum_to_like", wide, keep), x)


def _einsum_kernel(xp: Any, inputs: tuple[str, ...], output: str) -> Callable[..., None]:
    """Plan at the first call, when the shapes are known."""
    planned: list[Callable[..., None]] = []

    def kernel(*arrays_and_out: Array) -> None:
        if not planned:
            planned.append(_plan(xp, inputs, output, arrays_and_out[:-1]))
        planned[0](*arrays_and_out)

    return in_float32(kernel) if xp is np else kernel


def _einsum_forward(xp: Any, *xs: Array, inputs: tuple[str, ...], output: str) -> Array:
    if len(xs) != 2 or xp is not np or not _sizes_agree(inputs, xs):
        return xp.einsum(",".join(inputs) + "->" + output, *xs)  # type: ignore[no-any-return]
    sizes = {label: n for labels, x in zip(inputs, xs) for label, n in zip(labels, x.shape)}
    out = np.empty([sizes[label] for label in output], np.result_type(*xs))
    _product_of_two(inputs[0], inputs[1], output, xs)(*xs, out)
    return out


def _plan(xp: Any, inputs: tuple[str, ...], output: str, arrays: tuple[Array, ...]) -> Callable[..., None]:
    if len(arrays) == 2 and xp is np and _sizes_agree(inputs, arrays):
        return _product_of_two(inputs[0], inputs[1], output, arrays)
    subscripts = ",".join(inputs) + "->" + output
    if len(arrays) < 3 and xp is np:
        return lambda *xs: np.einsum(subscripts, *xs[:-1], out=xs[-1])
    if xp is not np or not _sizes_agree(inputs, arrays):
        return lambda *xs: xp.copyto(xs[-1], xp.einsum(subscripts, *xs[:-1]))
    path = np.einsum_path(subscripts, *arrays, optimize="greedy")[0]
    return lambda *xs: np.copyto(xs[-1], np.einsum(subscripts, *xs[:-1], optimize=path))


def _sizes_agree(inputs: tuple[str, ...], arrays: Sequence[Array]) -> bool:
    pairs = {(label, n) for labels, a in zip(inputs, arrays) for label, n in zip(labels, a.shape)}
    return len(pairs) == len({label for label, _ in pairs})


def _product_of_two(left: str, right: str, output: str, arrays: Sequence[Array]) -> Callable[..., None]:
    """Return ``kernel(a, b, out)``: (batch, rows, inner) @ (batch, inner, columns)."""
    a_only = "".join(c for c in left if c not in right and c not in output)
    b_only = "".join(c for c in right if c not in left and c not in output)
    batch = "".join(c for c in output if c in left and c in right)
    inner = "".join(c for c in left if c in right and c not in output)
    rows = "".join(c for c in output if c in left and c not in right)
    columns = "".join(c for c in output if c in right and c not in left)
    size = {c: n for labels, a in zip((left, right), arrays) for c, n in zip(labels, a.shape)}
    b_, r_, i_, c_ = (prod(size[c] for c in labels) for labels in (batch, rows, inner, columns))
    a_axes = [left.index(c) for c in batch + rows + inner + a_only]
    b_axes = [right.index(c) for c in batch + inner + columns + b_only]
    natural = batch + rows + columns
    back = [natural.index(c) for c in output]
    shape = tuple(size[c] for c in natural)
    straight = back == list(range(len(back)))

    def kernel(a: Array, b: Array, out: Array) -> None:
        a, b = a.transpose(a_axes), b.transpose(b_axes)
        if a_only:
            a = a.sum(axis=tuple(range(-len(a_only), 0)))
        if b_only:
            b = b.sum(axis=tuple(range(-len(b_only), 0)))
        x, y = a.reshape(b_, r_, i_), b.reshape(b_, i_, c_)
        if straight and out.flags.c_contiguous:
            np.matmul(x, y, out=out.reshape(b_, r_, c_))
        else:
            np.copyto(out, np.matmul(x, y).reshape(shape).transpose(back))

    return kernel


define(
    "einsum",
    forward=product_forward(_einsum_forward),
    into=_einsum_kernel,
    spec=_einsum_spec,
    vjp=lambda np, g, y, *xs, inputs, output: [
        _for_operand(i, g, xs, inputs, output) for i in range(len(xs))
    ],
)


def _einsum(*operands: Any, optimize: Any = None) -> Tensor:
    """Record np.einsum; ``optimize`` changes nothing: the order of products is planned anyway."""
    text, *arrays = operands if isinstance(operands[0], str) else _from_lists(operands)
    subscripts = text.replace(" ", "")
    tensors = [x if isinstance(x, Tensor) else constant(np.asarray(x)) for x in arrays]
    inputs, output = _spelled(subscripts, tensors)
    pairs = [_unique(labels, x) for labels, x in zip(inputs, tensors, strict=True)]
    for c in output:
        if not any(c in labels for labels, _ in pairs):
            raise InvalidArgumentError(f"einsum: {subscripts!r} has {c!r} in the output and in no operand")
    return record(
        "einsum", *(x for _, x in pairs), inputs=tuple(labels for labels, _ in pairs), output=output
    )


def _from_lists(operands: Sequence[Any]) -> list[Any]:
    """Return ``a, [0, 1], b, [1, 2], [0, 2]`` as ``"ab,bc->ac", a, b``."""
    arrays, lists = list(operands[: len(operands) // 2 * 2 : 2]), list(operands[1::2])
    output = operands[-1] if len(operands) % 2 else None
    if not lists or not all(
        isinstance(labels, list | tuple) for labels in (*lists, [] if output is None else output)
    ):
        raise InvalidArgumentError(
            'einsum takes subscripts as text, einsum("ij,jk->ik", a, b), or a list of integers after each '
            "operand, einsum(a, [0, 1], b, [1, 2], [0, 2])"
        )
    numbers = {n for labels in (*lists, output or ()) for n in labels if n is not Ellipsis}
    letters = sorted(string.ascii_letters)  # in this order a left out output has its axes
    if not all(isinstance(n, int | np.integer) and 0 <= n < len(letters) for n in numbers):
        raise InvalidArgumentError(
            f"einsum: labels in lists are integers from 0 to {len(letters) - 1} or ..., got {lists}"
        )
    spelled = ["".join("..." if n is Ellipsis else letters[n] for n in labels) for labels in lists]
    arrow = "" if output is None else "->" + "".join("..." if n is Ellipsis else letters[n] for n in output)
    return [",".join(spelled) + arrow, *arrays]


def _spelled(subscripts: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the labels of operands and output, with labels for ``...`` and the output if it is left out."""
    left, arrow, output = subscripts.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(tensors):
        raise InvalidArgumentError(f"einsum: {subscripts!r} names {len(inputs)} operands, got {len(tensors)}")
    letters = (set(left) | set(output)) - set(",.")
    if not letters <= set(string.ascii_letters) or len(set(output) - {"."}) != len(output.replace("...", "")):
        raise InvalidArgumentError(f"einsum: {subscripts!r}: labels are letters, each once in the output")
    free = [c for c in string.ascii_letters if c not in letters]
    widths = []
    for labels, x in zip(inputs, tensors, strict=True):
        dots = x.ndim - len(labels.replace("...", ""))
        if dots < 0 or (dots > 0 and "..." not in labels):
            raise InvalidArgumentError(f"einsum: labels {labels!r} do not fit shape {show(x.shape)}")
        widths.append(dots if "..." in labels else 0)
    dotted = "".join(free[: max(widths, default=0)])
    inputs = [
        labels.replace("...", dotted[len(dotted) - dots :])
        for labels, dots in zip(inputs, widths, strict=True)
    ]
    if not arrow:
        every = "".join(inputs)
        output = dotted + "".join(sorted(c for c in set(every) - set(dotted) if every.count(c) == 1))
    return inputs, output.replace("...", dotted)


def _unique(labels: str, x: Tensor) -> tuple[str, Tensor]:
    """Replace axes that share a label by their diagonal."""
    for c in labels:
        while labels.count(c) > 1:
            first, second = labels.index(c), labels.rindex(c)
            if x.shape[first] != x.shape[second] and None not in (x.shape[first], x.shape[second]):
                raise InvalidArgumentError(f"einsum: axes {c!r} of shape {show(x.shape)} differ in size")
            x = symbolic.diagonal(x, 0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + c
    return labels, x


FUNCTIONS[np.einsum] = _einsum


def _tensordot(a: Any, b: Any, axes: Any = 2) -> Tensor:
    x, y = (v if isinstance(v, Tensor) else constant(np.asarray(v)) for v in (a, b))
    if isinstance(axes, (int, np.integer)):
        if axes > min(x.ndim, y.ndim) or axes < 0:
            raise InvalidArgumentError(
                f"tensordot: {axes} axes do not fit {show(x.shape)} and {show(y.shape)}"
            )
        pairs = [(x.ndim - axes + i, i) for i in range(axes)]
    else:
        first, second = (np.atleast_1d(np.asarray(part)).tolist() for part in axes)
        normal_axes("tensordot", tuple(first), x.ndim)
        normal_axes("tensordot", tuple(second), y.ndim)
        if len(first) != len(second):
            raise InvalidArgumentError(f"tensordot: {len(first)} axes of one meet {len(second)} of the other")
        pairs = [(i % x.ndim, j % y.ndim) for i, j in zip(first, second)]
    for i, j in pairs:
        if x.shape[i] != y.shape[j] and None not in (x.shape[i], y.shape[j]):
            raise InvalidArgumentError(
                f"tensordot: axis {i} of {show(x.shape)} and axis {j} of {show(y.shape)} differ in size"
            )
    labels = string.ascii_letters
    left = labels[: x.ndim]
    right = list(labels[x.ndim : x.ndim + y.ndim])
    for i, j in pairs:
        right[j] = left[i]
    summed = {left[i] for i, _ in pairs}
    output = "".join(c for c in (*left, *right) if c not in summed)
    return record("einsum", x, y, inputs=(left, "".join(right)), output=output)


def _dot(a: Any, b: Any) -> Tensor:
    left, right = np.ndim(a), np.ndim(b)  # of a Tensor as well
    if 0 in (left, right):
        return record("multiply", a, b)
    if max(left, right) <= 2:
        return record("matmul", a, b)
    return _tensordot(a, b, ((left - 1,), (max(right - 2, 0),)))


def _inner(a: Any, b: Any) -> Tensor:
    if 0 in (np.ndim(a), np.ndim(b)):
        return record("multiply", a, b)
    return _tensordot(a, b, ((np.ndim(a) - 1,), (np.ndim(b) - 1,)))


def _outer(a: Any, b: Any) -> Tensor:
    column, row = symbolic.reshape(a, (-1, 1)), symbolic.reshape(b, (1, -1))
    return record("multiply", column, row)


FUNCTIONS[np.tensordot] = _tensordot
FUNCTIONS[np.dot] = _dot
FUNCTIONS[np.inner] = _inner
FUNCTIONS[np.outer] = _outer
FUNCTIONS[np.ndim] = lambda a: a.ndim
FUNCTIONS[np.shape] = lambda a: a.shape
