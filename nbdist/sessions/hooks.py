"""Hooks: code that runs before and after each call of a monitored session.

    class Count(SessionRunHook):
        def begin(self): ...                                 # may add to the graph
        def after_create_session(self, session, coord): ...  # again after each recovery
        def before_run(self, run_context): ...               # may return SessionRunArgs: more to fetch
        def after_run(self, run_context, run_values): ...    # may call run_context.request_stop()
        def end(self, session): ...                          # not after an error

Source of the interface and of when each hook acts: TensorFlow's tf.compat.v1.train.SessionRunHook.
"""

from __future__ import annotations

import numbers
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.checkpoint.folder import Claim, open_folder
from nbdist.data.arguments import any_path
from nbdist.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    NanLossError,
    NbdistError,
    StorageError,
    UnavailableError,
)
from nbdist.graph.scopes import default_graph
from nbdist.graph.tensor import Tensor, Variable
from nbdist.graph.variables import global_step_in
from nbdist.metrics.timeline import Timeline
from nbdist.runtime.session.session import Session
from nbdist.sessions.saver import Saver
from nbdist.summary import FileWriter, SummaryOp
from nbdist.summary.writer import release, shared_writer
from nbdist.train.context import current

if TYPE_CHECKING:
    from nbdist.sessions.manager import Scaffold

POLL_SECONDS = 0.5
PRINT_SECONDS = 10.0
SAVE_NAMES = ("save_secs", "save_steps")


@dataclass(frozen=True)
class SessionRunArgs:
    """What a hook adds to a run: ``fetches``, ``feed_dict``, and whether the run is traced."""

    fetches: Any = None
    feed_dict: Mapping[Any, Any] | None = None
    trace: bool = False


@dataclass(frozen=True)
class SessionRunValues:
    """What a run has returned for a hook: ``results`` as its fetches, and the timeline if it was traced."""

    results: Any = None
    timeline: Timeline | None = None


@dataclass
class SessionRunContext:
    """A run that is about to begin, or has ended: its arguments and its session."""

    original_args: SessionRunArgs
    session: Session
    stop_requested: bool = False

    def request_stop(self) -> None:
        """Have the training end after this run."""
        self.stop_requested = True


class SessionRunHook:
    """Base of hooks; override what you need. Methods are called in this order.

    >>> class Count(SessionRunHook):
    ...     runs = 0
    ...     def after_run(self, run_context, run_values):
    ...         self.runs += 1

    ``needed_workers`` is with how few workers the training continues, where they wait for each other; 0 if
    they do not. A run that cannot replace a lost worker ends if fewer remain.
    """

    needed_workers: int = 0

    def begin(self) -> None:
        """Add to the graph what the hook needs, before the session is made."""

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Begin in a new session, the first one or one after a recovery.

        Errors on other threads go to ``coord``, a Coordinator, if it is given.
        """

    def before_run(self, run_context: Any) -> Any:
        """Do something before each run; return SessionRunArgs with more fetches and feeds, or None."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Do something after each run."""

    def end(self, session: Session) -> None:
        """Do something at the end, while the session is still open."""

    def abort(self) -> None:
        """Free what the hook holds: the training ended with an error, and ``end`` is not called."""


class SecondOrStepTimer:
    """Decides at which steps a hook acts: its first step, then every so many steps or seconds.

    Exactly one of ``every_secs`` (seconds above 0) and ``every_steps`` (a whole number above 0) is given;
    else InvalidArgumentError, which calls them ``names``. It never triggers twice at one step.

    >>> timer = SecondOrStepTimer(every_steps=3)
    >>> acted = []
    >>> for step in (4, 4, 5, 6, 7, 11):
    ...     if timer.should_trigger_for_step(step):
    ...         acted.append((step, timer.update_last_triggered_step(step)[1]))
    >>> acted
    [(4, None), (7, 3), (11, 4)]
    """

    def __init__(
        self,
        every_secs: float | None = None,
        every_steps: int | None = None,
        *,
        names: tuple[str, str] = ("every_secs", "every_steps"),
    ) -> None:
        check_one_of(dict(zip(names, (every_secs, every_steps), strict=True)))
        self._seconds, self._steps = every_secs, every_steps
        self.reset()

    def reset(self) -> None:
        """Forget when it has triggered."""
        self._last_step: int | None = None
        self._last_time = 0.0

    def should_trigger_for_step(self, step: int) -> bool:
        """Return whether the hook acts at ``step``."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._steps is not None:
            return step >= self._last_step + self._steps
        assert self._seconds is not None
        return time.monotonic() >= self._last_time + self._seconds

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record that the hook has acted; return seconds and steps since the last time (None at first)."""
        now = time.monotonic()
        elapsed = (None, None) if self._last_step is None else (now - self._last_time, step - self._last_step)
        self._last_step, self._last_time = step, now
        return elapsed

    def last_triggered_step(self) -> int | None:
        """Return the step at which it has triggered last."""
        return self._last_step


