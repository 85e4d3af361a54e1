"""The replicas of one process: their contexts, threads, own values, and the groups in which they reduce.

`LocalReplicas` is all that one process has of a strategy; `ReplicaThreads` runs a function on each of them.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from nbdist.errors import AbortedError, FailedPreconditionError, UnavailableError
from nbdist.graph.backend import Array, backend, device_scope
from nbdist.graph.tensor import Variable
from nbdist.optim import SGD, LossScaleOptimizer, Optimizer
from nbdist.runtime.ps.client import TrainingOver
from nbdist.train.context import Context, current
from nbdist.train.device import on_device
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.replica import Replica, arrays_computed_with
from nbdist.train.schedule import RateSchedule
from nbdist.train.step import Step
from nbdist.train.step_timing import StepAccount, StepEvents
from nbdist.train.strategy import require_update
from nbdist.train.trainable import Program, ProgramSpec, Trainable
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.call import cupy_of, is_on_device

if TYPE_CHECKING:
    from nbdist.train.strategy import Strategy

Result = TypeVar("Result")
CutOff: TypeAlias = Callable[[int, BaseException], None]


class LocalReplica:
    """One of this process's replicas: its context, its own values of variables, its compiled programs."""

    def __init__(self, context: Context, index: int) -> None:
        self.context, self.index = context, index
        self.xp = np if context.strategy.compiler is not None else backend(context.device)
        """The backend of what a step is fed; a strategy that compiles steps places arrays itself."""
        self.arrays: dict[Variable, Array] = {}
        self.programs: dict[Any, Any] = {}
        self.scalings: dict[LossScaleOptimizer, LossScaling] = {}
        """The scale of the loss of each optimizer that has one, in the order of their first steps."""

    def scaling(self, optimizer: LossScaleOptimizer, saved: Sequence[list[float]]) -> LossScaling:
        """Return an optimizer's scale; the n-th one that is made begins with the n-th of the saved ones."""
        if optimizer not in self.scalings:
            made = LossScaling(optimizer.loss_scale(), [], self.context)
            made.load_state_dict(next(iter(saved[len(self.scalings) :]), None))
            self.scalings[optimizer] = made
        return self.scalings[optimizer]

    @property
    def scope(self) -> AbstractContextManager[Any]:
        """The context in which a thread works on this replica's device."""
        return device_scope(self.context.device)

    def all_reduce(self, array: Array, how: str) -> Array:
        """Return the sum or mean of all replicas' arrays, or that of the first one."""
        strategy = self.context.strategy
        if how == "first":
            own = array if strategy.replica_index == 0 else np.zeros_like(array)
            return strategy.all_reduce(own, "sum")
        return strategy.all_reduce(array, how)


class LocalReplicas:
    """This process's replicas of a strategy, made at the first use; they can reduce values from then on."""

    def __init__(self, strategy: Strategy, context: Context, cut_off: CutOff) -> None:
        self._strategy, self._context, self._cut_off = strategy, context, cut_off
        self.made: list[LocalReplica] = []
        """The replicas, if there are any yet."""
        self._joined = False
        self._threads: ReplicaThreads | None = None

    @property
    def all(self) -> list[LocalReplica]:
        """The replicas, in order."""
        if not self._joined:
            self._joined = True
            # As many as begin a training together; which one it is makes no difference.
            others = self._strategy.companions(self._context, NoVariables(), SGD())
            self.made = self.made or [LocalReplica(c, i) for i, c in enumerate([self._context, *others])]
            if others:  # now, while no other thread uses the group that the companions have in common
                for local in self.made:
                    value_group_of(local.context.strategy)
        return self.made

    @property
    def has_group(self) -> bool:
        """Whether replicas of several processes have formed a group for values other than gradients."""
        strategy = self._strategy
        return strategy.num_replicas_in_sync > max(len(self.made), 1) and strategy._value_group is not None

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Call ``work(number)`` on the thread of each replica; return the results."""
        if self._threads is None:
            self._threads = ReplicaThreads(len(self.all), self._cut_off)

        def on_its_device(number: int) -> Result:
            with self.made[number].scope:
                return work(number)

        return self._threads.each(on_its_device)

    def all_reduce(self, arrays: Sequence[Any], how: str) -> Array:
        """Return the sum or mean over all replicas, or the first one's, given those of this process."""
        return self.each(lambda i: self.made[i].all_reduce(np.asarray(arrays[i]), how))[0]

    def abort_group(self, index: int, error: BaseException) -> None:
        """Break the group of a replica that failed, so that the others do not wait for it."""
        if index < len(self.made):
            leave_group(self.made[index].context.strategy, error)

    def leave_group(self) -> None:
        """Leave the group; replicas form another one when they need it."""
        for local in self.made:
            leave_group(local.context.strategy)
        self._joined = False

    def release(self) -> None:
        """End the threads and drop the programs; replicas keep their own values."""
        for local in self.made:
            local.programs.clear()
        if self._threads is not None:
            self._threads.close()
            self._threads = None


