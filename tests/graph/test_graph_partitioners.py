"""How a large variable is cut into shards along one axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    shard_offsets,
    shard_sizes,
    variable_axis_size_partitioner,
)

BOX = (4, 8, 16, 32)
shapes = st.lists(st.integers(1, 40), min_size=1, max_size=3).map(tuple)


def test_thirteen_rows_in_three_shards() -> None:
    assert shard_sizes(13, 3) == [5, 4, 4]
    assert shard_offsets(13, 3) == [0, 5, 9]


@given(st.integers(0, 10**9), st.integers(1, 200))
def test_shards_add_up_and_the_first_have_one_row_more(dim: int, n: int) -> None:
    sizes = shard_sizes(dim, n)
    assert sum(sizes) == dim
    assert sizes == [dim // n + 1] * (dim % n) + [dim // n] * (n - dim % n)
    assert shard_offsets(dim, n) == [sum(sizes[:i]) for i in range(n)]


@pytest.mark.parametrize("share", [shard_sizes, shard_offsets])
def test_rows_cannot_be_shared_by_no_shards_nor_be_negative(share: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the number of shards is 1 or more, not 0"):
        share(13, 0)
    with pytest.raises(InvalidArgumentError, match="the number of rows is 0 or more, not -1"):
        share(-1, 3)


@pytest.mark.parametrize(
    ("shards", "axis", "shape", "counts"),
    [
        (3, 0, (10, 4), [3, 1]),
        (3, 1, (10, 4), [1, 3]),
        (3, -1, (10, 4), [1, 3]),
        (30, 0, (10, 4), [10, 1]),
        (3, 0, (0, 4), [1, 1]),
        (1, 0, (10,), [1]),
    ],
)
def test_fixed_size(shards: int, axis: int, shape: tuple[int, ...], counts: list[int]) -> None:
    assert fixed_size_partitioner(shards, axis)(shape=shape, dtype=np.float32) == counts


@pytest.mark.parametrize(
    ("axis", "most_bytes", "max_shards", "counts"),
    [
        (0, 16384, None, [4, 1, 1, 1]),  # a row is 16384 bytes
        (1, 65536, None, [1, 1, 1, 1]),  # and all of it 65536
        (2, 32768, None, [1, 1, 2, 1]),
        (3, 2048, None, [1, 1, 1, 32]),
        (3, 1024, None, [1, 1, 1, 32]),  # not under one row a shard
        (3, 1024, 33, [1, 1, 1, 32]),
        (3, 1024, 2, [1, 1, 1, 2]),
        (-1, 2048, None, [1, 1, 1, 32]),
    ],
)
def test_axis_size(axis: int, most_bytes: int, max_shards: int | None, counts: list[int]) -> None:
    partitioner = variable_axis_size_partitioner(most_bytes, axis=axis, max_shards=max_shards)
    assert partitioner(shape=BOX, dtype=np.dtype(np.float32)) == counts


@pytest.mark.parametrize("text", [str, "U5", object, np.dtypes.StringDType()])
def test_axis_size_of_texts_takes_their_bytes_from_the_caller(text: Any) -> None:
    partitioner = variable_axis_size_partitioner(32768, axis=3, bytes_per_string_element=8)
    assert partitioner(shape=BOX, dtype=text) == [1, 1, 1, 4]


@given(shapes, st.integers(1, 5000), st.sampled_from([np.int8, np.float32, np.complex128]))
def test_axis_size_makes_as_few_shards_as_keep_under_the_bytes(
    shape: tuple[int, ...], most_bytes: int, dtype: Any
) -> None:
    shards = variable_axis_size_partitioner(most_bytes)(shape=shape, dtype=dtype)[0]
    row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
    largest = lambda n: max(shard_sizes(shape[0], n)) * row_bytes
    assert shards == shape[0] or largest(shards) <= most_bytes
    assert shards == 1 or largest(shards - 1) > most_bytes


@pytest.mark.parametrize(
    ("max_partitions", "shape", "least_bytes", "counts"),
    [
        (100, (2048,), 2 << 10, [4]),
        (100, (2048, 1024), 256 << 10, [32, 1]),
        (16, (2048, 1024), 256 << 10, [16, 1]),
        (1, (2048, 1024), 256 << 10, [1, 1]),
        (100, (4, 1024), 1, [4, 1]),
        (100, (4, 4), 256 << 10, [1, 1]),  # all of it is smaller than a slice may be
        (100, (10, 25), 250, [3, 1]),  # 4 shards would have shards of 2 rows, 200 bytes
        (100, (0, 4), 1, [1, 1]),
        (100, (4, 0), 1, [1, 1]),
    ],
)
def test_min_max(max_partitions: int, shape: tuple[int, ...], least_bytes: int, counts: list[int]) -> None:
    partitioner = min_max_variable_partitioner(max_partitions, min_slice_size=least_bytes)
    assert partitioner(shape=shape, dtype=np.float32) == counts


def test_min_max_along_another_axis_and_by_default() -> None:
    assert min_max_variable_partitioner(5, axis=1, min_slice_size=1)(shape=(2, 9)) == [1, 5]
    assert min_max_variable_partitioner()(shape=(1 << 20,), dtype=np.float64) == [1]


@given(shapes, st.integers(1, 60), st.integers(1, 5000))
def test_min_max_makes_as_many_shards_as_it_may(shape: tuple[int, ...], most: int, least_bytes: int) -> None:
    partitioner = min_max_variable_partitioner(most, min_slice_size=least_bytes)
    shards = partitioner(shape=shape, dtype=np.float32)[0]
    smallest = lambda n: min(shard_sizes(shape[0], n)) * math.prod(shape[1:]) * 4
    assert 1 <= shards <= min(most, shape[0])
    assert shards == 1 or smallest(shards) >= least_bytes
    assert shards == min(most, shape[0]) or smallest(shards + 1) < least_bytes


ALL = [fixed_size_partitioner(2), variable_axis_size_partitioner(8), min_max_variable_partitioner(2)]


@pytest.mark.parametrize("partitioner", ALL)
def test_every_size_is_known(partitioner: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"a variable of shape \(\?, 3\) cannot be cut"):
        partitioner(shape=(None, 3), dtype=np.float32)


@pytest.mark.parametrize("partitioner", ALL)
def test_a_single_number_has_no_axis_to_cut(partitioner: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"shape \(\): axis 0 is out of range for 0 dimensions"):
        partitioner(shape=(), dtype=np.float32)


@pytest.mark.parametrize(
    ("make", "arguments", "name"),
    [
        (fixed_size_partitioner, {"num_shards": 0}, "num_shards"),
        (variable_axis_size_partitioner, {"max_shard_bytes": 0}, "max_shard_bytes"),
        (variable_axis_size_partitioner, {"max_shard_bytes": 8, "max_shards": 0}, "max_shards"),
        (
            variable_axis_size_partitioner,
            {"max_shard_bytes": 8, "bytes_per_string_element": 0},
            "bytes_per_string",
        ),
        (min_max_variable_partitioner, {"max_partitions": 0}, "max_partitions"),
        (min_max_variable_partitioner, {"min_slice_size": 0}, "min_slice_size"),
    ],
)
def test_counts_and_bytes_are_positive(make: Any, arguments: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{name}\w* is 1 or more, not 0"):
        make(**arguments)


def test_a_large_table_over_three_servers() -> None:
    partitioner = fixed_size_partitioner(3)
    assert partitioner(shape=(10_000_000, 20), dtype=np.float32) == [3, 1]
    assert shard_sizes(10_000_000, 3) == [3_333_334, 3_333_333, 3_333_333]
