"""Collectives of several ranks on several hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collective_worlds import formed
from own_collective import OwnCollective, PeekContract

from nbdist.wire.collective.base import Collective


class TestHierarchical(OwnCollective, PeekContract):
    sizes = (1, 3, 5)
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed(["left", "right", "left", "left", "right"][:size], "hierarchical", **options)
