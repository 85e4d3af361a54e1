"""Synchronous training of replicas that each drive their own session: TensorFlow's SyncReplicasOptimizer.

Each worker gives its gradients to accumulators, one beside each variable, and waits for a token. A thread of
the chief takes the mean of R gradients, applies it, counts the step, and puts a token for each worker.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Scope
from nbdist.graph.tensor import Tensor, Variable
from nbdist.optim import training
from nbdist.optim.base import Optimizer
from nbdist.train.aggregation import Aggregation, build, give, new_local_step
from nbdist.train.queue_runner import QueueRunner
from nbdist.train.sync_hook import SyncReplicasHook


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
        self.replicas_to_aggregate = _positive("replicas_to_aggregate", replicas_to_aggregate)
        total = self.replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        self.total_num_replicas = _positive("total_num_replicas", total)
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
                "SyncReplicasOptimizer needs global_step, which tells late gradients from those of the step; "
                "see train.get_or_create_global_step()"
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
            give(accumulator, gradient, v, local_step)
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
        """The op with which another worker begins, when the chief has: it takes the step that it is in."""
        shared = self._made("local_step_init_op")
        return shared.once("local_step_init", shared.start)

    @property
    def wait_for_chief_op(self) -> Tensor:
        """The op that waits until the chief has begun; variables are initialised then."""
        shared = self._made("wait_for_chief_op")
        return shared.once("wait_for_chief", shared.join)

    @property
    def ready_for_local_init_op(self) -> Tensor:
        """Whether the chief has begun, so that ``local_step_init_op`` can be run; a bool."""
        shared = self._made("ready_for_local_init_op")
        return shared.once("ready_for_local_init", shared.queue.is_open)

    def get_init_tokens_op(self, num_tokens: int = -1) -> Tensor:
        """Return the op that puts the first tokens in the queue, which hold the step that training begins at.

        -1 puts ``replicas_to_aggregate`` of them, as TensorFlow does: replicas can then be run one after the
        other at first, and a chief that comes again finds nobody waiting in vain; but each token beyond those
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
        """Return the op with which the chief ends: who waits for a token in vain gets an OutOfRangeError."""
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


def _positive(name: str, count: Any) -> int:
    try:
        number = 0 if isinstance(count, (bool, np.bool)) else operator.index(count)
    except TypeError:
        number = 0
    if number < 1:
        raise InvalidArgumentError(f"{name} is a whole number of 1 or more, got {count!r}")
    return number
