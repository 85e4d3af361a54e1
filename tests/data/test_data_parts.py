"""Parts of a pass: together they are the pass, and each calls the maps for its own elements only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.data import Dataset
from nbdist.data.parts import divides, part_of, with_passes

MAKERS: dict[str, Callable[[Dataset], Dataset]] = {
    "maps around a batch": lambda d: (
        d.map(lambda n: n + 1).map(abs).batch(3).map(lambda b: b * 2).prefetch(2)
    ),
    "threads": lambda d: d.shuffle(5, seed=1).map(abs, num_parallel_calls=2).batch(2, drop_remainder=True),
    "batches of batches": lambda d: d.batch(2, drop_remainder=True).batch(2),
    "rows": lambda d: d.shuffle(7).repeat(2).batch(4),
    "filter": lambda d: d.map(abs).filter(lambda n: n % 3).batch(2),
    "cache, then a map": lambda d: d.cache().shuffle(3).map(abs),
    "enumerate": lambda d: d.map(abs).enumerate().map(lambda i, n: i * n).batch(5),
}


def listed(dataset: Dataset, opened: tuple[int, ...]) -> list[Any]:
    dataset.reopen(opened)
    return [np.asarray(one).tolist() for one in dataset.iterate(reuse_buffers=False)]


@pytest.mark.parametrize("name", MAKERS)
@given(count=st.integers(0, 23), parts=st.integers(1, 4), first=st.integers(0, 4), epoch=st.integers(0, 2))
def test_the_parts_of_a_pass_are_the_pass(name: str, count: int, parts: int, first: int, epoch: int) -> None:
    dataset = MAKERS[name](Dataset.range(count)).with_seed(3)
    opened = tuple(epoch for _ in dataset.opened)
    whole = listed(with_passes(dataset, dataset._stage.blocks, whole=False), opened)
    for index in range(parts):
        part = part_of(dataset, parts, index, first)
        numbers = [number for number in range(first, len(whole)) if number % parts == index]
        assert listed(part, opened) == [whole[number] for number in numbers]
        assert len(part.opened) == len(opened)


def test_a_part_calls_the_maps_for_its_own_batches() -> None:
    called: list[int] = []

    def seen(number: Any) -> Any:
        called.append(int(number))
        return number

    dataset = Dataset.range(10).map(seen).batch(2)
    assert divides(dataset)
    assert [b.tolist() for b in part_of(dataset, 2, 1)] == [[2, 3], [6, 7]]
    assert called == [2, 3, 6, 7]
    assert not divides(Dataset.range(10).map(seen).filter(bool))
