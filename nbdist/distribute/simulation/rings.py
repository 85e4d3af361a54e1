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
from nbdist.wire.collective.call import CollectiveCall, describe
from nbdist.wire.collective.schedule import AGREEMENT, BEGIN, Phase, RingSchedule, host_groups, phases

Array: TypeAlias = np.ndarray[Any, Any]
BYTES = np.dtype(np.uint8)


@lru_cache(maxsize=256)
def all_reduce(count: int, dtype: np.dtype[Any], size: int) -> CollectiveCall:
    """Return the call that all ranks make to sum up `count` items."""
    return describe("all_reduce", (count,), dtype, size, "sum")


class SimulatedRing:
    """Ranks in a ring, each with a clock; `hosts` are where they are. Ranks of a host share its link."""

    def __init__(self, hosts: Sequence[int], cost: Cost, traffic: Traffic) -> None:
        self.size, self._cost, self._traffic = len(hosts), cost, traffic
        self._hosts = list(hosts)
        self._edges = edges(hosts, cost)
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
    """Ranks on hosts: memory inside each, a ring of their leaders."""

    def __init__(self, hosts: Sequence[int], cost: Cost, traffic: Traffic) -> None:
        self._cost = cost
        self._hosts = host_groups([str(host) for host in hosts])
        self._leaders = np.array([ranks[0] for ranks in self._hosts])
        self._ring = SimulatedRing([hosts[rank] for rank in self._leaders], cost, traffic)

    def run(self, call: CollectiveCall, clocks: Array) -> Array:
        """Return when each rank is done, given when each begins."""
        clocks = clocks.copy()
        for phase in AGREEMENT:
            self._do(phase, BYTES, "", clocks)
        for phase in phases(call, self._hosts, 0):
            self._do(phase, call.work, "sum", clocks)
        return clocks

    def _do(self, phase: Phase, dtype: np.dtype[Any], op: str, clocks: Array) -> None:
        if phase.among == "leaders":
            part = _part(phase, dtype, op, len(self._hosts))
            clocks[self._leaders] = self._ring.run(part, clocks[self._leaders])
            return
        nbytes = phase.items * dtype.itemsize
        for ranks in self._hosts:
            if len(ranks) > 1:
                clocks[ranks] = clocks[ranks].max() + self._cost.shared_memory_s(
                    phase.what, nbytes, len(ranks)
                )


@dataclass(frozen=True)
class Edges:
    """From each rank to the next one: bytes per second, and seconds on the way."""

    rate: Array
    latency: Array


def edges(hosts: Sequence[int], cost: Cost) -> Edges:
    """Return what a ring's edges are like; those that leave or enter one host share its link evenly."""
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
        shared = cost.link_bytes_per_s / max(out[source], into[target]) if crosses else 0.0
        rates.append(shared if crosses else cost.memory_bytes_per_s)
        latencies.append(cost.latency_s if crosses else 0.0)
    return Edges(np.array(rates), np.array(latencies))


@lru_cache(maxsize=64)
def _way(call: CollectiveCall) -> RingSchedule:
    return RingSchedule.of(call)


@lru_cache(maxsize=64)
def _part(phase: Phase, dtype: np.dtype[Any], op: str, size: int) -> CollectiveCall:
    return describe(phase.what, (phase.items,), dtype, size, op if phase.what == "all_reduce" else "")


@lru_cache(maxsize=64)
def _sizes(schedule: RingSchedule, itemsize: int) -> list[Any]:
    """Return the bytes of each round's pieces: one number if all are alike, else by share."""
    chunks = ([schedule.chunk(n, share) for share in range(schedule.size)] for n in range(schedule.rounds))
    sizes = ([(chunk.stop - chunk.start) * itemsize for chunk in pieces] for pieces in chunks)
    return [each[0] if len(set(each)) == 1 else np.array(each) for each in sizes]
