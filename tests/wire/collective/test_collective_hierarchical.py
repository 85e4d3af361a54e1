"""Collectives of several ranks on several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collective_worlds import formed
from own_collective import OwnCollective, PeekContract

from nbdist.wire.collective.base import Collective


class TestLanes(OwnCollective):
    """Hosts with as many ranks as each other: a lane for each."""

    sizes = (4, 6)
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        hosts = ["left", "right"] if size < 6 else ["left", "right", "middle"]
        return formed([hosts[rank % len(hosts)] for rank in range(size)], "hierarchical", **options)


class TestHierarchical(OwnCollective, PeekContract):
    """Hosts with different numbers of ranks."""

    sizes = (1, 3, 5)
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed(["left", "right", "left", "left", "right"][:size], "hierarchical", **options)
