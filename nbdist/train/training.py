"""One training of a model on one replica, from the strategy's begin to its end: `opened`, and its steps.

    with opened(context, model, optimizer, dataset, history) as training:
        for arrays, size in training.next_pass():       # repeated where a step was not made
            step = training.step(arrays, size)
        training.finish()

`fit` and loops of one's own over models of PyTorch and JAX are made of it. All of them continue a saved
training, join one that others have begun, and leave their state.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.graph.backend import backend_of, device_scope, to_device, to_host
from nbdist.graph.kernel_cache import compiled_once
from nbdist.optim import Optimizer
from nbdist.runtime.ps.client import StepStopped
from nbdist.train.boundary import read_step
from nbdist.train.callbacks import History
from nbdist.train.context import Context, save_variables
from nbdist.train.device import on_device
from nbdist.train.fixed import share_fixed
from nbdist.train.loss_scaling import LossScaling
from nbdist.train.replica import Replica, ReplicaLeft, RetryStep, arrays_computed_with, rate_of, step_program
from nbdist.train.resume import DataCursor, EpochBatches, batches_of_pass
from nbdist.train.resume_loop import Config, ResumeAdapter
from nbdist.train.schedule import RateAt, RateSchedule
from nbdist.train.step import Batch, Step, StepDriver
from nbdist.train.step_timing import StepEvents
from nbdist.train.strategy import require_update, tables_of
from nbdist.train.trainable import Program, Trainable
from nbdist.train.weighing import counted_in, measures_of, own_loss

Array: TypeAlias = np.ndarray[Any, Any]
Save = Callable[[Sequence[Array], Path], Path]
BeforeUpdate = Callable[[Sequence[Array], Sequence[Array]], object]
NO_IDS = np.zeros(0, np.int64)


@contextmanager
def opened(
    context: Context,
    model: Trainable,
    optimizer: Optimizer,
    dataset: Dataset | None,
    history: History,
    *,
    steps_per_epoch: int | None = None,
    epochs: int | None = None,
    skip_nan: bool = False,
    advice: str = "fit(nan='skip')",
    config: Config | None = None,
    save: Save | None = None,
    rate_at: RateAt | None = None,
    before_update: BeforeUpdate | None = None,
) -> Iterator[Training]:
    """Begin to train, continue, or join the others, inside a ``with``; the model ends with the final values.

    ``dataset`` is that of the first pass; None for a loop that brings batches of its own, whose place nothing
    knows. Raises TrainingOver if the others have ended this training, InvalidArgumentError for a saved
    state that is of another one. An error ends the other replicas' waits, too.
    """
    strategy, progress = context.strategy, context.progress
    if dataset is None:
        _require_no_place(context)
    context.trainings += 1
    progress.trainings = context.trainings
    resume = ResumeAdapter(context, model, optimizer, history, config)
    cursor, once = DataCursor(), None
    if dataset is not None:
        dataset, cursor = resume.begin(dataset, steps_per_epoch)
        once = batches_of_pass(dataset)
        dataset = dataset.ahead_of_training(endless=steps_per_epoch is not None)
    _begin_progress(context, dataset, epochs, steps_per_epoch)
    _require_room(context, model, optimizer)
    share_fixed(context, model)
    require_update(strategy, optimizer, [name for name, _ in model.variables])
    replica = own = strategy.begin(model, optimizer)
    batches: EpochBatches | None = None
    try:
        own.hooks.withholds, own.hooks.before_update = skip_nan, before_update
        membership = own.membership
        joined = None if membership is None else membership.joined
        joins_at = None if membership is None else membership.joins_at
        if joined is None:
            resume.resume(own, epochs)
        else:
            cursor = resume.join(joined)
        replica = on_device(own, context.device)
        context.see_arrays(arrays_computed_with(replica))
        progress.by_updates = replica.report.by_updates
        if membership is not None and joins_at is not None:
            progress.step += joins_at
            progress.joined, progress.left_out = progress.step, membership.left_out
        if joined is not None:
            progress.joined = progress.step
        if own.report.measures_share:
            task = context.world.task
            owner = f"{task.job} {task.index}" if task else f"replica {strategy.replica_index}"
            history.share = f"{owner}'s share of each batch"
        context.set_rate(rate_of(replica))
        history.begin(replica.notes)
        if context.step_log is not None:
            context.step_log.begin(replica)
        if context.recorder is not None:  # a run shows where its batches come from
            context.input_meter = Meter(training=True)
        scaling = LossScaling(model.loss_scale, [replica], context)
        resume.components.register("loss_scale", scaling)
        training = Training(context, model, own, replica, history, resume, scaling, skip_nan, advice, save)
        driver = training.driver
        if rate_at is None and (schedule := optimizer.schedule) is not None:
            rate_at = lambda updates, epoch: schedule(updates)
        if rate_at is not None:
            driver.schedule = RateSchedule(rate_at, driver.boundary, context, rate_of(replica))
            resume.components.register("rate_factor", driver.schedule.factor)
        if dataset is not None:
            batches = training.batches = EpochBatches(
                strategy, dataset, steps_per_epoch, cursor, context.control.check, context.input_meter,
                reuse_buffers=replica.overlap is None, once=once,
            )  # fmt: skip
            if joins_at:
                batches.advance(joins_at)
            driver.save_state = resume.saver(own, training.cursor)
            own.hooks.position = lambda: resume.joined_state(own, training.cursor())
        resume.updates_before = driver.updates_before
        own.hooks.saved = resume.saved_slots
        yield training
    except ReplicaLeft:
        progress.left_at = progress.step
        raise
    except BaseException as error:
        context.on_error(error)
        if replica.overlap is not None:
            replica.overlap.interrupt()
        if replica.agreement is not None:
            replica.agreement.abort(error)
        raise
    finally:
        if batches is not None:
            batches.close()
        if strategy.keeps_values:
            copy_to_model(model, replica)
        replica.close()


@contextmanager
def opened_loop(
    context: Context,
    model: Trainable,
    optimizer: Optimizer,
    dataset: Dataset | None,
    *,
    skip_nan: bool = False,
    config: Config | None = None,
    save: Save | None = None,
) -> Iterator[Training]:
    """Begin the training of a loop of one's own, as `opened` does; its passes are the caller's.

    Raises InvalidArgumentError where a process has several replicas, and for data without end whose place is
    to be saved.
    """
    strategy, before = context.strategy, context.fitting
    if strategy.companions(context, model, optimizer):
        raise InvalidArgumentError(
            "a loop of one's own over a model of another framework has one replica in a process: drop "
            "devices="
        )
    endless = dataset is not None and dataset.endless
    if context.states is not None and endless and context.states.are_asked_for():
        raise InvalidArgumentError(
            "the data repeats for ever, so a loop of one's own over it has no passes that a run could save "
            "or continue: drop .repeat(), or train with fit(steps_per_epoch=...)"
        )
    context.note_own_passes()
    history, optimizer = History((), context, model.metric_names), optimizer.in_training()
    context.fitting = True  # it ends by itself when it is asked to stop
    try:
        with device_scope(context.device), opened(
            context, model, optimizer, dataset, history,
            skip_nan=skip_nan, advice="wrap(nan='skip')", config=config, save=save,
        ) as training:  # fmt: skip
            training.driver.boundary.show_rate()
            yield training
    finally:
        context.fitting = before
        strategy.end()


class Training:
    """A training that is under way, on one replica: its passes through the data, its steps, its end."""

    batches: EpochBatches
    """The batches of each pass; not of a loop that brings its own."""

    def __init__(
        self,
        context: Context,
        model: Trainable,
        own: Replica,
        replica: Replica,
        history: History,
        resume: ResumeAdapter,
        scaling: LossScaling,
        skip_nan: bool,
        advice: str,
        save: Save | None,
    ) -> None:
        self.context, self.model, self.own, self.replica = context, model, own, replica
        self.history, self.resume, self._save = history, resume, save
        self.driver = StepDriver(
            context, replica, self._write, scaling=scaling, skip_nan=skip_nan, advice=advice
        )
        self.begun_at = self.driver.steps
        """Steps of the run before the pass under way."""
        self.ended = False
        """Whether no step follows, because the run was asked to stop or other replicas have left."""
        self._met_at = self.driver.steps
        """Steps of the run when the replicas last ended an epoch together."""
        self._handed: int | None = None
        """Batches of the pass of a loop of one's own that are over; None outside of one."""
        self._asked: int | None = None
        """How many steps there were when `ready` was asked last."""
        self._passed = 0
        """Passes of a loop of one's own that have begun, and those that were over before."""
        self._pass: object | None = None
        """The pass that is under way, or was last."""
        self._programs: dict[Any, Program] = {}
        self._ids: dict[Any, Program] = {}
        self._scales: dict[int, Array] = {}
        # A step whose exchange fails is repeated by those that are left, from the states before it.
        self.remembers = skip_nan or own.membership is not None
        model.attach(replica)

    @property
    def joins(self) -> bool:
        """Whether this process has taken part from a later step on than the training's first."""
        membership = self.own.membership
        return membership is not None and bool(membership.joined is not None or membership.joins_at)

    def cursor(self) -> DataCursor:
        """Return the place of the next step in the data, between two steps of a pass."""
        return self.batches.cursor_within(self._batches_over)

    @property
    def _batches_over(self) -> int:
        """Batches of the pass under way that are over in this process."""
        return self.driver.steps - self.begun_at if self._handed is None else self._handed

    def ready(self) -> bool:
        """Do what is due before a step of a loop of one's own, once: see `StepDriver.ready`."""
        driver = self.driver
        if self._asked != driver.steps:
            self.ended = self.ended or not driver.ready()
            self._asked = driver.steps
        else:
            self.context.control.check()
        return not self.ended

    def ready_within(self) -> bool:
        """Do what `ready` does before a step that is not the first one of a batch of `passes`.

        No process joins replicas in step there, as none could begin at this place. It joins before the next
        batch. Others, which need not be at the same place, admit it where each of them is.
        """
        if not self._steps_together:
            return self.ready()
        hooks = self.own.hooks
        position, hooks.position = hooks.position, None
        try:
            return self.ready()
        finally:
            hooks.position = position

    def ask_again(self) -> None:
        """Have `ready` be asked once more, since the step that followed was not made."""
        self._asked = None

    def retry(self) -> None:
        """Have the pass yield its last batch again, with the current shares; its step was not made."""
        self.ask_again()
        self.driver.retry()

    def passes(self, dataset: Dataset | None = None) -> Iterator[Batch]:
        """Yield the batches of the next pass of a loop of one's own, which makes a step for each.

        A pass that was over when the training was saved, or when this process joined it, is empty. It ends
        early when the run is asked to stop, and then ``ended`` is True. ``dataset`` is that of this pass, if
        it is another one.
        """
        driver, batches = self.driver, self.batches
        if self._passed < batches.cursor.epoch:
            self._passed += 1
            return
        if self._handed is not None:  # one that was left, and is kept under a name
            self._end_left()
        if dataset is not None:
            batches.change_dataset(self.resume.again(dataset).ahead_of_training())
        self._pass = own = object()
        self._handed, left = 0, True
        driver.account.start()
        try:
            for arrays, size in driver.repeated(batches.next_epoch()):
                try:
                    if not self.ready():
                        break
                except RetryStep:
                    self.retry()
                    continue
                except StepStopped:
                    self.ended = True
                    break
                yield arrays, size
                if self._pass is not own:
                    raise FailedPreconditionError("another pass over the batches has begun within this one")
                if self.ended:
                    break
                self._handed += self._asked is not None  # else it comes again
                self._require_a_step_for_each()
            left = False
        finally:
            if self._pass is own:
                if left:  # by a break: the next pass is another one, for all replicas
                    self._end_left()
                else:
                    self._passed += 1
        if self.ended:
            self.take_back()
        else:
            self.ended = not self.settle()
        self.end_pass(whole=not self.ended)
        if driver.events is not None:
            driver.events.flush()
        ends = self.end_epoch(self.ended or self.context.control.stop_requested)
        self.ended = self.ended or ends

    @property
    def _steps_together(self) -> bool:
        """Whether replicas share batches, so that one that joins has to be at the place of the others."""
        return self.context.strategy.family == "synchronous"

    def _require_a_step_for_each(self) -> None:
        """Raise where a process has found its place by its steps, and makes more or fewer than batches."""
        membership = self.own.membership
        made = self.driver.steps - self.begun_at
        if membership is not None and membership.joins_at and made != self._handed:
            self._misplaced(
                "this process replaces one that was lost, and continues after as many batches as that one "
                "had made steps, but this loop does not make one step for each batch",
                "make one, or train with fit(), which also accumulates",
            )

    def require_place(self) -> None:
        """Raise for a step with a batch from elsewhere that was made before this process joined."""
        if self.joins and self._handed is None and self.driver.last is None:
            self._misplaced(
                "this process joins a training that is under way, and a step with a batch from elsewhere "
                "than batches(data), before its first pass, has no place in it",
                "make each step with a batch of batches(data)",
            )

    def _misplaced(self, text: str, advice: str) -> None:
        """Raise where a replica's place in the data matters; elsewhere say once that it is another one."""
        if self._steps_together:
            raise FailedPreconditionError(f"{text}: {advice}")
        self.context.note_here(f"{text}. It is elsewhere in its data, which the others do not depend on")

    def _end_left(self) -> None:
        self._pass, self._passed = None, self._passed + 1
        self.end_pass(whole=True)

    def begin_batches(self, dataset: Dataset) -> None:
        """Begin the first pass of a loop that has made steps with batches of its own."""
        context = self.context
        self.batches = EpochBatches(
            context.strategy, self.resume.again(dataset).ahead_of_training(), None, DataCursor(),
            context.control.check, context.input_meter,
        )  # fmt: skip

    def end_epoch(self, stop: bool) -> bool:
        """Agree with the other replicas whether the training ends here, given whether this one wants to."""
        self._met_at = self.driver.steps
        with waiting(self.context):
            agreement = self.replica.agreement
            return stop if agreement is None else agreement.end_epoch(stop)

    def end_pass(self, whole: bool) -> None:
        """Record that a pass through the data has ended; ``whole`` if it was not cut short."""
        self.batches.end_epoch(self._batches_over, whole)
        self.begun_at, self._handed = self.driver.steps, None

    def compute(self, arrays: tuple[Array, ...], size: int, made: int | None = None) -> Step:
        """Begin a step with this replica's share of a batch of ``size``, and dispatch its program.

        ``made`` is the number of steps before it, where some are not recorded yet. Raises StepStopped if it
        cannot be made.
        """
        model, replica, driver = self.model, self.replica, self.driver
        mine, taking = len(arrays[0]) if arrays else 0, replica.rows
        tables = () if taking is None else taking.tables
        batch: tuple[Array, ...] = ()
        if taking is None or not tables:
            step = driver.pull(size, mine, made)
        else:  # the pull needs the row numbers first
            batch = model.prepare(arrays) if mine else ()

            def want() -> None:
                taking.want(self._lookups(batch)(*batch) if mine else [NO_IDS] * len(tables))

            step = driver.pull(size, mine, made, want)
        if mine:
            xp = backend_of(replica.values[0]) if replica.values else np
            step.restore = model.remember() if self.remembers else None
            batch = batch if tables else model.prepare(arrays)
            if xp is not np:
                batch = tuple(to_device(a, xp) for a in batch)
            draw: tuple[Array, ...] = ()
            if model.draws:
                first = self.context.strategy.first_example(size)
                draw = (to_device(model.draw(step.number - 1, first), xp),)
            step.values = self._program(batch)(*batch, self._scale(size), *draw, *step.gradients)
        else:  # a last batch smaller than the number of replicas leaves some without an example
            for gradient in step.gradients:
                gradient.fill(0)
        if step.events is not None:
            step.events.mark(StepEvents.COMPUTED)
        return step

    def complete(self, step: Step) -> Sequence[Any]:
        """Read what a step has computed, check it, push its gradients and record it.

        Return loss and metrics: of the whole batch where replicas add them up, else of this share; NaN where
        neither is known. Raises what `Step.check` and `Step.push` raise.
        """
        replica, model, driver, mine = self.replica, self.model, self.driver, step.mine
        counted = 1 + model.measured_count
        results: Sequence[Any] = ()
        if mine:
            values = step.values if replica.overlap is None else replica.overlap.read_results(step.values)
            rows = values[counted:]  # of each table: gradients, and where they belong
            results, squares = read_step(values[:counted], [*replica.checks.flat_gradients(), *rows[::2]])
            number = counted_in(model.counted, replica, self.context.strategy, mine)
            step.check(own_loss(float(results[0]), number, mine, step.size), squares, rows)
            if replica.measures is not None and not step.wrong:
                replica.measures.measure(measures_of(results, model.counted, mine, step.size))
        step.push()
        seconds = driver.record(step)
        examples, loss, whole = mine, step.loss, replica.report.measured
        if whole is not None:
            loss, results, examples = float(whole[0]), whole, step.size
        step.logged = whole is not None or bool(mine and not step.wrong)
        if step.logged:
            self.history.step(driver.at(1), loss, results, replica.report.staleness, seconds, examples)
            return [loss, *results[1:]]
        return [np.nan] * counted

    def settle(self) -> bool:
        """Wait until the last step is made; if it never is, take it back, and return False."""
        if self.driver.settle():
            return True
        self.take_back()
        return False

    def take_back(self) -> None:
        """Take a last step back that the others' end has left unmade."""
        if not self.driver.take_back():
            return
        last = self.driver.last
        if self._handed and last is not None:
            self._handed -= min(self._handed, last.batches)
        if last is not None and last.logged:
            self.history.take_back()

    def finish(self) -> None:
        """Wait until the updates of all replicas are applied, bring the final values, and leave the state."""
        context, driver, resume, own = self.context, self.driver, self.resume, self.own
        if self._handed is not None:
            self._end_left()
        if driver.steps > self._met_at and not self.ended:  # steps after the last pass that was whole
            self.settle()
            self.end_epoch(False)
        progress, keeps_slots = context.progress, context.strategy.keeps_slots
        progress.state = "waiting for the others"
        if not keeps_slots:  # the servers release them at the end
            self._leave_state()
        elif resume.leaves and own.state is not None:
            own.state.ask_state()
        with waiting(context):
            self.replica.finish()
        progress.global_step = driver.updates
        progress.dropped = driver.dropped_before + self.replica.report.dropped
        driver.boundary.end()
        if keeps_slots:
            self._leave_state()
        self.history.end(self.replica.report.global_step)

    def _leave_state(self) -> None:
        if self.context.states is not None:
            self.resume.end(self.own, self.batches.cursor)

    def _write(self, folder: Path) -> Path:
        """Write a checkpoint."""
        values = self.replica.values
        if self._save is not None:
            return self._save(values, folder)
        names = (name for name, _ in self.model.variables)
        return save_variables(zip(names, values, strict=True), folder)

    def _program(self, batch: tuple[Array, ...]) -> Program:
        shapes = tuple(a.shape for a in batch)
        program = self._programs.get(shapes)
        if program is None:
            program = self._programs[shapes] = step_program(self.replica, self.model, shapes)
            if backend_of(self.replica.values[0]) is not np:
                weights = [(name, a.shape, a.dtype) for name, a in self.model.variables]
                return compiled_once(program, repr((weights, shapes)), self.context.control.check)
        return program

    def _lookups(self, batch: tuple[Array, ...]) -> Program:
        shapes = tuple(a.shape for a in batch)
        if shapes not in self._ids:
            self._ids[shapes] = self.model.lookups(shapes)
        return self._ids[shapes]

    def _scale(self, size: int) -> Array:
        if size not in self._scales:
            xp = backend_of(self.replica.values[0])
            self._scales[size] = xp.asarray(1 / size, np.float32)
        return self._scales[size]


