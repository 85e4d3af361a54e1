"""What a training finds around it: the strategy, where points go, and whether it should stop.

In the notebook there is a default context (one device, nothing recorded). A distributed body runs inside
one that the run made for its task.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import operator
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from nbdist.checkpoint.tensor_file import write_tensors
from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.draft import to_disk
from nbdist.errors import AbortedError, NbdistError
from nbdist.graph.backend import Array, device_of_array
from nbdist.home import private_folder
from nbdist.metrics.names import EPOCH, LEARNING_RATE
from nbdist.metrics.recorder import Recorder
from nbdist.metrics.run_events import EventLog
from nbdist.metrics.run_folder import duration
from nbdist.runtime.groups import World
from nbdist.summary import writer as summary_writer
from nbdist.train.custom.position import LoopPosition
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.train.options import TrainingOptions
from nbdist.train.rate_changes import By, RateChanges
from nbdist.train.resume import TrainingStates
from nbdist.train.step_timing import StepLog
from nbdist.train.strategy import Strategy
from nbdist.train.summaries import RunSummaries

if TYPE_CHECKING:
    from nbdist.train.artifacts import Artifacts

PAUSED = "paused"
"""The state of a replica that is paused."""
SPENT = ("data", "compute", "exchange", "wait")
INTERRUPT_SECONDS = 0.5
"""An interrupt that comes just before a wait begins does not end it: a wait is begun anew this often."""


class Tolerance(enum.IntFlag):
    """Which losses of other tasks a body survives at present."""

    NOTHING = 0
    SESSION = enum.auto()
    """It drives a monitored session, which restores what a lost parameter server held."""
    RESTORES = enum.auto()
    """It trains, and its copy of the parameters restores a lost parameter server, or a standby does."""
    AWAITS = enum.auto()
    """Its steps wait for the new process of a lost worker."""

    @property
    def of_servers(self) -> bool:
        """Whether the body survives the loss of a parameter server."""
        return bool(self & (Tolerance.SESSION | Tolerance.RESTORES))


@dataclass
class Progress:
    """How far a training is; written by the training thread, read by others."""

    step: int = 0
    total: int | None = None
    epoch: int | None = None
    """The current epoch of ``fit``, from 1 on; None in custom loops."""
    epochs: int | None = None
    """The number of epochs of ``fit``."""
    examples: int = 0
    global_step: int = 0
    """Updates by all replicas together, over all trainings of the run."""
    by_updates: bool = False
    """Whether curves are drawn over ``global_step``, and not over this replica's own steps."""
    state: str = "starting"
    trainings: int = 0
    """Trainings begun so far: replicas that share parameters have to begin the same number."""
    resumed: list[int] = field(default_factory=lambda: [0, 0])
    """Steps and examples of earlier runs that this one continues; they are in ``step`` and ``examples``."""
    skipped: int = 0
    """Steps that this replica had no part in, because its gradient was no number."""
    dropped: int = 0
    """Gradients of this replica that came too late for their step."""
    tolerance: Tolerance = Tolerance.NOTHING
    sessions: int = 0
    """How many MonitoredSessions the body has made."""
    together: bool = False
    """Whether replicas of a framework's own distribution make each step together."""
    cut_short: bool = False
    """Whether a training has ended here before its data did, because other replicas had ended theirs."""
    ended_early: bool = False
    """Whether a callback of this replica has ended a training."""
    apart: str = ""
    """What to do about it, if this rank of several has made steps of a framework's training alone."""
    not_finite: list[Any] = field(default_factory=list)
    """The first loss of a loop of the body's own that is NaN or infinite: name, value in words and step."""
    needed_workers: int = 0
    """With how few workers a session continues (SyncReplicasOptimizer); 0 if its workers do not wait."""
    own_steps: bool = False
    """Whether ``step`` leaves out the steps of the lost process that this one replaces: a session's does."""
    restored: list[dict[str, Any]] = field(default_factory=list)
    """How this replica has restored parameter servers: the task, its incarnation, what was lost."""
    joined: int | None = None
    """The step at which this process took over from one that was lost; None if it began with the others."""
    left_out: int | None = None
    """How many of the steps before ``joined`` neither this process nor a former one has made, if known."""
    left_at: int | None = None
    """The step at which this replica has left the run, which others continue."""
    lost: list[int] = field(default_factory=list)
    """Incarnations of lost tasks, without which the others continue."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    """Seconds so far by part of a step: getting data, computing, exchanging, waiting. Pauses are in none."""
    rested: float = 0.0
    """Seconds of pauses between two steps so far."""
    last_rest: tuple[int, float] = (0, 0.0)
    """A pause that a stop ended: its step and its seconds. It counts only if a step follows."""
    learning_rate: float | None = None
    """The rate of the next update; None where this replica knows of none, or of several."""
    checkpoint: dict[str, Any] | None = None
    """The last checkpoint that was asked for: its number, step, path (None if it failed) and error."""

    def resume(self, step: int, examples: int = 0, skipped: int = 0) -> None:
        """Continue after the steps of an earlier run."""
        self.step, self.examples, self.skipped = step, examples, skipped
        self.resumed = [step, examples]


_lock = threading.Lock()

# Messages to a training: stop, pause, another learning rate, a checkpoint.
#
#     control.pause()                         # on the server's thread
#     if control.messages != handled:         # on the training's thread, once a step: its only cost
#         control.rest()
#         control.wait(handled)               # until it is resumed, stopped, or has another message
#
# A message is for all replicas of a process; each handles it before its next step (see boundary.py). A pause
# has a number: replicas of other processes receive it from the client and from the first paused replica.


@dataclass(frozen=True)
class StepPlan:
    """What all replicas do after step ``step``, as the chief has decided; see `nbdist.frameworks.steps`."""

    step: int
    stop: bool = False
    pause: int | None = None
    """The number of a pause that begins."""
    rate: float | None = None
    """Another learning rate."""
    checkpoint: int | None = None
    """The number of a checkpoint that the chief writes."""


@dataclass
class Control:
    """Messages to a training. Set on the server's thread, read by the training's thread once a step."""

    stop_requested: bool = False
    leave_requested: bool = False
    """Whether this task is to leave the run between two steps, and the others continue."""
    aborted: str | None = None
    ended_training: int = 0
    """The number of the last training that the chief's callbacks have ended for all replicas."""
    messages: int = 0
    """The number of messages so far that are handled between steps; it changes last."""
    paused: bool = False
    """Whether a pause is requested."""
    resting: bool = False
    """Whether a replica that others wait for is paused: replicas are then at most a step apart."""
    pause_number: int = 0
    rate: float = 0.0
    """The learning rate that was asked for last, if ``rates`` is above 0."""
    rates: int = 0
    """How often a learning rate was asked for."""
    rates_of_fit: int = 0
    """The number of the rate that a fit has last set for itself, of ``rates``."""
    checkpoint: int = 0
    """The number of the checkpoint that was asked for last."""
    on_nan: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    """What a training calls that ends with a step which is not finite; None where that is an error."""
    waits: bool = False
    """Whether a replica waits for others while these are paused, so that it makes no step either."""
    plans: deque[StepPlan] = field(default_factory=deque)
    """What is to be done after steps that this replica has not made yet, in order."""
    _changed: threading.Condition = field(default_factory=threading.Condition, repr=False, compare=False)
    _over: int = 0
    _rested: float = 0.0
    _since: float = 0.0

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field; a stop or an abort wakes the threads that wait."""
        super().__setattr__(name, value)
        if name in ("stop_requested", "aborted") and hasattr(self, "_changed"):
            with self._changed:
                self._changed.notify_all()

    def check(self) -> None:
        """Raise AbortedError if the run was aborted; called regularly by a replica that waits for others."""
        if self.aborted is not None:
            raise AbortedError(self.aborted)
        if self.resting:
            self.waits = True

    def pause(self, number: int | None = None) -> None:
        """Pause replicas before their next steps."""
        with self._changed:
            number = self._over + 1 if number is None else number
            if not self.paused and number > self._over:
                self.paused, self.pause_number = True, number
                self._notify()

    def rest(self, number: int | None = None) -> None:
        """Record that a replica is paused, here or elsewhere, by this pause, unless that is over."""
        with self._changed:
            self.pause(number)
            if self.paused and not self.resting:
                self._since, self.resting, self.waits = time.perf_counter(), True, False
                self._notify()

    def resume(self) -> None:
        """End the pause."""
        with self._changed:
            if self.resting:
                self._rested += time.perf_counter() - self._since
            if self.paused:
                self.paused = self.resting = self.waits = False
                self._over = self.pause_number
                self._notify()

    def set_rate(self, rate: float) -> None:
        """Request another learning rate."""
        with self._changed:
            self.rate, self.rates = rate, self.rates + 1
            self._notify()

    def set_rate_of_fit(self, rate: float) -> None:
        """Request another learning rate for the rest of this training; the next one begins with its own."""
        with self._changed:
            self.set_rate(rate)
            self.rates_of_fit = self.rates

    def ask_checkpoint(self, number: int) -> None:
        """Request a checkpoint; the answer has this number."""
        with self._changed:
            self.checkpoint = number
            self._notify()

    def add_plan(self, plan: StepPlan) -> None:
        """Take in what the chief has decided for a step, once."""
        with self._changed:
            if plan not in self.plans:
                self.plans.append(plan)
                self._notify()

    @property
    def rests(self) -> bool:
        """Whether a replica is to make no step now: it is paused, and nothing ends the pause."""
        return self.paused and not self.stop_requested and self.aborted is None

    def wait(self, handled: int) -> None:
        """Wait while paused, until there is a message beyond the first ``handled`` ones."""
        self.wait_for(lambda: self.messages != handled or not self.rests)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, which is looked at after each message, stop and abort."""
        with self._changed:
            while not self._changed.wait_for(condition, INTERRUPT_SECONDS):
                pass

    def rested(self) -> float:
        """Return the seconds of all pauses so far."""
        with self._changed:
            return self._rested + (time.perf_counter() - self._since if self.resting else 0.0)

    def _notify(self) -> None:
        self.messages += 1
        self._changed.notify_all()


