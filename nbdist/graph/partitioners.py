"""How a large variable is cut into shards along one axis. Pure functions.

partitioner = fixed_size_partitioner(3)
partitioner(shape=(13, 5), dtype=np.float32)    # [3, 1]: how many shards along each axis
shard_sizes(13, 3)                              # [5, 4, 4]: the rows of each
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import normal_axes, show

__all__ = [
    "Partitioner", "fixed_size_partitioner", "min_max_variable_partitioner", "shard_offsets", "shard_sizes",
    "variable_axis_size_partitioner",
]  # fmt: skip


class Partitioner(Protocol):
    """Chooses the number of shards along each axis, for a variable of this shape and dtype."""

    def __call__(self, shape: Sequence[int | None], dtype: Any = np.float32) -> list[int]:
        """Return the number of shards along each axis."""


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Partitioner:
    """Return a partitioner that makes ``num_shards`` shards, or one per row if there are fewer rows.

    >>> fixed_size_partitioner(3)(shape=(10, 4), dtype=np.float32)
    [3, 1]
    """
    _check_positive("num_shards", num_shards)

    def partition(shape: Sequence[int | None], dtype: Any = np.float32) -> list[int]:
        rows, _ = _rows(shape, axis)
        return _along(shape, axis, min(num_shards, rows))

    return partition


def variable_axis_size_partitioner(
    max_shard_bytes: int,
    axis: int = 0,
    bytes_per_string_element: int = 16,
    max_shards: int | None = None,
) -> Partitioner:
    """Return a partitioner that makes the fewest shards of at most ``max_shard_bytes`` each.

    If one row is larger than that, each row is a shard. ``max_shards`` has precedence over
    ``max_shard_bytes``.

    >>> variable_axis_size_partitioner(32768, axis=2)(shape=(4, 8, 16, 32), dtype=np.float32)
    [1, 1, 2, 1]
    """
    _check_positive("max_shard_bytes", max_shard_bytes)
    _check_positive("bytes_per_string_element", bytes_per_string_element)
    if max_shards is not None:
        _check_positive("max_shards", max_shards)

    def partition(shape: Sequence[int | None], dtype: Any = np.float32) -> list[int]:
        rows, elements = _rows(shape, axis)
        row_bytes = elements * _item_bytes(dtype, bytes_per_string_element)
        rows_in_shard = max(1, max_shard_bytes // row_bytes) if row_bytes else max(1, rows)
        shards = math.ceil(rows / rows_in_shard)
        return _along(shape, axis, shards if max_shards is None else min(shards, max_shards))

    return partition


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Partitioner:
    """Return a partitioner that makes ``max_partitions`` shards, or one per row if there are fewer rows.

    It makes fewer if a shard would be smaller than ``min_slice_size`` bytes. (TensorFlow rounds the number of
    shards up, so that its shards may be a little smaller.)

    >>> min_max_variable_partitioner(100, min_slice_size=2 << 10)(shape=(2048,), dtype=np.float32)
    [4]
    """
    _check_positive("max_partitions", max_partitions)
    _check_positive("min_slice_size", min_slice_size)
    _check_positive("bytes_per_string_element", bytes_per_string_element)

    def partition(shape: Sequence[int | None], dtype: Any = np.float32) -> list[int]:
        rows, elements = _rows(shape, axis)
        row_bytes = elements * _item_bytes(dtype, bytes_per_string_element)
        # The smallest of n shards has rows // n rows.
        least_rows = -(-min_slice_size // row_bytes) if row_bytes else max(1, rows)
        return _along(shape, axis, min(max_partitions, rows // least_rows))

    return partition


def shard_sizes(dim: int, n: int) -> list[int]:
    """Return how many of ``dim`` rows each of n shards has; the first ``dim % n`` have one more.

    >>> shard_sizes(13, 3)
    [5, 4, 4]
    """
    rows, longer = _shared(dim, n)
    return [rows + (shard < longer) for shard in range(n)]


def shard_offsets(dim: int, n: int) -> list[int]:
    """Return the first row of each of n shards.

    >>> shard_offsets(13, 3)
    [0, 5, 9]
    """
    rows, longer = _shared(dim, n)
    return [shard * rows + min(shard, longer) for shard in range(n)]


def _shared(dim: int, n: int) -> tuple[int, int]:
    _check_positive("the number of shards", n)
    if dim < 0:
        raise InvalidArgumentError(f"the number of rows is 0 or more, not {dim!r}")
    return divmod(dim, n)


def _rows(shape: Sequence[int | None], axis: int) -> tuple[int, int]:
    """Return the rows along an axis, and the elements in each."""
    sizes = [size for size in shape if size is not None]
    if len(sizes) < len(shape):
        raise InvalidArgumentError(
            f"a variable of shape {show(tuple(shape))} cannot be cut into shards before every size is known"
        )
    (normal,) = normal_axes(f"a partitioner, for the shape {show(tuple(sizes))}", axis, len(sizes))
    return sizes[normal], math.prod(sizes[:normal] + sizes[normal + 1 :])


def _along(shape: Sequence[int | None], axis: int, shards: int) -> list[int]:
    counts = [1] * len(shape)
    counts[axis] = max(1, shards)  # a variable without rows is one shard
    return counts


def _item_bytes(dtype: Any, bytes_per_string_element: int) -> int:
    item = np.dtype(dtype)
    return item.itemsize if item.kind in "biufcmMV" else bytes_per_string_element


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(f"{name} is 1 or more, not {value!r}")