def check_one_of(given: Mapping[str, float | None], whole: bool = False) -> None:
    """Raise InvalidArgumentError unless exactly one of some values is given, a (``whole``) number above 0."""
    values = {name: value for name, value in given.items() if value is not None}
    if len(values) != 1:
        raise InvalidArgumentError(
            f"give exactly one of {' and '.join(given)}, got {' and '.join(map(repr, given.values()))}"
        )
    for name, value in values.items():
        if not (is_number(value) and value > 0 and (not whole or value % 1 == 0)):
            raise InvalidArgumentError(f"{name} is a {'whole ' * whole}number above 0, not {value!r}")


def is_number(value: object) -> bool:
    """Whether a value is a real number and not a bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _step_after(
    timer: SecondOrStepTimer, fetched: int, run_context: SessionRunContext, global_step: Variable
) -> int | None:
    """Return the global step after a run at which a hook acts, or None if it does not act.

    The step that a run has fetched is usually the one before its own update, so the newest one is read,
    but only when it is time.
    """
    if not timer.should_trigger_for_step(fetched + 1):
        return None
    step = int(run_context.session.run(global_step))
    return step if timer.should_trigger_for_step(step) else None


class _StepHook(SessionRunHook):
    """Base of hooks that act by the global step, which each run fetches."""

    def begin(self) -> None:
        """Find the global step."""
        if (found := global_step_in(default_graph())) is None:
            raise FailedPreconditionError(
                "the graph has no global step, by which this hook counts: call "
                "nb.train.get_or_create_global_step(), and give it to optimizer.minimize(loss, "
                "global_step=...)"
            )
        self._global_step = found

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)


class StopAtStepHook(_StepHook):
    """Ends the training at a step.

    Exactly one is given, a whole number above 0: ``num_steps`` counts from the step at which the training
    begins, ``last_step`` is the global step to reach. A session that is made again, and that of the new
    process of a lost worker, end at once if the step was reached before.
    """

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        check_one_of({"num_steps": num_steps, "last_step": last_step}, whole=True)
        self._num_steps, self._last_step = num_steps, last_step
        self._again = False

    def begin(self) -> None:
        """Find the global step."""
        super().begin()
        self._again = current().world.rejoins and current().progress.sessions == 0

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Count from the first session on; stop if the training has ended since."""
        reached = int(session.run(self._global_step))
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = reached + self._num_steps
        if self._again and coord is not None and reached >= self._last_step:
            coord.request_stop()
        self._again = True

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop at the step; the fetched one may be from before the update."""
        assert self._last_step is not None
        reached = int(run_values.results) + 1 >= self._last_step
        if reached and int(run_context.session.run(self._global_step)) >= self._last_step:
            run_context.request_stop()


class CheckpointSaverListener:
    """Acts around each checkpoint of a CheckpointSaverHook; override what you need."""

    def begin(self) -> None:
        """Add to the graph, before the session is made."""

    def before_save(self, session: Session, global_step_value: int) -> None:
        """Do something before a checkpoint is written."""

    def after_save(self, session: Session, global_step_value: int) -> bool | None:
        """Do something after it is written; return True to end the training."""

    def end(self, session: Session, global_step_value: int) -> None:
        """Do something at the end."""


class CheckpointSaverHook(_StepHook):
    """Writes a checkpoint every ``save_secs`` seconds or ``save_steps`` steps, at the start and at the end.

    - ``checkpoint_dir``: folder or fsspec URL, which all tasks reach
    - ``save_secs``, ``save_steps``: exactly one of them, above 0
    - ``saver``: a Saver; None for that of ``scaffold``, or one of all variables
    - ``checkpoint_basename``: the name of the checkpoints, before the step
    - ``listeners``: CheckpointSaverListeners. With listeners a run waits until the files are written;
      without, training waits only for the copies of the variables

    If the disk is full, or a checkpoint cannot be written for another reason, training continues: the error
    is printed, and is in ``error``; earlier checkpoints stay valid, and the hook tries again after its
    interval. At the end the error of the last checkpoint is raised. If another session of this host writes
    into the same local folder, a warning is printed: each of the two deletes the other's checkpoints.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Scaffold | None = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise InvalidArgumentError("give a saver or a scaffold, not both")
        self._folder = any_path("CheckpointSaverHook: checkpoint_dir", checkpoint_dir)
        self._path = f"{self._folder.rstrip('/')}/{checkpoint_basename}"
        self._timer = SecondOrStepTimer(save_secs, save_steps, names=SAVE_NAMES)
        self._saver, self._scaffold = saver, scaffold
        self._listeners = list(listeners or ())
        self._pending = False
        self._claim: Claim | None = None
        self.error: NbdistError | None = None
        """Why the last checkpoint was not written."""

    def begin(self) -> None:
        """Find the global step, and what to save."""
        super().begin()
        for listener in self._listeners:
            listener.begin()
        self._claim = open_folder(self._folder).claim()
        if not self._claim.free:
            print(
                f"another session writes its checkpoints into {self._folder!r}, and each deletes "
                "those of the other: end that session, or choose another folder"
            )

    @property
    def saver(self) -> Saver:
        """The Saver."""
        if self._saver is None:
            scaffolds = None if self._scaffold is None else self._scaffold.saver
            self._saver = scaffolds or Saver()
        return self._saver

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Save the beginning."""
        step = int(session.run(self._global_step))
        self._save(session, step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Save if it is time."""
        step = _step_after(self._timer, int(run_values.results), run_context, self._global_step)
        if step is not None and self._save(run_context.session, step):
            run_context.request_stop()

    def end(self, session: Session) -> None:
        """Save the end, unless it is saved already; raise the error of a failure."""
        step = int(session.run(self._global_step))
        self.finish()
        if step != self._timer.last_triggered_step() or self.error is not None:
            self._save(session, step)
            self.finish()
        for listener in self._listeners:
            listener.end(session, step)
        self._release()
        if self.error is not None:
            raise self.error

    def _save(self, session: Session, step: int) -> bool:
        """Save; return whether a listener asks for the end."""
        self.finish()
        self._timer.update_last_triggered_step(step)
        for listener in self._listeners:
            listener.before_save(session, step)
        try:
            self.saver.save(session, self._path, step, wait=bool(self._listeners))
        except NbdistError as error:
            if is_preemption(error):
                raise
            self._report(error)
            return False
        self._pending = not self._listeners
        if self._listeners:
            self.error = None
        stop = False
        for listener in self._listeners:
            stop = bool(listener.after_save(session, step)) or stop
        return stop

    def abort(self) -> None:
        """Wait for the checkpoint that is being written: it is worth the wait."""
        self.finish()
        self._release()

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, perhaps by a session that was lost."""
        if not self._pending:
            return
        self._pending = False
        try:
            self.saver.wait()
            self.error = None
        except NbdistError as error:
            self._report(error)

    def _report(self, error: NbdistError) -> None:
        self.error = error
        print(f"no checkpoint was written, training continues: {error}")


def is_preemption(error: BaseException) -> bool:
    """Whether a task has ended or was replaced, so that a session can be recovered."""
    return isinstance(error, (AbortedError, UnavailableError))


class _WritingHook(_StepHook):
    """Base of hooks that write summaries: to a FileWriter of the user's, to one in a folder, or nowhere."""

    def __init__(self, folder: str | os.PathLike[str] | None, writer: FileWriter | None) -> None:
        self._folder, self._writer, self._own = folder, writer, False

    def begin(self) -> None:
        """Find the global step, and open the writer."""
        super().begin()
        if self._writer is None and self._folder is not None:
            self._writer, self._own = shared_writer(self._folder), True

    def end(self, session: Session) -> None:
        """Write what waits in memory, and close a writer of its own."""
        self._close()

    def abort(self) -> None:
        """Do the same."""
        self._close()

    def _close(self) -> None:  # an error of the disk is printed, for it must not fail the training
        writer = self._writer
        if writer is None:
            return
        try:
            if self._own:
                self._writer = None
                release(writer)
            else:
                writer.flush()
        except StorageError as error:
            print(error)


