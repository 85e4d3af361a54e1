"""Replicas and parameter servers in a pseudo-random order: a seed reproduces each interleaving.

Each replica is a real ServedReplica on its own thread, and one thread runs at a time. Its links deliver
gradients to real shards, one message after another; the seed decides which thread runs or which message
arrives next. If nothing can run and a replica still waits, the test fails with a hang.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.distribute.served_replica import ServedReplica
from nbdist.optim import SGD
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import Link, StepStopped
from nbdist.runtime.ps.mailbox import COUNTERS, SLOTS
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.sync import STOPPED, Answer, Rules

Array = np.ndarray[Any, Any]
LAYOUT = Layout.of([("v", (1,), "<f8")])


class Hang(AssertionError):
    """A replica waits, and no message is in transit."""


class Dead(BaseException):
    """A replica is killed here."""


class Broken(Exception):
    """A server's error for a step that cannot complete because a replica has died."""


class Town:
    """Servers, and replicas with ``batches[i]`` steps each; ``deaths`` maps turns to replicas that die."""

    def __init__(
        self, rules: Rules, batches: list[int], seed: int, deaths: dict[int, int] | None = None
    ) -> None:
        self.rules, self.batches, self.draw = rules, batches, random.Random(seed)
        self.deaths = dict(deaths or {})
        self.servers = [Server(rules, first=i == 0) for i in range(rules.servers)]
        self.workers = [Worker(self, i) for i in range(rules.replicas)]
        self.turn = threading.Semaphore(0)

    def run(self) -> None:
        """Train all replicas to their ends."""
        for worker in self.workers:
            worker.thread.start()
            self.turn.acquire()
        while moves := self._moves():
            self.draw.choice(moves)()
        waiting = [worker.number for worker in self.workers if not worker.ended]
        if waiting:
            self.kill()
            raise Hang(f"replicas {waiting} wait, and nothing is under way")
        for worker in self.workers:
            worker.thread.join()
            if worker.error is not None:
                raise worker.error

    def _moves(self) -> list[Callable[[], None]]:
        """Return the possible next events."""
        found: list[Callable[[], None]] = [w.resume for w in self.workers if w.can_continue()]
        return found + [move for server in self.servers for move in server.moves(self.workers)]

    def kill(self) -> None:
        """End the threads of replicas that hang."""
        for worker in self.workers:
            while not worker.ended:
                worker.doomed = True
                worker.resume()


class Worker:
    """A replica on its thread."""

    def __init__(self, town: Town, number: int) -> None:
        self.town, self.number = town, number
        self.baton = threading.Semaphore(0)
        self.waits_for: Callable[[], bool] | None = None
        self.ended = self.dead = self.doomed = self.broken = self.stopped = False
        self.turns = 0
        self.made = 0
        self.ahead: list[int] = []
        """How many steps this one has begun more than the slowest has done, at the beginning of each."""
        self.error: BaseException | None = None
        self.links = [FakeLink(self, server) for server in town.servers]
        self.replica: ServedReplica | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def can_continue(self) -> bool:
        return not self.ended and (self.waits_for is None or self.waits_for())

    def resume(self) -> None:
        """Run the thread until it pauses."""
        self.turns += 1
        if self.town.deaths.get(self.number) == self.turns:
            self.doomed = True
        self.baton.release()
        self.town.turn.acquire()

    def pause(self, until: Callable[[], bool] | None = None) -> None:
        """Pause; called on the thread."""
        self.waits_for = until
        self.town.turn.release()
        self.baton.acquire()
        self.waits_for = None
        if self.doomed:
            raise Dead

    def _run(self) -> None:
        try:
            self.pause()
            self._train()
        except Dead:
            self.dead = True
        except Broken:
            self.broken = self.dead = True  # for the servers a closed link is the same
        except BaseException as error:
            self.error, self.dead = error, True
        self.ended = True
        self.town.turn.release()

    def _train(self) -> None:
        replica = ServedReplica(self.links, [0], self.town.rules, replica=self.number)
        self.replica = replica
        try:
            for _ in range(self.town.batches[self.number]):
                replica.pull()
                self.ahead.append(self.made - self.town.servers[0].slowest())
                for gradient in replica.gradients():
                    gradient[...] = self.town.draw.randint(1, 1000)
                self.pause()
                replica.push()
                self.made += 1
        except StepStopped:
            self.stopped = True
        replica.finish()


