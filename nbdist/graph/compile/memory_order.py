"""Memory-aware order of ops: an op that frees memory runs as early as possible. Pure.

    order = thrifty_order(values, order)

In the order of its fetches, a gradient graph first computes all that leads to the first layer's gradient,
and keeps the inputs of the other layers' gradients until then.

The order with the smallest peak is NP-hard to find (register sufficiency; Sethi 1975). This is greedy list
scheduling by bytes freed, as in XLA's ListScheduler (hlo_memory_scheduler.cc): of the ops that are ready, one
that frees no less memory than it takes runs immediately, the one that frees most first. Unlike in XLA, all
other ops keep the given order, so that the result differs from it only where memory is saved. The greedy
order can be worse than the given one; `compile_program` plans both and takes the one with the lower peak.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from nbdist.graph.compile.specs import size_of
from nbdist.graph.compile.values import ValueKind, Values
from nbdist.graph.tensor import Tensor, Variable


def may_be_reordered(values: Values, order: Sequence[Tensor]) -> bool:
    """Whether only inputs constrain the order: no control inputs, assignments or external ops."""
    return not any(
        node.control_inputs or (node.op is not None and (node.op.writes or node.op.external))
        for node in order
        if node not in values.fed
    )


def thrifty_order(values: Values, order: Sequence[Tensor]) -> list[Tensor]:
    """Return the same ops, inputs before users; those that free no less memory than they take come first.

    Other ops keep the given order. An op that reads a variable stays before each target of the same shape and
    dtype that it precedes in ``order``: the target may be that variable's memory.
    """
    return _Scheduler(values, order).run()


class _Scheduler:
    def __init__(self, values: Values, order: Sequence[Tensor]) -> None:
        self.values = values
        self.places = {node: n for n, node in enumerate(order)}
        before = {node: set(values.reads(node)) for node in order}
        _keep_reads_before_targets(values, order, before)
        self.waiting = {node: len(first) for node, first in before.items()}
        self.users: dict[Tensor, list[Tensor]] = {node: [] for node in order}
        for node, first in before.items():
            for one in first:
                self.users[one].append(node)
        self.readers: dict[Tensor, set[Tensor]] = {}
        """The ops that have yet to read a value's memory."""
        for node in order:
            for i in values.reads(node):
                self.readers.setdefault(values.roots[i], set()).add(node)
        self.ready: list[int] = []
        self.saving: list[tuple[int, int]] = []
        self.order = order
        self.wanted = {values.roots[t] for t in values.wanted}

    def run(self) -> list[Tensor]:
        done: list[Tensor] = []
        finished: set[Tensor] = set()
        for node in self.order:
            if not self.waiting[node]:
                self._offer(node)
        while self.ready or self.saving:
            place = heapq.heappop(self.saving)[1] if self.saving else heapq.heappop(self.ready)
            node = self.order[place]
            if node in finished:
                continue
            finished.add(node)
            done.append(node)
            for user in self.users[node]:
                self.waiting[user] -= 1
                if not self.waiting[user]:
                    self._offer(user)
            for root in {self.values.roots[i] for i in self.values.reads(node)}:
                left = self.readers[root]
                left.discard(node)
                if len(left) == 1:
                    (last,) = left
                    if not self.waiting[last] and last not in finished:
                        self._offer(last)
        return done

    def _offer(self, node: Tensor) -> None:
        """Queue an op that is ready; those that save memory have a queue that is emptied first."""
        takes = self._takes(node)
        if takes <= 0:
            heapq.heappush(self.saving, (takes, self.places[node]))
        else:
            heapq.heappush(self.ready, self.places[node])

    def _takes(self, node: Tensor) -> int:
        """Return how many bytes more are alive after an op than before."""
        values = self.values
        own = 0
        if values.kinds[node] is ValueKind.COMPUTED and node not in values.elsewhere:
            own = size_of(values.specs[node])
        for root in {values.roots[i] for i in values.reads(node)}:
            planned = values.kinds[root] is ValueKind.COMPUTED and root not in values.elsewhere
            if planned and root not in self.wanted and self.readers[root] <= {node}:
                own -= size_of(values.specs[root])
        return own


def _keep_reads_before_targets(
    values: Values, order: Sequence[Tensor], before: dict[Tensor, set[Tensor]]
) -> None:
    """Keep each target after the reads of a variable that may be its memory, as in the given order."""
    reads: dict[object, list[Tensor]] = {}
    for node in order:
        if node in values.targets:
            before[node].update(reads.get(values.specs[node], []))
        for i in values.reads(node):
            root = values.roots[i]
            if isinstance(root, Variable):
                reads.setdefault(values.specs[root], []).append(node)
