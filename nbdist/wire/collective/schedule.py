"""The order of messages of a collective call, as pure functions: no sockets, no clock.

    schedule = RingSchedule.of(call)
    for number, step in schedule.actions(): ...        # the actions of every rank of a ring, in order
    phases(call, host_groups(hosts), host)             # the phases of a hierarchical call on one host

The ring and the hierarchical collectives follow these schedules, and so do their simulations.
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
    """The schedule of one reduce-scatter, all-gather or both, on a ring of `size` ranks.

    Each rank's share of the items is cut into chunks of at most `length` items. A round moves one chunk of
    each share along the ring.
    """

    size: int
    shares: tuple[tuple[int, int], ...]
    """The items of each rank's share: begin and end."""
    length: int
    reduces: bool
    gathers: bool
    shift: int
    """1 for a reduce-scatter, so that a rank receives its own share last; 0 otherwise."""

    @classmethod
    def of(cls, call: CollectiveCall) -> RingSchedule:
        """Return the schedule of a call; for a broadcast see `broadcast_route`."""
        return cls(
            call.size,
            tuple(call.shares(8)),
            chunk_items(call),
            call.what in REDUCING,
            call.what != "reduce_scatter",
            int(call.what == "reduce_scatter"),
        )

    @cached_property
    def messages(self) -> int:
        """How many messages a rank sends, and receives, in each round."""
        return (self.size - 1) * (self.reduces + self.gathers)

    @cached_property
    def rounds(self) -> int:
        """How many rounds the longest share needs; at least 1."""
        longest = max(high - low for low, high in self.shares)
        return max(1, -(-longest // self.length))

    def actions(self) -> Iterator[tuple[int, int]]:
        """Yield a rank's actions, in order, as (round, step); all ranks have the same.

        At step BEGIN a rank sends one of its own chunks. At other steps it receives the round's message
        `step` and, unless that is the last one, sends message `step + 1`. All ranks send and receive in the
        same order, so each message received is the expected one.

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
        """Return the share (a rank) that a rank sends a chunk of in a round's message `step`."""
        return (rank - step - self.shift) % self.size

    def received(self, rank: int, step: int) -> int:
        """Return the share (a rank) that a rank receives a chunk of in a round's message `step`."""
        return self.sent(rank - 1, step)

    def chunk(self, number: int, share: int) -> slice:
        """Return the items of a share that a round moves."""
        low, high = self.shares[share]
        at = min(high, low + number * self.length)
        return slice(at, min(high, at + self.length))


def broadcast_route(call: CollectiveCall, rank: int) -> tuple[int, list[slice]]:
    """Return a rank's position in a broadcast, and the chunks.

    The root has position 0. Position p receives each chunk from position p - 1; all but the last forward it.
    """
    length = chunk_items(call)
    chunks = [slice(at, min(call.count, at + length)) for at in range(0, call.count, length)]
    return (rank - call.root) % call.size, chunks


def chunk_items(call: CollectiveCall) -> int:
    """Return how many items a message has at most."""
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
    """A part of a hierarchical call: a call of the ranks of each host, or of the leaders of all hosts.

    `items` is the number of items of each rank; `root` is a rank of the inner group, -1 if there is none.
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
"""The phases that compare the calls of all ranks, as texts in bytes, before any value moves."""


def phases(call: CollectiveCall, hosts: Sequence[Sequence[int]], host: int) -> tuple[Phase, ...]:
    """Return the phases of a call on one host, after the agreement.

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
        most = max(map(len, hosts))  # rows: the number of ranks of the largest host
        return (
            Phase("host", "all_gather", count),
            Phase("leaders", "all_gather", most * count),
            Phase("host", "broadcast", len(hosts) * most * count, 0),
        )
    return ()
