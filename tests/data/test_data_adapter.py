"""What users give fit as data: one rule for all frameworks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.data.adapter import batches_of
from nbdist.errors import InvalidArgumentError

HOW: dict[str, Any] = {
    "rows": lambda data: (data,) if isinstance(data, np.ndarray) else None,
    "batch": np.asarray,
    "expected": "an array",
}


def test_arrays_are_rows_and_batches_are_left_as_they_are() -> None:
    shuffled = list(batches_of(np.arange(40), **HOW))
    assert [len(x) for x in shuffled] == [32, 8]
    assert sorted(np.concatenate(shuffled)) == list(range(40))
    assert [x.tolist() for x in batches_of(np.arange(3), 2, shuffle=False, **HOW)] == [[0, 1], [2]]
    dataset = Dataset.range(4).batch(2)
    assert batches_of(dataset, **HOW) is dataset
    again = batches_of([[1, 2], [3, 4]], **HOW)
    assert [x.tolist() for x in again] == [x.tolist() for x in again] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("data", "batch_size", "why"),
    [
        (
            Dataset.range(4).batch(2),
            3,
            "batch_size=3 is for data without batches: a Dataset has its own",
        ),
        ([[1]], 3, "a list has its own"),
        (iter([[1]]), None, "data is a list_iterator, which can be read once"),
        (7, None, "expected an array, got int"),
    ],
)
def test_other_data_are_refused(data: Any, batch_size: int | None, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        batches_of(data, batch_size, **HOW)


def test_iterables_are_refused_where_a_framework_takes_none() -> None:
    with pytest.raises(InvalidArgumentError, match="expected an array, got list"):
        batches_of([[1]], **HOW | {"batch": None})