class Tolerances:
    """Keeps what a body survives, from what each open training and session of it does, in its progress.

    >>> dense, rows, progress = object(), object(), Progress()
    >>> body = Tolerances(progress)
    >>> body.open(dense, Tolerance.RESTORES)
    >>> body.open(rows, Tolerance.AWAITS)
    >>> progress.tolerance  # a lost parameter server ends the training on rows
    <Tolerance.AWAITS: 4>
    >>> body.close(rows)
    >>> progress.tolerance
    <Tolerance.RESTORES: 2>
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: dict[object, Tolerance] = {}
        self._lock = threading.Lock()

    def open(self, what: object, tolerance: Tolerance) -> None:
        """Count ``what`` from now on, or what it survives from now on."""
        with self._lock:
            self._open[what] = tolerance
            self._progress.tolerance = self._together()

    def close(self, what: object) -> None:
        """Count ``what`` no longer, if it was counted."""
        with self._lock:
            self._open.pop(what, None)
            self._progress.tolerance = self._together()

    def _together(self) -> Tolerance:
        """Return what the body survives: a server's loss if all trainings do, or its session does."""
        found = self._open.values()
        anywhere = functools.reduce(operator.or_, found, Tolerance.NOTHING)
        trainings = [one for one in found if one != Tolerance.SESSION]
        restores = all(Tolerance.RESTORES in one for one in trainings)
        return anywhere if restores else anywhere & ~Tolerance.RESTORES


