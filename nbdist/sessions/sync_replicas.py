"""Synchronous training of replicas that each drive their own session: TensorFlow's SyncReplicasOptimizer.

Each worker gives its gradients to accumulators, one beside each variable, and waits for a token. A thread of
the chief takes the mean of R gradients, applies it, counts the step, and puts a token for each worker.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from nbdist.data.arguments import whole_number
from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NbdistError
from nbdist.graph.ops.accumulators import ConditionalAccumulator, SparseConditionalAccumulator
from nbdist.graph.ops.state import group
from nbdist.graph.ops.tokens import TokenQueue
from nbdist.graph.scopes import Graph, Scope
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Tensor, Variable, constant, symbolic
from nbdist.optim import training
from nbdist.optim.base import Optimizer
from nbdist.optim.training import Pairs
from nbdist.runtime.session.session import Session
from nbdist.sessions.hooks import SessionRunHook
from nbdist.sessions.queue_runner import QueueRunner
from nbdist.train.context import current


class SyncReplicasOptimizer:
    """Has ``opt`` apply the mean of ``replicas_to_aggregate`` gradients at once (Chen et al. 2016).

    With more replicas (``total_num_replicas``) than that the others are backups: the fastest gradients make
    the step, late ones are dropped and counted in ``dropped``. With fewer, replicas give several batches a
    step. Each worker builds the same graph and drives its own replica; the chief is one of them and applies
    the gradients as well. In one graph with several towers ``apply_gradients`` is called for each.

    Replicas need each other: where R is not N, let them train until the global step is what it should be,
    not for a number of runs each. When the chief has ended, the others' runs raise OutOfRangeError.

    >>> from nbdist.graph.scopes import Graph
    >>> from nbdist.graph.variables import get_or_create_global_step, global_variables_initializer
    >>> from nbdist.optim import SGD
    >>> from nbdist.runtime.session.session import Session
    >>> with Graph().as_default():
    ...     w = Variable(np.zeros(2), name="w")
    ...     optimizer = SyncReplicasOptimizer(SGD(0.5), replicas_to_aggregate=1)
    ...     train = optimizer.minimize(np.sum(w), get_or_create_global_step())
    ...     hook = optimizer.make_session_run_hook(is_chief=True, num_tokens=0)
    ...     with Session() as session:                          # Session(nb.task.target) on a cluster
    ...         session.run(global_variables_initializer())     # the chief alone
    ...         with hook.training(session):                    # every worker
    ...             for _ in range(3):
    ...                 session.run(train)
    ...             session.run(w)
    array([-1.5, -1.5])
    """

    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        *,
        name: str = "sync_replicas",
    ) -> None:
        if not isinstance(opt, Optimizer):
            raise InvalidArgumentError(f"SyncReplicasOptimizer wraps an optimizer, got {opt!r}")
        self.replicas_to_aggregate = whole_number("replicas_to_aggregate", replicas_to_aggregate, 1)
        total = self.replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        self.total_num_replicas = whole_number("total_num_replicas", total, 1)
        self._opt, self._name = opt, name
        self._shared: Aggregation | None = None

    def compute_gradients(self, loss: Tensor, var_list: Any = None, grad_loss: Any = None) -> training.Pairs:
        """Return (gradient, variable) for each variable, as the wrapped optimizer does."""
        return self._opt.compute_gradients(loss, var_list, grad_loss)

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Any = None,
        grad_loss: Any = None,
        name: str | None = None,
    ) -> Tensor:
        """Return the op that makes a replica's part of a step; see :meth:`apply_gradients`."""
        return self.apply_gradients(self.compute_gradients(loss, var_list, grad_loss), global_step, name)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Variable]],
        global_step: Variable | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Return the op that gives a replica's gradients and waits for its token, which is its next step.

        Raises InvalidArgumentError (a ValueError) for an empty list, for no ``global_step``, and for what the
        wrapped optimizer refuses.
        """
        pairs = training.checked_pairs(grads_and_vars)
        if global_step is None:
            raise InvalidArgumentError(
                "SyncReplicasOptimizer needs global_step, which distinguishes late gradients from those of "
                "the step; see train.get_or_create_global_step()"
            )
        graph = pairs[0][1].graph
        training.check_step(global_step, graph)
        if self._shared is None:
            needed = self.replicas_to_aggregate
            tokens = max(needed, self.total_num_replicas)
            self._shared = build(self._opt, self._name, pairs, global_step, needed, tokens)
        shared = self._shared
        shared.check(pairs, global_step)
        local_step = new_local_step(graph, global_step, self._name)
        shared.local_steps.append(local_step)
        given = [
            give(accumulator, gradient, v, local_step, shared.giver)
            for accumulator, (gradient, v) in zip(shared.accumulators, pairs, strict=True)
        ]
        token = shared.queue.dequeue(local_step)
        token.control_inputs = (*token.control_inputs, *given)
        with graph.within(Scope(name=graph.scope.name)):
            done = local_step.assign(token.astype(local_step.dtype))
            return group(done, name=name or self._name)

    @property
    def dropped(self) -> Tensor:
        """How many batches of gradients came too late and were dropped, since the chief began; int64."""
        return self._made("dropped").dropped

    @property
    def chief_init_op(self) -> Tensor:
        """The op with which the chief begins: nothing is collected, no token is left, replicas may join."""
        shared, replicas = self._made("chief_init_op"), self.total_num_replicas
        one_each = self.replicas_to_aggregate <= replicas
        return shared.once("chief_init", lambda: shared.begin(replicas, one_each))

    @property
    def local_step_init_op(self) -> Tensor:
        """The op with which another worker begins, when the chief has: it takes the step that it is in.

        What the worker gave to this step before, in another session or process, is withdrawn.
        """
        shared = self._made("local_step_init_op")
        one_each = self.replicas_to_aggregate <= self.total_num_replicas
        return shared.once("local_step_init", lambda: shared.start(one_each))

    @property
    def wait_for_chief_op(self) -> Tensor:
        """The op that waits until the chief has begun; variables are initialised then."""
        shared = self._made("wait_for_chief_op")
        return shared.once("wait_for_chief", shared.join)

    @property
    def rejoin_op(self) -> Tensor:
        """The same for a worker that had a part in the training: OutOfRangeError if it has ended since."""
        shared = self._made("rejoin_op")
        return shared.once("rejoin", lambda: shared.join(again=True))

    @property
    def ready_for_local_init_op(self) -> Tensor:
        """Whether the chief has begun, so that ``local_step_init_op`` can be run; a bool."""
        shared = self._made("ready_for_local_init_op")
        return shared.once("ready_for_local_init", shared.queue.is_open)

    def get_init_tokens_op(self, num_tokens: int = -1) -> Tensor:
        """Return the op that puts the first tokens in the queue, which hold the step that training begins at.

        -1 puts ``replicas_to_aggregate`` of them, as TensorFlow does: replicas can then be run one after the
        other at first, and after a restart of the chief no replica waits in vain; but each token beyond those
        that are needed costs a batch, which is computed and dropped. Needed are as many as replicas are
        missing, ``max(0, replicas_to_aggregate - total_num_replicas)``. With fewer the first step could never
        be made, which is an InvalidArgumentError.
        """
        shared = self._made("get_init_tokens_op()")
        count = self.init_tokens(num_tokens)
        return shared.once(f"init_tokens_{count}", lambda: shared.tokens(count))

    def init_tokens(self, num_tokens: int) -> int:
        """Return how many tokens ``num_tokens`` stands for; InvalidArgumentError for too few."""
        least = max(0, self.replicas_to_aggregate - self.total_num_replicas)
        if num_tokens == -1:
            return self.replicas_to_aggregate
        if num_tokens < least:
            raise InvalidArgumentError(
                f"too few tokens for the first step: num_tokens={num_tokens}, and {least} are needed for "
                f"{self.total_num_replicas} replicas to give {self.replicas_to_aggregate} gradients; -1 puts "
                "as many as gradients make a step"
            )
        return num_tokens

    def get_chief_queue_runner(self) -> QueueRunner:
        """Return what runs the chief's part in a thread: take, apply, count, put tokens."""
        return self._made("get_chief_queue_runner()").runner

    def get_closing_op(self) -> Tensor:
        """Return the op with which the chief ends; replicas that wait for a token get an OutOfRangeError."""
        return self._made("get_closing_op()").closing

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SyncReplicasHook:
        """Return the hook that begins and ends a worker's part; see :meth:`get_init_tokens_op`."""
        return SyncReplicasHook(self, is_chief, num_tokens)

    def get_slot_names(self) -> list[str]:
        """Return the names of what the wrapped optimizer keeps for each variable."""
        return self._opt.get_slot_names()

    def get_slot(self, variable: Variable, name: str) -> Variable:
        """Return what the wrapped optimizer keeps under a name for a variable."""
        return self._opt.get_slot(variable, name)

    def _made(self, what: str) -> Aggregation:
        if self._shared is None:
            raise FailedPreconditionError(
                f"SyncReplicasOptimizer has no {what} yet: call apply_gradients or minimize first"
            )
        return self._shared

    def __repr__(self) -> str:
        return (
            f"SyncReplicasOptimizer({self._opt!r}, replicas_to_aggregate={self.replicas_to_aggregate}, "
            f"total_num_replicas={self.total_num_replicas})"
        )