class ReplicaThreads:
    """Threads of ``size`` replicas: the caller's thread is the first's, each other replica has its own.

    Only a replica's own thread touches its values. If one fails, ``cut_off`` is called with its number and
    its error, and aborts the groups in which the other replicas wait for it.
    """

    def __init__(self, size: int, cut_off: Callable[[int, BaseException], None]) -> None:
        self.size, self._cut_off = size, cut_off
        self._orders: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        for number in range(1, size):
            orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
            name = f"nbdist device {number}"
            threading.Thread(target=_work, args=(orders,), name=name, daemon=True).start()
            self._orders.append(orders)
        self._end = weakref.finalize(self, _dismiss, self._orders)

    def each(self, work: Callable[[int], Result]) -> list[Result]:
        """Call ``work(number)`` on each replica's thread; return the results, or raise the first cause."""
        if self.size == 1:
            return [self._alone(work)]
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []
        done = threading.Semaphore(0)

        def one(number: int) -> None:
            try:
                results[number] = work(number)
            except BaseException as error:
                errors.append(error)
                self._cut_off(number, error)
            finally:
                done.release()

        for number, orders in enumerate(self._orders, 1):
            # In a copy of the caller's context: what is current for the caller is for them.
            orders.put(partial(copy_context().run, one, number))
        one(0)
        for _ in range(self.size):
            _wait(done, lambda error: self._cut_off(0, error))
        if errors:
            # The first failure aborts the others, whose errors only repeat it: raise the cause.
            causes = [e for e in errors if not isinstance(e, (AbortedError, UnavailableError))]
            raise (causes or errors)[0]
        return results

    def _alone(self, work: Callable[[int], Result]) -> Result:
        try:
            return work(0)
        except BaseException as error:
            self._cut_off(0, error)
            raise

    def close(self) -> None:
        """End the threads; they also end when this object is collected."""
        self._end()


def _dismiss(threads: list[queue.SimpleQueue[Callable[[], None] | None]]) -> None:
    for orders in threads:
        orders.put(None)


def _wait(done: threading.Semaphore, cut_off: Callable[[BaseException], None]) -> None:
    try:
        done.acquire()
    except BaseException as error:  # an interrupt: the others are not left behind
        cut_off(error)
        done.acquire()
        raise