@dataclass
class Context:
    """The surroundings of a training on one replica."""

    strategy: Strategy = field(default_factory=OneDeviceStrategy)
    recorder: Recorder | None = None
    step_log: StepLog | None = None
    """Takes note of when each step did what, for the run's timeline."""
    events: EventLog | None = None
    """Takes the events of the run that happen here (see `happened`); None where nothing records them."""
    control: Control = field(default_factory=Control)
    progress: Progress = field(default_factory=Progress)
    tolerances: Tolerances = field(init=False)
    """What its open trainings and sessions survive."""
    is_chief: bool = True
    run: str = ""
    """The id of the run, if there is one."""
    device: str = "CPU:0"
    options: TrainingOptions = field(default_factory=TrainingOptions)
    """What the user has asked for."""
    seed: int | None = None
    """That of the run, which draws one if the options have none."""
    quiet: bool = False
    """Whether progress is shown elsewhere, so that ``fit`` prints nothing."""
    on_error: Callable[[BaseException], object] = lambda error: None
    """Called with an error before other replicas learn of it; it does not return if this process ends."""
    serve: Callable[[Dataset, Strategy], Dataset] | None = None
    """With ``--data service``, returns a dataset that is equal to one, with passes that data tasks make."""
    end_everywhere: Callable[[int], None] | None = None
    """Notifies the other replicas that a callback of the chief has ended a training, by its number."""
    rest_everywhere: Callable[[int], None] | None = None
    """Notifies the other replicas that the chief rests, in a pause of a number."""
    plan_everywhere: Callable[[StepPlan], None] | None = None
    """Gives the other replicas a plan for a step; returns when all of them have it."""
    artifacts: Artifacts | None = None
    """Where ``nb.save_artifact`` copies files."""
    checkpoints: Checkpoints | None = None
    """Where the checkpoints go that are asked for while this replica trains, if it is the chief."""
    summaries: RunSummaries | None = None
    """Where ``nb.summary`` writes the values that it is given."""
    states: TrainingStates | None = None
    """Where the state of each training goes at its end, and the one to continue from."""
    loop: LoopPosition = field(default_factory=LoopPosition)
    """Where the loops of one's own are; all contexts of a replica have the same."""
    ends_in_log: bool = False
    """Whether ``nb.log`` ends a body that was asked to stop, for there may be no step that would."""
    framework: str | None = None
    """The framework by whose own calls the body is distributed (``--framework``), if it is."""
    trainer: str = ""
    """What makes the steps of a framework's training, as far as known; see `nbdist.frameworks.apart`."""
    fitted: WeakValueDictionary[int, Any] = field(default_factory=WeakValueDictionary)
    """The models that a ``fit`` has trained, by id: a foreign model need not have a hash."""
    trained: Callable[[], Sequence[Any]] | None = None
    """Returns the modules that a framework's own loop has trained; None where nothing knows them."""
    weights: Callable[[], list[tuple[float, float]]] | None = None
    """Returns what the weights of replicas have in common; None where nothing is to be compared."""
    alone: bool = False
    """Whether a plain cell has made steps of a framework's training in no process group."""
    on_log: Callable[[Mapping[str, float]], object] | None = None
    """Called with the values that ``nb.log`` is given; None where nothing looks at them."""
    fitting: bool = False
    """Whether a ``fit`` is under way, which ends by itself when it is asked to stop."""
    rates_handled: int = 0
    """How many of the control's learning rates this replica has taken in."""
    rate_changes: RateChanges = field(default_factory=RateChanges)
    """What of its learning rates is an event."""
    rate_step: int = 0
    """The last step at which `set_rate` has recorded its learning rate."""
    gradient: tuple[float, int, int] | None = None
    """Of the last step: the squares of its gradients, summed, this replica's examples and those of all."""
    towers: Callable[[int], Context] | None = None
    """In an in-graph run, the context of a tower by its number: for independent towers, each on a
    thread of its own. The same number gives the same context throughout a run. Towers that step together
    report through the strategy's ``on_tower`` instead, and this context's recorder takes validation only."""
    devices: list[str] = field(default_factory=list)
    """The devices that hold the arrays of this process's replicas, as far as they have trained."""
    input_meter: Meter | None = None
    """Measures the dataset of the last training."""
    gpu: dict[str, Any] | None = None
    """The last sample of this process's GPU (see `nbdist.metrics.gpu_usage`)."""
    world: World = field(default_factory=World)
    """All replicas of the run."""
    metric_names: list[str] = field(default_factory=list)
    """What the model that is trained measures beside its loss."""
    trainings: int = 0
    own_loops: int = 0
    """How many of the trainings are a loop of a framework's own, which no strategy has made."""
    has_computed_in: bool = False
    """Whether a model computes in the run's ``--precision``, by `precision_of`."""
    logged: dict[str, int] = field(default_factory=dict)
    """The last step of each series that ``nb.log`` has counted itself."""
    logged_steps: range = range(1, 1)
    """The steps up to the last one that ``nb.log`` was given, from 1 on; from 0 if that is among them."""
    last_epoch: dict[str, float] = field(default_factory=dict)
    """Means of the last epoch of the last training."""
    noted: set[str] = field(default_factory=set)
    """Notes that were printed."""

    def __post_init__(self) -> None:
        self.tolerances = Tolerances(self.progress)

    def step(self) -> int | None:
        """Return the step at which the replica's loss would be drawn; None where nothing has trained."""
        progress = self.progress
        step = progress.global_step if progress.by_updates else progress.step
        return step if step or self.trainings else None

    def happened(self, kind: str, text: str, step: int | None = None) -> None:
        """Record an event of the run, of one of the kinds of `nbdist.metrics.run_events`.

        ``step`` is the number of steps before it, None for those so far. The chief records what all replicas
        do; elsewhere nothing happens. Any thread may call it.
        """
        if self.events is not None and self.is_chief:
            at = (self.step() or 0) if step is None else step
            task = self.world.task
            rank = None if task is None else task.rank
            self.events.add(kind, text, at, epoch=self.progress.epoch, rank=rank)

    def note_state(self, training: int, step: int) -> None:
        """Record that the state of a training after a step is on the disk."""
        of = f" of training {training}" if training > 1 else ""
        self.happened("state", f"state{of} written", step)

    def set_rate(self, rate: float | None, by: By = "") -> None:
        """Set the rate of the next update, for the view, the run's events and the series of the rate.

        ``by`` is what has changed it, "" where that is not known. None: this replica knows of no rate.
        """
        before = self.progress.learning_rate
        if rate == before:
            return
        self.progress.learning_rate = rate
        if rate is None:
            return
        step = self.step() or 0
        if (event := self.rate_changes.event(step, before, rate, by)) is not None:
            self.happened(*event, step=step)
        if (recorder := self.recorder) is not None:
            series = recorder.series(LEARNING_RATE)
            if before is not None:
                recorder.add(series, step, before)
            self.rate_step = step + 1
            recorder.add(series, self.rate_step, rate)

    def begin_epoch(self, epoch: int, epochs: int | None = None) -> None:
        """Count an epoch, from 1 on, of so many; None if that is not known."""
        progress, recorder = self.progress, self.recorder
        if epoch != progress.epoch and recorder is not None:
            recorder.add(recorder.series(EPOCH), self.step() or 0, epoch)
        progress.epoch, progress.epochs = epoch, epochs

    def begin_pause(self) -> None:
        """Show that this replica is paused, if that is not shown yet."""
        if self.progress.state != PAUSED:
            self.progress.state = PAUSED
            self.happened("pause", PAUSED)

    def end_pause(self, state: str, begun: float) -> float:
        """Show this ``state`` again after a pause; return the seconds since ``begun`` (time.perf_counter)."""
        self.progress.state, seconds = state, time.perf_counter() - begun
        self.note_span("wait", PAUSED, begun)
        if self.control.stop_requested or self.control.aborted is not None:
            self.happened("resume", f"ended after a pause of {duration(seconds)}")
        else:
            self.happened("resume", f"resumed after {duration(seconds)}")
        return seconds

    def note_fit(self, model: Any) -> None:
        """Note that a ``fit`` trains a model."""
        with contextlib.suppress(TypeError):  # None, or a class without weak references
            self.fitted[id(model)] = model

    def has_fitted(self, model: Any) -> bool:
        """Return whether a ``fit`` has trained a model in this context."""
        return self.fitted.get(id(model)) is model

    def answer_checkpoint(self, number: int, step: int, save: Save, begun: float) -> None:
        """Write the checkpoint that was asked for by ``number``, and report it; a failure ends nothing.

        ``begun`` is when the replica has begun to prepare it, on the clock of ``time.perf_counter``.
        """
        assert self.checkpoints is not None
        path = wrong = None
        try:
            path = str(self.checkpoints.write(self.trainings, step, save))
        except Exception as error:  # a full disk, say: training continues
            why = str(error) if isinstance(error, NbdistError) else f"{type(error).__name__}: {error}"
            wrong = f"the checkpoint of step {step} could not be written to {self.checkpoints.folder}: {why}"
        self.progress.checkpoint = {"number": number, "step": step, "path": path, "error": wrong}
        self.happened("checkpoint", f"checkpoint of step {step:,}" if wrong is None else wrong)
        self.note_span("compute", "checkpoint", begun)

    def note_span(self, kind: str, name: str, begun: float) -> None:
        """Take note of what has lasted from ``begun`` until now, between two steps, for the timeline."""
        if self.step_log is not None:
            self.step_log.note(kind, name, begun, time.perf_counter())

    def note(self, text: str) -> None:
        """Print a note on the chief, each text once."""
        if self.is_chief:
            self.note_here(text)

    def note_here(self, text: str) -> None:
        """Print a note on this replica, each text once."""
        if text not in self.noted:
            self.noted.add(text)
            print(text)

    def precision_of(self, own: str | None) -> str:
        """Return what a model computes in: the run's ``--precision``, unless it names its ``own``."""
        asked = self.options.precision
        # PyTorch's "bfloat16" is "mixed_bfloat16".
        self.has_computed_in = self.has_computed_in or own is None or asked.endswith(own)
        return asked if own is None else own

    def note_own_passes(self) -> None:
        """Print once that a loop of one's own makes its own passes, whatever ``--epochs`` says."""
        if self.options.epochs is not None:
            self.note("--epochs is for fit: this loop makes its own passes, and they are not changed")

    def note_single_example(self, layer: str) -> None:
        """Print once, on this replica, that a layer normalises a single example by itself, which gives 0."""
        self.note_here(
            f"a step has one example on this replica, and {layer} normalises it by itself: its output is the "
            "offset alone, and nothing before it learns of the example. Take larger batches, "
            "batch(n, drop_remainder=True), or LayerNorm"
        )

    def served(self, dataset: Dataset) -> Dataset:
        """Return a dataset to train on as the strategy goes through it: made here, or by data tasks."""
        return dataset if self.serve is None else self.serve(dataset, self.strategy)

    def see_arrays(self, arrays: Iterable[Array]) -> None:
        """Note on which devices a training has its arrays."""
        for array in arrays:
            if (device := device_of_array(array)) not in self.devices:
                self.devices.append(device)

    def derive(self, **own: Any) -> Context:
        """Return the context of another replica in this process, by default not the chief.

        It shares the control, what the user asked for, the data tasks, the states to continue from and the
        devices that were used. ``own`` are its other fields.
        """
        names = ("control", "seed", "options", "states", "on_error", "devices", "serve", "fitted", "events")
        shared = {name: getattr(self, name) for name in names}
        return Context(**{**shared, "quiet": True, "is_chief": False, **own})


