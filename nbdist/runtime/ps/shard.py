"""One parameter server's part of the parameters, and how gradients change it. No sockets, no clock.

Asynchronous: each gradient is applied as it comes; a bound on staleness holds back the answer, not the
gradient. Synchronous: the gradients of a step are added and applied once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from nbdist.optim import Optimizer
from nbdist.optim.base import Part
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import BEGUN, CHANGES, COUNTERS, GLOBAL_STEP, VERSION
from nbdist.runtime.ps.restore import Restoration
from nbdist.runtime.ps.sync import APPLIED, KEPT, LEFT_OUT, REFUSED, Answer, Quorum, Rules, StalenessBound
from nbdist.runtime.tables import RowGradient, Tables
from nbdist.wire.ordering import fence

Array = np.ndarray[Any, Any]


class Offered(NamedTuple):
    """The outcome of a gradient: applied (with those collected before), collected, or dropped."""

    became: Literal["applied", "collected", "dropped"]
    answers: list[Answer]


class ParameterShard:
    """Parameters in ``memory`` (bytes laid out by ``layout``), changed in place by gradients.

    ``counters`` are int64 in the same memory as the parameters: the global step, the version (how many
    updates the shard has had), and with locking how often a change has begun or ended, which is odd in the
    middle of one. Updates are made one at a time in any case; locking is what keeps reads apart from them.

    With ``counts`` the global step goes up with each update of this shard; otherwise ``count`` is called once
    all shards are updated. Of several shards the ``first`` one hands out tokens. ``tables`` are outside the
    shared memory, and are changed by rows. ``before`` are the updates of a training that continues: the
    global step and the optimizer's steps count from there. Every method may be called from any thread.
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
        before: int = 0,
    ) -> None:
        assert len(counters) >= COUNTERS
        self.tables = Tables(tables, optimizer)
        self.layout, self.memory, self.counters = layout, memory, counters
        self.optimizer, self.rules, self.counts = optimizer, rules, counts
        self.updates, self.before = 0, before
        counters[GLOBAL_STEP] = before
        self.flats = layout.flats(memory)
        self.slots = [optimizer.all_slots(flat) for flat in self.flats]
        self._own = None if optimizer.is_plain else layout.buffer()
        """Where a gradient is clipped: what it is sent in stays as it is, for a standby."""
        self.accumulator = Accumulator()
        self.statistics = GradientStatistics.of(rules.replicas)
        self.quorum = Quorum(rules, first=first) if rules.synchronous else None
        self.bound = StalenessBound(rules) if rules.staleness is not None else None
        self.counted = [0] * rules.replicas
        """How many updates of all shards each replica has counted."""
        self.evicted: set[int] = set()
        """Replicas that are dead or frozen: the others continue, and their gradients are refused."""
        self.serials = [0] * rules.replicas
        """The last gradient of each replica that is applied, by the numbers that replicas give them."""
        self.replicate: Callable[[Gradient | None], object] = lambda gradient: None
        """Called under the lock after each change, with the gradient of an update, for a standby."""
        self.lock = threading.Lock()
        self._collected: dict[int, int] = {}  # the serial of each replica's last gradient of this step

    def offer(
        self,
        replica: int,
        token: int,
        gradient: Gradient,
        version: int,
        is_current: Callable[[], bool] = lambda: True,
        serial: int = 0,
    ) -> Offered:
        """Take one replica's gradient, made from parameters of ``version``; return the outcome.

        ``token`` comes back with the answer. ``gradient`` may be written over until then. ``is_current``
        returns whether it is of the replica's present process; one of a former process changes nothing.
        ``serial`` numbers the gradients of the replica from 1 on, if it is not 0: one that is applied already
        is answered again and changes nothing.
        """
        with self.lock:
            if not is_current():  # under the lock: `join` may have withdrawn what that process had given
                return Offered("dropped", [])
            if replica in self.evicted:
                self.statistics.drop(replica)
                return Offered("dropped", [Answer(replica, token, 0, REFUSED)])
            if 0 < serial <= self.serials[replica]:  # a server died after it had applied it
                mine, behind = Answer(replica, token), self.serials[replica] - serial
                return Offered("applied", [mine] if self.bound is None else self.bound.repeated(mine, behind))
            if self.quorum is not None:
                return self._collect(self.quorum, replica, token, gradient, version, serial)
            staleness = self.updates - version
            self._apply(gradient)
            self.statistics.applied(replica, staleness)
            self.serials[replica] = serial
            mine = Answer(replica, token, staleness)
            answers = [mine] if self.bound is None else self.bound.applied(mine)
            self.replicate(gradient)
            return Offered("applied", answers)

    def leave(self, replica: int, *, died: bool = False, stops: bool = False) -> list[Answer]:
        """Release a replica; return the answers that this completes for others.

        A replica that ``died``, or is frozen, is evicted: its later messages are refused. One that ``stops``
        ends a step that waits for a lost replica.
        """
        with self.lock:
            if died:
                self.evicted.add(replica)
            rule = self.quorum or self.bound
            if rule is None:
                return []
            if died:
                return self._executed(rule.lose(replica))
            if isinstance(rule, Quorum):
                return self._executed(rule.leave(replica, stops=stops))
            return rule.leave(replica)

    def abandon(self, replica: int) -> list[Answer]:
        """Await the new process of a lost replica no longer; return the answers to send."""
        with self.lock:
            return [] if self.quorum is None else self._executed(self.quorum.abandon(replica))

    def join(self, replica: int) -> None:
        """Expect gradients of a replica's new process.

        Those of its former process for a step that is not complete are dropped: the new process, which
        writes to the same slots, gives its own.
        """
        with self.lock:
            self.evicted.discard(replica)
            self._collected.pop(replica, None)
            if self.quorum is not None:
                withdrawn = self.accumulator.withdraw(replica)
                for _ in range(withdrawn):
                    self.statistics.drop(replica)
                self.quorum.join(replica, withdrawn)
            elif self.bound is not None:
                self.bound.join(replica)

    @property
    def broken_up(self) -> bool:
        """Whether a synchronous step cannot complete any more because too many replicas have left."""
        return self.quorum is not None and self.quorum.stopped

    @property
    def is_held_up(self) -> bool:
        """Whether a synchronous step waits for the new process of a lost replica."""
        with self.lock:
            return self.quorum is not None and self.quorum.is_held_up

    @property
    def waited_for(self) -> bool:
        """Whether a replica waits for what others do."""
        return any(rule is not None and rule.waits for rule in (self.quorum, self.bound))

    def place_of(self, replica: int) -> int:
        """Return how many steps of its data a replica's new process leaves out.

        Among asynchronous replicas these are its applied gradients, and where all replicas make each step
        together, the steps that are complete. With backups replicas end at about the same time, so it begins
        next to the slowest of the others, if that is ahead of it. So does an asynchronous replica that was
        added, next to the slowest of those that the training began with.
        """
        with self.lock:
            made = self.statistics.made
            if self.quorum is None and replica < self.rules.first:
                return made[replica]
            if self.quorum is None:
                others = (made[other] for other in range(self.rules.first) if other not in self.evicted)
                return max(made[replica], min(others, default=0))
            if not self.rules.backups:
                return self.quorum.steps
            steps = [one + late for one, late in zip(made, self.statistics.dropped, strict=True)]
            others = (steps[other] for other in self.quorum.present() if other != replica)
            return max(steps[replica], min(others, default=0))

    def count(self, replica: int) -> None:
        """Count one update of all shards together, which is a replica's."""
        with self.lock:
            self.counters[0] += 1
            self.counted[replica] += 1
            self.replicate(None)

    def restore(self, restoration: Restoration) -> None:
        """Continue with the counts of a process that died."""
        with self.lock:
            self.counters[GLOBAL_STEP] = restoration.global_step
            self.updates = self.counters[VERSION] = self.counters[BEGUN] = restoration.version
            self.before -= restoration.version  # the optimizer's slots are not older or newer for it
            if self.quorum is not None:
                self.quorum.steps = self.accumulator.step = restoration.version
            self.statistics.made[:] = restoration.made
            self.counted[:] = restoration.counted

    def set_rate(self, rate: float, factor: float = math.inf) -> None:
        """Make updates at another learning rate from the next one on.

        With a finite ``factor`` these are the rates of the optimizer's schedule, if it has one, times that.
        """
        with self.lock:
            self.optimizer.learning_rate, self.optimizer.factor = rate, factor
            self.replicate(None)

    def snapshot(self) -> dict[str, Any]:
        """Return all that a standby needs beside `buffers`, as plain values; under the lock."""
        return {
            "updates": self.updates,
            "before": self.before,
            "global_step": int(self.counters[GLOBAL_STEP]),
            "rate": self.optimizer.learning_rate,
            "factor": self.optimizer.factor,
            "statistics": self.statistics.to_wire(),
            "counted": self.counted,
            "serials": self.serials,
            "pace": [] if self.bound is None else self.bound.steps,
        }

    def continue_from(self, counts: Mapping[str, Any]) -> None:
        """Continue with the counts that `snapshot` has returned; under the lock."""
        self.updates, self.before = int(counts["updates"]), int(counts["before"])
        self.counters[GLOBAL_STEP] = int(counts["global_step"])
        self.counters[VERSION] = self.counters[BEGUN] = self.updates
        self.optimizer.learning_rate = float(counts["rate"])
        self.optimizer.factor = float(counts["factor"])
        self.statistics = GradientStatistics.from_wire(counts["statistics"])
        self.counted = [int(count) for count in counts["counted"]]
        self.serials = [int(serial) for serial in counts["serials"]]
        if self.bound is not None:
            self.bound.steps[:] = [int(steps) for steps in counts["pace"]]
        if self.quorum is not None:
            self.quorum.steps = self.accumulator.step = self.updates

    def replay(self, gradient: Gradient | None, counts: Mapping[str, Any]) -> None:
        """Make an update, or a change of the counts, as the shard has made it that this one is a copy of."""
        with self.lock:
            if gradient is not None:
                self._apply(gradient)
            if self.updates != counts["updates"]:
                raise DataLossError(f"update {counts['updates']} of a shard whose copy has {self.updates}")
            self.continue_from(counts)

    def buffers(self) -> list[Array]:
        """Return the bytes of the parameters, of the slots and of the tables, in one order for all copies."""
        arrays = [self.memory]
        for slots in self.slots:
            arrays += [slots[name] for name in sorted(slots)]
        for table, slots in zip(self.tables.arrays, self.tables.slots, strict=True):
            arrays += [table, *(slots[name] for name in sorted(slots))]
        return [array.reshape(-1).view(np.uint8) for array in arrays]

    def slot(self, name: str) -> Array:
        """Return a copy of a slot of the optimizer, in bytes laid out as the parameters are."""
        buffer = self.layout.buffer()
        for flat, slots in zip(self.layout.flats(buffer), self.slots, strict=True):
            np.copyto(flat, slots[name])
        return buffer

    def _collect(
        self, quorum: Quorum, replica: int, token: int, gradient: Gradient, version: int, serial: int
    ) -> Offered:
        steps, fresh = quorum.steps, False
        if not quorum.stopped:  # read under the lock: a replica that has left will never complete this step
            fresh = self.accumulator.offer(replica, gradient, version)
        answers = quorum.offer(replica, token, fresh)
        if not fresh:
            self.statistics.drop(replica)
            return Offered("dropped", answers)
        self._collected[replica] = serial
        if quorum.steps == steps:
            return Offered("collected", self._executed(answers))
        for one in self.accumulator.replicas:
            self.statistics.applied(one, 0)
            self.serials[one] = self._collected[one]
        self._collected.clear()
        total = self.accumulator.take(self.rules.needed, scale=self.rules.scale)
        if not self._apply(total):
            answers = [one._replace(what=LEFT_OUT) if one.what == APPLIED else one for one in answers]
        self.replicate(total)
        return Offered("applied", answers)

    def _executed(self, answers: list[Answer]) -> list[Answer]:
        """Carry out the answers on the collected gradients, before they are sent."""
        for answer in answers:
            if answer.what == KEPT:
                self.accumulator.keep(answer.replica)
        if self.broken_up:
            for replica in self.accumulator.replicas:
                self.statistics.drop(replica)
            self.accumulator.forget()
        return answers

    def _apply(self, gradient: Gradient) -> bool:
        """Make an update; return whether the optimizer has, which leaves out a marked gradient."""
        self.updates += 1
        marked = self.quorum is not None and is_left_out(gradient)
        if marked:
            self.before -= 1  # the optimizer does not count it
        if self.rules.locking:
            self.counters[CHANGES] += 1  # odd: a replica that reads now reads again
            fence()
        self.counters[BEGUN] = self.updates  # a replica that outlives this process looks at it
        if not marked:
            self.optimizer.follow(self.before + self.updates - 1)
        if not marked:
            self._update(gradient)
        if self.tables.arrays and not marked:
            rows = [part for part in gradient if isinstance(part, RowGradient)]
            self.tables.apply(rows, self.before + self.updates)
        self.counters[VERSION] = self.updates  # under the lock: two threads must not write it out of order
        if self.counts:
            self.counters[0] += 1
        if self.rules.locking:
            fence()
            self.counters[CHANGES] += 1
        return not marked

    def _update(self, gradient: Gradient) -> None:
        """Change the parameters that are no tables by a gradient, which keeps its values."""
        changes = [one for one in gradient if not isinstance(one, RowGradient)]
        if self._own is not None:
            kept = self.layout.flats(self._own)
            for own, one in zip(kept, changes, strict=True):
                np.copyto(own, one)
            changes = kept
        flats = list(zip(self.flats, changes, self.slots, strict=True))
        self.optimizer.update(flats, self.before + self.updates, lambda: self._parts(changes))

    def _parts(self, changes: Sequence[Array]) -> list[Part]:
        views = zip(self.layout.entries, self.layout.cut(self.flats), self.layout.cut(changes), strict=True)
        return [Part(number, entry.name, p, g) for number, (entry, p, g) in enumerate(views)]


