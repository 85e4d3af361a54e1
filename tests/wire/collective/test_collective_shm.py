"""Collectives through shared memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from collective_worlds import formed
from own_collective import OwnCollective, PeekContract

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.testing.collective import World
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.shm import collective
from nbdist.wire.shm import Segment


class TestShm(OwnCollective, PeekContract):
    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed(["here"] * size, "shm", **options)


def test_symmetric_buffers_need_equal_shapes_on_all_ranks() -> None:
    for shapes in (((70_000,), (70_001,)), ((3, 30_000), (30_000, 3))):
        world = World(formed(["here"] * 2, "shm"))
        results = world.all(lambda group, s=shapes: group.symmetric_buffer(s[group.rank], "f4"))
        assert all(
            isinstance(one, InvalidArgumentError) and "symmetric_buffer((" in str(one) for one in results
        ), results
        world.close()


def test_a_symmetric_buffer_on_one_rank_only_is_named() -> None:
    world = World(formed(["here"] * 2, "shm"))

    def half(group: Collective) -> Any:
        collective = group.symmetric_buffer((70_000,), "f4")
        x = collective if group.rank else np.zeros_like(collective)
        return group.all_reduce(x, "sum", x)

    for one in world.all(half):
        assert isinstance(one, InvalidArgumentError)
        assert "in symmetric buffer 0" in str(one)
    world.close()


def test_symmetric_buffers_are_ordinary_arrays_if_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(formed(["here"] * 2, "shm"))
    create = Segment.create

    def full(prefix: str, size: int) -> Segment:
        if threading.get_ident() == unlucky[0]:
            raise ResourceExhaustedError("no room for 280,000 bytes")
        return create(prefix, size)

    unlucky = [0]
    monkeypatch.setattr(collective.Segment, "create", full)

    def reduce(group: Collective) -> Any:
        if group.rank:
            unlucky[0] = threading.get_ident()
        group.barrier()
        x = group.symmetric_buffer((70_000,), "f4")
        x[:] = 1
        return group.all_reduce(x, "sum", x)

    for one in world.all(reduce):
        assert isinstance(one, np.ndarray), one
        assert (one == 2).all()
    assert "another rank has no room" in world.ranks[0].notes[-1]
    assert "no room for 280,000" in world.ranks[1].notes[-1]
    world.close()
