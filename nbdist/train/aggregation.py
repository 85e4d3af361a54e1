"""What replicas share in a graph: accumulators beside the variables, tokens, and the chief's step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.ops.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from nbdist.graph.ops.state import group
from nbdist.graph.ops.tokens import TokenQueue
from nbdist.graph.scopes import Graph, Scope
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Tensor, Variable, constant, symbolic
from nbdist.optim.base import Optimizer
from nbdist.optim.training import Pairs
from nbdist.train.queue_runner import QueueRunner


@dataclass
class Aggregation:
    """The accumulators of ``variables``, the queue of tokens, and the chief's ops on them."""

    name: str
    global_step: Variable
    variables: list[Variable]
    accumulators: list[Any]
    queue: TokenQueue
    runner: QueueRunner
    closing: Tensor
    dropped: Tensor
    local_steps: list[Variable] = field(default_factory=list)
    """Of the replicas in this graph."""
    _made: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def once(self, what: str, make: Callable[[], Tensor]) -> Tensor:
        """Return an op that is made once for the replicas that there are so far."""
        key = (what, len(self.local_steps))
        if key not in self._made:
            with self.global_step.graph.within(Scope(name=f"{self.name}/")):
                self._made[key] = make()
        return self._made[key]

    def begin(self, replicas: int, one_each: bool) -> Tensor:
        """Return the op that empties the accumulators, then the queue, which so many replicas may join.

        ``one_each`` says that a step has a token for each of them, and not several.
        """
        graph, step = self.global_step.graph, self.global_step
        begun = [accumulator.begin(step) for accumulator in self.accumulators]
        with graph.within(Scope(name=f"{self.name}/", control=tuple(begun))):
            opened = self.queue.begin(replicas, one_each=one_each)
        with graph.within(Scope(name=f"{self.name}/", control=(opened,))):
            return group(*(local.assign(step) for local in self.local_steps))

    def join(self) -> Tensor:
        """Return the op that waits until the queue has begun; what it reads is initialised then."""
        return group(*(self.queue.join(local.device) for local in self.local_steps))

    def start(self) -> Tensor:
        """Return the op with which replicas begin at the step that training is in."""
        return group(*(local.assign(self.global_step) for local in self.local_steps))

    def tokens(self, count: int) -> Tensor:
        """Return the op that puts so many tokens of the step that training is in."""
        if count == 0:
            return group()
        with self.global_step.graph.within(Scope(name=f"{self.name}/", colocated=self.global_step)):
            return self.queue.enqueue_many(symbolic.broadcast_to(self.global_step, (count,)), first=True)

    def check(self, pairs: Pairs, global_step: Variable) -> None:
        """Raise InvalidArgumentError if another replica's gradients are none of the same."""
        same = [v for _, v in pairs]
        if global_step.graph is not self.global_step.graph:
            raise InvalidArgumentError(
                "a SyncReplicasOptimizer belongs to one graph, and was used in another one: make a new one"
            )
        if global_step is not self.global_step:
            raise InvalidArgumentError(
                f"replicas count one step: {self.global_step.name!r} so far, now {global_step.name!r}"
            )
        if list(map(id, same)) != list(map(id, self.variables)):
            raise InvalidArgumentError(
                "replicas give gradients of the same variables in the same order: so far of "
                f"{_names(self.variables)}, now of {_names(same)}"
            )
        for accumulator, (gradient, v) in zip(self.accumulators, pairs, strict=True):
            if accumulator.sparse is not isinstance(gradient, IndexedSlices):
                raise InvalidArgumentError(
                    f"the gradient of {v.name!r} is rows in one replica and dense in another"
                )


def build(
    opt: Optimizer, name: str, pairs: Pairs, global_step: Variable, needed: int, tokens: int
) -> Aggregation:
    """Make what replicas share. ``needed`` gradients make a step, which puts so many ``tokens``."""
    graph, variables = global_step.graph, [v for _, v in pairs]
    accumulators: list[Any] = []
    for gradient, v in pairs:
        kind = SparseConditionalAccumulator if isinstance(gradient, IndexedSlices) else ConditionalAccumulator
        with graph.within(Scope(colocated=v, container=v.container)):
            accumulators.append(kind(v.dtype, tuple(n or 0 for n in v.shape), name=f"{v.name}/grad_accum"))
    with graph.within(Scope(colocated=global_step, container=global_step.container)):
        queue = TokenQueue("sync_token_q")
        serve = queue.serve()  # made before what waits, so that it comes before that
    with graph.within(Scope(name=f"{name}/")):
        # The aggregation waits for any time: a worker that waits too long is told so by its own session.
        taken = [accumulator.take_grad(needed, patient=True) for accumulator in accumulators]
        applied = opt.apply_gradients(list(zip(taken, variables, strict=True)), global_step)
    with graph.within(Scope(name=f"{name}/", colocated=global_step, control=(applied,))):
        put = queue.enqueue_many(symbolic.broadcast_to(global_step.read_value(), (tokens,)))
    with graph.within(Scope(name=f"{name}/")):
        # A batch whose gradients are dropped by one accumulator is dropped by most.
        dropped = reduce(symbolic.maximum, [accumulator.num_dropped() for accumulator in accumulators])
        runner = QueueRunner(group(serve, put, name="aggregate"), queue.close(failed=True))
        closing = group(queue.close(), *(accumulator.close() for accumulator in accumulators), name="close")
    return Aggregation(name, global_step, variables, accumulators, queue, runner, closing, dropped)


def new_local_step(graph: Graph, global_step: Variable, name: str) -> Variable:
    """Return a replica's own step, where it computes; no other graph has it, and it is not trained."""
    place = constant(np.int64(0), name=f"{name}/place")
    # Workers may share a task: what is in a container of this graph's own is nobody else's.
    with graph.within(Scope(colocated=place, container=f"local-{secrets.token_hex(4)}")):
        step = Variable(np.zeros((), global_step.dtype), trainable=False, name="sync_rep_local_step")
    graph.local_variables[step] = None
    return step


def give(accumulator: Any, gradient: Any, v: Variable, local_step: Variable) -> Tensor:
    """Return the op that gives one gradient to its accumulator."""
    graph = v.graph
    sparse = isinstance(gradient, IndexedSlices)
    parts = (gradient.indices, _cast(gradient.values, v)) if sparse else (_cast(gradient, v),)
    with graph.within(Scope(control=graph.scope.control)):
        given: Tensor = accumulator.apply_grad(*parts, local_step)
    return given


def _cast(gradient: Any, v: Variable) -> Any:
    """Return a gradient in its variable's dtype, converted where it is."""
    if not isinstance(gradient, Tensor) or gradient.dtype == v.dtype:
        return gradient
    with v.graph.within(Scope(colocated=gradient)):
        return gradient.astype(v.dtype)


def _names(variables: Sequence[Variable]) -> str:
    return ", ".join(repr(v.name) for v in variables[:4]) + (" ..." if len(variables) > 4 else "")
