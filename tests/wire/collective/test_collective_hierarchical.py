"""Collectives of several ranks on several hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from collective_worlds import formed
from own_collective import OwnCollective, PeekContract
from tiers import matrix

from nbdist.errors import InvalidArgumentError
from nbdist.testing.collective import MISMATCHES, World
from nbdist.wire.collective.base import Collective


class TestLanes(OwnCollective):
    """Hosts with as many ranks as each other: a lane for each."""

    sizes = (4, 6)
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        hosts = ["left", "right"] if size < 6 else ["left", "right", "middle"]
        return formed([hosts[rank % len(hosts)] for rank in range(size)], "hierarchical", **options)

    @pytest.mark.parametrize("mismatch", MISMATCHES)
    @pytest.mark.parametrize("odd", matrix([3], rest=[0, 1, 2]))
    def test_all_ranks_of_all_lanes_raise_a_mismatch(
        self, fresh: Callable[..., World], mismatch: str, odd: int
    ) -> None:
        world, (works, words) = fresh(4), MISMATCHES[mismatch]
        for result in world.each([works[rank == odd] for rank in range(4)]):
            assert isinstance(result, InvalidArgumentError), result
            assert "collective #1" in str(result)
            assert f"rank {odd} (" in str(result)
            assert all(word in str(result) for word in words), result


class TestHierarchical(OwnCollective, PeekContract):
    """Hosts with different numbers of ranks."""

    sizes = (1, 3, 5)
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed(["left", "right", "left", "left", "right"][:size], "hierarchical", **options)
