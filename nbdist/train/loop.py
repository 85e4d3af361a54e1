"""The training loop of ``fit``, the same for every strategy: `train`.

It makes the passes through the data, and validates after each. `Training` makes the steps, in the order that
`nbdist.train.step` describes. The loop does not know which strategy it runs.

Where a replica has an `Overlap` (JAX on one device), step k + 1 is dispatched before the results of step k
are read. The step in flight is read before a message is handled, at a stop, at the end of an epoch and after
an error.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.errors import AbortedError, InvalidArgumentError, NanLossError, UnavailableError
from nbdist.graph.backend import device_scope
from nbdist.graph.compile.capture import notes_to
from nbdist.graph.gpu_errors import SizedTensor, explained
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.train.boundary import check_policy
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, Control, current
from nbdist.train.keras_callbacks import TerminateOnNaN
from nbdist.train.replica import RetryStep
from nbdist.train.resume_loop import Config
from nbdist.train.schedule import RateAt
from nbdist.train.step import Batch, Step
from nbdist.train.trainable import Trainable
from nbdist.train.training import BeforeUpdate, Save, Training, copy_to_model, opened, timed

Array: TypeAlias = np.ndarray[Any, Any]
SYNCHRONOUS_STEPS = 2  # of an epoch; the first may be compiled
Validate = Callable[[Sequence[Array]], dict[str, float]]


def train(
    model: Trainable,
    dataset: Dataset,
    optimizer: Optimizer,
    *,
    epochs: int,
    steps_per_epoch: int | None = None,
    validate: Validate | None = None,
    callbacks: Sequence[Callback] = (),
    nan: str = "stop",
    save: Save | None = None,
    config: Config | None = None,
    rate_at: RateAt | None = None,
    before_update: BeforeUpdate | None = None,
) -> History:
    """Train ``model`` under the strategy of the current context; its variables end with the final values.

    Ends early, resume what was trained, when the run is asked to stop. A gradient is not applied if it or
    the loss is not a finite number: with ``nan`` "stop" that raises NanLossError, with "skip" this replica's
    part of the step is left out. ``save`` writes a checkpoint with given values into a folder; without it the
    variables are written by name. ``config`` says what the model is, for the state in which it ends.
    ``rate_at`` returns the learning rate of an update (see `RateSchedule`); None for the optimizer's, or its
    schedule's.
    ``before_update`` may change the gradients of each update, where the strategy ``has_sums``.
    """
    context, optimizer = current(), optimizer.in_training()
    ends_on_nan = next((one for one in callbacks if isinstance(one, TerminateOnNaN)), None)
    one = partial(
        _train_on_device,
        dataset=dataset,
        optimizer=optimizer,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        skip_nan=check_policy(nan) or ends_on_nan is not None,
        config=config,
        rate_at=rate_at,
        before_update=before_update,
    )
    strategy = context.strategy
    if (nan == "skip" or ends_on_nan) and not strategy.skips:
        asked = "nan='skip'" if nan == "skip" else "TerminateOnNaN, as a step that is not finite is an error"
        raise InvalidArgumentError(
            f"fit: strategy {strategy.name} cannot leave out a replica's part of a step: drop {asked}"
        )
    context.fitting = True
    context.control.on_nan = None if ends_on_nan is None else ends_on_nan.end
    try:
        companions = strategy.companions(context, model, optimizer)
        others = [partial(one, companion, model=model.twin()) for companion in companions]
        with run_replicas(others, context.control):
            return one(context, model=model, validate=validate, callbacks=callbacks, save=save)
    finally:
        context.fitting, context.control.on_nan = False, None
        strategy.end()


def _train_on_device(context: Context, **settings: Any) -> History:
    """Train one replica, on the device of its context."""
    memory = explained(context.device, partial(_sizes, **settings))
    with device_scope(context.device), notes_to(context.note), memory:
        return _train(context, **settings)


def _sizes(model: Trainable, optimizer: Optimizer, **settings: Any) -> list[SizedTensor]:
    """Return what a training keeps for each variable: its value, its gradient and the optimizer's slots."""
    slots = optimizer.get_slot_names()
    kept = f"with its gradient and {len(slots)} slot{'s' * (len(slots) != 1)} of {type(optimizer).__name__}"
    return [
        SizedTensor(f"variable {name}", array.shape, array.dtype, 2 + len(slots), kept)
        for name, array in model.variables
    ]


