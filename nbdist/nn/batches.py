"""Input adapters: arrays and datasets become datasets of batches for fit and evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.adapter import batches_of, batches_of_rows
from nbdist.data.rows import read_only
from nbdist.data.structure import leaves_of
from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import show

EXPECTED = "a Dataset of (x, y) batches or two arrays"
PREDICT_ROWS = 256


def training_batches(data: Any, y: Any, batch_size: int | None) -> Dataset:
    """Return what ``fit`` goes through: a dataset as it is, arrays shuffled."""
    if y is None:
        return batches_of(data, batch_size, rows=_pair, expected=EXPECTED)
    if isinstance(data, Dataset):
        raise InvalidArgumentError("fit(dataset): the labels are the dataset's own")
    return batches_of_rows((data, y), batch_size)


def evaluation_batches(data: Any) -> Dataset:
    """Return what ``evaluate`` goes through: a dataset, or a pair of arrays."""
    if isinstance(data, Dataset):
        return data
    return batches_of(data, PREDICT_ROWS, rows=_pair, expected=EXPECTED, shuffle=False)


def require_numbers(what: str, dataset: Dataset) -> None:
    """Raise InvalidArgumentError if a dataset has text, objects or dates in it, or named values."""
    spec = dataset.element_spec
    if isinstance(spec, dict):
        names = ", ".join(map(repr, spec))
        raise InvalidArgumentError(
            f"{what}: the batches of the dataset are dicts ({names:.200}), and {what} takes (x, y): read the "
            "file with label='NAME', which makes an array of the other columns (csv, parquet, from_frame), "
            "or end with map(lambda row: (row['x'], row['y']))"
        )
    require_number_dtypes(what, [part.dtype for part in leaves_of(spec)])


def require_number_dtypes(what: str, dtypes: Iterable[np.dtype[Any]]) -> None:
    """Raise InvalidArgumentError for a dtype that is not of real numbers."""
    for number, dtype in enumerate(dtypes):
        if dtype.kind not in "biuf":
            part = ("x", "y")[number] if number < 2 else f"array {number}"
            kind = "text" if dtype.kind in "US" else "values"
            raise InvalidArgumentError(
                f"{what} takes numbers, and {part} is {kind} of dtype {dtype}; encode it as numbers first "
                "(class names as class numbers: np.unique(names, return_inverse=True)[1])"
            )


@contextmanager
def named_in_errors(what: str) -> Iterator[None]:
    """Put ``what`` before the message of an InvalidArgumentError raised inside a ``with``."""
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: {error}") from None


def one_pass(dataset: Dataset) -> float:
    """Return how many batches a pass has, as far as that is known."""
    number = dataset.cardinality()
    return math.inf if number is None else number


def _pair(data: Any) -> tuple[Any, ...] | None:
    if isinstance(data, (tuple, list)) and len(data) == 2:
        return read_only(data[0], 0), read_only(data[1], 1)
    return None


def example_shape(dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of one example, or raise if the dataset has no batches of such."""
    spec = dataset.element_spec
    parts = leaves_of(spec)
    first = parts[0]
    if any(part.shape == () for part in parts):
        raise InvalidArgumentError("the dataset gives single examples, not batches; call .batch(size) on it")
    if None in first.shape[1:]:
        raise InvalidArgumentError(
            f"a batch of the dataset is {show(first.shape)}, and examples need one shape: "
            "was .batch() called twice?"
        )
    return tuple(int(n) for n in first.shape[1:])