class FakeLink(Link):
    """A link that keeps messages in transit until the seed selects them."""

    kind = "drawn"

    def __init__(self, worker: Worker, server: Server) -> None:
        no_sockets: Any = None
        super().__init__(LAYOUT, lambda: None, no_sockets, {})
        self.worker, self.server = worker, server
        self.slots = [LAYOUT.buffer() for _ in range(SLOTS)]
        self.coming: deque[Any] = deque()
        self.sent: deque[tuple[int, int]] = deque()

    def pull(self) -> None:
        self.worker.pause()
        self.version = self.server.shard.updates

    def gradient(self, slot: int) -> Array:
        return self.slots[slot]

    def push(self, slot: int) -> None:
        self.sent.append((slot, self.version))
        self.worker.pause()

    def count(self) -> None:
        self.server.shard.count(self.worker.number)

    def _receive(self) -> None:
        self.worker.pause(until=lambda: bool(self.coming) or self.server.over)
        if not self.coming:
            raise Broken
        coming = self.coming.popleft()
        if isinstance(coming, Broken):
            raise coming
        self._note(coming.what, coming.token, coming.staleness)

    def _newest(self) -> int:
        return self.server.shard.updates

    def close(self) -> None:
        """Free nothing."""

    def announce_done(self) -> None:
        self.worker.pause()
        self.server.leave(self.worker)

    def leave(self) -> dict[str, Any]:
        self.worker.pause(until=lambda: self.server.over or any(isinstance(c, Broken) for c in self.coming))
        return {"statistics": self.server.shard.statistics.to_wire()}


class Server:
    """A shard and its received messages."""

    def __init__(self, rules: Rules, first: bool) -> None:
        self.rules = rules
        self.shard = ParameterShard(
            LAYOUT, LAYOUT.buffer(), np.zeros(COUNTERS, np.int64), SGD(1.0), rules, counts=first, first=first
        )
        self.offered = 0
        self.left: set[int] = set()
        self.lost: set[int] = set()
        self.over = False
        self.expected = 0.0
        self._collected: list[float] = []
        self._links: dict[int, FakeLink] = {}

    def moves(self, workers: list[Worker]) -> list[Callable[[], None]]:
        """Return the possible next events of this server."""
        number = self._number(workers)
        self._links = {worker.number: worker.links[number] for worker in workers}
        found: list[Callable[[], None]] = []
        for worker in workers:
            link = worker.links[number]
            if link.sent:
                found.append(lambda link=link, worker=worker: self._take(worker, link))
            if worker.dead and worker.number not in self.lost | self.left:
                found.append(lambda worker=worker: self._lose(worker))
        return found

    def slowest(self) -> int:
        """Return how many gradients of the slowest replica that still trains have been applied."""
        absent = self.left | self.lost
        made = self.shard.statistics.made
        return min((made[i] for i in range(self.rules.replicas) if i not in absent), default=0)

    def leave(self, worker: Worker) -> None:
        if worker.number in self.left:
            return
        self.left.add(worker.number)
        self._tell(self.shard.leave(worker.number))
        self.over = len(self.left | self.lost) == self.rules.replicas

    def _lose(self, worker: Worker) -> None:
        self.lost.add(worker.number)
        self._tell(self.shard.leave(worker.number, died=True))
        if self.shard.broken_up and self.rules.fails_without(len(self.lost)):
            for number, link in self._links.items():
                if number not in self.lost | self.left:
                    link.coming.append(Broken())
        self.over = len(self.left | self.lost) == self.rules.replicas

    def _take(self, worker: Worker, link: FakeLink) -> None:
        slot, version = link.sent.popleft()
        value = float(LAYOUT.views(link.slots[slot])[0][0])
        self.offered += 1
        became, answers = self.shard.offer(worker.number, slot, LAYOUT.flats(link.slots[slot]), version)
        if became != "dropped":
            self._collected.append(value)
        if became == "applied":
            self.expected -= self.rules.scale * sum(self._collected)
        if became == "applied" or self.shard.broken_up:
            self._collected = []
        self._tell(answers)

    def _tell(self, answers: list[Answer]) -> None:
        if self.shard.broken_up:
            self._collected = []
        for answer in answers:
            broken = answer.what == STOPPED and self.rules.fails_without(len(self.lost))
            self._links[answer.replica].coming.append(Broken() if broken else answer)

    def _number(self, workers: list[Worker]) -> int:
        return workers[0].town.servers.index(self)


def trained(rules: Rules, batches: list[int], seed: int, deaths: dict[int, int] | None = None) -> Town:
    """Return a town that has trained to its end."""
    town = Town(rules, batches, seed, deaths)
    for server in town.servers:
        server.moves(town.workers)
    town.run()
    return town