# The shared part of the graph: accumulators beside the variables, tokens, and the chief's step.


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
    giver: str
    """Identifies this graph's replicas at the accumulators."""
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

    def join(self, again: bool = False) -> Tensor:
        """Return the op that waits until the queue has begun; what it reads is initialised then."""
        return group(*(self.queue.join(local.device, again=again) for local in self.local_steps))

    def start(self, one_each: bool) -> Tensor:
        """Return the op with which replicas begin at the step that training is in.

        Where a step has one gradient of each, what they gave to it before is withdrawn first. Where it has
        several, each stands for a token and stays.
        """
        withdrawn = [accumulator.withdraw(self.giver) for accumulator in self.accumulators if one_each]
        with self.global_step.graph.within(Scope(name=f"{self.name}/", control=tuple(withdrawn))):
            at = self.global_step.read_value()
            return group(*(local.assign(at) for local in self.local_steps))

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
        # The aggregation waits for any time: a worker that waits too long gets an error from its own session.
        taken = [accumulator.take_grad(needed, patient=True) for accumulator in accumulators]
        applied = opt.apply_gradients(list(zip(taken, variables, strict=True)), global_step)
    with graph.within(Scope(name=f"{name}/", colocated=global_step, control=(applied,))):
        put = queue.enqueue_many(symbolic.broadcast_to(global_step.read_value(), (tokens,)))
    with graph.within(Scope(name=f"{name}/")):
        # A batch whose gradients are dropped by one accumulator is dropped by most.
        dropped = reduce(symbolic.maximum, [accumulator.num_dropped() for accumulator in accumulators])
        runner = QueueRunner(group(serve, put, name="aggregate"), queue.close(failed=True))
        closing = group(queue.close(), *(accumulator.close() for accumulator in accumulators), name="close")
    giver = secrets.token_hex(4)
    return Aggregation(name, global_step, variables, accumulators, queue, runner, closing, dropped, giver)


