"""One replica's side of a training on parameter servers: `ServedReplica`.

    pull    waits until there is room for another gradient under way, then reads each server's parameters
    push    announces the gradient to each server; its outcome is awaited by a later pull
    settle  waits for the step of the last push, where replicas make steps together
    finish  waits for all outcomes, leaves the servers, and has the final values

A server that dies is opened again on its new process: ``reopen`` does that
(`nbdist.distribute.served_training`), and the replica sends again what was under way.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from nbdist.errors import NotFoundError, UnavailableError
from nbdist.graph.backend import backend, pinned_buffer, scoped_device
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import (
    Link,
    ShardState,
    StepStopped,
    TrainingOver,
)
from nbdist.runtime.ps.mailbox import SLOTS
from nbdist.runtime.ps.shard import GradientStatistics
from nbdist.runtime.ps.sync import APPLIED, DROPPED, LEFT_OUT, Rules
from nbdist.runtime.ps.trace import gradient_of, parameters_for
from nbdist.runtime.tables import RowGradient
from nbdist.train.capabilities import (
    ArrayMemory,
    LearningRate,
    Membership,
    PendingPush,
    Reads,
    ReplicaState,
    StateAccess,
    StepChecks,
    StepSpans,
    TableRows,
)
from nbdist.train.context import Context, current
from nbdist.train.one_device import interleaved
from nbdist.train.replica import Replica, ReplicaLeft, itself, push_zeros
from nbdist.wire.rpc.frame import Frame

Array: TypeAlias = np.ndarray[Any, Any]

T = TypeVar("T")
Reopen = Callable[[int, Link, UnavailableError, bool], Link]
"""Opens a server's shard again, on its new process: from its number, the old link, the error of that one, and
whether this replica has made all of its steps."""


class ServedReplica(
    Replica, LearningRate, Membership, PendingPush, Reads, StateAccess, StepChecks, TableRows
):
    """One replica of parameters that are kept by several links' shards; the first counts the global step."""

    rate = membership = pending = reads = state = checks = rows = itself

    def __init__(
        self,
        links: Sequence[Link],
        server_of: Sequence[int],
        rules: Rules,
        *,
        replica: int,
        optimizer: Optimizer | None = None,
        tables: Sequence[int] = (),
        rejoins: bool = False,
        reopen: Reopen | None = None,
        waiting: StepWait | None = None,
        borrow: Callable[[int, int], Array] | None = None,
    ) -> None:
        self._reopen, self._waiting, self._borrow = reopen, waiting, borrow
        self.at_close: Callable[[], object] = lambda: None
        self._ahead: set[int] = set()
        """Servers that have already made the step at which this new process begins."""
        self.tables, self._table_servers = tuple(tables), [server_of[i] for i in tables]
        self._rest_servers = [server for i, server in enumerate(server_of) if i not in self.tables]
        self._links, self._rules, self._number, self._optimizer = [*links], rules, replica, optimizer
        self.spans = StepSpans(("receive", parameters_for(replica)), push=("send", gradient_of(replica)))
        self._counts_apart = len(links) > 1 and not rules.synchronous
        self._under_way: deque[int] = deque()
        self._slot = 0
        self._slots = SLOTS if rules.judged_apart else rules.depth
        self._overflowed: set[int] = set()
        """Slots with a mark instead of a gradient, which had overflowed."""
        self._pending: dict[int, list[int]] = {}
        """By slot: the servers that have a gradient of it for a step that is not complete."""
        self._server_of = list(server_of)
        self._retiring = False
        self._reopening: set[int] = set()
        self._over: set[int] = set()
        """Servers that all replicas have left."""
        self._done = False
        """Whether this replica has made all of its steps."""
        if waiting is not None:
            waiting.watch(self._links)
        self.statistics: list[GradientStatistics] = []
        """What each server did with the gradients of all replicas; available after ``finish``."""
        xp = backend(scoped_device())
        if xp is not np:
            self._lay_out(xp)
        for number in range(len(links)):  # a failure before the first step must not leave zeros in the model
            self._on(number, lambda link: link.pull())
        links = self._links
        if rejoins:
            self._continue_from(links)
        self.report.by_updates = rules.synchronous and rules.backups > 0
        self.report.measures_share = rules.synchronous and rules.replicas > 1
        self.notes = [link.note for link in links if link.note]
        rest = self._in_order([link.layout.views(link.parameters) for link in links], self._rest_servers)
        own = self._in_order([link.tables for link in links], self._table_servers)
        self.values = interleaved(own, rest, self.tables)
        self._gradients = self._gradient_views()
        if waiting is not None and reopen is not None and rules.synchronous:
            waiting.look_at_servers = self._look_at_servers

    def _lay_out(self, xp: ModuleType) -> None:
        """Have parameters arrive in one piece of memory that a GPU copies from."""
        layout = Layout.joined([link.layout for link in self._links], self._server_of)
        buffer, start = pinned_buffer(layout.size, xp), 0
        for link in self._links:
            part = buffer[start : start + link.layout.size]
            np.copyto(part, link.parameters)
            link.parameters, start = part, start + link.layout.size
        self.memory = ArrayMemory(pinned=(layout, buffer))

    def _gradient_views(self) -> list[list[Array]]:
        """Return the gradients of each slot, in the order of the variables."""
        return [
            self._in_order(
                [link.layout.views(link.gradient(slot)) for link in self._links], self._rest_servers
            )
            for slot in range(SLOTS)
        ]

    def _on(self, number: int, act: Callable[[Link], T]) -> T:
        """Do something with a link; if its server has died, do it with that of the new process."""
        while True:
            link = self._links[number]
            try:
                return act(link)
            except UnavailableError as error:
                if self._links[number] is link:  # else it was opened again while this replica waited
                    self._survive(number, error)

    def _look_at_servers(self) -> None:
        """Open a shard again whose server has died, while this replica waits for another one.

        That one may wait for a replica that waits until all have opened this one.
        """
        for number, link in enumerate(self._links):
            if number in self._reopening | self._over:
                continue
            try:
                link.look()
            except UnavailableError as error:
                try:
                    self._survive(number, error, self._done)
                except TrainingOver:  # the others have the last update, and this replica lacks it
                    raise error from None

    def _survive(self, number: int, error: UnavailableError, done: bool = False) -> None:
        """Wait for the new process of a server that has died, and continue with it.

        Asynchronous gradients under way to the old one are not sent again: it may have applied them, and the
        copy that restores the new one may contain them. Synchronous ones are, if they are not part of it.
        """
        if self._reopen is None:
            raise error
        begun, old = time.perf_counter(), self._links[number]
        self._reopening.add(number)
        try:
            new = self._reopen(number, old, error, done)
        finally:
            self._reopening.discard(number)
        again: set[int] = set()
        if self._rules.synchronous and not new.is_from_standby:
            again = new.repeat_step(old, exact=not self._rules.backups)
            if number in self._ahead and self.joins_at == new.opened_at:
                self._ahead.discard(number)  # its copy is of the step before
        else:
            new.take_over(old)
        self._links[number] = new
        self._gradients = self._gradient_views()
        if not self._retiring:  # which counts it
            self.report.waited += time.perf_counter() - begun
        if self._done:
            new.announce_done()
        for slot in again:  # its step was complete, and is made once more
            self._on(number, lambda link, slot=slot: link.outcome(slot))  # type: ignore[misc]  # mypy infers no default

    def _continue_from(self, links: Sequence[Link]) -> None:
        """Take the place that this replica's former process had in the training.

        If it died between two servers, one of them has applied its last gradient and another has not. Among
        asynchronous replicas, and with backups, the step counts as made, and is not repeated. Otherwise the
        others wait in it: this process makes the gradient again, for the servers that lack it, from the
        parameters of before, which the others have.
        """
        if self._rules.synchronous and not self._rules.backups:
            at = self.joins_at = min(link.made for link in links)
            self._ahead = {number for number, link in enumerate(links) if link.made > at}
            for number in self._ahead:
                assert self._borrow is not None
                np.copyto(links[number].parameters, self._borrow(number, at))
                links[number].version = at
            return
        made, self.joins_at = max(link.made for link in links), max(link.place for link in links)
        self.left_out = self.joins_at - made
        if self._counts_apart:
            for _ in range(made - links[0].counted):
                links[0].count()

    def want(self, ids: Sequence[Array]) -> None:
        """Request the rows of each table that the next pull returns."""
        for link, numbered in self._by_link(ids):
            for number, one in enumerate(numbered):
                link.want(number, one)

    def take(self, gradient: Sequence[RowGradient]) -> None:
        """Take the gradients of the tables' rows, for the next push."""
        for link, rows in self._by_link(gradient):
            link.take(rows)

    def _by_link(self, ones: Sequence[T]) -> list[tuple[Link, list[T]]]:
        """Return the items of each link's tables, in the link's order."""
        found: dict[int, tuple[Link, list[T]]] = {}
        for number, one in zip(self._table_servers, ones, strict=True):
            found.setdefault(number, (self._links[number], []))[1].append(one)
        return list(found.values())

    def pull(self) -> None:
        """Bring the newest parameters, once there is room for another gradient under way.

        Raises StepStopped once a step of this replica was not made, also if a state or a fetch noticed it.
        """
        if self.report.unmade:
            raise StepStopped
        self._bring()

    def _bring(self) -> None:
        while len(self._under_way) >= self._rules.depth:
            self._retire()
        if self._slot in self._pending:
            begun = time.perf_counter()
            for number in self._pending.pop(self._slot):
                self._on(number, lambda link: link.wait(self._slot))
            self.report.waited += time.perf_counter() - begun
        for number in range(len(self._links)):
            if number not in self._ahead:
                self._on(number, lambda link: link.pull())
        self.report.global_step = self._links[0].global_step

    def copy_of(self, number: int, version: int) -> Array | None:
        """Return a copy of a server's parameters as this replica has them, if they are of this version."""
        link = self._links[number]
        copy = link.parameters.copy()
        return copy if link.version == version and not link.tables else None

    def fetch(self) -> None:
        """Pull the newest parameters and the complete tables."""
        self._bring()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.fetch_tables())

    def newest(self) -> None:
        """Bring the parameters as each server has them between two updates.

        With synchronous replicas all servers' parameters are those of one step. With backups, and with
        asynchronous replicas, one server's may be a step newer than another's.
        """
        self._read_all(lambda link: link.fetch())

    def _read_all(self, read: Callable[[Link], T]) -> list[T]:
        """Read from each server; again where it was a step behind another one, and catches up."""
        found = [self._on(number, read) for number in range(len(self._links))]
        if self._rules.synchronous and not self._rules.judged_apart:
            newest = max(link.version for link in self._links)
            for number in range(len(self._links)):  # all gradients of that step are sent to each server
                while self._links[number].version < newest:
                    self._on(number, lambda link: link.reach(newest))
                    found[number] = self._on(number, read)
        self.report.global_step = self._links[0].global_step
        return found

    def read_state(self) -> ReplicaState:
        """Return the parameters and slots of all servers, and the steps of each replica that are in them.

        With synchronous replicas, unless there are backups, it is the state after this replica's last step:
        no server can make the next one without its gradient. Other replicas' servers are asked one after the
        other, and each answers as it is between two updates.
        """
        while self._under_way:
            self._retire()
        names = [] if self._optimizer is None else self._optimizer.get_slot_names()
        found = self._read_all(lambda link: link.fetch_state(names))
        apart = self._rules.synchronous is False
        # Without the last spare replicas that were not added.
        last = max((number for number, steps in enumerate(found[0].steps) if steps), default=0)
        return ReplicaState(
            self.values,
            self._slots_of(names, found),
            self.report.global_step,
            found[0].steps[: max(self._rules.first, last + 1)] if apart else None,
        )

    def settle(self) -> None:
        """Wait until the step of the last push is made, of synchronous replicas without backups."""
        if self._rules.synchronous and self._rules.needed == self._rules.replicas:
            while self._under_way:
                self._retire()

    def admit(self, leave: bool = False) -> bool:
        """Have an asynchronous replica leave, once its gradients are applied.

        The servers continue without it, as without one that has died, and have all that it gave.
        """
        if leave and not self._rules.synchronous:
            while self._under_way:
                self._retire()
            for number in range(len(self._links)):
                self._on(number, lambda link: link.wait_counted())
            raise ReplicaLeft
        return False

    def _slots_of(self, names: Sequence[str], found: Sequence[ShardState]) -> list[dict[str, Array]]:
        """Return the optimizer's slots of each variable, given those of each server."""
        slots: list[dict[str, Array]] = [{} for _ in self._server_of]
        for name in names:
            views = [link.layout.views(one.slots[name]) for link, one in zip(self._links, found, strict=True)]
            rest = self._in_order(views, self._rest_servers)
            own = self._in_order(
                [[table[name] for table in one.tables] for one in found], self._table_servers
            )
            for slot, array in zip(slots, interleaved(own, rest, self.tables), strict=True):
                slot[name] = array
        return slots

    def resume(self, updates: int, rate: float, mark: int) -> None:
        """Continue after so many updates: the servers have the slots and the learning rate already."""
        self.report.global_step = updates

    @property
    def learning_rate(self) -> float | None:
        """The rate of the next update, on the first replica."""
        return None if self._number or self._optimizer is None else self._optimizer.learning_rate

    def set_learning_rate(self, rate: float) -> None:
        """Change the rate on all servers between two updates; only the first replica sends it.

        Synchronous replicas' servers change between the same two: none of them can complete a step without
        the first replica's next gradient, unless there are backups.
        """
        self._set_rate(rate, math.inf)

    def follow_schedule(self, rate: float, factor: float) -> bool:
        """Have the servers compute the rate of each update, from their own counts of updates."""
        optimizer = self._optimizer
        if optimizer is None or optimizer.schedule is None:
            return False
        if factor == optimizer.factor:
            optimizer.learning_rate = rate
        else:
            self._set_rate(rate, factor)
        return True

    def _set_rate(self, rate: float, factor: float) -> None:
        if self._optimizer is not None:  # also of a replica that restores a server
            self._optimizer.learning_rate, self._optimizer.factor = rate, factor
        if self._number:
            return
        while self._rules.synchronous and self._under_way:
            self._retire()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.set_rate(rate, factor))

    def gradients(self) -> Sequence[Array]:
        """Return the arrays of the next free slot: in the server's own memory where it is shared."""
        return self._gradients[self._slot]

    def flat_gradients(self) -> Sequence[Array]:
        """Return the gradients."""
        return self.gradients()

    def push(self) -> None:
        """Send this step's gradients."""
        self._under_way.append(self._slot)
        for number, link in enumerate(self._links):
            if number in self._ahead:
                link.count_as_applied(self._slot)
                continue
            try:
                link.push(self._slot)
            except UnavailableError as error:
                self._survive(number, error)
        self._ahead = set()
        self._slot = (self._slot + 1) % self._slots

    def skip(self) -> None:
        """Take no part in this step's update; servers that count this replica's steps get zeros."""
        if self._rules.synchronous or self._rules.staleness is not None:
            push_zeros(self)

    def overflow(self) -> None:
        """Have all servers leave out the step, of synchronous replicas; else only this gradient."""
        self.report.overflows += 1
        if not self._rules.synchronous:
            self.skip()
            return
        self._overflowed.add(self._slot)
        for gradient in self.gradients():
            gradient.fill(np.nan)
        if self.tables:
            tables = [self.values[i] for i in self.tables]
            self.take([RowGradient(np.zeros(1, np.int64), np.full_like(t[:1], np.nan)) for t in tables])
        self.push()

    def finish(self) -> None:
        """Wait for all gradients of all replicas, and bring the final parameters."""
        while self._under_way:
            # A stopped step cannot complete any more; its gradient is dropped.
            with contextlib.suppress(StepStopped):
                self._retire()
        for number in range(len(self._links)):
            self._on(number, lambda link: link.wait_counted())
        self._done = True
        # To all before the first leave(): another replica may wait for this one at any of them.
        for number in range(len(self._links)):
            self._on(number, lambda link: link.announce_done())
        self.statistics = [self._leave(number) for number in range(len(self._links))]
        # Gradients collected for a step that was never completed count as dropped only now.
        self.report.dropped = max(
            self.report.dropped, *(one.dropped[self._number] for one in self.statistics)
        )
        self.report.global_step = self._links[0].global_step

    def _leave(self, number: int) -> GradientStatistics:
        """Wait until all replicas have left a server; return what it did with their gradients.

        If it dies then, and all replicas have made their steps, the parameters are those of the copy here.
        """
        while True:
            link = self._links[number]
            try:
                left = link.leave()
                self._over.add(number)
                return GradientStatistics.from_wire(left["statistics"])
            except UnavailableError as error:
                if self._links[number] is not link:
                    continue
                try:
                    self._survive(number, error, done=True)
                except TrainingOver:
                    if self._rules.synchronous:
                        raise error from None  # the others have the last update, and this replica lacks it
                    statistics = GradientStatistics.of(self._rules.replicas)
                    statistics.made[self._number] = self._links[number].offer(self._number, True).made
                    return statistics

    @property
    def outcome(self) -> str:
        """How many gradients were applied and dropped, in words; empty before ``finish``."""
        if len(self.statistics) == 1:
            return str(self.statistics[0])
        return "; ".join(f"on server {i}: {one}" for i, one in enumerate(self.statistics))

    def close(self) -> None:
        """Close the links."""
        self.at_close()
        for link in self._links:
            link.close()

    def _retire(self) -> None:
        """Wait until the oldest unacknowledged gradient is applied or dropped."""
        begun, self._retiring = time.perf_counter(), True
        try:
            applied = self._settle(self._under_way[0])
        except StepStopped:
            self.report.dropped += 1
            if self._rules.synchronous and self._rules.needed == self._rules.replicas:
                self.report.unmade += 1
                current().progress.cut_short = True
            raise
        finally:
            self._under_way.popleft()  # not before: a server that dies now does not answer it any more
            if self._waiting is not None:
                self._waiting.end()
            self.report.waited, self._retiring = self.report.waited + time.perf_counter() - begun, False
        if self._counts_apart and applied:  # all its shards together are one update
            try:
                self._links[0].count()
            except UnavailableError as error:  # what was counted is part of the offer to the new process
                self._survive(0, error)

    def _settle(self, slot: int) -> bool:
        """Wait for the servers' answers to a gradient; return whether all of them have applied it."""
        everywhere = range(len(self._links))
        if self._rules.judged_apart and not all(
            self._on(number, lambda link: link.taken(slot)) for number in everywhere
        ):
            # One of the servers has dropped it. The next gradient is not kept from that one until the others'
            # steps are complete: they may wait for a replica that waits for this one there.
            self.report.dropped += 1
            self._overflowed.discard(slot)
            self._pending[slot] = [number for number in everywhere if self._still_taken(number, slot)]
            return False
        first, *others = [self._on(number, lambda link: link.outcome(slot)) for number in everywhere]
        if slot in self._overflowed:
            self._overflowed.remove(slot)
        elif LEFT_OUT in (first[0], *(what for what, _ in others)):
            self.report.overflows += 1
        if DROPPED in (first[0], *(what for what, _ in others)):
            self.report.dropped += 1
            return False
        self.report.staleness = first[1]
        if others and self._rules.several and first[0] in (APPLIED, LEFT_OUT):
            for link in self._links[1:]:  # which keep every gradient; the first one has ended the step
                link.reach(link.version + 1)
        return True

    def _still_taken(self, number: int, slot: int) -> bool:
        """Whether a gradient waits in a slot for its step on a server; one that was dropped does not."""
        if self._on(number, lambda link: link.taken(slot)):
            return True
        self._on(number, lambda link: link.wait(slot))
        return False

    @staticmethod
    def _in_order(by_link: Sequence[Sequence[Array]], links: Sequence[int]) -> list[Array]:
        """Return what each link has, in the order of the variables."""
        following = [iter(arrays) for arrays in by_link]
        return [next(following[link]) for link in links]