def _require_no_place(context: Context) -> None:
    """Raise for a run that needs the place in the data of a loop that brings batches of its own."""
    if context.states is not None and context.states.are_asked_for():
        raise InvalidArgumentError(
            "a loop that brings batches of its own has no place in its data that a run could save or "
            "continue: begin with a pass over batches(data), or drop --checkpoint-every and --resume"
        )
    if context.world.rejoins:
        raise FailedPreconditionError(
            "this process replaces one that was lost, and a loop that brings batches of its own cannot "
            "continue at its step: begin with a pass over batches(data), which can"
        )


def _begin_progress(context: Context, dataset: Dataset | None, epochs: int | None, steps: int | None) -> None:
    """Record how many steps the training is going to have; of a loop of one's own nothing knows it."""
    progress = context.progress
    progress.state = "running"
    if dataset is None or epochs is None:
        progress.total = None
        return
    per_epoch = steps if dataset.endless else dataset.cardinality()
    if dataset.endless and steps is None:
        raise InvalidArgumentError(
            "the dataset repeats for ever: say how long an epoch is with fit(steps_per_epoch=...), "
            "or drop .repeat()"
        )
    if per_epoch == 0:
        raise InvalidArgumentError("the dataset is empty: there is nothing to train on")
    progress.total = None if per_epoch is None else progress.step + per_epoch * epochs


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


def copy_to_model(model: Trainable, replica: Replica) -> None:
    """Copy the replica's values into the model."""
    model.fetch_states()
    for (_, own), value in zip(model.variables, replica.values, strict=True):
        if own is not value:  # a table is trained in place
            np.copyto(own, to_host(value))


@contextmanager
def timed(context: Context, kind: str, name: str) -> Iterator[None]:
    """Record the duration of the block, as something between two steps."""
    begun = time.perf_counter()
    yield
    context.note_span(kind, name, begun)


def waiting(context: Context) -> contextlib.AbstractContextManager[None]:
    """Record the duration of the block as a wait for the other replicas, if there are any."""
    if context.strategy.alone:
        return contextlib.nullcontext()
    return timed(context, "wait", "the other replicas")
