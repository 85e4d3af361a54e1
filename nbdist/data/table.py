"""`Table`: a block of elements that are kept as columns, so that a batch of them is a slice of each.

    table = Table({"x": 0, "label": 1}, [np.zeros((3, 64)), np.arange(3)])
    table[:2].batch()       # {"x": array of (2, 64), "label": array([0, 1])}
    list(table)[1]          # {"x": array of (64,), "label": np.int64(1)}

Sources that find many elements at once yield it; other transforms see the elements, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.structure import rebuild, stack_column


class Table:
    """Elements in a ``structure`` of tuples and dicts, with an array of all values for each leaf.

    Text and bytes are in arrays of objects. Elements and batches have memory of their own.
    """

    def __init__(self, structure: Any, columns: Sequence[NDArray[Any]]) -> None:
        self.structure, self.columns = structure, list(columns)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, part: slice | NDArray[np.intp]) -> Table:
        return Table(self.structure, [column[part] for column in self.columns])

    def __iter__(self) -> Iterator[Any]:
        rows = zip(*map(rows_of, self.columns), strict=True)
        structure = self.structure
        if isinstance(structure, dict) and not any(isinstance(v, (dict, tuple)) for v in structure.values()):
            for row in rows:
                yield dict(zip(structure, row, strict=True))
        else:
            for row in rows:
                yield rebuild(structure, list(row))

    def batch(self) -> Any:
        """Return all elements as one batch."""
        return rebuild(self.structure, [_stacked(column) for column in self.columns])

    @staticmethod
    def joined(tables: Sequence[Table]) -> Table:
        """Return the elements of tables of one structure and one set of dtypes."""
        columns = zip(*(table.columns for table in tables), strict=True)
        return Table(tables[0].structure, [np.concatenate(parts) for parts in columns])

    def joins(self, other: object) -> bool:
        """Whether :meth:`joined` keeps the elements of both as they are."""
        return (
            isinstance(other, Table)
            and other.structure == self.structure
            and all(
                one.dtype == two.dtype and one.shape[1:] == two.shape[1:]
                for one, two in zip(self.columns, other.columns, strict=True)
            )
        )


def rows_of(column: NDArray[Any]) -> Iterator[Any]:
    """Yield the values of a column, each with memory of its own."""
    return (row.copy() for row in column) if column.ndim > 1 else iter(column)


def _stacked(column: NDArray[Any]) -> NDArray[Any]:
    if column.ndim == 1 and column.dtype == object:
        return stack_column(tuple(column))
    return column.astype(column.dtype.newbyteorder("="))  # a copy
