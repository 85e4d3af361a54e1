"""Events in the order of their time, and what the tasks of a host share: its link and its cores."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.report import Traffic


class Events:
    """What happens when, in seconds of simulated time.

    >>> events = Events()
    >>> events.at(2.0, print, "second")
    >>> events.at(1.0, print, "first")
    >>> events.play()
    first
    second
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._coming: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, after: float, what: Callable[..., object], *details: Any) -> None:
        """Have `what(*details)` called so many seconds from now."""
        self._number += 1  # of two at one time, the first to be planned comes first
        heapq.heappush(self._coming, (self.now + after, self._number, what, details))

    def play(self) -> None:
        """Call everything, until nothing is left."""
        coming, pop = self._coming, heapq.heappop
        while coming:
            self.now, _, what, details = pop(coming)
            what(*details)


class Hosts:
    """The links and cores of all hosts; served in order of arrival."""

    def __init__(self, count: int, cost: Cost, events: Events, traffic: Traffic) -> None:
        self._cost, self._events, self._traffic = cost, events, traffic
        self._out, self._into = [0.0] * count, [0.0] * count
        self._cores = [[0.0] * cost.cores for _ in range(count)] if cost.cores else []

    def work(self, host: int, seconds: float, then: Callable[..., object], *details: Any) -> None:
        """Call `then` when a core of the host has worked so long, from as soon as one is free."""
        if self._cores:
            now = self._events.now
            begin = max(now, heapq.heappop(self._cores[host]))
            heapq.heappush(self._cores[host], begin + seconds)
            seconds += begin - now
        self._events.at(seconds, then, *details)

    def send(
        self, after: float, source: int, target: int, nbytes: int, then: Callable[..., object], *details: Any
    ) -> None:
        """Call `then` when a message that leaves in `after` seconds is there; links carry one at a time.

        Its pieces cross the link no faster than an end encrypts or decrypts them.
        """
        if source == target:
            self._traffic.host_messages += 1
            self._events.at(after, then, *details)
            return
        self._traffic.add(source, target, 1, nbytes)
        if nbytes == 0:
            self._events.at(after + self._cost.latency_s, then, *details)
        else:
            self._events.at(after, self._leave, source, target, nbytes, then, details)

    def _leave(
        self, source: int, target: int, nbytes: int, then: Callable[..., object], details: Any
    ) -> None:
        now, cost = self._events.now, self._cost
        carrying = nbytes * max(1 / cost.link_bytes_per_s, cost.socket_s_per_byte)
        leaves = max(now, self._out[source])
        self._out[source] = leaves + carrying
        self._events.at(leaves - now + cost.latency_s, self._enter, target, carrying, then, details)

    def _enter(self, target: int, carrying: float, then: Callable[..., object], details: Any) -> None:
        now = self._events.now
        self._into[target] = max(now, self._into[target]) + carrying
        self._events.at(self._into[target] - now, then, *details)
