"""Datasets of other libraries: Hugging Face's, and those of PyTorch. Neither is imported here.

One with a length and an index is read by row number, so that `shuffle` moves numbers and not elements; one
that is only iterated is read in its own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nbdist.data.blocks import Places
from nbdist.data.columns import is_list, is_plain, null_rows, values_of
from nbdist.data.rows import Rows
from nbdist.data.structure import stack
from nbdist.errors import InvalidArgumentError


class Indexed(Rows, Protocol):
    """Rows whose number is known."""

    count: int


class IndexedRows:
    """The rows of something with ``len`` and ``[]``."""

    def __init__(self, source: Any) -> None:
        self.source, self.count = source, len(source)

    def one(self, index: int) -> Any:
        """Return row ``index``."""
        return to_numpy(self.source[int(index)])

    def batches(self, size: int, buffers: int) -> Callable[[Places], Any]:
        """Return the function that turns row numbers into a batch."""
        return lambda block: stack([self.one(index) for index in block])


class ArrowRows:
    """The rows of a Hugging Face Dataset without a format: columns of Arrow in the dtypes that they have.

    What the dataset decodes, images for instance, is read in its own format for NumPy.
    """

    def __init__(self, source: Any) -> None:
        self.source, self.count = source, len(source)
        schema = source.features.arrow_schema
        self._names = [name for name in source.column_names if name in source.format["columns"]]
        plain = [name for name in self._names if is_plain(schema.field(name).type)]
        decoded = [name for name in self._names if name not in plain]
        self._arrow = source.with_format("arrow", columns=plain) if plain else None
        self._decoded = source.with_format("numpy", columns=decoded) if decoded else None

    def one(self, index: int) -> Any:
        """Return row ``index``."""
        return {name: values[0] for name, values in self._columns([int(index)]).items()}

    def batches(self, size: int, buffers: int) -> Callable[[Places], Any]:
        """Return the function that turns row numbers into a batch."""
        return self._batch

    def _batch(self, block: Places) -> Any:
        columns = self._columns([int(index) for index in block])
        if all(values.dtype != object for values in columns.values()):
            return columns
        return stack([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])

    def _columns(self, rows: list[int]) -> dict[str, NDArray[Any]]:
        found = {} if self._decoded is None else dict(self._decoded[rows])
        table: Any = None if self._arrow is None else self._arrow[rows]
        for name in () if table is None else table.column_names:
            column = table[name].combine_chunks()
            for place in np.flatnonzero(null_rows(column)):
                raise InvalidArgumentError(
                    f"row {rows[place]} of the dataset has a null in column {name!r} ({column.type}): fill "
                    "it with ds.map(...), or leave such rows out with ds.filter(...)"
                )
            found[name] = values_of(column)
        return {name: found[name] for name in self._names}


def huggingface_rows(dataset: Any) -> Indexed | None:
    """Return the rows of a Hugging Face Dataset; None for one that is only iterated (streaming)."""
    if isinstance(dataset, dict):
        raise InvalidArgumentError(
            f"this is a DatasetDict; choose one of its splits: from_huggingface(ds[{next(iter(dataset))!r}])"
        )
    if not hasattr(dataset, "with_format"):
        raise InvalidArgumentError(
            f"from_huggingface takes a dataset of the datasets package, got {type(dataset).__name__}"
        )
    if not hasattr(dataset, "__len__"):
        return None
    form = dataset.format
    if form["type"] in ("pandas", "polars", "arrow"):
        raise InvalidArgumentError(
            f"the dataset has the format {form['type']!r}, whose rows are frames: give "
            "ds.with_format(None), or from_frame(ds[:])"
        )
    # Whatever else its user has set, a transform for instance, its own `[]` obeys.
    return (
        ArrowRows(dataset)
        if form["type"] is None and not form["output_all_columns"]
        else IndexedRows(dataset)
    )


def streamed_rows(dataset: Any) -> Iterator[Any]:
    """Yield the rows of a streaming Hugging Face dataset, lists as arrays of the features' dtypes."""
    schema = {} if dataset.features is None else {one.name: one.type for one in dataset.features.arrow_schema}
    for row in dataset:
        yield {name: _as_listed(value, schema.get(name)) for name, value in row.items()}


def _as_listed(value: Any, kind: Any) -> Any:
    """Return a list as an array of Arrow's type ``kind``, or of what it has in it."""
    if not isinstance(value, list):
        return to_numpy(value)
    while kind is not None and is_list(kind):
        kind = kind.value_type
    dtype = None if kind is None or not is_plain(kind) else np.dtype(kind.to_pandas_dtype())
    try:
        return np.asarray(value, None if dtype is None or dtype.kind == "O" else dtype)
    except (TypeError, ValueError):  # lists of several lengths, or objects
        return to_numpy(value)


def torch_rows(source: Any) -> Indexed | None:
    """Return the rows of a PyTorch Dataset; None for an IterableDataset or a DataLoader."""
    is_loader = hasattr(source, "batch_sampler")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not is_loader:
        return IndexedRows(source)
    if not hasattr(source, "__iter__"):
        raise InvalidArgumentError(
            f"from_torch takes a Dataset or DataLoader of PyTorch, got {type(source).__name__}"
        )
    return None


def iterated(source: Any) -> Iterator[Any]:
    """Yield the elements of something that is only iterated."""
    for element in source:
        yield to_numpy(element)


def to_numpy(element: Any) -> Any:
    """Return an element with tensors and images as arrays, and lists as tuples."""
    if isinstance(element, dict):
        return {name: to_numpy(part) for name, part in element.items()}
    if isinstance(element, (tuple, list)):
        return tuple(to_numpy(part) for part in element)
    if hasattr(element, "detach"):  # a tensor, on whatever device
        try:
            return element.detach().cpu().numpy()
        except TypeError as error:
            raise InvalidArgumentError(
                f"the data have a tensor of {element.dtype}, which NumPy lacks: convert it (float()). {error}"
            ) from None
    if hasattr(element, "convert") and hasattr(element, "getbands"):  # an image of Pillow
        return np.asarray(element)
    return element
