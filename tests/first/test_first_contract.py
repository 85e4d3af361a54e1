"""A strategy that passes the contract of strategies; docs/testing.md explains it."""

from __future__ import annotations

import pytest

from nbdist.distribute import MultiWorkerMirroredStrategy
from nbdist.runtime.groups import World as Place
from nbdist.testing import StrategyContract, thread_world
from nbdist.testing.strategy import World


class RingStrategy(MultiWorkerMirroredStrategy):
    """Sums gradients on a ring of sockets. In this test its ranks are threads, which share memory."""

    name = "own_ring"

    def __init__(self, world: Place | None = None) -> None:
        super().__init__("ring", world=world)


class TestRingStrategy(StrategyContract):
    @pytest.fixture
    def world(self) -> World:
        return thread_world(lambda place: RingStrategy(world=place), size=2)
