"""The custom training loop of every strategy: scope, run, reduce, distribute_dataset, read.

    with strategy.scope():
        model = nn.Sequential([...])
        optimizer = SGD(0.1)
    for x, y in strategy.distribute_dataset(dataset):
        loss = strategy.reduce("sum", strategy.run(step, (x, y)))

A :class:`~nbdist.train.strategy.Strategy` has these as methods.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from nbdist.data import Dataset
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.train.boundary import check_policy
from nbdist.train.context import Context, use_here
from nbdist.train.custom.dataset import DistributedDataset, InputContext, ReplicaBatches
from nbdist.train.custom.reduce import PerReplica, of_replica, reduce_op, reduced
from nbdist.train.custom.resume import finish_states
from nbdist.train.custom.runner import Runner
from nbdist.train.custom.trace import tree_leaves, tree_map
from nbdist.train.custom.variables import StrategyVariables
from nbdist.train.strategy import Strategy

_numbers = itertools.count()
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_scoped: ContextVar[Context | None] = ContextVar("the context of a strategy's scope around", default=None)


def runner_of(strategy: Strategy) -> Runner:
    """Return what runs a strategy's custom loops in this process, from its first use on."""
    if strategy.no_loops:
        raise InvalidArgumentError(
            f"strategy {strategy.name} runs no loops of one's own: {strategy.no_loops}"
        )
    if strategy._runner is None:
        strategy._runner = Runner(StrategyVariables(strategy), next(_numbers))
        _runners.add(strategy._runner)
    return strategy._runner


def active_runner(strategy: Strategy) -> Runner:
    """Return what runs a strategy's loops; its run must not be over, as that of an earlier cell's is."""
    runner = runner_of(strategy)
    if runner.over:
        raise FailedPreconditionError(
            "this strategy belongs to a run that has ended: take this run's own with "
            "strategy = nb.get_strategy(), and make the model and the optimizer in its scope"
        )
    return runner


def scoped() -> Context | None:
    """Return the context of the ``with strategy.scope()`` around, if there is one."""
    return _scoped.get()


@contextlib.contextmanager
def scope(strategy: Strategy) -> Iterator[Strategy]:
    """Make a strategy the current one of this thread, and what is made inside a ``with`` its own."""
    variables = active_runner(strategy).variables
    token = _scoped.set(variables.context)
    try:
        with use_here(variables.context), variables.graph.as_default():
            yield strategy
    finally:
        _scoped.reset(token)


def run(strategy: Strategy, function: Callable[..., Any], arguments: Any, nan: str = "stop") -> Any:
    """Run a function on every replica of this process."""
    skip = check_policy(nan)
    if skip and not strategy.skips:
        raise InvalidArgumentError(
            f"run: strategy {strategy.name} cannot leave out a replica's part of a step: drop nan='skip'"
        )
    return active_runner(strategy).run(function, arguments, skip)


def reduce(strategy: Strategy, op: Any, value: Any, axis: Any) -> Any:
    """Return the sum or the mean over all replicas in sync, for each leaf of a pytree."""
    runner, how = runner_of(strategy), reduce_op(op)
    replicas = len(runner.variables.local.all)

    def one(value: Any) -> Any:
        if value is None:
            return None
        values = [of_replica(value, i, replicas) for i in range(replicas)]
        return reduced(how, values, axis, runner.variables.local.all_reduce)

    return tree_map(one, value)


def distribute_dataset(strategy: Strategy, dataset: Dataset) -> DistributedDataset:
    """Return a dataset of which this process's replicas get their shares."""
    runner = active_runner(strategy)
    return DistributedDataset(runner, dataset, runner.next_seed())


def distribute_datasets_from_function(
    strategy: Strategy, make: Callable[[InputContext], Dataset]
) -> ReplicaBatches:
    """Return batches for single replicas, which this process's dataset has."""
    return ReplicaBatches(active_runner(strategy), make)


def read(strategy: Strategy, variable: Any) -> Any:
    """Return the newest value of a variable, or of each in a pytree."""
    variables = runner_of(strategy).variables
    return tree_map(variables.read, variable)


def finish(strategy: Strategy) -> None:
    """Wait until the updates of all replicas are applied, and fetch the final values."""
    if strategy._runner is not None:
        strategy._runner.variables.finish()


def end_loops(context: Context, *, whole: bool) -> None:
    """End the custom loops of a run on this replica: those of its own strategy, and of others made in it.

    ``whole`` waits until the updates of all replicas are applied; otherwise no replica is waited for. Values
    are fetched in both cases.
    """
    runners = [one for one in _runners if one.variables.context.control is context.control]
    finish_states(context, whole)
    for runner in sorted(runners, key=lambda one: one.number):  # in one order on all replicas
        runner.over = True
        if whole:
            runner.variables.finish()
        else:
            runner.variables.abandon()


def local_results(value: Any) -> tuple[Any, ...]:
    """Return the values of this process's replicas."""
    found = [one for one in tree_leaves(value) if isinstance(one, PerReplica)]
    if not found:
        return (value,)
    pick: Callable[[int], Any] = lambda i: tree_map(
        lambda one: one.values[i] if isinstance(one, PerReplica) else one, value
    )
    return tuple(pick(i) for i in range(len(found[0])))
