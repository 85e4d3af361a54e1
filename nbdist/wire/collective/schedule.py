"""The order of messages of a collective call, as pure functions: no sockets, no clock.

    schedule = RingSchedule.of(call)
    for number, step in schedule.actions(): ...        # the actions of every rank of a ring, in order
    Lanes(host_groups(hosts)).plan(call, host)         # the phases of a hierarchical call on one host

The ring and the hierarchical collectives follow these schedules, and so do their simulations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from nbdist.wire.collective.call import REDUCING, CollectiveCall

CHUNK_BYTES = 1 << 19
ROUNDS_IN_FLIGHT = 4  # rounds
BEGIN = -1


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
        """Return the schedule of a call; for a broadcast see `broadcast_route`.

        In an all-reduce of two ranks that fits into a message, the share of each is everything: they exchange
        what they have.
        """
        if call.what == "all_reduce" and call.size == 2 and call.count <= chunk_items(call):
            return cls(2, ((0, call.count),) * 2, chunk_items(call), reduces=True, gathers=False, shift=0)
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
        >>> list(RingSchedule.of(describe("all_reduce", (6,), np.dtype("f4"), size=3, op="sum")).actions())
        [(0, -1), (0, 0), (0, 1), (0, 2), (0, 3)]
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


def host_groups(hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host, in order; the first of each is the leader.

    >>> host_groups(["a", "b", "a"])
    ((0, 2), (1,))
    """
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return tuple(map(tuple, by_host.values()))


class Phase(NamedTuple):
    """A part of a hierarchical call: a call of the ranks of a host, or of each lane.

    `items` is the number of items of each rank; `root` is a rank of the inner group, -1 if there is none.
    """

    among: Literal["host", "lanes"]
    what: str
    items: int
    root: int = -1


@dataclass(frozen=True)
class Lanes:
    """The lanes of a group on several hosts: lane i is a ring of one rank of each host.

    There are as many as the smallest host has ranks. Rank number j of a host is in lane j if there is one;
    another rank's values go through lane j modulo the number of lanes.
    """

    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host."""

    @cached_property
    def count(self) -> int:
        """How many lanes there are."""
        return min(map(len, self.hosts))

    @cached_property
    def turns(self) -> int:
        """How many ranks of the largest host share a lane."""
        return -(-max(map(len, self.hosts)) // self.count)

    def members(self, lane: int) -> list[int]:
        """Return the ranks of a lane, one of each host."""
        return [ranks[lane] for ranks in self.hosts]

    def places(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield every rank with its lane, its host and its turn among the host's ranks of that lane.

        >>> list(Lanes(((0, 2), (1,))).places())
        [(0, 0, 0, 0), (2, 0, 0, 1), (1, 0, 1, 0)]
        """
        for host, ranks in enumerate(self.hosts):
            for number, rank in enumerate(ranks):
                yield rank, number % self.count, host, number // self.count

    def plan(self, call: CollectiveCall, host: int) -> HostPlan:
        """Return the phases of a call on one host.

        A value crosses the network once per host, not once per rank. The ranks of a host have made the same
        call before one of them sends another host anything that completes a call there.

        >>> from nbdist.wire.collective.call import describe
        >>> import numpy as np
        >>> call = describe("all_reduce", (9,), np.dtype("f4"), size=4, op="sum")
        >>> plan = Lanes(((0, 1), (2, 3))).plan(call, 0)
        >>> [f"{phase.what} of {phase.items} among {phase.among}" for phase in plan.phases]
        ['reduce_scatter of 10 among host', 'all_reduce of 5 among lanes', 'all_gather of 5 among host']
        """
        ranks, lanes = len(self.hosts[host]), self.count
        even, width, root = ranks == lanes, -(-call.count // lanes), -1
        collect: tuple[Phase, ...] = (Phase("host", "barrier", 0),)
        given = taken = width
        if call.what == "reduce_scatter":
            taken = self.turns * most_items(call)
            given = len(self.hosts) * taken
        elif call.what == "all_gather":
            given = self.turns * call.count
            taken = len(self.hosts) * given
            collect = () if even else (Phase("host", "all_gather", call.count),)
        elif call.what == "broadcast":
            root = next(number for number, ranks in enumerate(self.hosts) if call.root in ranks)
            if root == host:
                collect = (Phase("host", "broadcast", call.count, self.hosts[host].index(call.root)),)
        if call.what in REDUCING:
            collect = (Phase("host", "reduce_scatter" if even else "all_reduce", lanes * given),)
        spread: tuple[Phase, ...] = (Phase("host", "all_gather", taken),)
        if not even:
            spread = tuple(Phase("host", "broadcast", taken, lane) for lane in range(lanes))
        if root == host or call.what == "barrier":
            spread = (Phase("host", "barrier", 0),)
        if even and (root == host or call.what in ("reduce_scatter", "barrier")):
            spread = ()
        between = Phase("lanes", call.what, given, root)
        return HostPlan(collect, between, spread) if ranks > 1 else HostPlan((), between, ())


class HostPlan(NamedTuple):
    """The phases of a hierarchical call on one host."""

    collect: tuple[Phase, ...]
    """Brings what the host's ranks give to the ranks of the lanes: one phase or none."""
    between: Phase
    """The call of each lane."""
    spread: tuple[Phase, ...]
    """Brings the lanes' results to all ranks of the host: one phase, or one for each lane."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, in order."""
        return (*self.collect, self.between, *self.spread)


def most_items(call: CollectiveCall) -> int:
    """Return how many items of a reduce-scatter's result a rank has at most."""
    low, high = call.rows(0)
    return (high - low) * prod(call.shape[1:])
