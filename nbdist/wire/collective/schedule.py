"""Who sends what to whom, in which order, in a collective call. Pure: no sockets, no clock.

    schedule = RingSchedule.of(call)
    for number, step in schedule.actions(): ...        # what every rank of a ring does, one after the other
    phases(call, host_groups(hosts), host)      # what a host's ranks do, and the leaders between hosts

The ring and the hierarchical collectives follow these, and so do simulations of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from nbdist.wire.collective.call import REDUCING, CollectiveCall

CHUNK_BYTES = 1 << 18
ROUNDS_IN_FLIGHT = 4  # rounds
BEGIN = -1
TEXT_BYTES = 512


@dataclass(frozen=True, eq=False)
class RingSchedule:
    """One reduce-scatter, all-gather or both on their way round a ring of `size` ranks.

    Each rank's share of the items is cut into pieces of `length` items at most; the n pieces of one round,
    one of each share, travel together. Piece p starts where it is not needed next.
    """

    size: int
    shares: tuple[tuple[int, int], ...]
    """Which items belong to each rank: from, to."""
    length: int
    reduces: bool
    hands_out: bool
    shift: int
    """1 if a reduced piece ends its way on the rank that it belongs to, 0 if just before it is handed out."""

    @classmethod
    def of(cls, call: CollectiveCall) -> RingSchedule:
        """Return how a call travels; for a broadcast see `broadcast_route`."""
        if call.what in ("all_gather", "barrier"):
            shares = [(rank * call.count, (rank + 1) * call.count) for rank in range(call.size)]
        else:
            shares = call.shares(8)
        return cls(
            call.size,
            tuple(shares),
            chunk_items(call),
            call.what in REDUCING,
            call.what != "reduce_scatter",
            int(call.what == "reduce_scatter"),
        )

    @cached_property
    def messages(self) -> int:
        """How many letters a rank sends, and receives, in each round."""
        return (self.size - 1) * (self.reduces + self.hands_out)

    @cached_property
    def rounds(self) -> int:
        """How many rounds it takes to send every share's pieces round; at least 1."""
        longest = max(high - low for low, high in self.shares)
        return max(1, -(-longest // self.length))

    def actions(self) -> Iterator[tuple[int, int]]:
        """Yield what a rank does, in order, as (round, step); every rank does the same.

        At step BEGIN it sends a piece of its own; else it takes the letter of that step in and, unless that
        was the last one, sends the next. Letters come in the order in which the rank before sends them, and
        that is the order in which this one does.

        >>> from nbdist.wire.collective.call import describe
        >>> import numpy as np
        >>> list(RingSchedule.of(describe("all_reduce", (4,), np.dtype("f4"), size=2, op="sum")).actions())
        [(0, -1), (0, 0), (0, 1)]
        """
        begun = min(ROUNDS_IN_FLIGHT, self.rounds)
        coming = deque((number, 0) for number in range(begun))
        yield from ((number, BEGIN) for number in range(begun))
        while coming:
            number, step = coming.popleft()
            yield number, step
            if step < self.messages - 1:
                coming.append((number, step + 1))
            elif begun < self.rounds:
                yield begun, BEGIN
                coming.append((begun, 0))
                begun += 1

    def sent(self, rank: int, step: int) -> int:
        """Return whose share the piece is of that a rank sends as a round's letter `step`."""
        return (rank - step - self.shift) % self.size

    def received(self, rank: int, step: int) -> int:
        """Return whose share the piece is of that a rank receives as a round's letter `step`."""
        return self.sent(rank - 1, step)

    def chunk(self, number: int, share: int) -> slice:
        """Return the items that travel in a round, of one rank's share."""
        low, high = self.shares[share]
        at = min(high, low + number * self.length)
        return slice(at, min(high, at + self.length))


def broadcast_route(call: CollectiveCall, rank: int) -> tuple[int, list[slice]]:
    """Return how many ranks before this one pass a broadcast's pieces on, and the pieces.

    The root has place 0; place p receives each piece from place p - 1, and all but the last send it on.
    """
    length = chunk_items(call)
    chunks = [slice(at, min(call.count, at + length)) for at in range(0, call.count, length)]
    return (rank - call.root) % call.size, chunks


def chunk_items(call: CollectiveCall) -> int:
    """Return how many items travel in one letter at most."""
    return max(1, CHUNK_BYTES // max(1, call.work.itemsize))


def host_groups(hosts: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each host, in order; the first of each is the leader.

    >>> host_groups(["a", "b", "a"])
    [[0, 2], [1]]
    """
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return list(by_host.values())


class Phase(NamedTuple):
    """A part of a hierarchical call: a call of the ranks of each host, or of all hosts' leaders.

    `items` is how many each rank gives; `root` is the place among them, -1 where there is none.
    """

    among: Literal["host", "leaders"]
    what: str
    items: int
    root: int = -1


AGREEMENT = (
    Phase("host", "all_gather", TEXT_BYTES),
    Phase("leaders", "all_gather", TEXT_BYTES),
    Phase("host", "barrier", 0),
)
"""How all ranks learn that they make the same call, by their texts (bytes), before any value moves."""


def phases(call: CollectiveCall, hosts: Sequence[Sequence[int]], host: int) -> tuple[Phase, ...]:
    """Return what the ranks of one host do for a call, after the agreement; leaders meet in between.

    A value crosses the network once per host, not once per rank.

    >>> from nbdist.wire.collective.call import describe
    >>> import numpy as np
    >>> call = describe("all_reduce", (9,), np.dtype("f4"), size=3, op="sum")
    >>> [f"{phase.what} among {phase.among}" for phase in phases(call, [[0, 1], [2]], 0)]
    ['all_reduce among host', 'all_reduce among leaders', 'broadcast among host']
    """
    count = call.count
    if call.what in REDUCING:
        return (
            Phase("host", "all_reduce", count),
            Phase("leaders", "all_reduce", count),
            Phase("host", "broadcast", count, 0),
        )
    if call.what == "broadcast":
        where = next(number for number, ranks in enumerate(hosts) if call.root in ranks)
        between = Phase("leaders", "broadcast", count, where)
        if where == host:
            return (Phase("host", "broadcast", count, hosts[where].index(call.root)), between)
        return (between, Phase("host", "broadcast", count, 0))
    if call.what == "all_gather":
        most = max(map(len, hosts))  # as many rows as the host with most ranks has
        return (
            Phase("host", "all_gather", count),
            Phase("leaders", "all_gather", most * count),
            Phase("host", "broadcast", len(hosts) * most * count, 0),
        )
    return ()
