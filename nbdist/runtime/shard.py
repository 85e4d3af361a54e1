"""One parameter server's part of the parameters, and how gradients change it. No sockets, no clock.

Asynchronous: each gradient is applied as it comes; a bound on staleness holds back the answer, not the
gradient. Synchronous: the gradients of a step are added and applied once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from nbdist.optim import Optimizer
from nbdist.runtime.accumulator import Accumulator, Gradient, Rows
from nbdist.runtime.answers import KEPT, REFUSED, Answer
from nbdist.runtime.bound import Bound
from nbdist.runtime.layout import Layout
from nbdist.runtime.mailbox import CHANGES, COUNTERS, VERSION, fence
from nbdist.runtime.quorum import Quorum
from nbdist.runtime.rules import Rules
from nbdist.runtime.tables import Tables
from nbdist.runtime.tally import Tally

Array = np.ndarray[Any, Any]


class Offered(NamedTuple):
    """What a gradient did: it was applied (with those collected before), is collected, or is dropped."""

    became: Literal["applied", "collected", "dropped"]
    answers: list[Answer]


class ParameterShard:
    """Parameters in ``memory`` (bytes laid out by ``layout``), changed in place by gradients.

    ``counters`` are int64 in the same memory as the parameters: the global step, the version (how many
    updates the shard has had), and with locking how often a change has begun or ended, which is odd in the
    middle of one. Updates are made one at a time in any case; locking is what keeps reads apart from them.

    With ``counts`` the global step goes up with each update of this shard; otherwise ``count`` is called once
    all shards are updated. Of several shards the ``first`` one hands out tokens. ``tables`` are outside the
    shared memory, and are changed by rows. Every method may be called from any thread.
    """

    def __init__(
        self,
        layout: Layout,
        memory: Array,
        counters: Array,
        optimizer: Optimizer,
        rules: Rules,
        *,
        counts: bool,
        first: bool = True,
        tables: Sequence[Array] = (),
    ) -> None:
        assert len(counters) >= COUNTERS
        self.tables = Tables(tables, optimizer)
        self.layout, self.memory, self.counters = layout, memory, counters
        self.optimizer, self.rules, self.counts = optimizer, rules, counts
        self.updates = 0
        self.flats = layout.flats(memory)
        self.slots = [optimizer.new_slots(flat) for flat in self.flats]
        self.accumulator = Accumulator()
        self.tally = Tally.of(rules.replicas)
        self.quorum = Quorum(rules, first=first) if rules.synchronous else None
        self.bound = Bound(rules) if rules.staleness is not None else None
        self.evicted: set[int] = set()
        """Replicas that are dead or frozen: the others continue, and their gradients are refused."""
        self.lock = threading.Lock()

    @property
    def version(self) -> int:
        """How many updates this shard has had."""
        return self.updates

    def offer(self, replica: int, token: int, gradient: Gradient, version: int) -> Offered:
        """Take one replica's gradient, made from parameters of ``version``; return what came of it.

        ``token`` comes back with the answer. ``gradient`` may be written over until then.
        """
        with self.lock:
            if replica in self.evicted:
                self.tally.drop(replica)
                return Offered("dropped", [Answer(replica, token, 0, REFUSED)])
            if self.quorum is not None:
                return self._collect(self.quorum, replica, token, gradient, version)
            staleness = self.updates - version
            self._apply(gradient)
            self.tally.applied(replica, staleness)
            mine = Answer(replica, token, staleness)
            return Offered("applied", [mine] if self.bound is None else self.bound.applied(mine))

    def leave(self, replica: int, *, died: bool = False) -> list[Answer]:
        """Release a replica; return the answers that this completes for others.

        A replica that ``died``, or is frozen, is evicted: its later messages are refused.
        """
        with self.lock:
            if died:
                self.evicted.add(replica)
            rule = self.quorum or self.bound
            if rule is None:
                return []
            return self._heeded(rule.lose(replica) if died else rule.leave(replica))

    @property
    def broken_up(self) -> bool:
        """Whether a synchronous step cannot complete any more because too many replicas have left."""
        return self.quorum is not None and self.quorum.stopped

    @property
    def waited_for(self) -> bool:
        """Whether a replica waits for what others do."""
        return any(rule is not None and rule.waits for rule in (self.quorum, self.bound))

    def count(self) -> None:
        """Count one update of all shards together."""
        with self.lock:
            self.counters[0] += 1

    def set_rate(self, rate: float) -> None:
        """Make updates at another learning rate from the next one on."""
        with self.lock:
            self.optimizer.learning_rate = rate

    def _collect(self, quorum: Quorum, replica: int, token: int, gradient: Gradient, version: int) -> Offered:
        steps, fresh = quorum.steps, False
        if not quorum.stopped:  # read under the lock: a replica that has left will never complete this step
            fresh = self.accumulator.offer(replica, gradient, version)
        answers = quorum.offer(replica, token, fresh)
        if not fresh:
            self.tally.drop(replica)
            return Offered("dropped", answers)
        if quorum.steps == steps:
            return Offered("collected", self._heeded(answers))
        for one in self.accumulator.replicas:
            self.tally.applied(one, 0)
        self._apply(self.accumulator.take(self.rules.needed, scale=self.rules.scale))
        return Offered("applied", answers)

    def _heeded(self, answers: list[Answer]) -> list[Answer]:
        """Do to the collected gradients what their replicas are about to be told."""
        for answer in answers:
            if answer.what == KEPT:
                self.accumulator.keep(answer.replica)
        if self.broken_up:
            for replica in self.accumulator.replicas:
                self.tally.drop(replica)
            self.accumulator.forget()
        return answers

    def _apply(self, gradient: Gradient) -> None:
        self.updates += 1
        if self.rules.locking:
            self.counters[CHANGES] += 1  # odd: a replica that reads now reads again
            fence()
        for flat, change, slots in zip(self.flats, gradient, self.slots, strict=False):
            assert not isinstance(change, Rows)
            self.optimizer.apply(flat, change, slots, self.updates)
        if self.tables.arrays:
            rows = [part for part in gradient if isinstance(part, Rows)]
            self.tables.apply(rows, self.updates)
        self.counters[VERSION] = self.updates  # under the lock: two threads must not write it out of order
        if self.counts:
            self.counters[0] += 1
        if self.rules.locking:
            fence()
            self.counters[CHANGES] += 1
