"""Collectives on a ring of sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collective_worlds import formed
from own_collective import OwnCollective, PeekContract

from nbdist.wire.collective.base import Collective


class TestRing(OwnCollective, PeekContract):
    ordered = False

    def make_world(self, size: int, **options: Any) -> Sequence[Collective]:
        return formed([f"host {rank}" for rank in range(size)], "ring", **options)