class StepCounterHook(_WritingHook):
    """Writes the global steps per second as the summary ``global_step/sec``, and prints them every 10 s.

    - ``every_n_steps``, ``every_n_secs``: exactly one of them, above 0
    - ``output_dir``: the folder of a new FileWriter; or ``summary_writer``; or neither
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        if every_n_secs is not None and every_n_steps == 100:
            every_n_steps = None
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps, names=("every_n_secs", "every_n_steps"))
        super().__init__(output_dir, summary_writer)
        self._printed = time.monotonic()
        self.last_rate: float | None = None
        """The last global steps per second."""

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Count anew."""
        self._timer.reset()

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Report if it is time."""
        step = _step_after(self._timer, int(run_values.results), run_context, self._global_step)
        if step is not None:
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds and steps is not None:
                self.last_rate = steps / seconds
                if time.monotonic() - self._printed >= PRINT_SECONDS:
                    self._printed = time.monotonic()
                    print(f"global_step/sec: {self.last_rate:.4g}")
                if self._writer is not None:
                    self._writer.add_summary({"global_step/sec": self.last_rate}, step)


class SummarySaverHook(_WritingHook):
    """Writes summaries every ``save_steps`` steps or ``save_secs`` seconds.

    - ``save_steps``, ``save_secs``: exactly one of them, above 0
    - ``output_dir``: the folder of a new FileWriter; or ``summary_writer``. One of them is given
    - ``scaffold``: its ``summary_op`` is used if no ``summary_op`` is given
    - ``summary_op``: a SummaryOp (``nb.summary.merge_all()``), or a list of them
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        summary_writer: FileWriter | None = None,
        scaffold: Scaffold | None = None,
        summary_op: SummaryOp | Sequence[SummaryOp] | None = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise InvalidArgumentError("give exactly one of scaffold and summary_op")
        if (output_dir is None) == (summary_writer is None):
            raise InvalidArgumentError("give exactly one of output_dir and summary_writer")
        self._timer = SecondOrStepTimer(save_secs, save_steps, names=SAVE_NAMES)
        super().__init__(output_dir, summary_writer)
        self._scaffold, self._given = scaffold, summary_op
        self._fetched: list[SummaryOp] = []
        self._due = False
        self._next: int | None = None

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Find the summaries of the finished graph; drop those of steps that are made again."""
        if self._writer is not None:
            self._writer.purge(int(session.run(self._global_step)) + 1)
        given = self._given if self._scaffold is None else self._scaffold.summary_op
        self._fetched = [given] if isinstance(given, SummaryOp) else list(given or ())

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the summaries if it is time."""
        self._due = self._next is None or self._timer.should_trigger_for_step(self._next)
        return SessionRunArgs({"step": self._global_step, "values": self._fetched if self._due else []})

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the summaries that were fetched, at the step that the run has made."""
        step = int(run_values.results["step"]) + 1
        if self._due:
            step = int(run_context.session.run(self._global_step))
            self._timer.update_last_triggered_step(step)
            if self._writer is not None:
                values = {tag: v for one in run_values.results["values"] for tag, v in one.items()}
                self._writer.add_summary(values, step)
        self._next = step + 1


class NanTensorHook(SessionRunHook):
    """Ends the training when the loss is NaN or infinite.

    - ``loss_tensor``: a tensor of one number
    - ``fail_on_nan_loss``: whether NanLossError is raised; else the training ends, with a printed line
    """

    def __init__(self, loss_tensor: Tensor, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fail = loss_tensor, fail_on_nan_loss

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the loss."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Check the loss."""
        if np.all(np.isfinite(run_values.results)):
            return
        message = f"the loss {self._loss.name!r} is {run_values.results}"
        if self._fail:
            raise NanLossError(
                f"{message}; lower the learning rate, or look for divisions and logarithms of 0"
            )
        print(f"{message}: the training ends")
        run_context.request_stop()