EARLIER = "ps.earlier"
"""A message from one worker to another: it asks for the parameters of a server before its last update."""


def lend(replica: ServedReplica, shard: str, frame: Frame) -> Frame:
    """Answer a new process that needs parameters which a server has no longer; on the Server's thread.

    The training's thread does not change the copy meanwhile: it waits for the gradient of that process.
    Raises NotFoundError if this replica has other parameters.
    """
    number, version = int(frame.meta["server"]), int(frame.meta["version"])
    copy = replica.copy_of(number, version) if frame.meta["shard"] == shard else None
    if copy is None:
        raise NotFoundError(f"no copy of the parameters of {frame.meta['shard']} after update {version} here")
    return Frame(EARLIER, {}, (copy,))


class StepWait:
    """What a replica does while it waits: it shows which lost ones it waits for, and obeys a stop."""

    def __init__(self, context: Context, names: Mapping[int, str], check: Callable[[], None]) -> None:
        self._context, self._names, self._check = context, names, check
        self._links: Sequence[Link] = ()
        self._before: str | None = None
        self.look_at_servers: Callable[[], object] = lambda: None

    def watch(self, links: Sequence[Link]) -> None:
        """Check these links from now on."""
        self._links = links

    def check(self) -> None:
        """Check servers and awaited replicas, often; raises AbortedError if the run has ended."""
        self._check()
        self.look_at_servers()
        awaited = sorted({replica for link in self._links for replica in link.awaited})
        self._show(awaited)
        if awaited and self._context.control.stop_requested:
            for link in self._links:
                with contextlib.suppress(UnavailableError):  # that server has died, and no step is made there
                    link.announce_done(stops=True)

    def end(self) -> None:
        """Wait no longer."""
        for link in self._links:
            link.awaited = []
        self._show([])

    def _show(self, awaited: Sequence[int]) -> None:
        progress = self._context.progress
        if awaited:
            self._before = progress.state if self._before is None else self._before
            names = " and ".join(self._names[replica] for replica in awaited)
            progress.state = f"waiting for {names}'s new process"
        elif self._before is not None:
            progress.state, self._before = self._before, None
