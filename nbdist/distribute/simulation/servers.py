"""Simulated parameter servers, event by event: what waits in which queue decides how fast they are.

    serving = Serving(machines, sizes, rules, cost)
    serving.pull(replica, server, then)      # a replica asks; `then()` is called when it has the answer
    serving.push(replica, server, slot, after)
    serving.events.play()

A server handles one request at a time; a real `ParameterShard` without parameters decides when it answers a
replica. Tasks of one host use its memory instead of messages, as they do in a cluster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nbdist.distribute.simulation.cost import Cost
from nbdist.distribute.simulation.events import Events, Hosts
from nbdist.distribute.simulation.report import Traffic
from nbdist.optim import SGD
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import COUNTERS
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.sync import Answer, Rules
from nbdist.wire.rpc.envelope import PIECE

Then = Callable[[], object]


@dataclass(frozen=True)
class Machines:
    """On which host each task is."""

    workers: Sequence[int]
    servers: Sequence[int]

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return max([*self.workers, *self.servers]) + 1


class Client(Protocol):
    """A replica, as servers know it."""

    number: int
    host: int

    def on_answer(self, server: int, answer: Answer) -> None:
        """Handle a server's answer to a gradient."""


@dataclass
class SimulatedServer:
    """One parameter server: its shard, its size in bytes, and the requests in its queue."""

    number: int
    host: int
    nbytes: int
    shard: ParameterShard
    line: deque[Then] = field(default_factory=deque)
    busy: bool = False


class Serving:
    """All servers of one training; `sizes` are the bytes of their shards."""

    def __init__(self, machines: Machines, sizes: Sequence[int], rules: Rules, cost: Cost) -> None:
        self.traffic, self.events = Traffic(), Events()
        self.hosts = Hosts(machines.hosts, cost, self.events, self.traffic)
        self.updates: list[float] = []
        """When the first server's parameters changed, in seconds."""
        self.clients: dict[int, Client] = {}
        """The receivers of answers: every replica, by its number."""
        self._cost, self._rules = cost, rules
        places = enumerate(zip(machines.servers, sizes, strict=True))
        self.servers = [
            SimulatedServer(number, host, size, _shard(rules, number)) for number, (host, size) in places
        ]

    # What a replica asks for.

    def pull(self, client: Client, number: int, then: Callable[[int], object]) -> None:
        """Bring a server's parameters; `then(version)` is called when they are there."""
        server, cost = self.servers[number], self._cost
        if server.host == client.host:  # one copy out of shared memory; the server knows nothing of it
            version = server.shard.updates
            self.hosts.work(client.host, cost.copy_s(server.nbytes), then, version)
        else:
            self._ask(server, client, 0, cost.message_s, lambda: self._give(server, client, then))

    def push(self, client: Client, number: int, slot: int, version: int, after: float) -> float:
        """Send a server a gradient in `after` seconds; return when the replica is done with that."""
        server = self.servers[number]
        after += self._ends(client.host, server.host, server.nbytes)
        self._ask(server, client, server.nbytes, after, lambda: self._take(server, client, slot, version))
        return after

    def count(self, client: Client, then: Then) -> None:
        """Have the first server count an update of all shards; `then` is called when it has."""
        server = self.servers[0]
        each, work = self._ends(client.host, server.host, 0), self.hosts.work
        self._ask(
            server, client, 0, each, lambda: work(server.host, each, self._counted, server, client, then)
        )

    def leave(self, client: Client, server: SimulatedServer) -> None:
        """Record that a replica has finished; this costs no time."""
        for answer in server.shard.leave(client.number):
            self._answer(server, answer, 0.0)

    @property
    def staleness(self) -> float:
        """How many updates gradients were late, on average."""
        return self.servers[0].shard.statistics.staleness[0]

    # What a server does.

    def _ask(self, server: SimulatedServer, client: Client, nbytes: int, after: float, handle: Then) -> None:
        self.hosts.send(after, client.host, server.host, nbytes, self._request, server, handle)

    def _request(self, server: SimulatedServer, handle: Then) -> None:
        """Handle a request as soon as all that came before it are."""
        if server.busy:
            server.line.append(handle)
        else:
            server.busy = True
            handle()

    def _next(self, server: SimulatedServer) -> None:
        if server.line:
            server.line.popleft()()
        else:
            server.busy = False

    def _give(self, server: SimulatedServer, client: Client, then: Callable[[int], object]) -> None:
        """Send the parameters, over a socket."""
        cost, version = self._cost, server.shard.updates
        unpacking = self._ends(server.host, client.host, server.nbytes)
        packing = cost.message_s + cost.copy_s(server.nbytes) + unpacking

        def given() -> None:
            there = (self.events.at, unpacking, then, version)
            self.hosts.send(0.0, server.host, client.host, server.nbytes, *there)
            self._next(server)

        self.hosts.work(server.host, packing, given)

    def _take(self, server: SimulatedServer, client: Client, slot: int, version: int) -> None:
        """Take a gradient, apply what is complete, then answer."""
        became, answers = server.shard.offer(client.number, slot, [], version)
        seconds = self._ends(client.host, server.host, server.nbytes)
        if became == "applied":
            together = self._rules.needed if self._rules.synchronous else 1
            seconds += together * server.nbytes * self._cost.apply_s_per_byte
        self.hosts.work(server.host, seconds, self._taken, server, answers, became == "applied")

    def _taken(self, server: SimulatedServer, answers: Sequence[Answer], applied: bool) -> None:
        if applied and server.number == 0:
            self.updates.append(self.events.now)
        spent = 0.0
        for answer in answers:
            spent = self._answer(server, answer, spent)
        self.events.at(spent, self._next, server)

    def _answer(self, server: SimulatedServer, answer: Answer, after: float) -> float:
        """Answer a replica after `after` seconds; return when the server has finished that."""
        client = self.clients[answer.replica]
        each = self._ends(server.host, client.host, 0)
        reading = (self.events.at, each, client.on_answer, server.number, answer)
        self.hosts.send(after + each, server.host, client.host, 0, *reading)
        return after + each

    def _counted(self, server: SimulatedServer, client: Client, then: Then) -> None:
        each = self._ends(server.host, client.host, 0)
        self.hosts.send(each, server.host, client.host, 0, self.events.at, each, then)
        self.events.at(each, self._next, server)

    def _ends(self, source: int, target: int, nbytes: int) -> float:
        """Return what a message costs each of its ends, in seconds; in shared memory a bell is rung.

        The ends encrypt and decrypt a large message while the rest of it is on the link (`Hosts.send`).
        """
        if source == target:
            return self._cost.meeting_s
        return self._cost.message_s + min(nbytes, PIECE) * self._cost.socket_s_per_byte


def _shard(rules: Rules, number: int) -> ParameterShard:
    """Return a shard that has the rules of a real one, and nothing else."""
    layout, first = Layout.of(()), number == 0
    counters = np.zeros(COUNTERS, np.int64)
    return ParameterShard(layout, layout.buffer(), counters, SGD(1.0), rules, counts=first, first=first)
