"""Synchronous gradients: TensorFlow's accumulator rules (semantics: synchronous replicas)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.runtime.ps.shard import Accumulator

Array = np.ndarray[Any, Any]


def one(value: float) -> list[Array]:
    return [np.array([float(value)])]


def test_taking_needs_one_and_gives_the_mean_of_all() -> None:
    """Fact 6: gradients 10 and 20, take(1) gives 15; the count is 0 after and local step 1 is needed."""
    accumulator = Accumulator()
    assert accumulator.offer(0, one(10), 0)
    assert accumulator.offer(1, one(20), 0)
    assert accumulator.count == 2
    assert accumulator.take(1, mean=True)[0] == 15
    assert (accumulator.count, accumulator.step) == (0, 1)
    assert not accumulator.offer(0, one(1), 0)
    assert accumulator.offer(0, one(1), 1)


def test_taking_the_sum() -> None:
    accumulator = Accumulator()
    accumulator.offer(0, one(10), 0)
    accumulator.offer(1, one(20), 0)
    assert accumulator.take(2)[0] == 30


def test_what_is_older_is_dropped_and_counted_and_what_is_newer_is_taken() -> None:
    accumulator = Accumulator()
    for step in range(3):
        accumulator.offer(0, one(1), step)
        accumulator.take(1)
    assert [accumulator.offer(1, one(100), step) for step in (0, 1, 2)] == [False] * 3
    assert (accumulator.dropped, accumulator.count) == (3, 0)
    assert accumulator.offer(1, one(7), 3)
    assert accumulator.offer(2, one(1), 9)
    assert accumulator.take(2)[0] == 8


def test_several_batches_of_one_replica_count_each() -> None:
    accumulator = Accumulator()
    for value in (1, 2, 3):
        accumulator.offer(0, one(value), 0)
    assert accumulator.take(3, mean=True)[0] == 2


def test_taking_too_early_or_nothing() -> None:
    accumulator = Accumulator()
    accumulator.offer(0, one(1), 0)
    with pytest.raises(FailedPreconditionError, match="1 of 2 gradients have arrived"):
        accumulator.take(2)
    assert accumulator.take(1)[0] == 1
    with pytest.raises(InvalidArgumentError, match="take at least 1 gradient, got 0"):
        accumulator.take(0)


def test_forgetting_counts_as_dropping() -> None:
    accumulator = Accumulator()
    accumulator.offer(0, one(1), 0)
    accumulator.offer(1, one(1), 0)
    assert accumulator.forget() == 2
    assert (accumulator.count, accumulator.dropped, accumulator.step) == (0, 2, 0)
    accumulator.offer(0, one(5), 0)
    assert accumulator.take(1)[0] == 5


def test_several_arrays_are_added_one_by_one() -> None:
    accumulator = Accumulator()
    accumulator.offer(1, [np.ones(2, np.float32), np.ones(3)], 0)
    accumulator.offer(0, [np.full(2, 2, np.float32), np.zeros(3)], 0)
    total = accumulator.take(2)
    np.testing.assert_array_equal(total[0], [3, 3])
    np.testing.assert_array_equal(total[1], [1, 1, 1])
    assert [t.dtype for t in total] == [np.float32, np.float64]


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_sums_do_not_depend_on_the_order_of_arrival(replicas: int, seed: int) -> None:
    """Bit for bit: floating point sums depend on their order, so the order is the replicas'."""
    rng = np.random.default_rng(seed)
    gradients = [rng.normal(size=8).astype(np.float32) * 10.0 ** rng.integers(-6, 6) for _ in range(replicas)]
    results = set()
    for order in itertools.islice(itertools.permutations(range(replicas)), 12):
        accumulator = Accumulator()
        for replica in order:
            accumulator.offer(replica, [gradients[replica].copy()], 0)
        results.add(accumulator.take(replicas)[0].tobytes())
    expected = gradients[0].copy()
    for gradient in gradients[1:]:
        expected += gradient
    assert results == {expected.tobytes()}


def test_what_is_kept_may_be_written_over() -> None:
    accumulator, slot = Accumulator(), one(1)
    for value in (1, 2, 3):
        slot[0][:] = value
        accumulator.offer(0, slot, 0)
        accumulator.keep(0)
    slot[0][:] = 100
    assert accumulator.replicas == [0, 0, 0]
    assert accumulator.take(3)[0] == 6
    assert slot[0] == 100
    accumulator.offer(0, slot, 1)
    assert accumulator.take(1)[0] == 100


@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<c8", "<i4"])
def test_the_sum_may_be_scaled(dtype: str) -> None:
    accumulator = Accumulator()
    for replica in range(2):
        accumulator.offer(replica, [np.full(2, 4, dtype)], 0)
    (total,) = accumulator.take(2, scale=1.5)
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, [12, 12])