class StrategyContext(Context):
    """The context of what trains under another strategy than that of its run: all else is the run's.

    So its trainings are the run's, which has their number, metrics and batches. It has a device of its own.
    """

    __slots__ = ("device", "strategy")

    def __init__(self, of: Context, strategy: Strategy) -> None:
        self.__dict__ = of.__dict__
        self.strategy, self.device = strategy, of.device


# A thread belongs to the run in which it began, also when that run is over and the process is at the next
# one: what it reports then is dropped, and is not taken for a result of the next run. Threads that began
# before all runs, such as those of the kernel, belong to none and report to the run that is under way.

_current: Context | None = None
_here: ContextVar[Context | None] = ContextVar("nbdist's context of this thread", default=None)
_OWN = "_nbdist_context"  # the attribute of a thread
_begin_thread = threading.Thread.start


def current() -> Context:
    """Return the context of this thread, or of the run in this process, or a new one without a run.

    Steps count from 0 in a new one.
    """
    return _here.get() or _of_thread() or _current or Context()


def left_behind() -> bool:
    """Whether this thread began in a run that is not the one under way in this process."""
    own = _of_thread()
    if own is None or _here.get() is not None:
        return False
    return _current is None or own.control is not _current.control  # a run has several contexts


def note_left_behind(context: Context) -> None:
    """Say in the run under way that a thread of the run of ``context``, which is over, still reports."""
    if (now := _current) is not None:
        with use_here(now):
            now.note(f"a thread of run {context.run}, which is over, calls nb.log: its values are dropped")


