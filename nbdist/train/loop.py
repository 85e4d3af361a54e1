"""The training loop of ``fit``, the same for every strategy: `train`.

A step is: pull, run the program, push. The loop does not know which strategy it runs. Where a replica
``overlaps_steps`` (JAX on one device), step k + 1 is dispatched before the results of step k are read. The
step in flight is read before a message is handled, at a stop, at the end of an epoch and after an error.

Why replicas that step together cannot deadlock. Every call that waits for other replicas stands at a fixed
point of this order, the same on all of them, and each point is reached a number of times that all agree on:

    begin                    form groups; broadcast the chief's values
    for each epoch:
        for each batch:      all replicas see the same batches (one order, one seed) and take their shares
            handle messages  waits for no replica
            agree            waits for no replica: returns a stop that the last push carried
            admit            re-forms the group if the last push said so: new processes join, others leave
            pull, program    a replica without an example skips the program, not the pull or the push
            push             sends the gradients, and with them whether to stop and the next learning rate
        fetch                to validate, or for callbacks; waits only for updates of steps that all have made
        end_epoch            agrees whether another epoch follows
    finish

- No replica leaves the order alone. With all-reduce a stop travels in the next push (``agree``), so that all
  leave after the same step. With parameter servers a replica may leave at any step: the servers then answer
  `StepStopped` to each replica whose step can no longer be completed.
- A step that must not be applied (NaN policy "skip", no examples) still pushes: ``skip`` pushes zeros.
- Within a push, collectives are called in the order of the plan of buckets, which follows from the variables
  alone; programs may finish gradients in any order (``Buckets.mark``).
- A replica that fails calls ``abort``, which breaks its groups: replicas that wait for it raise. A replica
  that dies is noticed by the groups; `RetryStep` then repeats the step with the remaining replicas.
- A pause is taken by the chief first (`Boundary.handle`), so that it never waits for a paused replica.

In custom loops the same holds for ``strategy.run``; reductions inside a step run in the order in which they
were traced (``Trace.in_order``), which is the same on all replicas.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.errors import AbortedError, InvalidArgumentError, NanLossError, UnavailableError
from nbdist.graph.backend import backend_of, device_scope, to_device, to_host
from nbdist.graph.compile.capture import notes_to
from nbdist.graph.gpu_errors import SizedTensor, explained
from nbdist.graph.kernel_cache import compiled_once
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped, TrainingOver
from nbdist.runtime.tables import gradient_of
from nbdist.train.boundary import Boundary, check_policy, describe_nonfinite, read_step, report_skipped
from nbdist.train.callbacks import Callback, History
from nbdist.train.context import Context, Control, current, save_variables
from nbdist.train.device import on_device
from nbdist.train.fixed import share_fixed
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.resume import EpochBatches
from nbdist.train.resume_loop import Config, ResumeAdapter
from nbdist.train.schedule import RateAt, RateSchedule
from nbdist.train.step_timing import StepAccount, StepEvents
from nbdist.train.strategy import Nonfinite, Replica, ReplicaLeft, RetryStep, Trainable, tables_of
from nbdist.train.weighing import counted_in, measures_of, own_loss

Array: TypeAlias = np.ndarray[Any, Any]
NO_IDS = np.zeros(0, np.int64)
SYNCHRONOUS_STEPS = 2  # of an epoch; the first may be compiled
Validate = Callable[[Sequence[Array]], dict[str, float]]
Save = Callable[[Sequence[Array], Path], Path]
BeforeUpdate = Callable[[Sequence[Array], Sequence[Array]], object]


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
    ``rate_at`` returns the learning rate of an update (see `RateSchedule`); None for the optimizer's.
    ``before_update`` may change the gradients of each update, where the strategy ``has_sums``.
    """
    context = current()
    one = partial(
        _train_on_device,
        dataset=dataset,
        optimizer=optimizer,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        skip_nan=check_policy(nan),
        config=config,
        rate_at=rate_at,
        before_update=before_update,
    )
    strategy = context.strategy
    if nan == "skip" and not strategy.skips:
        raise InvalidArgumentError(
            f"fit: strategy {strategy.name} cannot leave out a replica's part of a step: drop nan='skip'"
        )
    context.fitting = True
    try:
        companions = strategy.companions(context, model, optimizer)
        others = [partial(one, companion, model=model.twin()) for companion in companions]
        with run_replicas(others, context.control):
            return one(context, model=model, validate=validate, callbacks=callbacks, save=save)
    finally:
        context.fitting = False
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
    epochs = context.epochs or epochs
    context.trainings += 1
    context.progress.trainings = context.trainings
    resume = ResumeAdapter(context, model, optimizer, config)
    dataset, cursor = resume.begin(dataset, steps_per_epoch)
    dataset = dataset.ahead_of_training()
    _begin_progress(context, dataset, epochs, steps_per_epoch)
    history = History(callbacks, context, model.metric_names, model.metrics_of if model.sum_count else None)
    _require_room(context, model, optimizer)
    share_fixed(context, model)
    try:
        replica = own = context.strategy.begin(model, optimizer)
    except TrainingOver:
        if context.progress.total is not None:
            context.progress.step = context.progress.total
        print(f"fit() call {context.trainings} has ended on the other workers: it is left out here")
        return History((), context, model.metric_names)
    opened: EpochBatches | None = None
    try:
        own.withholds, own.before_update = skip_nan, before_update
        if own.joined is None:
            resume.resume(own, history, epochs)
        else:
            cursor = resume.join(own.joined, history)
        replica = on_device(own, context.device)
        context.see_arrays(replica.computed_with)
        context.progress.by_updates = replica.by_updates
        if own.joins_at is not None:
            context.progress.step += own.joins_at
            context.progress.joined, context.progress.left_out = context.progress.step, own.left_out
        if own.joined is not None:
            context.progress.joined = context.progress.step
        if own.measures_share:
            task = context.world.task
            who = f"{task.job} {task.index}" if task else f"replica {context.strategy.replica_index}"
            history.share = f"{who}'s share of each batch"
        history.begin(replica.notes)
        if context.step_log is not None:
            context.step_log.begin(replica)
        if context.recorder is not None:  # a run shows where its batches come from
            context.input_meter = Meter(training=True)
        loop = _Loop(model, replica, context, history, skip_nan, save)
        loop.schedule = None if rate_at is None else RateSchedule(rate_at, context)
        batches = opened = EpochBatches(
            context.strategy, dataset, steps_per_epoch, cursor, context.control.check, context.input_meter,
            reuse_buffers=not replica.overlaps_steps,
        )  # fmt: skip
        if own.joins_at:
            batches.advance(own.joins_at)
        resume.loss_scale, resume.updates_before = loop.scaling.state, loop.updates_before
        loop.save_state = resume.saver(own, history, batches)
        own.saved = resume.saved_slots
        own.position = lambda: resume.joined_state(own, history, batches.cursor_within(loop.steps_in_epoch))
        for epoch in range(batches.cursor.epoch, epochs):
            context.progress.epoch, context.progress.epochs = epoch + 1, epochs
            loop.boundary.show_rate()  # a callback may have set it
            skipped = dataset.skipped
            continues = loop.epoch(batches.next_epoch())
            if context.is_chief and (note := dataset.skipped_note(skipped)):
                print(f"epoch {epoch + 1}: {note}")
            batches.end_epoch(loop.steps_in_epoch, whole=continues)
            loop.begun_at = loop.step
            validates = validate is not None and context.is_chief
            wanted = validates or bool(callbacks)
            if continues:
                try:
                    replica.fetch_together(wanted)
                except StepStopped:
                    continues = False
            if continues and wanted:
                if callbacks:  # which may look at the model
                    _copy_to_model(model, replica)
                if validate is not None and validates:
                    with _timed(context, "compute", "validation"):
                        logs = validate(replica.values)
                    history.validated(logs, loop.of_all())
            history.end_epoch(epoch, whole=continues)
            context.progress.ended_early |= history.stop_training
            if history.stop_training and context.end_everywhere is not None and context.is_chief:
                context.end_everywhere(context.trainings)
            with _waiting(context):
                ends = replica.end_epoch(not continues or history.stop_training)
            if ends:
                break
        context.progress.state = "waiting for the others"
        if not context.strategy.keeps_slots:  # the servers release them at the end
            resume.end(own, history, batches.cursor)
        elif resume.leaves:
            own.ask_state()
        with _waiting(context):
            replica.finish()
        context.progress.global_step = loop.updates_before + replica.global_step
        context.progress.dropped = loop.dropped_before + replica.dropped
        loop.boundary.end()
        if context.strategy.keeps_slots:
            resume.end(own, history, batches.cursor)
        history.end(replica.global_step)
        return history
    except ReplicaLeft:
        context.progress.left_at = context.progress.step
        raise
    except BaseException as error:
        context.on_error(error)
        replica.abort(error)
        raise
    finally:
        if opened is not None:
            opened.close()
        if context.strategy.keeps_values:
            _copy_to_model(model, replica)
        context.progress.restores = context.progress.awaits = False
        replica.close()


