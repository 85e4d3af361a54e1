"""Tables with row lookups: a step trains only the rows that it looks up, and sends only their gradients.

    tables = Tables([array], optimizer)
    tables.apply([RowGradient(indices, values)], step=1)

A replica holds them, or a parameter server's shard. An optimizer changes only these rows and their slots
(like the op of a graph, optim/ops.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.ops.rows import check_rows, summed_rows
from nbdist.optim import Optimizer

Array: TypeAlias = np.ndarray[Any, Any]
Table: TypeAlias = tuple[str, tuple[int, ...], str]
"""A table's name, shape and dtype."""
CHUNK = 1 << 24  # bytes of a table in one message, so that neither side holds a second copy of the table


@dataclass(frozen=True)
class RowGradient:
    """The gradient of a table that is zero outside some rows: ``values[i]`` adds to row ``indices[i]``."""

    indices: Array
    values: Array

    @classmethod
    def joined(cls, parts: Sequence[RowGradient]) -> RowGradient:
        """Return the sum of gradients of one table; a row may occur several times."""
        indices = np.concatenate([part.indices for part in parts])
        return cls(indices, np.concatenate([part.values for part in parts]))


class Tables:
    """Arrays that are changed in place, row by row, with their optimizer slots."""

    def __init__(self, arrays: Sequence[Array], optimizer: Optimizer) -> None:
        self.arrays, self.optimizer = list(arrays), optimizer
        self.slots = [
            {name: slot.reshape(array.shape) for name, slot in optimizer.new_slots(array.reshape(-1)).items()}
            for array in self.arrays
        ]

    def apply(self, gradient: Sequence[RowGradient], step: int) -> None:
        """Make update ``step`` of each table; ``gradient`` has one entry per table, or is empty."""
        for array, slots, rows in zip(self.arrays, self.slots, gradient, strict=True):
            self.optimizer.apply_rows(array, rows.values, rows.indices, slots, step)

    def checked(self, gradient: Sequence[RowGradient]) -> list[RowGradient]:
        """Return a gradient from another process, or raise InvalidArgumentError if it does not fit."""
        if len(gradient) != len(self.arrays):
            raise InvalidArgumentError(f"rows of {len(gradient)} tables for {len(self.arrays)}")
        for array, rows in zip(self.arrays, gradient, strict=True):
            whole = rows.indices.dtype == np.int64 and rows.indices.ndim == 1
            if not whole or rows.values.shape != (*rows.indices.shape, *array.shape[1:]):
                raise InvalidArgumentError(
                    f"rows {rows.values.shape} at {rows.indices.shape} {rows.indices.dtype} do not fit a "
                    f"table of shape {array.shape}"
                )
            if rows.values.dtype != array.dtype:
                raise InvalidArgumentError(f"rows of {rows.values.dtype} for a table of {array.dtype}")
            check_rows(rows.indices, len(array))
        return list(gradient)


def gradient_of(values: Array, indices: Array) -> RowGradient:
    """Return a gradient with each row once, in arrays of its own.

    >>> gradient_of(np.ones((3, 1)), np.array([4, 0, 4]))
    RowGradient(indices=array([0, 4]), values=array([[1.],
           [2.]]))
    """
    at, total = summed_rows(np, values, indices)
    return RowGradient(at.astype(np.int64), total.copy() if total is values else total)


def no_rows(array: Array) -> RowGradient:
    """Return a gradient of a table that is zero everywhere."""
    return RowGradient(np.zeros(0, np.int64), np.zeros((0, *array.shape[1:]), array.dtype))


def chunks(shape: Sequence[int], itemsize: int) -> list[tuple[int, int]]:
    """Return (first row, end) of the parts of a table, each sent in one message.

    >>> chunks((10_000_000, 20), 4)[:2]
    [(0, 209715), (209715, 419430)]
    """
    row = int(np.prod(shape[1:], dtype=np.int64)) * itemsize
    size = max(CHUNK // max(row, 1), 1)
    return [(first, min(first + size, shape[0])) for first in range(0, shape[0], size)]