def new_local_step(graph: Graph, global_step: Variable, name: str) -> Variable:
    """Return a replica's own step, where it computes; no other graph has it, and it is not trained."""
    place = constant(np.int64(0), name=f"{name}/place")
    # Workers may share a task: a container of this graph's own is not shared.
    with graph.within(Scope(colocated=place, container=f"local-{secrets.token_hex(4)}")):
        step = Variable(np.zeros((), global_step.dtype), trainable=False, name="sync_rep_local_step")
    graph.local_variables[step] = None
    return step


def give(accumulator: Any, gradient: Any, v: Variable, local_step: Variable, giver: str) -> Tensor:
    """Return the op that gives one gradient to its accumulator."""
    graph = v.graph
    sparse = isinstance(gradient, IndexedSlices)
    parts = (gradient.indices, _cast(gradient.values, v)) if sparse else (_cast(gradient, v),)
    with graph.within(Scope(control=graph.scope.control)):
        given: Tensor = accumulator.apply_grad(*parts, local_step, giver=giver)
    return given


def _cast(gradient: Any, v: Variable) -> Any:
    """Return a gradient in its variable's dtype, converted where it is."""
    if not isinstance(gradient, Tensor) or gradient.dtype == v.dtype:
        return gradient
    with v.graph.within(Scope(colocated=gradient)):
        return gradient.astype(v.dtype)