Gradient: TypeAlias = list[Array | RowGradient]
"""One array for each dtype of the parameters, then the rows of each table; rows are never overwritten."""


def is_left_out(gradient: Gradient) -> bool:
    """Return whether the sum of a step's gradients is marked: its first element is NaN.

    No replica sends a gradient that is not finite. One whose gradient has overflowed (with a loss scale)
    sends NaN instead, so that every server leaves the step out: the sum says it, without another message.

    >>> is_left_out([np.ones(2) + np.full(2, np.nan)]), is_left_out([np.ones(2)])
    (True, False)
    """
    arrays = (part.values if isinstance(part, RowGradient) else part for part in gradient)
    first = next((array for array in arrays if array.size), None)
    return first is not None and bool(np.isnan(first.flat[0]))


@dataclass
class PendingGradient:
    """A gradient that waits for its step; ``borrowed``: its arrays belong to the replica."""

    replica: int
    gradient: Gradient
    borrowed: bool = True


class Accumulator:
    """Gradients of one set of parameters, from several replicas, for one step.

    >>> accumulator = Accumulator()
    >>> accumulator.offer(0, [np.array([10.0])], local_step=0)
    True
    >>> accumulator.offer(1, [np.array([20.0])], local_step=0)
    True
    >>> accumulator.take(1, mean=True)
    [array([15.])]
    """

    def __init__(self) -> None:
        self.step = 0
        self.dropped = 0
        self._collected: list[PendingGradient] = []
        self._spare: list[Gradient] = []
        self._sums: dict[int, Array] = {}

    @property
    def count(self) -> int:
        """How many gradients are collected."""
        return len(self._collected)

    @property
    def replicas(self) -> list[int]:
        """The replicas of the collected gradients, one entry for each."""
        return [one.replica for one in self._collected]

    def offer(self, replica: int, gradient: Gradient, local_step: int) -> bool:
        """Collect a gradient, unless it is older than the step; return whether it was accepted.

        The arrays are kept, not copied, and only read.
        """
        if local_step < self.step:
            self.dropped += 1
            return False
        self._collected.append(PendingGradient(replica, gradient))
        return True

    def keep(self, replica: int) -> None:
        """Copy the borrowed arrays of a replica, so that it may write its next gradient."""
        for one in self._collected:
            if one.replica == replica and one.borrowed:
                own = self._spare.pop() if self._spare else [_like(part) for part in one.gradient]
                one.gradient = [_kept(target, part) for target, part in zip(own, one.gradient, strict=True)]
                one.borrowed = False

    def withdraw(self, replica: int) -> int:
        """Drop what is collected from a replica, counted as dropped; return how many gradients that were."""
        gone = [one for one in self._collected if one.replica == replica]
        self._spare += [one.gradient for one in gone if not one.borrowed]
        self._collected = [one for one in self._collected if one.replica != replica]
        self.dropped += len(gone)
        return len(gone)

    def take(self, needed: int, mean: bool = False, scale: float = 1.0) -> Gradient:
        """Return the sum (or mean) of all collected gradients, times ``scale``; begin the next step.

        They are added in the order of the replicas, not in the order of arrival. The arrays are good until
        the next call, and the collected ones keep their values: a replica sends its gradient again if this
        process dies in the middle of the update.
        """
        collected = self.close(needed)
        total: Gradient = []
        for number, parts in enumerate(zip(*collected, strict=True)):
            sum_of: Array | RowGradient
            if isinstance(parts[0], RowGradient):
                sum_of = RowGradient.joined(parts)
                numbers = sum_of.values  # an array of its own
            elif len(parts) == 1 and not mean and scale == 1.0:
                total.append(parts[0])
                continue
            else:
                sum_of = numbers = self._sum_of(number, parts)
            if mean:
                np.divide(numbers, len(collected), out=numbers)
            if scale != 1.0:
                np.multiply(numbers, scale, out=numbers, casting="unsafe")
            total.append(sum_of)
        return total

    def _sum_of(self, number: int, parts: Sequence[Array]) -> Array:
        """Return the sum of arrays of one shape, in memory of its own for each ``number``."""
        total = self._sums.get(number)
        if total is None:
            total = self._sums[number] = np.empty_like(parts[0])
        first, *others = parts
        if not others:
            np.copyto(total, first)
        for part in others:
            first = np.add(first, part, out=total)
        return total

    def close(self, needed: int) -> list[Gradient]:
        """Return all collected gradients, in the order of the replicas, and begin the next step."""
        if needed < 1:
            raise InvalidArgumentError(f"take at least 1 gradient, got {needed}")
        if self.count < needed:
            raise FailedPreconditionError(f"{self.count} of {needed} gradients have arrived")
        self._collected.sort(key=lambda one: one.replica)
        collected = [one.gradient for one in self._collected]
        self._end()
        self.step += 1
        return collected

    def forget(self) -> int:
        """Drop what is collected, counted as dropped; return how many that were."""
        count = self.count
        self.dropped += count
        self._end()
        return count

    def _end(self) -> None:
        self._spare += [one.gradient for one in self._collected if not one.borrowed]
        self._collected.clear()