@contextlib.contextmanager
def use(context: Context) -> Iterator[Context]:
    """Make ``context`` this process's current one, inside a ``with``."""
    global _current
    threading.Thread.start = _begin  # type: ignore[assignment,method-assign]
    here, before = threading.current_thread(), _of_thread()
    with _lock:
        outer, _current = _current, context
    setattr(here, _OWN, context)
    try:
        yield context
    finally:
        setattr(here, _OWN, before)
        with _lock:
            _current = outer


def _begin(thread: threading.Thread) -> None:
    """Start a thread, in the run of the thread that starts it: in place of ``Thread.start``."""
    setattr(thread, _OWN, _here.get() or _of_thread())
    _begin_thread(thread)


def _of_thread() -> Context | None:
    found: Context | None = getattr(threading.current_thread(), _OWN, None)
    return found


@contextlib.contextmanager
def use_here(context: Context) -> Iterator[Context]:
    """Make ``context`` the current one of this thread, and of those that it starts, inside a ``with``."""
    threading.Thread.start = _begin  # type: ignore[assignment,method-assign]
    token = _here.set(context)
    try:
        yield context
    finally:
        _here.reset(token)


summary_writer.writer_of_run = lambda: current().summaries


def get_strategy() -> Strategy:
    """Return the strategy that training here would use.

    >>> get_strategy().name
    'one_device'
    """
    return current().strategy


