"""What users give `fit` as data, as a Dataset of batches: one rule for all frameworks and nbdist.

    Dataset of nbdist       as it is: it has batches of its own
    arrays of examples      rows, shuffled, in batches of 32
    iterables of batches    read anew for each epoch

What counts as arrays, and how a batch is converted, is the framework's: it gives two functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from nbdist.data.dataset import Dataset
from nbdist.errors import InvalidArgumentError

FIT_BATCH = 32  # examples, where no batch size is given


def batches_of(
    data: Any,
    batch_size: int | None = None,
    *,
    rows: Callable[[Any], tuple[Any, ...] | None],
    batch: Callable[[Any], Any] | None = None,
    expected: str,
    shuffle: bool = True,
) -> Dataset:
    """Return data as a Dataset of batches.

    - ``batch_size``: examples of a batch, for arrays; None for `FIT_BATCH`
    - ``rows``: returns the arguments of `Dataset.from_arrays` if data are arrays of examples, else None
    - ``batch``: converts a batch of an iterable; None if iterables are refused
    - ``expected``: what data can be, for the error
    - ``shuffle``: whether the examples of arrays are shuffled

    Raises InvalidArgumentError for other data, and for a batch size of data that has one.
    """
    arrays = None if isinstance(data, Dataset) else rows(data)
    if arrays is not None:
        return batches_of_rows(arrays, batch_size, shuffle)
    if isinstance(data, Dataset):
        refuse_batch_size(data, batch_size)
        return data
    if batch is None or not isinstance(data, Iterable):
        raise InvalidArgumentError(f"expected {expected}, got {type(data).__name__}")
    if isinstance(data, Iterator):
        raise InvalidArgumentError(
            f"data is a {type(data).__name__}, which can be read once: give nb.data.Dataset.from_generator("
            "make_batches), with the function that makes it"
        )
    refuse_batch_size(data, batch_size)
    convert = batch
    return Dataset.from_generator(lambda: (convert(one) for one in data))


def batches_of_rows(arrays: tuple[Any, ...], batch_size: int | None, shuffle: bool = True) -> Dataset:
    """Return the rows of arrays in batches.

    >>> [len(x) for x in batches_of_rows((range(40),), None)]
    [32, 8]
    """
    found = Dataset.from_arrays(*arrays)
    found = found.shuffle(max(len(found), 1)) if shuffle else found
    return found.batch(FIT_BATCH if batch_size is None else batch_size)


def refuse_batch_size(data: Any, batch_size: int | None) -> None:
    """Raise InvalidArgumentError for a batch size of data that has batches."""
    if batch_size is not None:
        raise InvalidArgumentError(
            f"batch_size={batch_size} is for data without batches: a {type(data).__name__} has its own"
        )
