"""`MonitoredTrainingSession`: a session that initialises, runs hooks, saves checkpoints and recovers.

    with nb.train.MonitoredTrainingSession(target, is_chief, "checkpoints", hooks=hooks) as session:
        while not session.should_stop():
            session.run(train_op)

When a run fails with AbortedError or UnavailableError, because a task has ended or was replaced, the session
is closed and made again, which waits for the task and, on the chief, restores what it has lost
(`nbdist.sessions.manager`). The hooks begin again, and the same run is made again. OutOfRangeError,
the end of the data, ends the ``with`` block quietly; any other error is raised.

Source of the interface: TensorFlow's tf.compat.v1.train.MonitoredTrainingSession.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from nbdist.data.arguments import any_path
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, NbdistError, OutOfRangeError
from nbdist.graph.scopes import Graph, default_graph
from nbdist.graph.tensor import Tensor
from nbdist.graph.variables import global_step_in
from nbdist.runtime.session.session import Session
from nbdist.sessions.coordinator import Coordinator
from nbdist.sessions.hooks import (
    CheckpointSaverHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    StepCounterHook,
    SummarySaverHook,
    is_number,
    is_preemption,
)
from nbdist.sessions.manager import MAX_WAIT_SECONDS, Master, Path, Scaffold, SessionManager
from nbdist.train.context import PAUSED, Tolerance, current

SAVE_SECONDS = 600.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.05, 5.0  # between failures of one call, doubled each time
SUMMARY_STEPS = 100
STEP_COUNT_STEPS = 100
T = TypeVar("T")


class SessionCreator(Protocol):
    """Makes the sessions of a MonitoredSession."""

    scaffold: Scaffold

    def create_session(self) -> Session:
        """Return a session whose variables are ready."""


class _Creator:
    """Makes the sessions of one worker by one SessionManager, which knows what it has seen before."""

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: Master = "",
        config: Mapping[str, Any] | None = None,
        max_wait_secs: float = MAX_WAIT_SECONDS,
    ) -> None:
        self.scaffold = scaffold or Scaffold()
        self._master, self._config, self._max_wait = master, config, max_wait_secs
        self._manager: SessionManager | None = None

    def _ready(self) -> SessionManager:
        scaffold = self.scaffold.finalize()
        if self._manager is None:
            self._manager = SessionManager(
                scaffold.local_init_op,
                scaffold.ready_op,
                scaffold.ready_for_local_init_op,
                config=self._config,
            )
        return self._manager


class ChiefSessionCreator(_Creator):
    """Makes the chief's sessions: initialises or restores the variables.

    - ``scaffold``: a Scaffold; None for a default one
    - ``master``: the target, or a Cluster, Server or Task, which has one; "" for this process
    - ``config``: further arguments of :class:`~nbdist.runtime.session.session.Session`, by name
    - ``checkpoint_dir``, ``checkpoint_filename_with_path``: where to restore from; see SessionManager
    - ``max_wait_secs``: how many seconds to wait for tasks that are not there
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: Master = "",
        config: Mapping[str, Any] | None = None,
        checkpoint_dir: Path | None = None,
        checkpoint_filename_with_path: Path | None = None,
        max_wait_secs: float = MAX_WAIT_SECONDS,
    ) -> None:
        super().__init__(scaffold, master, config, max_wait_secs)
        self._folder, self._checkpoint = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> Session:
        """Return a session with all variables initialised or restored."""
        manager, scaffold = self._ready(), self.scaffold
        init_fn = scaffold.init_fn
        return manager.prepare_session(
            self._master,
            scaffold.init_op,
            scaffold.saver,
            self._folder,
            self._checkpoint,
            self._max_wait,
            scaffold.init_feed_dict,
            None if init_fn is None else lambda session: init_fn(scaffold, session),
        )

    def saw_step(self, step: int) -> None:
        """Record the newest global step, from which the cost of a lost task is known."""
        if self._manager is not None:
            self._manager.last_step = max(step, self._manager.last_step or 0)