def _require_room(context: Context, model: Trainable, optimizer: Optimizer) -> None:
    """Raise ResourceExhaustedError if a replica needs more memory beside the weights than the limit allows.

    It needs a copy of the weights, gradients, and the optimizer's slots. Tables are trained in place.
    """
    task = context.world.task
    if task is None or task.server.sessions.store.limit is None or not model.variables:
        return
    tables = tables_of(context.strategy, model, optimizer)
    kept = len(optimizer.get_slot_names()) if context.strategy.keeps_slots else 0
    sizes = [
        (array.nbytes * (kept if i in tables else kept + 2), name, array.shape)
        for i, (name, array) in enumerate(model.variables)
    ]
    most, name, shape = max(sizes)
    weights = sum(array.nbytes for _, array in model.variables)
    task.server.sessions.store.require(
        weights + sum(size for size, *_ in sizes),
        f"the training: weights, a copy, gradients and the slots of {type(optimizer).__name__} (most of "
        f"it, {most:,} bytes, for {name} {shape})",
    )


def _copy_to_model(model: Trainable, replica: Replica) -> None:
    """Copy the replica's values into the model."""
    model.fetch_states()
    for (_, own), value in zip(model.variables, replica.values, strict=True):
        if own is not value:  # a table is trained in place
            np.copyto(own, to_host(value))


