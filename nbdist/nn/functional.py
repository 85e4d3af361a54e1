"""Functions of tensors that networks need and NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import whole
from nbdist.graph.ops.rows import check_rows
from nbdist.graph.ops.windows import Pair, checked_padding, pair
from nbdist.graph.partitioned import PartitionedVariable, gathered
from nbdist.graph.tensor import Tensor, Variable, record, symbolic

__all__ = [
    "avg_pool2d",
    "conv2d",
    "dropout",
    "embedding_lookup",
    "gelu",
    "log_softmax",
    "max_pool2d",
    "one_hot",
    "relu",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
]


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-``x``)), of the shape of ``x``."""
    return record("sigmoid", x)


def relu(x: Tensor) -> Tensor:
    """Return max(``x``, 0), of the shape of ``x``."""
    return record("relu", x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """Return ``x`` times the probability that a normal number is below x (Hendrycks and Gimpel 2016).

    ``approximate`` takes tanh for it, as GPT-2 did.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     gelu(placeholder(np.float32, (None, 3))).shape
    (None, 3)
    """
    if approximate:
        inner: Tensor = symbolic.tanh(float(np.sqrt(2 / np.pi)) * (x + 0.044715 * x * x * x))
    else:
        inner = record("erf", x * float(np.sqrt(0.5)))
    result: Tensor = 0.5 * x * (1 + inner)
    return result


def softmax(x: Tensor) -> Tensor:
    """Return exp(``x``) / sum(exp(``x``)) over the last axis, of the shape of ``x``."""
    return record("softmax", x)


def log_softmax(x: Tensor) -> Tensor:
    """Return the logarithm of :func:`softmax` of ``x``, without overflow."""
    return record("log_softmax", x)


def one_hot(labels: Any, depth: int, dtype: Any = np.float32) -> Tensor:
    """Return ``labels``, integers (...), as rows (..., ``depth``) of ``dtype`` with a single 1."""
    return record("one_hot", labels, depth=whole("one_hot: depth", depth), dtype=np.dtype(dtype))


def sparse_softmax_cross_entropy(labels: Any, logits: Tensor) -> Tensor:
    """Return the cross-entropy per example between class numbers and softmax(logits).

    ``labels`` (..., ) are integers, ``logits`` (..., classes) are not yet probabilities.
    """
    return record("sparse_cross_entropy", logits, record("softmax", logits), labels)


def softmax_cross_entropy(labels: Any, logits: Tensor) -> Tensor:
    """Return the cross-entropy per example between rows of probabilities and softmax(logits).

    ``labels`` and ``logits`` have one shape, (..., classes). Raises InvalidArgumentError for others.
    """
    given = labels.shape if isinstance(labels, Tensor) else np.shape(labels)
    known = [(a, b) for a, b in zip(given, logits.shape) if None not in (a, b)]
    if len(given) != len(logits.shape) or any(a != b for a, b in known):
        raise InvalidArgumentError(
            f"softmax_cross_entropy: labels {tuple(given)} and logits {tuple(logits.shape)} differ in shape; "
            "give a row of probabilities for each row of logits (one_hot makes them of class numbers)"
        )
    log_likelihood: Tensor = -(record("log_softmax", logits) * labels)
    return log_likelihood.sum(axis=-1)


def conv2d(
    x: Tensor,
    kernel: Any,
    bias: Any = None,
    strides: int | Pair = 1,
    padding: str = "valid",
    *,
    relu: bool = False,
    dilation: int | Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Return the convolution of images ``x`` with ``kernel``.

    ``x`` is (batch, height, width, in), ``kernel`` (height, width, in, out).

    ``bias`` (out,) is added, and ``relu`` applied, while a block of images is in the cache. ``strides`` and
    ``dilation`` (how far apart a window's elements are) are one whole number or (height, width). ``padding``
    is "valid" or "same". ``groups`` cuts the channels into so many parts, each of which is convolved with its
    part of the filters: the kernel is (height, width, in / groups, out). The result is (batch, rows, columns,
    out). Raises InvalidArgumentError for shapes that do not fit.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     conv2d(placeholder(np.float32, (None, 28, 28, 1)), np.ones((3, 3, 1, 8), np.float32), strides=2)
    <Tensor 'conv2d' (?, 13, 13, 8) float32>
    """
    how: dict[str, Any] = {
        "strides": pair("strides", strides),
        "padding": checked_padding(padding),
        "relu": bool(relu),
    }
    if (apart := pair("dilation", dilation)) != (1, 1):
        how["dilation"] = apart
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
        raise InvalidArgumentError(f"conv2d: groups is a whole number above 0, got {groups!r}")
    if groups == 1:
        return record("conv2d", *((x, kernel) if bias is None else (x, kernel, bias)), **how)
    channels, (*_, own, filters) = x.shape[-1], kernel.shape
    if channels != own * groups or filters % groups:
        raise InvalidArgumentError(
            f"conv2d: {groups} groups of images of {channels} channels take a kernel (height, width, "
            f"{channels} / {groups}, a multiple of {groups}), got {tuple(kernel.shape)}"
        )
    size, parts = filters // groups, []
    for i in range(groups):
        made = slice(i * size, (i + 1) * size)
        inputs = [x[..., i * own : (i + 1) * own], kernel[..., made], *([] if bias is None else [bias[made]])]
        parts.append(record("conv2d", *inputs, **how))
    joined: Tensor = symbolic.concatenate(parts, axis=-1)
    return joined


def max_pool2d(
    x: Tensor, pool_size: int | Pair = 2, strides: int | Pair | None = None, padding: str = "valid"
) -> Tensor:
    """Return the largest of each window of images ``x`` (batch, height, width, channels).

    ``pool_size`` and ``strides`` are one whole number or (height, width); ``strides`` None is the size of the
    pool. ``padding`` is "valid" or "same".

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     max_pool2d(placeholder(np.float32, (None, 24, 24, 64))).shape
    (None, 12, 12, 64)
    """
    return record("max_pool2d", x, **_pool(pool_size, strides, padding))


def avg_pool2d(
    x: Tensor, pool_size: int | Pair = 2, strides: int | Pair | None = None, padding: str = "valid"
) -> Tensor:
    """Return the mean of each window of images ``x`` (batch, height, width, channels).

    ``pool_size``, ``strides`` and ``padding`` are those of :func:`max_pool2d`; padding does not count.
    """
    return record("avg_pool2d", x, **_pool(pool_size, strides, padding))


def _pool(pool_size: int | Pair, strides: int | Pair | None, padding: str) -> dict[str, Any]:
    size = pair("pool_size", pool_size)
    steps = size if strides is None else pair("strides", strides)
    return {"size": size, "strides": steps, "padding": checked_padding(padding)}


def dropout(x: Tensor, rate: float, draw: Any, number: int = 0) -> Tensor:
    """Return ``x`` with a share ``rate`` of its elements set to 0 and the others divided by 1 - rate.

    What is dropped follows from ``draw``, four whole numbers: (seed, training, step, first), where ``first``
    is the place of the first example (of the first axis) among all that are drawn for; and from ``number``,
    which tells uses in one graph apart. Feed ``draw`` to drop others at each step.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     dropout(placeholder(np.float32, (None, 8)), 0.5, (0, 0, 1, 0)).shape
    (None, 8)
    """
    rate = checked_rate(rate)
    if rate == 0:
        return x
    numbers = draw if isinstance(draw, Tensor) else np.asarray(draw, np.int64)
    result: Tensor = x * record("dropout_mask", x, numbers, rate=rate, number=int(number))
    return result


def checked_rate(rate: Any, what: str = "a dropout rate") -> float:
    """Return a share, such as that of the elements to drop: from 0 to below 1."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float, np.number)) or not 0 <= rate < 1:
        raise InvalidArgumentError(f"{what} is a number from 0 to below 1, got {rate!r}")
    return float(rate)


def embedding_lookup(params: Any, ids: Any) -> Tensor:
    """Return the rows of ``params`` (rows, ...) at ``ids``, whole numbers of any shape: (*ids.shape, ...).

    From a variable only these rows are fetched, each from the shard that owns it, and its gradient holds
    only them (:class:`~nbdist.graph.sparse.IndexedSlices`). Raises InvalidArgumentError for an
    id without a row: in this call if the ids are an array, else when the graph runs.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     embedding_lookup(np.ones((1000, 16)), placeholder(np.int64, (None, 5))).shape
    (None, 5, 16)
    """
    table = params if isinstance(params, (Tensor, PartitionedVariable)) else np.asarray(params)
    if not table.shape:
        raise InvalidArgumentError(f"embedding_lookup: a table has rows, got {params!r}")
    if not isinstance(ids, Tensor):
        ids = np.asarray(ids)
        if table.shape[0] is not None and ids.dtype.kind in "iu":
            check_rows(ids, table.shape[0])
    if isinstance(table, PartitionedVariable):
        return table.rows(ids)
    return gathered(table, ids) if isinstance(table, Variable) else record("gather_rows", table, ids)