def _names(variables: Sequence[Variable]) -> str:
    return ", ".join(repr(v.name) for v in variables[:4]) + (" ..." if len(variables) > 4 else "")


# The hook of a worker in synchronous training.


class SyncReplicasHook(SessionRunHook):
    """What a worker does beside its steps; :meth:`training` does it for a plain session.

    The chief opens the queue of tokens and runs the aggregation in a thread of its own; the others wait for
    it. When the chief ends, or its session does, replicas that wait for a token get an error.

    In a session that is made again, and in the new process of a replica, it begins again: the chief drops all
    gradients and tokens of before, and a worker takes part in the step that training is in.
    """

    def __init__(self, optimizer: SyncReplicasOptimizer, is_chief: bool, num_tokens: int) -> None:
        self._optimizer, self.is_chief, self._num_tokens = optimizer, is_chief, num_tokens
        self._begin: Sequence[Tensor] = ()
        self._again: Sequence[Tensor] = ()
        self._runner: QueueRunner | None = None
        self.needed_workers = optimizer.replicas_to_aggregate

    def begin(self) -> None:
        """Make the ops; raises FailedPreconditionError before ``apply_gradients``.

        Too few tokens for a first step are an InvalidArgumentError.
        """
        self._optimizer.init_tokens(self._num_tokens)
        if self.is_chief:
            self._runner = self._optimizer.get_chief_queue_runner()
            tokens = self._optimizer.get_init_tokens_op(self._num_tokens)
            self._begin = self._again = self._optimizer.chief_init_op, tokens
        else:
            start = self._optimizer.local_step_init_op
            self._begin, self._again = (
                (self._optimizer.wait_for_chief_op, start), (self._optimizer.rejoin_op, start)
            )  # fmt: skip
            context = current()
            if context.world.rejoins and context.progress.sessions == 0:
                self._begin = self._again

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Begin: as the chief after it has initialised all variables, else once the chief has begun."""
        for op in self._begin:
            session.run(op)
        self._begin = self._again
        if self._runner is not None:
            self._runner.create_threads(session, coord)

    def before_run(self, run_context: Any) -> None:
        """Raise what has ended the aggregation, if anything has."""
        self._check()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Raise what has ended the aggregation, if anything has."""
        self._check()

    def end(self, session: Session) -> None:
        """End: the chief closes the queue, so that a replica that still waits gets an OutOfRangeError."""
        if self._runner is not None:
            with suppress(
                NbdistError
            ):  # the session is closed or a task has ended; the runner has that error
                session.run(self._optimizer.get_closing_op())
            self._runner.join()

    @contextmanager
    def training(self, session: Session) -> Iterator[Session]:
        """Take part in the training with a plain session, inside a ``with``."""
        if not self._begin:
            self.begin()
        self.after_create_session(session)
        try:
            try:
                yield session
            finally:
                self.end(session)
        except AbortedError:  # perhaps by what ended the aggregation
            self._check()
            raise
        self._check()

    def _check(self) -> None:
        if self._runner is not None and self._runner.error is not None:
            raise self._runner.error
