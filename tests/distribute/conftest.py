"""Clusters of Servers in this process, and strategies that drive their workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nbdist.distribute.in_graph.strategy import InGraphStrategy
from nbdist.runtime.server import Server
from nbdist.wire.keys import ClusterKeys

Town = Callable[..., InGraphStrategy]


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """States and checkpoints are written in every step; none has to survive the end of this host."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def servers() -> Iterator[Callable[[int, int], list[Server]]]:
    """Create the Servers of a cluster; each knows the addresses of all others."""
    made: list[Server] = []

    def start(workers: int, ps: int) -> list[Server]:
        keys = ClusterKeys.create()
        for job, number in (("worker", workers), ("ps", ps)):
            for i in range(number):
                made.append(Server({job: {i: "127.0.0.1:0"}}, job, i, keys=keys))
        spec: dict[str, dict[int, str]] = {}
        for one in made:
            spec.setdefault(one.job, {})[one.index] = one.address
        for one in made:
            one.cluster = type(one.cluster)(spec)
        return made

    yield start
    for one in made:
        one.close()


@pytest.fixture
def town(servers: Callable[[int, int], list[Server]]) -> Town:
    def make(workers: int, ps: int = 1, gpus: bool = False, **options: Any) -> InGraphStrategy:
        made = servers(workers, ps)
        devices = [f"{one.name}/device:CPU:0" for one in made]
        for number, one in enumerate(made[: workers if gpus else 0]):
            one.sessions.kinds = ("CPU:0", f"GPU:{number}")
            devices[number] = f"{one.name}/device:GPU:{number}"
        return InGraphStrategy(made[0].target, devices[:workers], devices[workers:], **options)

    return make
