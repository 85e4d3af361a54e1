"""Simulated replicas of parameters on servers: what `ServedReplica` does, as a state machine.

    replicas = [SimulatedReplica(number, host, serving, rules, times) for ...]
    for replica in replicas: replica.start()
    serving.events.play()

It waits until there is room for another gradient, pulls from one server after the other, computes, pushes to
all. A thousand of these take seconds; the tests run the real replicas, a thread each,
as an oracle (tests/distribute/simulated_servers_oracle.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from nbdist.distribute.simulation.servers import Serving
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.sync import DROPPED, STEPPED, STOPPED, TAKEN, Answer, Rules


class SimulatedReplica:
    """One replica that makes as many steps as there are `times`: how long it computes in each, in seconds."""

    def __init__(
        self, number: int, host: int, serving: Serving, rules: Rules, times: Sequence[float]
    ) -> None:
        self.number, self.host = number, host
        self.pushed: list[float] = []
        """When each gradient was sent."""
        self._serving, self._rules, self._times = serving, rules, times
        self._servers = range(len(serving.servers))
        self._versions = [0 for _ in self._servers]
        self._slots = SLOTS if rules.judged_apart else rules.depth
        self._slot = 0
        self._under_way: deque[int] = deque()
        self._answers: dict[int, dict[int, int]] = {}  # by slot and server: what became of the gradient
        self._pending: set[int] = set()  # slots of which some server has yet to let go
        self._stopped = self._waits = self._left = False

    def start(self) -> None:
        """Begin to train, at the beginning of time."""
        self._serving.clients[self.number] = self
        self._serving.events.at(0.0, self._continue)

    def on_answer(self, server: int, answer: Answer) -> None:
        """Note what a server says of a gradient."""
        if answer.what != STEPPED:
            self._answers[answer.token][server] = answer.what
        if self._waits:
            self._waits = False
            self._continue()

    def _continue(self) -> None:
        """Begin the next step if there is room, or learn the outcome of the oldest gradient in flight."""
        over = self._stopped or len(self.pushed) == len(self._times)
        if len(self._under_way) >= (1 if over else self._rules.depth):
            self._retire()
        elif over:
            self._leave()
        elif self._slot in self._pending:
            if self._is_settled(self._slot):
                self._pending.discard(self._slot)
                self._continue()
        else:
            self._pull(0)

    def _retire(self) -> None:
        slot = self._under_way[0]
        answers = self._answers[slot]
        if self._rules.judged_apart and len(answers) < len(self._servers):
            self._waits = True
            return
        if self._rules.judged_apart and DROPPED in answers.values():
            self._pending.add(slot)  # the others may wait for this replica's next gradient
        elif not self._is_settled(slot):
            return
        self._under_way.popleft()
        if len(self._servers) > 1 and not self._rules.synchronous:
            self._count()
        else:
            self._continue()

    def _is_settled(self, slot: int) -> bool:
        """Look at one server after the other, up to one that has stopped; wait for one that is not done."""
        for server in self._servers:
            what = self._answers[slot].get(server, TAKEN)
            if what == TAKEN:
                self._waits = True
                return False
            if what == STOPPED:
                self._stopped = True
                break
        return True

    def _count(self) -> None:
        near = self._serving.servers[0].host == self.host
        self._serving.count(self, (lambda: None) if near else self._continue)
        if near:  # the bell is rung, and that is all
            self._continue()

    def _pull(self, server: int) -> None:
        """Pull from a server, and then from the ones after it."""
        if server in self._servers:
            self._serving.pull(self, server, lambda version: self._pulled(server, version))
        else:
            self._serving.hosts.work(self.host, self._times[len(self.pushed)], self._push)

    def _pulled(self, server: int, version: int) -> None:
        self._versions[server] = version
        self._pull(server + 1)

    def _push(self) -> None:
        """Push to all servers, and continue."""
        slot, after = self._slot, 0.0
        self._answers[slot] = {}
        for server in self._servers:
            after = self._serving.push(self, server, slot, self._versions[server], after)
        self._under_way.append(slot)
        self._slot = (slot + 1) % self._slots
        self.pushed.append(self._serving.events.now)
        self._serving.events.at(after, self._continue)

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            for server in self._serving.servers:
                self._serving.leave(self, server)