class WorkerSessionCreator(_Creator):
    """Makes the sessions of other workers, which wait for the chief; parameters as for the chief's."""

    def create_session(self) -> Session:
        """Return a session once the chief has made the variables ready."""
        return self._ready().wait_for_session(self._master, self._max_wait)


class StepContext:
    """What a step function gets from ``run_step_fn``: the plain ``session``, and a run with the hooks."""

    def __init__(self, session: Session, run_with_hooks: Callable[..., Any]) -> None:
        self.session = session
        self._run = run_with_hooks

    def run_with_hooks(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run as ``MonitoredSession.run`` does."""
        return self._run(fetches, feed_dict)

    def request_stop(self) -> None:
        """End the ``with`` block of the session."""
        raise StopIteration("the step function has requested a stop")


class MonitoredSession:
    """A session with hooks that recovers from the loss of tasks.

    - ``session_creator``: a ChiefSessionCreator or WorkerSessionCreator; None for a chief in this process
    - ``hooks``: SessionRunHooks
    - ``stop_grace_period_secs``: how many seconds the threads of the hooks have to end, from 0

    The graph is the default graph of now. Use it in a ``with`` block, or call :meth:`close`. It is used by
    one thread.

    >>> import numpy as np
    >>> from nbdist.graph.tensor import Variable
    >>> from nbdist.graph.variables import get_or_create_global_step
    >>> from nbdist.optim import SGD
    >>> from nbdist.sessions.hooks import StopAtStepHook
    >>> with Graph().as_default():
    ...     w = Variable(np.float64(0.0), name="w")
    ...     train = SGD(0.5).minimize((w - 3.0) ** 2 / 2, get_or_create_global_step())
    ...     with MonitoredSession(hooks=[StopAtStepHook(last_step=3)]) as session:
    ...         while not session.should_stop():
    ...             session.run([train, w])[1]
    np.float64(0.0)
    np.float64(1.5)
    np.float64(2.25)
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120.0,
    ) -> None:
        self._creator = session_creator or ChiefSessionCreator()
        self._hooks = _listed("hooks", hooks)
        for hook in self._hooks:
            if not isinstance(hook, SessionRunHook):
                raise InvalidArgumentError(f"hooks are nb.train.SessionRunHooks, not {hook!r:.200}")
        self._grace = stop_grace_period_secs
        self.graph: Graph = default_graph()
        self._session: Session | None = None
        self._coordinator = Coordinator(clean_stop_exception_types=())
        self._stop = self._closed = False
        self.recoveries = 0
        """How often the session was made again."""
        for hook in self._hooks:
            hook.begin()
        shown = ProgressHook(global_step_in(self.graph), getattr(self._creator, "saw_step", None))
        self._hooks.append(shown)
        progress = current().progress
        progress.needed_workers = max((hook.needed_workers for hook in self._hooks), default=0)
        progress.sessions += 1
        current().tolerances.open(self, Tolerance.SESSION)
        try:
            self._recovering(lambda session: None)
        except BaseException as error:
            ended = isinstance(error, OutOfRangeError) and current().world.rejoins
            if ended:  # before the new process of a lost worker took part
                self._show_joined(shown)
            with suppress(Exception):
                self._close(failed=True)
            if not ended:
                raise

    def _show_joined(self, shown: ProgressHook) -> None:
        if self._session is not None:
            shown.after_create_session(self._session)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run as :meth:`Session.run` does, with the hooks before and after, and again after a recovery.

        Raises FailedPreconditionError after the end, and what :meth:`Session.run` and the hooks raise, but
        for AbortedError and UnavailableError, after which the run is made again. What a failed run has
        changed on tasks that live stays: an asynchronous gradient may be applied twice. While the run that
        the session belongs to is paused, the call waits.
        """
        return self._recovering(lambda session: self._run_with_hooks(session, fetches, feed_dict))

    def run_step_fn(self, step_fn: Callable[[StepContext], T]) -> T:
        """Call ``step_fn(step_context)``, again after a recovery; return its result.

        A step function may make several runs with ``step_context.session`` (without hooks) and
        ``step_context.run_with_hooks``, and end the training with ``step_context.request_stop()``.
        """
        if not callable(step_fn):
            raise InvalidArgumentError(f"step_fn is a function of a step context, not {step_fn!r}")
        return self._recovering(
            lambda session: step_fn(
                StepContext(session, lambda fetches, feeds: self._run_with_hooks(session, fetches, feeds))
            )
        )

    def should_stop(self) -> bool:
        """Return whether a hook, a thread of a hook, or the user (Stop) has ended the training."""
        ended = self._coordinator.should_stop() and self._lost_by_thread is None
        return self._stop or self._closed or ended or current().control.stop_requested

    def close(self) -> None:
        """End the hooks and the session. Checkpoints and summaries are complete after it."""
        self._close(failed=False)

    def _recovering(self, call: Callable[[Session], T]) -> T:
        """Make a call with the session; make both again when a task was lost."""
        self._check_running()
        self._rest()
        current().control.check()
        return self._retried(call)

    @property
    def _lost_by_thread(self) -> NbdistError | None:
        """The loss of a task that a thread of a hook has noticed, after which the session is made again."""
        error = self._coordinator.error
        return error if isinstance(error, NbdistError) and is_preemption(error) else None

    def _rest(self) -> None:
        """Wait while the run is paused; the view shows it."""
        context = current()
        control, progress = context.control, context.progress
        state, begun = progress.state, time.perf_counter()
        while control.rests:
            context.begin_pause()
            control.wait(control.messages)
        if progress.state == PAUSED:
            progress.rested += context.end_pause(state, begun)

    def _retried(self, call: Callable[[Session], T]) -> T:
        for failures in itertools.count():
            try:
                if self._session is not None and (lost := self._lost_by_thread) is not None:
                    raise lost
                if self._session is None:
                    self._create()
                    if self._coordinator.should_stop():
                        self._coordinator.raise_requested_exception()
                        raise OutOfRangeError("the training has reached its end")
                assert self._session is not None
                return call(self._session)
            except NbdistError as error:
                control = current().control
                if not is_preemption(error) or control.aborted is not None or control.stop_requested:
                    raise
                self._abandon(error)
                time.sleep(min(FIRST_WAIT_SECONDS * 2**failures, LONGEST_WAIT_SECONDS))
        raise AssertionError("count() has no end")

    def _check_running(self) -> None:
        if self._closed:
            raise FailedPreconditionError("the monitored session is closed; make another")
        if self._stop or (self._coordinator.should_stop() and self._lost_by_thread is None):
            self._coordinator.raise_requested_exception()
            raise FailedPreconditionError(
                "run was called after the end of the training: loop with `while not session.should_stop()`"
            )

    def _create(self) -> None:
        with self.graph.as_default():
            self._session = self._creator.create_session()
            self._coordinator = Coordinator(clean_stop_exception_types=())
            for hook in self._hooks:
                hook.after_create_session(self._session, self._coordinator)

    def _abandon(self, error: NbdistError) -> None:
        """Close a session that has lost a task."""
        print(f"a task was lost, and the session is made again: {str(error).partition(';')[0]}")
        self.recoveries += 1
        if self._session is not None:
            with suppress(NbdistError):
                self._session.close()
        with suppress(NbdistError):
            self._end_threads()
        self._session = None

    def _end_threads(self) -> None:
        self._coordinator.request_stop()
        self._coordinator.join(stop_grace_period_secs=self._grace)

    def _run_with_hooks(self, session: Session, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        wanted: dict[Any, Any] = {"caller": fetches}
        feeds = dict(feed_dict or {})
        context = SessionRunContext(SessionRunArgs(fetches, feed_dict), session)
        traced: list[int] = []
        for number, hook in enumerate(self._hooks):
            args = hook.before_run(context)
            if args is None:
                continue
            if not isinstance(args, SessionRunArgs):
                raise InvalidArgumentError(
                    f"{type(hook).__name__}.before_run returns SessionRunArgs or None, not {args!r:.200}"
                )
            if args.fetches is not None:
                wanted[number] = args.fetches
            if args.trace:
                traced.append(number)
            for tensor, value in (args.feed_dict or {}).items():
                if tensor in feeds:
                    raise InvalidArgumentError(
                        f"{type(hook).__name__} feeds {tensor!r}, which is fed already"
                    )
                feeds[tensor] = value
        try:
            timeline = None
            if traced:
                values, timeline = session.trace(wanted, feeds)
            else:
                values = session.run(wanted, feeds)
        except NbdistError as error:
            if not is_preemption(error):
                # An error of a hook's thread has often caused that of the run.
                self._coordinator.raise_requested_exception()
            raise
        for number, hook in enumerate(self._hooks):
            hook.after_run(
                context, SessionRunValues(values.get(number), timeline if number in traced else None)
            )
        self._stop = self._stop or context.stop_requested
        return values["caller"]

    def _close(self, failed: bool) -> None:
        if self._closed:
            return
        errors: list[Exception] = []
        try:
            for hook in self._hooks:
                try:
                    if not failed and self._session is not None:
                        self._retried(hook.end)
                    else:
                        hook.abort()
                except Exception as error:  # the other hooks end as well
                    errors.append(error)
        finally:
            self._closed = True
            current().tolerances.close(self)
            session, self._session = self._session, None
            try:
                if session is not None:
                    session.close()
            finally:
                self._end_threads()
        if errors:
            raise errors[0]

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> bool:
        ended = kind is not None and issubclass(kind, (OutOfRangeError, StopIteration))
        if kind is None or ended:
            self._close(failed=False)
            return ended
        with suppress(Exception):  # the error of the block is the one to raise
            self._close(failed=True)
        return False


class ProgressHook(SessionRunHook):
    """Shows the progress of a run, and gives ``saw_step`` the newest global step."""

    def __init__(self, global_step: Tensor | None, saw_step: Callable[[int], None] | None) -> None:
        self._global_step, self._saw_step = global_step, saw_step

    def after_create_session(self, session: Session, coord: Any = None) -> None:
        """Record where the new process of a lost worker has joined the training."""
        context, step = current(), self._global_step
        if context.world.rejoins and context.progress.joined is None:
            joined = 0 if step is None else int(session.run(step))
            context.progress.global_step, context.progress.own_steps = joined, True
            context.progress.joined = joined

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Record the progress."""
        progress = current().progress
        progress.state = "training"
        progress.step += 1
        if run_values.results is not None:
            progress.global_step = max(progress.global_step, int(run_values.results))
            if self._saw_step is not None:
                self._saw_step(int(run_values.results))

    def end(self, session: Session) -> None:
        """Record the step at the end: a run may have read the step before its own update."""
        if self._global_step is not None:
            with suppress(NbdistError):  # a server has died: what was read last remains
                last = int(session.run(self._global_step))
                current().progress.global_step = max(current().progress.global_step, last)


