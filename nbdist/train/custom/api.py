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
from typing import TYPE_CHECKING, Any

from nbdist.data import Dataset
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.train.boundary import check_policy
from nbdist.train.context import Context, use_here
from nbdist.train.custom.dataset import DistributedDataset, InputContext, ReplicaBatches
from nbdist.train.custom.reduce import PerReplica, of_replica, reduce_op, reduced
from nbdist.train.custom.runner import Runner
from nbdist.train.custom.trace import leaves, mapped
from nbdist.train.custom.variables import Held

if TYPE_CHECKING:
    from nbdist.train.strategy import Strategy

_numbers = itertools.count()
_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_scoped: ContextVar[Context | None] = ContextVar("the context of a strategy's scope around", default=None)


def runner_of(strategy: Strategy) -> Runner:
    """Return what runs a strategy's custom loops in this process, from its first use on."""
    found: Runner | None = strategy.__dict__.get("_runner")
    if strategy.no_loops:
        raise InvalidArgumentError(
            f"strategy {strategy.name} runs no loops of one's own: {strategy.no_loops}"
        )
    if found is None:
        found = strategy.__dict__["_runner"] = Runner(Held(strategy), next(_numbers))
        _runners.add(found)
    return found


def going_on(strategy: Strategy) -> Runner:
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
    held = going_on(strategy).held
    token = _scoped.set(held.context)
    try:
        with use_here(held.context), held.graph.as_default():
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
    return going_on(strategy).run(function, arguments, skip)


def reduce(strategy: Strategy, op: Any, value: Any, axis: Any) -> Any:
    """Return the sum or the mean over all replicas in sync, for each value in a tree."""
    runner, how = runner_of(strategy), reduce_op(op)
    replicas = len(runner.held.places.all)

    def one(value: Any) -> Any:
        if value is None:
            return None
        values = [of_replica(value, i, replicas) for i in range(replicas)]
        return reduced(how, values, axis, runner.held.places.all_reduce)

    return mapped(one, value)


def distribute_dataset(strategy: Strategy, dataset: Dataset) -> DistributedDataset:
    """Return a dataset of which this process's replicas get their shares."""
    runner = going_on(strategy)
    return DistributedDataset(runner, dataset, runner.next_seed())


def distribute_datasets_from_function(
    strategy: Strategy, make: Callable[[InputContext], Dataset]
) -> ReplicaBatches:
    """Return batches for single replicas, which this process's dataset has."""
    return ReplicaBatches(going_on(strategy), make)


def read(strategy: Strategy, variable: Any) -> Any:
    """Return the newest value of a variable, or of each in a tree."""
    held = runner_of(strategy).held
    return mapped(held.read, variable)


def finish(strategy: Strategy) -> None:
    """Wait until the updates of all replicas are applied, and bring the final values home."""
    runner: Runner | None = strategy.__dict__.get("_runner")
    if runner is not None:
        runner.held.finish()


def end_loops(context: Context, *, whole: bool) -> None:
    """End the custom loops of a run on this replica: those of its own strategy, and of others made in it.

    ``whole`` waits until the updates of all replicas are applied; otherwise nobody is waited for. Values come
    home in both cases.
    """
    runners = [one for one in _runners if one.held.context.control is context.control]
    for runner in sorted(runners, key=lambda one: one.number):  # in one order on all replicas
        runner.over = True
        if whole:
            runner.held.finish()
        else:
            runner.held.abandon()


def local_results(value: Any) -> tuple[Any, ...]:
    """Return the values of this process's replicas."""
    found = [one for one in leaves(value) if isinstance(one, PerReplica)]
    if not found:
        return (value,)
    pick: Callable[[int], Any] = lambda i: mapped(
        lambda one: one.values[i] if isinstance(one, PerReplica) else one, value
    )
    return tuple(pick(i) for i in range(len(found[0])))
