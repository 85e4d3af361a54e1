"""Datasets of other libraries: Hugging Face's, and those of PyTorch. Neither is imported here.

One with a length and an index is read by row number, so that `shuffle` moves numbers and not elements; one
that is only iterated is read in its own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nbdist.data.blocks import Places
from nbdist.data.structure import stack
from nbdist.errors import InvalidArgumentError


class IndexedRows:
    """The rows of something with ``len`` and ``[]``; those of a batch at once where ``many`` reads them."""

    def __init__(
        self, source: Any, convert: Callable[[Any], Any], many: Callable[[list[int]], Any] | None = None
    ) -> None:
        self._source, self._convert, self._many = source, convert, many
        self.count = len(source)

    def one(self, index: int) -> Any:
        """Return row ``index``."""
        return self._convert(self._source[int(index)])

    def batches(self, size: int, buffers: int) -> Callable[[Places], Any]:
        """Return the function that turns row numbers into a batch."""
        many = self._many
        if many is None:
            return lambda block: stack([self.one(index) for index in block])
        return lambda block: self._convert(many([int(index) for index in block]))


def huggingface_rows(dataset: Any) -> IndexedRows | None:
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
    arrays = dataset.with_format("numpy")
    return IndexedRows(arrays, to_numpy, many=lambda rows: arrays[rows])


def torch_rows(source: Any) -> IndexedRows | None:
    """Return the rows of a PyTorch Dataset; None for an IterableDataset or a DataLoader."""
    is_loader = hasattr(source, "batch_sampler")
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not is_loader:
        return IndexedRows(source, to_numpy)
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