def _like(part: Array | RowGradient) -> Array | RowGradient:
    return part if isinstance(part, RowGradient) else np.empty_like(part)


def _kept(target: Array | RowGradient, part: Array | RowGradient) -> Array | RowGradient:
    """Return a copy, in ``target``, of the arrays that are reused; rows are not copied."""
    if isinstance(part, RowGradient) or isinstance(target, RowGradient):
        return part
    np.copyto(target, part)
    return target


# Gradient statistics for each replica: applied, dropped, stale. Pure.


@dataclass
class GradientStatistics:
    """Counts by replica: gradients applied and dropped, and the sum and the most of their staleness.

    >>> statistics = GradientStatistics.of(2)
    >>> statistics.applied(0, staleness=3); statistics.applied(1, staleness=0); statistics.drop(1)
    >>> print(statistics)
    2 gradients applied, staleness 1.5 on average and 3 at most; 1 dropped (replica 1: 1)
    """

    made: list[int]
    dropped: list[int]
    late: list[int]
    latest: list[int]

    @classmethod
    def of(cls, replicas: int) -> GradientStatistics:
        """Return the counts of a training that begins."""
        return cls(*([0] * replicas for _ in range(4)))

    def applied(self, replica: int, staleness: int) -> None:
        """Count a gradient that changed the parameters."""
        self.made[replica] += 1
        self.late[replica] += staleness
        if staleness > self.latest[replica]:
            self.latest[replica] = staleness

    def drop(self, replica: int) -> None:
        """Count a gradient that did not."""
        self.dropped[replica] += 1

    @property
    def staleness(self) -> tuple[float, int]:
        """The mean and the most of all applied gradients' staleness, in updates."""
        return sum(self.late) / max(1, sum(self.made)), max(self.latest, default=0)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_wire`."""
        return {"made": self.made, "dropped": self.dropped, "late": self.late, "latest": self.latest}

    @classmethod
    def from_wire(cls, values: dict[str, Sequence[int]]) -> GradientStatistics:
        """Return what ``to_wire`` described."""
        return cls(**{name: [int(count) for count in counts] for name, counts in values.items()})

    def __str__(self) -> str:
        mean, most = self.staleness
        text = f"{sum(self.made):,} gradients applied"
        if most:
            text += f", staleness {mean:.1f} on average and {most} at most"
        if any(self.dropped):
            by_replica = ", ".join(f"replica {i}: {n:,}" for i, n in enumerate(self.dropped) if n)
            text += f"; {sum(self.dropped):,} dropped ({by_replica})"
        return text
