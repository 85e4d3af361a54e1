"""The messages and bytes on real sockets equal those of the simulation."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from collective_worlds import formed
from tiers import matrix

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Traffic
from nbdist.distribute.simulation.rings import all_reduce
from nbdist.distribute.simulation.simulator import REDUCERS
from nbdist.testing.collective import World
from nbdist.wire.collective.ring import Neighbours


@pytest.mark.parametrize("nbytes", [400, 300_004, 1_500_000])
@pytest.mark.parametrize(
    ("kind", "hosts"),
    matrix(
        [("ring", [0, 0, 1, 1]), ("hierarchical", [0, 1, 0, 0, 1])],
        rest=[("ring", [0, 1, 2]), ("hierarchical", [0, 1, 2])],
    ),
)
def test_messages_and_bytes_equal_the_simulated_ones(
    monkeypatch: pytest.MonkeyPatch, kind: str, hosts: list[int], nbytes: int
) -> None:
    world = World(formed([f"host {host}" for host in hosts], kind))
    sent: list[int] = []
    lock, send = threading.Lock(), Neighbours.send

    def counted(self: Neighbours, edge: int, value: np.ndarray[Any, Any]) -> None:
        with lock:
            sent.append(value.nbytes)
        send(self, edge, value)

    monkeypatch.setattr(Neighbours, "send", counted)
    for one in world.all(lambda group: group.all_reduce(np.ones(nbytes // 4, "f4"), "sum")):
        assert (one == len(hosts)).all()
    world.close()
    traffic = Traffic()
    REDUCERS[kind](hosts, Cost(), traffic).run(
        all_reduce(nbytes // 4, np.dtype("f4"), len(hosts)), np.zeros(len(hosts))
    )
    assert (len(sent), sum(sent)) == (traffic.messages, traffic.bytes)