def _train(
    context: Context,
    *,
    model: Trainable,
    dataset: Dataset,
    optimizer: Optimizer,
    epochs: int,
    skip_nan: bool,
    steps_per_epoch: int | None = None,
    validate: Validate | None = None,
    callbacks: Sequence[Callback] = (),
    save: Save | None = None,
    config: Config | None = None,
    rate_at: RateAt | None = None,
    before_update: BeforeUpdate | None = None,
) -> History:
    """Train one replica."""
    epochs = context.options.epochs or epochs
    history = History(callbacks, context, model.metric_names, model.metrics_of if model.sum_count else None)
    training = opened(
        context, model, optimizer, dataset, history,
        steps_per_epoch=steps_per_epoch, epochs=epochs, skip_nan=skip_nan, config=config, save=save,
        rate_at=rate_at, before_update=before_update,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        try:
            one = stack.enter_context(training)
        except TrainingOver:
            if context.progress.total is not None:
                context.progress.step = context.progress.total
            print(f"fit() call {context.trainings} has ended on the other workers: it is left out here")
            return History((), context, model.metric_names)
        try:
            _epochs(one, epochs, validate, bool(callbacks))
            one.finish()
        finally:
            one.driver.boundary.drop_rate_of_fit()
    return history


def _epochs(training: Training, epochs: int, validate: Validate | None, has_callbacks: bool) -> None:
    """Make the epochs that are still to come, until one ends the training."""
    context, history, replica = training.context, training.history, training.replica
    batches, loop = training.batches, _Loop(training)
    for epoch in range(batches.cursor.epoch, epochs):
        if batches.cursor.batches:  # a resumed training continues within it
            context.progress.epoch, context.progress.epochs = epoch + 1, epochs
        else:
            context.begin_epoch(epoch + 1, epochs)
        training.driver.boundary.show_rate("callback")  # one may have set it
        history.begin_epoch(epoch)
        if batches.cursor.batches:  # a resumed training continues within it, at the rate that it had
            training.driver.boundary.drop_rate_of_fit()
        dataset = batches.dataset
        skipped = dataset.skipped
        continues = loop.epoch(batches.next_epoch())
        if context.is_chief and (note := dataset.skipped_note(skipped)):
            print(f"epoch {epoch + 1}: {note}")
        training.end_pass(whole=continues)
        validates = validate is not None and context.is_chief
        wanted = validates or has_callbacks
        if continues:
            try:
                replica.reads.fetch_together(wanted)
            except StepStopped:
                continues = False
        if continues and wanted:
            if has_callbacks:  # which may look at the model
                copy_to_model(training.model, replica)
            if validate is not None and validates:
                with timed(context, "compute", "validation"):
                    logs = validate(replica.values)
                history.validated(logs, training.driver.at())
        history.end_epoch(epoch, whole=continues)
        context.progress.ended_early |= history.stop_training
        if history.stop_training and context.end_everywhere is not None and context.is_chief:
            context.end_everywhere(context.trainings)
        if training.end_epoch(not continues or history.stop_training):
            break


def compute_began(step: Step, ended: float, now: float, step_seconds: float) -> float:
    """Return the time from which a step counts that was ready before the next batch came, at ``now``.

    The device was idle while it waited for that batch. ``step_seconds`` is how long a step takes that is read
    at once; the step before was read at ``ended``. Times are of time.perf_counter, in seconds.

    >>> one = Step(current(), [], 1)
    >>> one.begun = one.pulled = 1.0
    >>> compute_began(one, ended=1.5, now=5.0, step_seconds=3.0)       # it waited for a second
    2.5
    >>> compute_began(one, ended=1.5, now=3.0, step_seconds=3.0)       # it computed all the time
    1.5
    >>> compute_began(one, ended=4.5, now=5.0, step_seconds=0.1)
    5.0
    """
    return min(now, max(step.begun, ended) + max(0.0, now - step.pulled - step_seconds))


class _Loop:
    """The steps of one training on one replica, epoch by epoch.

    XLA dispatches asynchronously, so a replica that has an `Overlap` gets step k + 1 before the loss of
    step k is read: the device does not wait for the host. The first `SYNCHRONOUS_STEPS` of each epoch are
    read at once, which tells how long a step takes.
    """

    def __init__(self, training: Training) -> None:
        self._training, self._driver = training, training.driver
        self._in_flight: Step | None = None
        """The step that XLA computes, and whose results are not read yet."""
        self._driver.drain = self._drain

    def epoch(self, batches: Iterator[Batch]) -> bool:
        """Train on these batches; False if the training has to end before they did."""
        driver = self._driver
        driver.account.start()
        try:
            if self._steps(batches):
                return self._training.settle()
            self._training.take_back()
            return False
        except NanLossError:
            self._in_flight = None  # it has changed nothing
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # its update is made: count it, and raise the first error
                self._drain()
            raise
        finally:
            if driver.events is not None:
                driver.events.flush()

    def _steps(self, batches: Iterator[Batch]) -> bool:
        """Make a step for each batch; return False if the training ends before the batches do."""
        training, driver = self._training, self._driver
        replica, started = training.replica, driver.steps
        overlap = replica.overlap if driver.schedule is None and driver.save_state is None else None
        step_seconds = 0.0  # of one that was read at once
        for arrays, size in driver.repeated(batches):
            try:
                if not driver.ready():
                    return False
                step = training.compute(arrays, size, driver.steps + (self._in_flight is not None))
                if overlap is not None and step.mine and driver.steps - started >= SYNCHRONOUS_STEPS:
                    before, self._in_flight = self._in_flight, step
                    if before is not None:
                        if overlap.is_ready(before.values):
                            ended = driver.account.ended
                            before.begun = compute_began(before, ended, step.begun, step_seconds)
                        training.complete(before)
                    continue
                self._drain()
                training.complete(step)
                step_seconds = driver.account.ended - step.pulled
            except RetryStep:
                driver.retry()
            except StepStopped:
                return False
        self._drain()
        if driver.steps == started:
            raise InvalidArgumentError("the dataset ended before this epoch: there is nothing to train on")
        return True

    def _drain(self) -> None:
        """Read and record the step that is in flight, if one is; raises what `Training.complete` does."""
        step, self._in_flight = self._in_flight, None
        if step is not None:
            self._training.complete(step)


# Replicas of one process, one thread each; the first error aborts all.


@contextmanager
def run_replicas(others: Sequence[Callable[[], object]], control: Control) -> Iterator[None]:
    """Run ``others`` on threads while the block runs; leave when all have ended, raising the first cause."""
    errors: list[BaseException] = []

    def guarded(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            _fail(errors, control, error)

    threads = [
        # In a copy of the caller's context: what they print goes where the caller's output goes.
        threading.Thread(
            target=copy_context().run, args=(guarded, one), name=f"nbdist replica {i + 1}", daemon=True
        )
        for i, one in enumerate(others)
    ]
    aborted = control.aborted
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException as error:
        _fail(errors, control, error)
    for thread in threads:
        thread.join()
    if errors:
        if control.aborted is not None and aborted is None:
            control.aborted = aborted  # the abort was for these threads only
        # A failure aborts the others, whose errors may come first and only repeat it: raise the cause.
        causes = [e for e in errors if not isinstance(e, (AbortedError, UnavailableError))]
        raise (causes or errors)[0]


def _fail(errors: list[BaseException], control: Control, error: BaseException) -> None:
    """Record an error, and abort the others; the errors that this raises in them come later."""
    errors.append(error)
    if isinstance(error, AbortedError) and len(errors) > 1:
        return
    if control.aborted is None:
        control.aborted = f"another replica failed: {type(error).__name__}: {error}"
