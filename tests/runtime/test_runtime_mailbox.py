"""Reading parameters out of shared memory while they are changed there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nbdist.optim import SGD
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import CHANGES, Mailbox
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.sync import Rules
from nbdist.wire.shm import Segment, remove_all

Array = np.ndarray[Any, Any]
PATIENCE = 20.0
LAYOUT = Layout.of([("v", (200_000,), "<f4")])
PREFIX = "nbdist-mailboxtest"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    segment = Segment.create(PREFIX, Mailbox.size(LAYOUT, 1))
    yield Mailbox(segment, LAYOUT, 1)
    segment.close()
    assert remove_all(PREFIX) == []


class HalfWay(SGD):
    """Stops in the middle of each update until it may continue."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.reached, self.may_continue = threading.Event(), threading.Event()

    def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
        half = len(parameters) // 2
        parameters[:half] -= gradient[:half]
        self.reached.set()
        assert self.may_continue.wait(PATIENCE)
        parameters[half:] -= gradient[half:]


def shard(mailbox: Mailbox, optimizer: SGD, locking: bool = True) -> ParameterShard:
    return ParameterShard(
        LAYOUT, mailbox.parameters, mailbox.counters, optimizer, Rules(1, locking=locking), counts=True
    )


def ones() -> list[Array]:
    buffer = LAYOUT.buffer()
    LAYOUT.views(buffer)[0][:] = -1
    return LAYOUT.flats(buffer)


@pytest.mark.parametrize("locking", [False, True])
def test_a_read_in_the_middle_of_an_update(mailbox: Mailbox, locking: bool) -> None:
    optimizer, into = HalfWay(), LAYOUT.buffer()
    one, values = shard(mailbox, optimizer, locking), LAYOUT.views(into)[0]
    writer = threading.Thread(target=one.offer, args=(0, 0, ones(), 0))
    writer.start()
    assert optimizer.reached.wait(PATIENCE)
    np.copyto(into, mailbox.parameters)
    assert (values[0], values[-1]) == (1, 0)  # the result of reads and updates without a lock
    found = mailbox.read_whole(into, tries=5)
    assert (found is None) == locking
    optimizer.may_continue.set()
    writer.join(PATIENCE)
    assert mailbox.read_whole(into, tries=1) == (1, 1)
    assert (values == 1).all()
    assert mailbox.counters[CHANGES] == (2 if locking else 0)


def test_however_many_updates_there_are_no_read_sees_half_of_one(mailbox: Mailbox) -> None:
    """Fails within a few updates if the changes are not looked at."""
    one, gradient, into = shard(mailbox, SGD(1.0)), ones(), LAYOUT.buffer()
    values = LAYOUT.views(into)[0]

    def update() -> None:
        for _ in range(400):
            one.offer(0, 0, gradient, one.updates)

    writer = threading.Thread(target=update)
    writer.start()
    while writer.is_alive():
        found = mailbox.read_whole(into, tries=4)
        if found is not None:
            assert found[0] == found[1] == values[0]
            assert (values == values[0]).all()
    assert mailbox.read_whole(into, tries=1) == (400, 400)