# Checkpoints of a run, written while it trains; each folder appears atomically.
#
#     checkpoints = Checkpoints(run_folder / "checkpoints")
#     path = checkpoints.write(training=1, step=120, save=lambda folder: model.save(folder / MODEL))
#
# A draft is written, brought to the disk and renamed. What fails leaves nothing behind.

MODEL, VARIABLES = "model.safetensors", "variables.safetensors"
Save: TypeAlias = Callable[[Path], Path]
"""Writes files into a folder that is there, and returns the one that counts."""


class Checkpoints:
    """The checkpoints of one run, in a folder of mode 0700; one writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[tuple[int, int], Path] = {}

    def write(self, training: int, step: int, save: Save) -> Path:
        """Write the checkpoint of a step, unless it is there; return the path of what ``save`` has written.

        Raises what ``save`` raises, and OSError.
        """
        found = self._written.get((training, step))
        if found is None:
            found = self._written[training, step] = self._write(training, step, save)
        return found

    def _write(self, training: int, step: int, save: Save) -> Path:
        private_folder(self.folder)
        final = self.folder / f"step-{step}"
        if final.exists():  # an earlier training of the run has ended with this step
            final = self.folder / f"step-{step}-training-{training}"
        draft = self.folder / f".{final.name}.{secrets.token_hex(4)}.draft"
        draft.mkdir(mode=0o700)
        try:
            name = save(draft).name
            for path in draft.iterdir():
                path.chmod(0o600)
                to_disk(path)
            to_disk(draft)
            draft.rename(final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        to_disk(self.folder)
        return final / name


def save_variables(named: Iterable[tuple[str, Array]], folder: Path) -> Path:
    """Write arrays by name into one safetensors file, with a checksum of each; returns its path."""
    path = folder / VARIABLES
    write_tensors(path, dict(named), {})
    return path
