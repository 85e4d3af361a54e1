"""A connection that is lost and made again loses messages: the ranks detect every lost message."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from collective_worlds import formed

from nbdist.errors import NbdistError, UnavailableError
from nbdist.wire.channel.sender import MessageSender
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.ring import DATA, Neighbours, RingCollective

Calls = Callable[[Collective], object]
CALLS: dict[str, Calls] = {
    "all_reduce": lambda group: group.all_reduce(np.ones(2_000_000, np.float32)),
    # The root returns when it has sent all chunks, and receives the failure in its next call.
    "broadcast": lambda group: (group.broadcast(np.ones(2_000_000, np.float32)), group.barrier()),
    "barriers": lambda group: [group.barrier() for _ in range(3)],
}


class Lossy:
    """A sender that loses one of its messages, as when a connection is lost and made again."""

    def __init__(self, sender: MessageSender, lost: int) -> None:
        self._sender, self._lost, self._sent = sender, lost, 0

    def send(self, kind: int, *order: Any, **more: Any) -> None:
        self._sent += kind == DATA
        if kind != DATA or self._sent - 1 != self._lost:
            self._sender.send(kind, *order, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sender, name)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("what", list(CALLS))
def test_a_lost_message_breaks_the_group(what: str, lost: int) -> None:
    groups = formed(["left", "right"], "ring")
    first = groups[0]
    assert isinstance(first, RingCollective)
    assert isinstance(first._neighbours, Neighbours)
    first._neighbours._senders[1] = Lossy(first._neighbours._senders[1], lost)  # type: ignore[assignment]

    def outcome(group: Collective) -> Exception | None:
        try:
            CALLS[what](group)
        except NbdistError as error:
            return error
        return None

    try:
        with ThreadPoolExecutor(2) as pool:
            outcomes = list(pool.map(outcome, groups))
    finally:
        for group in groups:
            group.close()
    assert [type(one) for one in outcomes] == [UnavailableError, UnavailableError]
    assert "is missing" in str(outcomes[1])