@contextlib.contextmanager
def _timed(context: Context, kind: str, name: str) -> Iterator[None]:
    """Record the duration of the block, as something between two steps."""
    begun = time.perf_counter()
    yield
    if context.step_log is not None:
        context.step_log.note(kind, name, begun, time.perf_counter())


def _waiting(context: Context) -> contextlib.AbstractContextManager[None]:
    """Record the duration of the block as a wait for the other replicas, if there are any."""
    if context.strategy.alone:
        return contextlib.nullcontext()
    return _timed(context, "wait", "the other replicas")


def _begin_progress(context: Context, dataset: Dataset, epochs: int, steps: int | None) -> None:
    per_epoch = steps if dataset.endless else dataset.cardinality()
    if per_epoch is not None and steps is not None:
        per_epoch = min(per_epoch, steps)
    if dataset.endless and steps is None:
        raise InvalidArgumentError(
            "the dataset repeats for ever: say how long an epoch is with fit(steps_per_epoch=...), "
            "or drop .repeat()"
        )
    if per_epoch == 0:
        raise InvalidArgumentError("the dataset is empty: there is nothing to train on")
    progress = context.progress
    progress.total = None if per_epoch is None else progress.step + per_epoch * epochs
    progress.state = "running"


def _unmarked(place: int) -> None:
    """Record nothing: the host's clock measures what a CPU computes."""


class _Step:
    """A step that has been dispatched.

    ``size`` is the number of examples in the whole batch, ``mine`` in this replica's share; ``begun`` and
    ``pulled`` are times of time.perf_counter, ``waited`` seconds.
    """

    __slots__ = ("begun", "gradients", "mine", "pulled", "restore", "size", "values", "waited")

    def __init__(self, size: int, mine: int, begun: float, waited: float, pulled: float) -> None:
        self.size, self.mine, self.begun, self.waited, self.pulled = size, mine, begun, waited, pulled
        self.values: Sequence[Array] = ()
        self.gradients: Sequence[Array] = ()
        self.restore: Callable[[], object] | None = None


