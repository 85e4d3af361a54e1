"""Buckets: the plan, and gradients in any order."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.buckets import Buckets, plan_buckets
from nbdist.wire.collective.local import thread_group

TENSORS = [(f"w{number}", (number % 7, 3), ("f4", "f8")[number % 9 == 0]) for number in range(40)]
SHAPES = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["f4", "f8"])), max_size=30
)


@given(SHAPES, st.integers(1, 400))
def test_every_tensor_is_in_one_bucket_in_order_and_none_is_too_large(
    tensors: list[tuple[list[int], str]], limit: int
) -> None:
    named = [(str(number), shape, dtype) for number, (shape, dtype) in enumerate(tensors)]
    plan = plan_buckets(named, limit, limit // 2)
    places = [place for bucket in plan for place in bucket.places]
    assert [place.name for place in places] == [name for name, _, _ in named]
    for number, bucket in enumerate(plan):
        assert [place.start for place in bucket.places][1:] == [place.stop for place in bucket.places][:-1]
        small = bucket.count * bucket.dtype.itemsize <= (limit if number else limit // 2)
        assert small or len(bucket.places) == 1


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="two tensors have the name 'w'"):
        plan_buckets([("w", (1,), "f4"), ("w", (1,), "f4")])


def test_gradients_in_any_order_over_several_steps() -> None:
    plan = plan_buckets(TENSORS, limit=100)
    assert len(plan) > 5

    def train(group: Collective) -> list[dict[str, Any]]:
        buckets = Buckets(group, plan)
        shuffled, steps = random.Random(group.rank), []
        for step in range(5):
            order = shuffled.sample(TENSORS, len(TENSORS))
            for name, shape, dtype in order:
                buckets.put(name, np.full(shape, group.rank + step, dtype))
            steps.append({name: value.copy() for name, value in buckets.finish().items()})
        buckets.close()
        return steps

    before = set(threading.enumerate())
    groups = thread_group(["a", "b", "c"])
    with ThreadPoolExecutor(3) as pool:
        for steps in pool.map(train, groups):
            for step, means in enumerate(steps):
                assert list(means) == [name for name, _, _ in TENSORS]
                assert all((mean == step + 1).all() for mean in means.values())
    started = set(threading.enumerate()) - before
    assert not [thread for thread in started if thread.name == "nbdist buckets"]


def test_the_first_bucket_is_reduced_before_the_last_gradient_is_put() -> None:
    plan = plan_buckets([("late layer", (3,), "f4"), ("early layer", (3,), "f4")], limit=12, first=12)
    one, other = thread_group(["a", "b"])
    mine = Buckets(one, plan, "sum")
    mine.put("late layer", [1, 1, 1])
    assert other.all_reduce(np.full(3, 2, "f4"), "sum").tolist() == [3, 3, 3]
    mine.put("early layer", [1, 1, 1])
    other.all_reduce(np.full(3, 5, "f4"), "sum")
    assert {name: value.tolist() for name, value in mine.finish().items()} == {
        "late layer": [3, 3, 3],
        "early layer": [6, 6, 6],
    }
    mine.close()


def test_unknown_repeated_and_missing_gradients_are_named() -> None:
    buckets = Buckets(thread_group(["alone"])[0], plan_buckets([("w", (2,), "f4"), ("b", (), "f4")]))
    with pytest.raises(InvalidArgumentError, match="'v' is not in the plan"):
        buckets.put("v", 1)
    with pytest.raises(InvalidArgumentError, match=r"'w' has the shape \(3,\), but \(2,\) in the plan"):
        buckets.put("w", np.ones(3))
    buckets.put("w", np.ones(2))
    with pytest.raises(InvalidArgumentError, match="'w' was put already"):
        buckets.put("w", np.ones(2))
    with pytest.raises(FailedPreconditionError, match="missing: b"):
        buckets.finish()
    buckets.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        Buckets.put(buckets, "b", 1) if not buckets._put else buckets._begin()


def test_an_abort_ends_the_step() -> None:
    one, other = thread_group(["a", "b"])
    buckets = Buckets(one, plan_buckets([("w", (2,), "f4")]))
    buckets.put("w", np.ones(2))
    other.abort("out of data")
    with pytest.raises(AbortedError, match="out of data"):
        buckets.finish()
    buckets.close()
