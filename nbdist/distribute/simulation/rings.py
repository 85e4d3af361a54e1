"""Rings and hierarchies of any size: what each letter costs, for all ranks at once.

The schedule is the collectives' own (`nbdist.wire.collective.schedule`); here is the clock only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Traffic
from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.call import REDUCING, CollectiveCall, describe
from nbdist.wire.collective.schedule import BEGIN, Lanes, Phase, RingSchedule, host_groups

Array: TypeAlias = np.ndarray[Any, Any]


@lru_cache(maxsize=256)
def all_reduce(count: int, dtype: np.dtype[Any], size: int) -> CollectiveCall:
    """Return the call that all ranks make to sum up `count` items."""
    return describe("all_reduce", (count,), dtype, size, "sum")


class SimulatedRing:
    """Ranks in a ring, each with a clock; `hosts` are where they are. Ranks of a host share its link.

    So do the ranks of `rings` rings that run at once, one on each host.
    """

    def __init__(self, hosts: Sequence[int], cost: Cost, traffic: Traffic, rings: int = 1) -> None:
        self.size, self._cost, self._traffic = len(hosts), cost, traffic
        self._hosts = list(hosts)
        self._edges = edges(hosts, cost, rings)
        self._free = np.zeros(self.size)

    def run(self, call: CollectiveCall, clocks: Array) -> Array:
        """Return when each rank is done, given when each begins."""
        if self.size == 1:
            return clocks
        if call.what == "broadcast":
            raise InvalidArgumentError("broadcasts are not simulated: no step has one")
        schedule, cost = _way(call), self._cost
        sent = np.zeros(self.size, np.int64)
        ranks, before = np.arange(self.size), np.arange(-1, self.size - 1)
        sizes = _sizes(schedule, call.work.itemsize)
        coming: deque[tuple[Array, Any]] = deque()
        for number, step in schedule.actions():
            if step != BEGIN:
                arrived, taken = coming.popleft()
                clocks = np.maximum(clocks, arrived) + (cost.message_s + taken * cost.socket_s_per_byte)
            if step == schedule.messages - 1:
                continue
            nbytes = sizes[number]
            if isinstance(nbytes, np.ndarray):
                nbytes = nbytes[(ranks - (step + 1) - schedule.shift) % self.size]
            clocks = clocks + (cost.message_s + nbytes * cost.socket_s_per_byte)
            self._free = np.maximum(clocks, self._free) + nbytes / self._edges.rate
            sent += nbytes
            arriving = (self._free + self._edges.latency)[before]
            coming.append((arriving, nbytes[before] if isinstance(nbytes, np.ndarray) else nbytes))
        for rank, host in enumerate(self._hosts):
            after = self._hosts[(rank + 1) % self.size]
            self._traffic.add(host, after, schedule.rounds * schedule.messages, int(sent[rank]))
        return clocks


class SimulatedHierarchy:
    """Ranks on hosts: memory inside each, and lanes between them, which share the links."""

    def __init__(self, hosts: Sequence[int], cost: Cost, traffic: Traffic) -> None:
        self._cost = cost
        self._lanes = Lanes(host_groups([str(host) for host in hosts]))
        members = [self._lanes.members(lane) for lane in range(self._lanes.count)]
        at = [hosts[rank] for rank in members[0]]
        self._rings = [(np.array(ranks), SimulatedRing(at, cost, traffic, len(members))) for ranks in members]

    def run(self, call: CollectiveCall, clocks: Array) -> Array:
        """Return when each rank is done, given when each begins."""
        clocks = clocks.copy()
        plans = [self._lanes.plan(call, host) for host in range(len(self._lanes.hosts))]
        for host, plan in enumerate(plans):
            for phase in plan.collect:
                self._inside(host, phase, call.work, clocks)
        part = _part(plans[0].between, call.work, len(plans))
        for ranks, ring in self._rings:
            clocks[ranks] = ring.run(part, clocks[ranks])
        for host, plan in enumerate(plans):
            for phase in plan.spread:
                self._inside(host, phase, call.work, clocks)
        return clocks

    def _inside(self, host: int, phase: Phase, dtype: np.dtype[Any], clocks: Array) -> None:
        ranks = list(self._lanes.hosts[host])
        if len(ranks) > 1:
            nbytes = phase.items * dtype.itemsize
            clocks[ranks] = clocks[ranks].max() + self._cost.shared_memory_s(phase.what, nbytes, len(ranks))


@dataclass(frozen=True)
class Edges:
    """From each rank to the next one: bytes per second, and seconds on the way."""

    rate: Array
    latency: Array


def edges(hosts: Sequence[int], cost: Cost, rings: int = 1) -> Edges:
    """Return what a ring's edges are like; those that leave or enter one host share its link evenly.

    So do the edges of several `rings` on these hosts.
    """
    pairs = [(host, hosts[(rank + 1) % len(hosts)]) for rank, host in enumerate(hosts)]
    out: dict[int, int] = {}
    into: dict[int, int] = {}
    for source, target in pairs:
        if source != target:
            out[source] = out.get(source, 0) + 1
            into[target] = into.get(target, 0) + 1
    rates, latencies = [], []
    for source, target in pairs:
        crosses = source != target
        shared = cost.link_bytes_per_s / rings / max(out[source], into[target]) if crosses else 0.0
        rates.append(shared if crosses else cost.memory_bytes_per_s)
        latencies.append(cost.latency_s if crosses else 0.0)
    return Edges(np.array(rates), np.array(latencies))


@lru_cache(maxsize=64)
def _way(call: CollectiveCall) -> RingSchedule:
    return RingSchedule.of(call)


@lru_cache(maxsize=64)
def _part(phase: Phase, dtype: np.dtype[Any], size: int) -> CollectiveCall:
    return describe(phase.what, (phase.items,), dtype, size, "sum" if phase.what in REDUCING else "")


@lru_cache(maxsize=64)
def _sizes(schedule: RingSchedule, itemsize: int) -> list[Any]:
    """Return the bytes of each round's pieces: one number if all are alike, else by share."""
    chunks = ([schedule.chunk(n, share) for share in range(schedule.size)] for n in range(schedule.rounds))
    sizes = ([(chunk.stop - chunk.start) * itemsize for chunk in pieces] for pieces in chunks)
    return [each[0] if len(set(each)) == 1 else np.array(each) for each in sizes]
