"""The real collectives in virtual time: the code that clusters run, over a transport that only counts time.

    clocks, traffic = rehearse("ring", hosts=[0, 0, 1, 1], buckets=[1 << 20], cost=Cost())

Every rank is a thread with its own clock. A message carries its time of arrival, so that the result does not
depend on the order of the threads. This needs a thread per rank: `rings` gives the same for more ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Traffic
from nbdist.distribute.simulation.rings import edges
from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.base import AbortCheck, Collective, GroupBroken, GroupFailure, Member, rank_labels
from nbdist.wire.collective.call import CollectiveCall
from nbdist.wire.collective.hierarchical import HierarchicalCollective
from nbdist.wire.collective.local import LocalCollective, ThreadRendezvous
from nbdist.wire.collective.ring import RingCollective
from nbdist.wire.collective.schedule import Lanes, host_groups

Array: TypeAlias = np.ndarray[Any, Any]
PATIENCE_SECONDS = 60.0  # of real time, for a letter of another thread


def rehearse(
    kind: str, hosts: Sequence[int], buckets: Sequence[int], cost: Cost, starts: Sequence[float] | None = None
) -> tuple[Array, Traffic]:
    """Run all-reduces of float32 buckets (bytes) on a rank per entry of `hosts`; return their end times.

    `kind` is "ring" or "hierarchical", `starts` when each rank begins, in seconds.
    """
    ranks = len(hosts)
    clocks = [Clock(start) for start in (starts if starts is not None else [0.0] * ranks)]
    ends: list[VirtualNeighbours] = []
    groups = _groups(kind, hosts, clocks, cost, ends)

    def work(group: Collective) -> None:
        for nbytes in buckets:
            x = np.full(nbytes // 4, group.rank + 1.0, np.float32)
            group.all_reduce(x, "sum", out=x)
            if x.size and x[-1] != ranks * (ranks + 1) / 2:
                raise AssertionError(f"rank {group.rank} of {ranks} summed up to {x[-1]}")

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(work, groups))
    traffic = Traffic()
    for end in ends:
        traffic.add(end.source, end.target, end.messages, end.nbytes)
    return np.array([clock.now for clock in clocks]), traffic


class Clock:
    """The time of one rank, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now


class VirtualNeighbours:
    """One rank's end of a ring of threads, as `Neighbours` is for sockets."""

    def __init__(
        self,
        source: int,
        target: int,
        clock: Clock,
        cost: Cost,
        after: SimpleQueue[Any],
        own: SimpleQueue[Any],
    ) -> None:
        self.doing: Callable[[], str] = lambda: "forming the group"
        self.also_check: Callable[[], None] = lambda: None
        self.abort_check = AbortCheck()
        self.source, self.target = source, target
        """The hosts of this rank and of the next one."""
        self._clock, self._cost = clock, cost
        self._after, self._own = after, own
        self._free = 0.0
        self.rate, self.latency = cost.link_bytes_per_s, cost.latency_s
        self.messages = self.nbytes = 0

    def begin(self, text: str, sequence: int, timeout: float | None, number: int) -> None:
        """Begin a call."""

    def send(self, edge: int, value: Array) -> None:
        """Send a message."""
        nbytes, cost = value.nbytes, self._cost
        self._clock.now += cost.message_s + nbytes * cost.socket_s_per_byte
        self._free = max(self._clock.now, self._free) + nbytes / self.rate
        self.messages += 1
        self.nbytes += nbytes
        letter = np.array(value).reshape(-1).view(np.uint8)
        self._after.put((self._free + self.latency, edge, letter))

    def receive(self, edge: int) -> Array:
        """Receive message `edge` at its time of arrival."""
        try:
            arrives, number, value = self._own.get(timeout=PATIENCE_SECONDS)
        except Empty:
            text = f"no letter within {PATIENCE_SECONDS:.0f} s: {self.doing()}"
            raise GroupBroken(GroupFailure("DeadlineExceededError", text)) from None
        if number != edge:
            raise GroupBroken(
                GroupFailure("DataLossError", f"letter {number} instead of {edge}: {self.doing()}")
            )
        cost = self._cost
        taken = cost.message_s + value.nbytes * cost.socket_s_per_byte
        self._clock.now = max(self._clock.now, arrives) + taken
        letter: Array = value
        return letter

    def finish(self) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing: every thread raises its own errors."""

    def peek(self) -> str:
        """Say nothing of the others."""
        return ""

    def announce_failure(self, failure: GroupFailure) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class VirtualRendezvous(ThreadRendezvous):
    """The barrier of one host's ranks: all leave at the time at which the call is done."""

    def __init__(self, labels: Sequence[str], clocks: Sequence[Clock], cost: Cost) -> None:
        super().__init__(labels)
        self._clocks, self._cost = clocks, cost

    def _finish(self, sequence: int) -> None:
        call: CollectiveCall = self._here[0][0]
        super()._finish(sequence)
        taken = self._cost.shared_memory_s(call.what, call.nbytes, len(self._clocks))
        done = max(clock.now for clock in self._clocks) + taken
        for clock in self._clocks:
            clock.now = done


def _groups(
    kind: str, hosts: Sequence[int], clocks: Sequence[Clock], cost: Cost, ends: list[VirtualNeighbours]
) -> list[Collective]:
    everyone = range(len(hosts))
    if kind == "ring":
        return [*_ring(everyone, hosts, clocks, cost, ends)]
    if kind != "hierarchical":
        raise InvalidArgumentError(f"no collective {kind!r} to rehearse; choose from ring, hierarchical")
    lanes = Lanes(host_groups([str(host) for host in hosts]))
    rings: dict[int, RingCollective] = {}
    for lane in range(lanes.count):
        members = lanes.members(lane)
        ring = _ring(members, hosts, clocks, cost, ends, lanes.count)
        rings |= dict(zip(members, ring, strict=True))
    groups: dict[int, Collective] = {}
    for ranks in lanes.hosts:
        labels = rank_labels([f"worker {rank}" for rank in ranks])
        rendezvous = VirtualRendezvous(labels, [clocks[rank] for rank in ranks], cost)
        for place, rank in enumerate(ranks):
            inner = LocalCollective(place, labels, rendezvous)
            groups[rank] = HierarchicalCollective(_member(rank, hosts), inner, rings.get(rank))
    return [groups[rank] for rank in everyone]


def _ring(
    ranks: Sequence[int],
    hosts: Sequence[int],
    clocks: Sequence[Clock],
    cost: Cost,
    ends: list[VirtualNeighbours],
    rings: int = 1,
) -> list[RingCollective]:
    """Return a ring of some ranks, one of several, and add their ends to `ends`."""
    at = [hosts[rank] for rank in ranks]
    ways, queues = edges(at, cost, rings), [SimpleQueue[Any]() for _ in ranks]
    ring = []
    for place, rank in enumerate(ranks):
        following = (place + 1) % len(ranks)
        neighbours = VirtualNeighbours(
            at[place], at[following], clocks[rank], cost, queues[following], queues[place]
        )
        neighbours.rate, neighbours.latency = float(ways.rate[place]), float(ways.latency[place])
        ends.append(neighbours)
        ring.append(RingCollective(_member(place, at), neighbours))
    return ring


def _member(rank: int, hosts: Sequence[int]) -> Member:
    names = tuple(f"worker {number}" for number in range(len(hosts)))
    return Member(rank, tuple(str(host) for host in hosts), names, 1, "virtual")