class LoggingTensorHook(SessionRunHook):
    """Prints values of tensors, every so many calls or seconds.

    - ``tensors``: tensors or their names, in a list, or in a dict by the name to print
    - ``every_n_iter``: after how many calls; or ``every_n_secs``: seconds; or neither, and ``at_end``
    - ``at_end``: whether the values are printed at the end as well
    - ``formatter``: returns the line, given a dict of values by name
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Iterable[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        if not at_end and (every_n_iter is None) == (every_n_secs is None):
            raise InvalidArgumentError("give exactly one of every_n_iter and every_n_secs, or at_end=True")
        if isinstance(tensors, (Tensor, str)):
            raise InvalidArgumentError(f"tensors is a list or a dict of tensors: give [{_name_of(tensors)}]")
        named = tensors if isinstance(tensors, Mapping) else {_name_of(t): t for t in tensors}
        if not named:
            raise InvalidArgumentError("LoggingTensorHook needs at least one tensor")
        self._tensors = dict(named)
        scheduled = every_n_iter is not None or every_n_secs is not None
        names = ("every_n_secs", "every_n_iter")
        self._timer = SecondOrStepTimer(every_n_secs, every_n_iter, names=names) if scheduled else None
        self._at_end, self._formatter, self._calls = at_end, formatter, 0
        self._due = False

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors if it is time."""
        self._due = self._timer is not None and self._timer.should_trigger_for_step(self._calls)
        return SessionRunArgs(self._tensors) if self._due else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Print them."""
        if self._due and self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._calls)
            self._print(run_values.results, seconds)
        self._calls += 1

    def end(self, session: Session) -> None:
        """Print the last values."""
        if self._at_end:
            self._print(session.run(self._tensors), None)

    def _print(self, values: dict[str, Any], seconds: float | None) -> None:
        if self._formatter is not None:
            print(self._formatter(values))
            return
        took = "" if seconds is None else f" ({seconds:.3f} s)"
        print(", ".join(f"{name} = {value}" for name, value in values.items()) + took)


def _name_of(tensor: Any) -> str:
    return tensor if isinstance(tensor, str) else str(tensor.name)


class FinalOpsHook(SessionRunHook):
    """Runs ``final_ops`` (as a session's fetches) with ``final_ops_feed_dict`` at the end of the training."""

    def __init__(self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None) -> None:
        self._ops, self._feeds = final_ops, final_ops_feed_dict
        self.final_ops_values: Any = None
        """What they have returned."""

    def end(self, session: Session) -> None:
        """Run them."""
        if self._ops is not None:
            self.final_ops_values = session.run(self._ops, self._feeds)


class GlobalStepWaiterHook(_StepHook):
    """Delays the first run until the global step is ``wait_until_step``, so that workers start in turn."""

    def __init__(self, wait_until_step: int) -> None:
        if not is_number(wait_until_step):
            raise InvalidArgumentError(f"wait_until_step is a global step, not {wait_until_step!r}")
        self._wait_until = wait_until_step
        self._over = wait_until_step <= 0

    def before_run(self, run_context: SessionRunContext) -> None:
        """Wait."""
        reported = time.monotonic()
        while not self._over:
            step = int(run_context.session.run(self._global_step))
            self._over = step >= self._wait_until
            if not self._over:
                if time.monotonic() - reported >= 10.0:
                    reported = time.monotonic()
                    print(f"waiting for global step {self._wait_until}; it is {step} now")
                time.sleep(POLL_SECONDS)


class FeedFnHook(SessionRunHook):
    """Feeds what ``feed_fn()`` returns, a dict of values by tensor, to every run."""

    def __init__(self, feed_fn: Callable[[], Mapping[Tensor, Any]]) -> None:
        self._feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Feed the values."""
        return SessionRunArgs(feed_dict=self._feed_fn())


@dataclass
class ProfilerHook(_StepHook):
    """Traces a step every ``save_steps`` steps or ``save_secs`` seconds, as ``timeline-<step>.json``.

    Exactly one of the two is given, above 0. The files are Chrome traces (open them at ui.perfetto.dev) in
    ``output_dir``, which is made if it is missing. ``show_dataflow`` and ``show_memory`` are accepted as in
    TensorFlow, without an effect: arrows between tasks are always drawn, memory never is.
    """

    save_steps: int | None = None
    save_secs: float | None = None
    output_dir: str | os.PathLike[str] = ""
    show_dataflow: bool = True
    show_memory: bool = False
    timelines: list[Path] = field(default_factory=list)
    """The files that were written."""

    def __post_init__(self) -> None:
        self._timer = SecondOrStepTimer(self.save_secs, self.save_steps, names=SAVE_NAMES)
        self._next: int | None = None

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Trace the run if it is time; the first run, which compiles, is left out."""
        due = self._next is not None and self._timer.should_trigger_for_step(self._next)
        return SessionRunArgs(self._global_step, trace=due)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the timeline of a run that was traced, named after the step that the run has made."""
        step = int(run_values.results) + 1
        if self._next is None:
            self._timer.update_last_triggered_step(step - 1)
        if run_values.timeline is not None:
            step = int(run_context.session.run(self._global_step))
            self._timer.update_last_triggered_step(step)
            folder = Path(self.output_dir).expanduser()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.timelines.append(run_values.timeline.save(folder / f"timeline-{step}.json"))
        self._next = step + 1