def _work(orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (order := orders.get()) is not None:
        order()


# Reductions of values that are not gradients over all replicas in sync.


def all_reduce(strategy: Strategy, array: Any, op: str) -> Array:
    """Return the sum or the mean of what all replicas in sync have, on every one; on a GPU for one there."""
    if is_on_device(array):
        return cupy_of(array).asarray(all_reduce(strategy, array.get(), op))  # type: ignore[no-any-return]
    array = np.asarray(array)
    if strategy.num_replicas_in_sync == 1:
        return np.asarray(array, np.float64 if op == "mean" and array.dtype.kind in "biu" else None)
    return strategy.reduce_value(array, op)


def value_group_of(strategy: Strategy) -> Collective:
    """Return this replica's end of the group of all replicas in sync."""
    if strategy._value_group is None:
        strategy._value_group = strategy.form_value_group()
    return strategy._value_group


def leave_group(strategy: Strategy, error: BaseException | None = None) -> None:
    """Drop the group; an error breaks it: the others must not wait for this replica."""
    found, strategy._value_group = strategy._value_group, None
    if found is not None and error is not None:
        found.abort(f"{type(error).__name__}: {error}")


def common_group(strategy: Strategy) -> Collective:
    """Return the group of the run's plain collective calls, if all of the run are in sync."""
    world = getattr(strategy, "world", None) or current().world
    if world.size != strategy.num_replicas_in_sync:
        raise FailedPreconditionError(
            f"strategy {strategy.name} has {strategy.num_replicas_in_sync} replicas in sync, and this run "
            f"has {world.size}: there is no group that could reduce their values"
        )
    common: Collective = world.common
    return common


# The group of variables that one optimizer trains in a custom loop.


class NoVariables(Trainable):
    """A `Trainable` without variables."""

    in_graph = False

    def __init__(self) -> None:
        self.variables: list[tuple[str, Array]] = []
        self.metric_names: list[str] = []

    def training_program(self, spec: ProgramSpec) -> Program:
        """Refuse: there is nothing to train."""
        raise FailedPreconditionError("there are no variables to train")

    def prepare(self, batch: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return the batch."""
        return batch


class VariableGroup(NoVariables):
    """Variables of one optimizer; ``replicas`` are this process's, while they are trained."""

    def __init__(
        self, optimizer: Optimizer, trained: Sequence[Variable], counter: Variable | None = None
    ) -> None:
        super().__init__()
        self.given, self.trained, self.counter = optimizer, tuple(trained), counter
        self.optimizer = optimizer.in_training()
        self.given_rate: Any = self.optimizer.learning_rate
        self.schedules: list[RateSchedule] = []
        """What each replica's updates take their rates from, where the optimizer has a schedule."""
        self.replicas: list[Replica] = []
        self.own: Replica | None = None
        """This process's last replica as the strategy has made it."""
        self._tables: tuple[int, ...] = ()
        self.agreed = False
        """Whether it was asked, since the last step, if there will be another one."""
        self.stepped = False
        """Whether it has made a step since the last pass through data ended."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the variables that their first training step uses only through row lookups."""
        return self._tables

    @property
    def dimensions(self) -> list[tuple[str | None, ...]]:
        """The names of the dimensions of each variable."""
        return [v.dimensions for v in self.trained]

    def begin(self, variables: Sequence[tuple[str, Array]], tables: Sequence[int]) -> None:
        """Store the initial values of a training, and the numbers of its tables."""
        self.variables, self._tables = list(variables), tuple(tables)

    def replica(self, context: Context, takes_over: bool = False) -> Replica:
        """Return a replica that begins to train these variables.

        Where this process replaces one that has made steps on parameter servers, only a loop that
        ``takes_over`` can continue from them: that of ``fit``, or of an Estimator. For others raises
        FailedPreconditionError; for one that does, TrainingOver if the others have ended this training.
        """
        refused = (
            "this process replaces one that was lost, and a loop of your own cannot continue at its step: "
            "use model.fit or an Estimator, which do"
        )
        require_update(context.strategy, self.optimizer, [v.name for v in self.trained])
        try:
            replica = self.own = context.strategy.begin(self, self.optimizer)
        except TrainingOver:
            if takes_over:
                raise
            raise FailedPreconditionError(refused) from None
        if not takes_over and replica.membership is not None and replica.membership.joins_at:
            replica.close()
            raise FailedPreconditionError(refused)
        replica = on_device(replica, context.device)
        context.see_arrays(arrays_computed_with(replica))
        return replica

    @property
    def joint(self) -> bool:
        """Whether the replicas agree on a stop among themselves."""
        return self.replicas[0].agreement is not None

    def steps(self, index: int) -> int:
        """Return the updates so far, by all replicas, as one of this process's knows."""
        return self.replicas[index].report.global_step if self.replicas else 0

    def reads(self, variables: Sequence[Variable]) -> bool:
        """Whether any of these variables is trained here."""
        return not set(self.trained).isdisjoint(variables)

    def finish(self, index: int) -> None:
        """Wait for the others' updates, on a replica's thread."""
        if self.stepped:
            self.end_epoch(index, False)
        self.replicas[index].finish()

    def end_epoch(self, index: int, stop: bool) -> bool:
        """End a pass with the others, on a replica's thread; return whether the training ends."""
        agreement = self.replicas[index].agreement
        return stop if agreement is None else agreement.end_epoch(stop)

    def close(self) -> None:
        """Close the replicas; the next step begins a new training."""
        replicas, self.replicas, self.agreed, self.stepped = self.replicas, [], False, False
        for replica in replicas:
            replica.close()


class TracedStep(NoVariables):
    """A traced step as a `Trainable`: ``compiled`` makes its program."""

    def __init__(self, compiled: Callable[[ProgramSpec], Program]) -> None:
        super().__init__()
        self._compiled = compiled

    def training_program(self, spec: ProgramSpec) -> Program:
        """Return the program, whose last arguments are the arrays for this replica's gradients."""
        return self._compiled(spec)


# The loss and the times of a step of a custom loop, for the run's curves and timeline.


class StepRecorder:
    """Records the steps of this process's first replica, for curves and the timeline."""

    def __init__(self, context: Context, xp: ModuleType) -> None:
        self._context = context
        self.events = StepEvents.of(xp, context.step_log)
        self._account = StepAccount(context.progress.spent, context.step_log, self.events)

    def exclude(self, seconds: float) -> None:
        """Exclude a time between two steps, such as a pause."""
        self._account.exclude(seconds)

    def add(self, step: Step, losses: Sequence[Array], scale: float, paused: float = 0.0) -> None:
        """Record a step that made an update.

        ``scale`` makes a replica's part of the global batch's loss the mean over its own examples, as in fit.
        ``paused`` are the seconds for which the run was paused during it.
        """
        rest = self._account.add(step, paused)
        recorder, number, replica = self._context.recorder, step.number, step.replicas[0]
        if recorder is None:
            return
        recorder.add(recorder.series("step_ms"), number, (step.pushed - step.begun - rest) * 1e3)
        if (staleness := replica.report.staleness) is not None:
            recorder.add(recorder.series("staleness"), number, staleness)
        for place, loss in enumerate(losses, 1):
            name = "loss" if place == 1 else f"loss_{place}"
            recorder.add(recorder.series(name), number, float(loss.sum()) * scale)