def MonitoredTrainingSession(
    master: Master = "",
    is_chief: bool = True,
    checkpoint_dir: Path | None = None,
    scaffold: Scaffold | None = None,
    hooks: Iterable[SessionRunHook] | None = None,
    chief_only_hooks: Iterable[SessionRunHook] | None = None,
    save_checkpoint_secs: float | None = None,
    save_summaries_steps: int | None = None,
    save_summaries_secs: float | None = None,
    config: Mapping[str, Any] | None = None,
    stop_grace_period_secs: float = 120.0,
    log_step_count_steps: int | None = STEP_COUNT_STEPS,
    max_wait_secs: float = MAX_WAIT_SECONDS,
    save_checkpoint_steps: int | None = None,
    summary_dir: Path | None = None,
) -> MonitoredSession:
    """Return the MonitoredSession of a worker in a distributed training.

    - ``master``: the target: ``nb.task.target`` or ``server.target``; in a notebook the cluster, whose target
      may be replaced; "" trains in this process
    - ``is_chief``: whether this worker initialises, restores and saves; exactly one does
    - ``checkpoint_dir``: the folder or URL of the checkpoints; None saves none
    - ``scaffold``: a :class:`Scaffold`; None for a default one
    - ``hooks``: SessionRunHooks of this worker; ``chief_only_hooks``: those that only the chief has
    - ``save_checkpoint_secs``, ``save_checkpoint_steps``: at most one; seconds or steps between checkpoints.
      Neither: 600 s. 0: none
    - ``save_summaries_steps``, ``save_summaries_secs``: at most one; between two times that the graph's
      summaries are written. Neither: 100 steps. 0: none
    - ``config``: further arguments of :class:`Session`, by name
    - ``stop_grace_period_secs``: how many seconds the threads of hooks have to end
    - ``log_step_count_steps``: after how many steps the chief writes the steps per second to ``summary_dir``
      (and prints them, every 10 s); 0 or None: never
    - ``max_wait_secs``: how many seconds to wait for other tasks and for the chief
    - ``summary_dir``: the local folder of the summaries; None for ``checkpoint_dir``, if that is local

    Raises InvalidArgumentError for values that do not fit together, DeadlineExceededError for a task that
    does not come in time. See :class:`MonitoredSession`.
    """
    _check_is_chief(is_chief)
    for name, given in (("checkpoint_dir", checkpoint_dir), ("summary_dir", summary_dir)):
        if given is not None:
            any_path(f"MonitoredTrainingSession: {name}", given)
    if not is_chief:
        return MonitoredSession(
            WorkerSessionCreator(scaffold, master, config, max_wait_secs), hooks, stop_grace_period_secs
        )
    scaffold = scaffold or Scaffold()
    all_hooks, own = _listed("chief_only_hooks", chief_only_hooks), _listed("hooks", hooks)
    if summary_dir is None and checkpoint_dir is not None and "://" not in os.fspath(checkpoint_dir):
        summary_dir = checkpoint_dir
    steps, seconds = _schedule("save_summaries", save_summaries_steps, save_summaries_secs)
    if steps is None and seconds is None:
        steps = SUMMARY_STEPS
    if summary_dir is not None:
        if log_step_count_steps:
            all_hooks.append(StepCounterHook(log_step_count_steps, output_dir=summary_dir))
        if steps or seconds:
            all_hooks.append(SummarySaverHook(steps, seconds, summary_dir, scaffold=scaffold))
    steps, seconds = _schedule("save_checkpoint", save_checkpoint_steps, save_checkpoint_secs)
    if steps is None and seconds is None:
        seconds = SAVE_SECONDS
    if checkpoint_dir is not None and (steps or seconds):
        all_hooks.append(CheckpointSaverHook(checkpoint_dir, seconds, steps, scaffold=scaffold))
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, max_wait_secs=max_wait_secs)
    return MonitoredSession(creator, [*all_hooks, *own], stop_grace_period_secs)


def _listed(name: str, hooks: Iterable[SessionRunHook] | None) -> list[SessionRunHook]:
    if isinstance(hooks, SessionRunHook):
        raise InvalidArgumentError(f"{name} is a list of hooks: give [{type(hooks).__name__}(...)]")
    return list(hooks or ())


def _check_is_chief(value: object) -> None:
    """Refuse a folder in the place of ``is_chief``: nothing would be saved."""
    if isinstance(value, (str, os.PathLike)):
        raise InvalidArgumentError(
            f"is_chief is True or False, not {value!r}; give a folder as checkpoint_dir="
        )


def _schedule(name: str, steps: int | None, seconds: float | None) -> tuple[int | None, float | None]:
    if steps is not None and seconds is not None:
        raise InvalidArgumentError(f"give {name}_steps or {name}_secs, not both: {steps!r} and {seconds!r}")
    for unit, value in (("steps", steps), ("secs", seconds)):
        if value is not None and not (is_number(value) and value >= 0):
            raise InvalidArgumentError(f"{name}_{unit} is a number from 0 (0 for never), not {value!r}")
    return steps, seconds