def compute_began(step: _Step, ended: float, now: float, step_seconds: float) -> float:
    """Return the time from which a step counts that was ready before the next batch came, at ``now``.

    The device was idle while it waited for that batch. ``step_seconds`` is how long a step takes that is read
    at once; the step before was read at ``ended``. Times are of time.perf_counter, in seconds.

    >>> one = _Step(8, 8, begun=1.0, waited=0.0, pulled=1.0)
    >>> compute_began(one, ended=1.5, now=5.0, step_seconds=3.0)       # it waited for a second
    2.5
    >>> compute_began(one, ended=1.5, now=3.0, step_seconds=3.0)       # it computed all the time
    1.5
    >>> compute_began(one, ended=4.5, now=5.0, step_seconds=0.1)
    5.0
    """
    return min(now, max(step.begun, ended) + max(0.0, now - step.pulled - step_seconds))


class _Loop:
    """Steps of one training on one replica."""

    def __init__(
        self,
        model: Trainable,
        replica: Replica,
        context: Context,
        history: History,
        skip_nan: bool,
        save: Save | None,
    ) -> None:
        self.model, self.replica, self.context, self.history = model, replica, context, history
        self.skip_nan, self._retry = skip_nan, False
        self._last_examples, self._last_logged = 0, False
        self.step = self.begun_at = context.progress.step
        self.updates_before = context.progress.global_step - replica.global_step
        self.dropped_before = context.progress.dropped
        self._programs: dict[Any, Callable[..., tuple[Array, ...]]] = {}
        self._ids: dict[Any, Callable[..., tuple[Array, ...]]] = {}
        self._scales: dict[int, Array] = {}
        self._in_flight: _Step | None = None
        """The step that XLA computes, and whose results are not read yet."""
        self._events = StepEvents.of(backend_of(replica.values[0]), context.step_log)
        self._save = save
        self.scaling = LossScaling(model.loss_scale, [replica], context)
        model.weighs = replica.adds_measures
        self.schedule: RateSchedule | None = None
        self.save_state: Callable[[int], float] | None = None
        """Saves the training's state if it is time, given the steps of this epoch; returns the seconds."""
        self.boundary = Boundary(
            context, lambda: [replica], lambda: self.updates_before + replica.global_step, self._write
        )

    @property
    def steps_in_epoch(self) -> int:
        """Steps of the epoch under way in this process."""
        return self.step - self.begun_at

    def epoch(self, batches: Iterator[tuple[tuple[Array, ...], int]]) -> bool:
        """Train on these batches; False if the training has to end before they did."""
        try:
            return self._steps(batches)
        finally:
            if self._events is not None:
                self._events.flush()

    def _steps(self, batches: Iterator[tuple[tuple[Array, ...], int]]) -> bool:
        """Make a step for each batch; return False if the training ends before the batches do.

        XLA dispatches asynchronously, so a replica that ``overlaps_steps`` gets step k + 1 before the loss of
        step k is read: the device does not wait for the host. The first `SYNCHRONOUS_STEPS` of each epoch are
        read at once, which tells how long a step takes.
        """
        account = StepAccount(self.context.progress.spent, self.context.step_log, self._events)
        account.start()
        try:
            return self._dispatched(batches, account)
        except NanLossError:
            self._in_flight = None  # it has changed nothing
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # its update is made: count it, and raise the first error
                self._drain(account)
            raise

    def _dispatched(self, batches: Iterator[tuple[tuple[Array, ...], int]], account: StepAccount) -> bool:
        replica, control = self.replica, self.context.control
        tables, prepare = replica.tables, self.model.prepare
        draws, first_example = self.model.draws, self.context.strategy.first_example
        started, number = self.step, self.context.trainings
        clock, xp = time.perf_counter, backend_of(replica.values[0])
        mark = self._events.mark if self._events is not None else _unmarked
        boundary = self.boundary
        handled, save_state = boundary.handled, self.save_state
        overlaps = replica.overlaps_steps and self.schedule is None and save_state is None
        step_seconds = 0.0  # of one that was read at once
        for arrays, size in self._repeated(batches):
            asked = control.messages != handled  # read once: the server's thread changes it
            if asked or control.stop_requested:
                self._drain(account)
            if asked:
                try:
                    account.exclude(boundary.handle())
                except StepStopped:
                    return self._ended()
                handled = boundary.handled
            if save_state is not None:
                try:
                    if seconds := save_state(self.step - started):
                        account.exclude(seconds)
                except StepStopped:
                    return self._ended()
            if replica.agree(control.stop_requested or control.ended_training == number):
                self._drain(account)
                return self._ended()
            control.check()
            if replica.admit(control.leave_requested):
                self._retry = True
                continue
            begun, waited = clock(), replica.waited
            mine = len(arrays[0])
            batch: tuple[Array, ...] = ()
            if tables:  # the pull needs the row numbers first
                batch = prepare(arrays) if mine else ()
                replica.want(self._lookups(batch)(*batch) if mine else [NO_IDS] * len(tables))
            try:
                replica.pull()
                if self.schedule is not None:
                    self.schedule.follow(replica)
            except StepStopped:
                return self._ended()
            step = _Step(size, mine, begun, replica.waited - waited, clock())
            mark(StepEvents.PULLED)
            self.scaling.update()
            step.gradients = gradients = replica.gradients()
            if mine:
                step.restore = self.model.remember() if self.skip_nan else None
                batch = batch if tables else prepare(arrays)
                if xp is not np:
                    batch = tuple(to_device(a, xp) for a in batch)
                made = self.step + (self._in_flight is not None)
                draw = (to_device(self.model.draw(made, first_example(size)), xp),) if draws else ()
                step.values = self._program(batch)(*batch, self._scale(size), *draw, *gradients)
                mark(StepEvents.COMPUTED)
            else:  # a last batch smaller than the number of replicas leaves some without an example
                for gradient in gradients:
                    gradient.fill(0)
                mark(StepEvents.COMPUTED)
            if overlaps and mine and self.step - started >= SYNCHRONOUS_STEPS:
                before, self._in_flight = self._in_flight, step
                if before is not None:
                    if replica.is_ready(before.values):
                        before.begun = compute_began(before, account.ended, begun, step_seconds)
                    self._end_step(account, before)
                continue
            self._drain(account)
            try:
                self._end_step(account, step)
            except RetryStep:
                self._retry = True
            step_seconds = account.ended - step.pulled
        self._drain(account)
        if self.step == started:
            raise InvalidArgumentError("the dataset ended before this epoch: there is nothing to train on")
        try:
            replica.settle()
        except StepStopped:
            return self._ended()
        self.scaling.update()
        return True

    def _drain(self, account: StepAccount) -> None:
        """Read and record the step that is in flight, if one is; raises what `_end_step` does."""
        step, self._in_flight = self._in_flight, None
        if step is not None:
            self._end_step(account, step)

    def _end_step(self, account: StepAccount, step: _Step) -> None:
        """Read what a step has computed, check it, push its gradients and record it."""
        replica, progress, clock = self.replica, self.context.progress, time.perf_counter
        mark = self._events.mark if self._events is not None else _unmarked
        counted, size, mine = 1 + self.model.measured_count, step.size, step.mine
        results: Sequence[Any] = ()
        loss, wrong, overflow = 0.0, "", False
        if mine:
            values = replica.read_results(step.values)
            rows = values[counted:]  # of each table: gradients, and where they belong
            results, squares = read_step(values[:counted], [*replica.flat_gradients(), *rows[::2]])
            number = counted_in(self.model.counted, replica, self.context.strategy, mine)
            loss = own_loss(float(results[0]), number, mine, size)
            overflow = self.scaling.has_overflowed(loss, squares)
            if not overflow:
                wrong = describe_nonfinite(loss, squares, [*step.gradients, *rows[::2]])
            if replica.tables and not wrong and not overflow:
                replica.take([gradient_of(*pair) for pair in zip(rows[::2], rows[1::2], strict=True)])
            if wrong and not self.skip_nan:
                raise self._nonfinite(wrong)
        computed, waited = clock(), replica.waited
        mark(StepEvents.PUSHING)
        if mine and not wrong and replica.adds_measures:
            replica.measure(measures_of(results, self.model.counted, mine, size))
        if overflow:
            replica.overflow()
        elif wrong:
            assert step.restore is not None
            self._skip(wrong, step.restore)
        else:
            replica.push()
            if replica.nonfinite is not None:
                self._take_back(replica.nonfinite, loss, step.restore)
        pushed, waited = clock(), replica.waited - waited
        mark(StepEvents.PUSHED)
        boundary = self.boundary
        paused = boundary.paused_since() if self.context.control.messages != boundary.handled else 0.0
        self.step += 1
        self.scaling.record_step(self.step)
        begun = max(step.begun, account.ended)
        pulled = max(begun, step.pulled)
        rest = account.add(self.step, begun, step.waited, pulled, computed, waited, pushed, paused)
        progress.step = self.step
        progress.examples += mine
        progress.global_step = self.updates_before + replica.global_step
        progress.dropped = self.dropped_before + replica.dropped
        whole = replica.measured
        if whole is not None:
            loss, results, mine = float(whole[0]), whole, size
        self._last_examples, self._last_logged = step.mine, whole is not None or bool(mine and not wrong)
        if self._last_logged:
            seconds = pushed - begun - rest
            self.history.step(self.of_all(1), loss, results, replica.staleness, seconds, mine)

    def _ended(self) -> bool:
        """Take a last step back that the others' end has left unmade; return that training does not continue.

        A state would otherwise begin after a batch that is in no parameters.
        """
        with contextlib.suppress(StepStopped):
            self.replica.settle()
        self.scaling.update()
        if self.replica.unmade:
            progress, examples = self.context.progress, self._last_examples
            self.step -= 1
            progress.step, progress.examples = self.step, progress.examples - examples
            if self._last_logged:
                self.history.take_back()
        return False

    def of_all(self, more: int = 0) -> int:
        """Return the step of all replicas that this one is at, ``more`` after the parameters it has."""
        replica = self.replica
        return self.updates_before + replica.global_step + more if replica.by_updates else self.step

    def _repeated(
        self, batches: Iterator[tuple[tuple[Array, ...], int]]
    ) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield batches; repeat a batch whose step was not made, with the current shares."""
        for batch in batches:
            yield batch
            while self._retry:
                self._retry = False
                yield self.context.strategy.batch()

    def _write(self, folder: Path) -> Path:
        """Write a checkpoint."""
        values = self.replica.values
        if self._save is not None:
            return self._save(values, folder)
        names = (name for name, _ in self.model.variables)
        return save_variables(zip(names, values, strict=True), folder)

    def _nonfinite(self, wrong: str) -> NanLossError:
        return NanLossError(
            f"{wrong} at step {self.step + 1}; that gradient was not applied. Try a smaller "
            "learning rate, and look for NaN in the data; fit(nan='skip') leaves such steps out"
        )

    def _take_back(self, found: Nonfinite, loss: float, restore: Callable[[], object] | None) -> None:
        """Take back what a step did to states that all replicas have left out; or end the training."""
        if found.scaled and self.scaling.has_overflowed(loss, math.inf):
            self.replica.overflows += 1
        elif not self.skip_nan:
            raise self._nonfinite(found.what)
        else:
            if restore is not None:
                restore()
            report_skipped(self.context, self.step + 1, found.what, by_all=True)

    def _skip(self, wrong: str, restore: Callable[[], object]) -> None:
        """Leave this replica's part of a step out."""
        restore()
        self.replica.skip()
        report_skipped(self.context, self.step + 1, wrong)

    def _program(self, batch: tuple[Array, ...]) -> Callable[..., tuple[Array, ...]]:
        shapes = tuple(a.shape for a in batch)
        program = self._programs.get(shapes)
        if program is None:
            program = self._programs[shapes] = self.replica.program(self.model, shapes)
            if backend_of(self.replica.values[0]) is not np:
                weights = [(name, a.shape, a.dtype) for name, a in self.model.variables]
                return compiled_once(program, repr((weights, shapes)), self.context.control.check)
        return program

    def _lookups(self, batch: tuple[Array, ...]) -> Callable[..., tuple[Array, ...]]:
        shapes = tuple(a.shape for a in batch)
        if shapes not in self._ids:
            self._ids[shapes] = self.model.lookups(shapes)
        return self._ids[shapes]

    def _scale(self, size: int) -> Array:
        if size not in self._scales:
            xp = backend_of(self.replica.values[0])
            self._scales[size] = xp.asarray(1 / size, np.float32)
        return self._scales[size]


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
