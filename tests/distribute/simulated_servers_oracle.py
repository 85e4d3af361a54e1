"""Real replicas, a thread each, on simulated servers: the reference for simulated replicas.

    pushed, traffic = rehearse_replicas(machines, sizes, rules, cost, times)

Only one thread runs at a time: that of the replica with the current event, until it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nbdist.distribute.served_replica import ServedReplica
from nbdist.distribute.simulation.cost import Array, Cost
from nbdist.distribute.simulation.report import Traffic
from nbdist.distribute.simulation.servers import Machines, Serving
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import Link, StepStopped
from nbdist.runtime.ps.sync import COUNTED, Answer, Rules

PATIENCE_SECONDS = 60.0  # of real time
NOTHING = Layout.of(())


def rehearse_replicas(
    machines: Machines, sizes: Sequence[int], rules: Rules, cost: Cost, times: Array
) -> tuple[list[list[float]], Traffic]:
    """Train real replicas; `times` are the compute seconds, by step and replica.

    Return the times at which each sent its gradients, and the traffic.
    """
    serving = Serving(machines, sizes, rules, cost)
    actors = [
        Actor(number, host, serving, rules, times[:, number].tolist())
        for number, host in enumerate(machines.workers)
    ]
    for actor in actors:
        actor.start()
    serving.events.play()
    for actor in actors:
        actor.join()
    return [actor.pushed for actor in actors], serving.traffic


class Actor:
    """A replica in a thread that runs only while all other threads wait."""

    def __init__(
        self, number: int, host: int, serving: Serving, rules: Rules, times: Sequence[float]
    ) -> None:
        self.number, self.host = number, host
        self.pushed: list[float] = []
        self.serving = serving
        self.sending = 0.0
        """For how many seconds more this replica is sending gradients."""
        self._rules, self._times = rules, times
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._links = [VirtualLink(self, server) for server in range(len(serving.servers))]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin to train at time 0."""
        self.serving.clients[self.number] = self
        self._thread.start()
        self.serving.events.at(0.0, self.wake)

    def join(self) -> None:
        """Raise the thread's error, or an error if it still waits."""
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise AssertionError(f"replica {self.number} still waits, and nothing is going to happen")

    def on_answer(self, server: int, answer: Answer) -> None:
        """Record a server's answer to a gradient."""
        link = self._links[server]
        link.receive(answer.what, answer.token, answer.staleness)

    def wake(self) -> None:
        """Run the thread until it waits again. Called by events."""
        self._turn.release()
        if not self._back.acquire(timeout=PATIENCE_SECONDS):
            raise AssertionError(f"replica {self.number} neither ends nor waits")

    def catch_up(self) -> bool:
        """Wait until this thread's gradients are sent; return whether there were any."""
        sending, self.sending = self.sending, 0.0
        if sending:
            self.serving.events.at(sending, self.wake)
            self.wait()
        return sending > 0

    def wait(self) -> None:
        """Pause until an event wakes this thread. Called by the thread."""
        self._back.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._train()
        except BaseException as error:
            self._error = error
        finally:
            self._back.release()

    def _train(self) -> None:
        replica = ServedReplica(self._links, [], self._rules, replica=self.number)
        for link in self._links:
            link.begun = True
        events, hosts = self.serving.events, self.serving.hosts
        with suppress(StepStopped):
            for seconds in self._times:
                replica.pull()
                hosts.work(self.host, seconds, self.wake)
                self.wait()
                self.pushed.append(events.now)
                replica.push()
        replica.finish()


class VirtualLink(Link):
    """A link to a simulated server."""

    kind = "simulated"

    def __init__(self, actor: Actor, server: int) -> None:
        no_sockets: Any = None
        super().__init__(NOTHING, lambda: None, no_sockets, {})
        self.begun = self._listens = False
        self._actor, self._server = actor, server

    def pull(self) -> None:
        """Pull the newest parameters; reads before the first step take no time."""
        if self.begun:
            self._actor.catch_up()
            self._actor.serving.pull(self._actor, self._server, self._pulled)
            self._actor.wait()

    def _pulled(self, version: int) -> None:
        self.version = version
        self._actor.wake()

    def gradient(self, slot: int) -> Array:
        """Return no bytes."""
        return self.parameters

    def push(self, slot: int) -> None:
        """Send the gradient."""
        actor = self._actor
        actor.sending = actor.serving.push(actor, self._server, slot, self.version, actor.sending)

    def count(self) -> None:
        """Count one update; over shared memory there is no wait."""
        actor, serving = self._actor, self._actor.serving
        actor.catch_up()
        if serving.servers[0].host == actor.host:
            self._counts += 1
            serving.count(actor, lambda: self.receive(COUNTED, 0, 0))
        else:
            serving.count(actor, actor.wake)
            actor.wait()

    def receive(self, what: int, slot: int, staleness: int) -> None:
        """Record an answer, and wake the replica if it waits for one."""
        self._note(what, slot, staleness)
        if self._listens:
            self._listens = False
            self._actor.wake()

    def _receive(self) -> None:
        if not self._actor.catch_up():
            self._listens = True
            self._actor.wait()

    def _newest(self) -> int:
        return self.version

    def announce_done(self) -> None:
        """Announce that this replica is done."""
        if not self._said_farewell:
            self._said_farewell = True
            self._actor.catch_up()
            serving = self._actor.serving
            serving.leave(self._actor, serving.servers[self._server])

    def leave(self) -> dict[str, Any]:
        """Leave without waiting for the others."""
        self.announce_done()
        return {"statistics": self._actor.serving.servers[self._server].shard.statistics.to_wire()}

    def close(self) -> None:
        """Free nothing."""
