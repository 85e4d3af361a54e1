"""`SessionManager`: makes a session whose variables are ready. `Scaffold`: what it needs of a graph.

    manager = SessionManager()
    session = manager.prepare_session(server.target, init_op, saver, checkpoint_dir)    # the chief
    session = manager.wait_for_session(server.target)                                   # other workers

What the chief does depends on what the tasks have. In TensorFlow a restarted chief restores all variables
from the last checkpoint; here nothing that lives on a task is rolled back:

=====================================  ==================================================================
the tasks have                         the chief
=====================================  ==================================================================
variables of this training, all        joins it
variables of this training, some       restores the others from the newest checkpoint, and reports how many
(a parameter server was replaced)      updates they lost; without a checkpoint it initialises them
variables of another training, none    restores all from the newest checkpoint; without one it initialises
=====================================  ==================================================================

Which training variables belong to is recorded on the tasks by the chief: the id of the run, and the folder of
checkpoints. Without both it is a number that the chief's SessionManager draws: its own recoveries join, a new
chief initialises anew. A damaged checkpoint is reported, and the one before it is used.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from nbdist.checkpoint.folder import open_folder
from nbdist.checkpoint.state import candidates
from nbdist.errors import DataLossError, DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, default_graph
from nbdist.graph.tensor import Tensor, Variable
from nbdist.graph.variables import global_step_in, global_variables, global_variables_initializer
from nbdist.runtime.session.checkpoint import VariablesState
from nbdist.runtime.session.session import Session
from nbdist.sessions.saver import Saver, await_saves
from nbdist.summary import SummaryOp, merge_all
from nbdist.train.context import current

MAX_WAIT_SECONDS = 7200.0
POLL_SECONDS = 0.2
REPORT_SECONDS = 5.0
# For a task to answer; then its address is asked for again, since it may be replaced. A replaced task of this
# host is up within a second, and a busy one may need longer to answer, so each attempt is twice as long.
FIRST_ATTEMPT_SECONDS, LONGEST_ATTEMPT_SECONDS = 0.25, 3.0
Path = str | os.PathLike[str]


class HasTarget(Protocol):
    """A Cluster, Server or Task: its ``target`` may change when a task is replaced."""

    @property
    def target(self) -> str:
        """The target string for a Session."""


Master = str | HasTarget


def _ignore(line: str) -> None:
    """Session's own reports repeat those of the manager."""


class Scaffold:
    """What a monitored session needs of a graph; what is not given is made when the session is.

    - ``init_op``: gives all variables their initial values; None for ``global_variables_initializer()``
    - ``init_feed_dict``: values to feed to it
    - ``init_fn``: called with (scaffold, session) after ``init_op``
    - ``ready_op``: a tensor that is true when the variables are ready, beyond being initialised
    - ``ready_for_local_init_op``: a tensor that is true when ``local_init_op`` can run; None runs it at once
    - ``local_init_op``: each worker runs it in each new session
    - ``summary_op``: a SummaryOp, or a list of them; None for all summaries of the graph
    - ``saver``: a Saver; None for one of all variables
    """

    def __init__(
        self,
        init_op: Tensor | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Scaffold, Session], object] | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        local_init_op: Tensor | None = None,
        summary_op: SummaryOp | Sequence[SummaryOp] | None = None,
        saver: Saver | None = None,
    ) -> None:
        self.init_op, self.init_feed_dict, self.init_fn = init_op, init_feed_dict, init_fn
        self.ready_op, self.ready_for_local_init_op = ready_op, ready_for_local_init_op
        self.local_init_op, self.summary_op, self.saver = local_init_op, summary_op, saver

    def finalize(self) -> Scaffold:
        """Make what was not given, for the default graph; returns the scaffold."""
        if self.init_op is None:
            self.init_op = global_variables_initializer()
        if self.summary_op is None:
            self.summary_op = merge_all()
        if self.saver is None and global_variables():
            self.saver = Saver()
        return self


class SessionManager:
    """Makes sessions whose variables are ready, for the chief and for other workers.

    - ``local_init_op``, ``ready_op``, ``ready_for_local_init_op``: those of :class:`Scaffold`
    - ``graph``: the graph; None for the default graph
    - ``recovery_wait_secs``: seconds between two attempts of a worker, above 0
    - ``config``: further arguments of :class:`~nbdist.runtime.session.session.Session`, by name
    - ``report``: called with a line of text about what is awaited, restored and lost
    """

    def __init__(
        self,
        local_init_op: Tensor | None = None,
        ready_op: Tensor | None = None,
        ready_for_local_init_op: Tensor | None = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = POLL_SECONDS,
        *,
        config: Mapping[str, Any] | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        if not recovery_wait_secs > 0:
            raise InvalidArgumentError(f"recovery_wait_secs is above 0, not {recovery_wait_secs!r}")
        self._local_init_op, self._ready_op = local_init_op, ready_op
        self._ready_for_local_init_op = ready_for_local_init_op
        self._graph = graph or default_graph()
        self._wait, self._config, self._report = recovery_wait_secs, dict(config or {}), report
        self._id = secrets.token_hex(6)
        """Identifies the training where neither a run nor a folder does."""
        self.last_step: int | None = None
        """The newest global step that the chief has seen; it tells how much a lost task has cost."""

    def prepare_session(
        self,
        master: Master,
        init_op: Tensor | None = None,
        saver: Saver | None = None,
        checkpoint_dir: Path | None = None,
        checkpoint_filename_with_path: Path | None = None,
        max_wait_secs: float = MAX_WAIT_SECONDS,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Session], object] | None = None,
    ) -> Session:
        """Return a session with all variables initialised or restored: the chief's part.

        - ``master``: the target, or a Cluster, Server or Task, which has one; "" for this process
        - ``init_op``, ``init_feed_dict``, ``init_fn(session)``: initialise if no checkpoint does
        - ``saver``: restores; None if nothing is restored
        - ``checkpoint_dir``: the folder of the checkpoints; or ``checkpoint_filename_with_path``: one
        - ``max_wait_secs``: how many seconds to wait for tasks that are not there

        Raises DeadlineExceededError, with the task, after that time; DataLossError if all checkpoints are
        damaged; FailedPreconditionError if variables stay uninitialised.
        """

        def awaits(session: Session) -> Callable[[], str]:
            self._prepare(
                session,
                init_op,
                saver,
                checkpoint_dir,
                checkpoint_filename_with_path,
                init_feed_dict,
                init_fn,
            )
            return lambda: self._unready(session)

        return self._ready_session(master, max_wait_secs, awaits)

    def wait_for_session(self, master: Master, max_wait_secs: float = MAX_WAIT_SECONDS) -> Session:
        """Return a session once the chief has made the variables ready: another worker's part.

        In a run it waits for the variables of this run; elsewhere for any that are initialised. Reports
        every few seconds which variables of which task it is waiting for. Raises DeadlineExceededError after
        ``max_wait_secs`` seconds.
        """
        run = current().run

        def awaited(session: Session) -> str:
            state = session.describe_variables(global_variables(self._graph))
            if state.uninitialized:
                return f"the chief to initialise or restore {described(state)}"
            if run and state.tasks and state.training[:1] != (run,):
                return "the chief to begin this run"  # the variables are those of an earlier one
            return self._unready(session)

        return self._ready_session(master, max_wait_secs, lambda session: partial(awaited, session))

    def _ready_session(
        self, master: Master, max_wait_secs: float, awaits: Callable[[Session], Callable[[], str]]
    ) -> Session:
        """Return a session when nothing is awaited in it, by what ``awaits(session)`` returns."""
        deadline = time.monotonic() + max_wait_secs
        session = self._open(master, max_wait_secs)
        try:
            self._wait_until(awaits(session), max_wait_secs, deadline)
            if (ready := self._ready_for_local_init_op) is not None:
                name = f"ready_for_local_init_op ({ready.name})"
                self._wait_until(lambda: "" if np.all(session.run(ready)) else name, max_wait_secs, deadline)
            if self._local_init_op is not None:
                session.run(self._local_init_op)
        except BaseException:
            session.close()
            raise
        return session

    def _open(self, master: Master, max_wait_secs: float) -> Session:
        """Open a session; ask the target again for the addresses of its tasks while one does not answer."""
        begun = reported = time.monotonic()
        attempt = FIRST_ATTEMPT_SECONDS
        while True:
            left = begun + max_wait_secs - time.monotonic()
            target = master if isinstance(master, str) else master.target
            try:
                timeout = max(min(left, attempt), 0.1)
                return Session(target, self._graph, **{"timeout": timeout, "report": _ignore, **self._config})
            except DeadlineExceededError as error:
                now = time.monotonic()
                if left <= 0:
                    raise
                attempt = min(2 * attempt, LONGEST_ATTEMPT_SECONDS)
                if now - reported >= REPORT_SECONDS:
                    reported = now
                    what = str(error).partition(";")[0]
                    self._report(f"waiting for a task ({now - begun:.0f} s): {what}{_how_to_replace(master)}")

    def _prepare(
        self,
        session: Session,
        init_op: Tensor | None,
        saver: Saver | None,
        folder: Path | None,
        checkpoint: Path | None,
        feeds: Mapping[Tensor, Any] | None,
        init_fn: Callable[[Session], object] | None,
    ) -> None:
        variables = global_variables(self._graph)
        state = session.describe_variables(variables)
        run, place = current().run, "" if folder is None else open_folder(folder).name
        own = (run, place or ("" if run else self._id))
        joins = state.training == own
        if folder is not None:  # a session that was lost may have begun the newest one
            await_saves(folder)
        if saver is not None and folder is not None and not saver.last_checkpoints:
            there = open_folder(folder)
            saver.recover_last_checkpoints([there.path(one) for one in reversed([*candidates(there)])])
        if joins and not state.uninitialized:
            self._report_step(session, "joined the training")
            return
        only = state.uninitialized if joins else None
        where = f" {described(state)}" if joins else ""
        path = None if saver is None else self._restore(session, saver, folder, checkpoint, only)
        if path is not None:
            self._report_step(session, f"restored{where or ' the variables'} from {path}")
            left = session.describe_variables(variables)
            if left.uninitialized:
                session.run(group(*(v.initializer for v in left.uninitialized)), feeds)
                self._report(f"initialised {described(left)}: the Saver does not have them")
            restored, last = saver_step(path), self.last_step
            if joins and restored is not None and last is not None and last > restored:
                self._report(f"{last - restored} updates of these variables are lost")
        elif joins:
            session.run(group(*(v.initializer for v in state.uninitialized)), feeds)
            self._report(f"initialised{where} anew: there is no checkpoint, and their values are lost")
        elif init_op is None and init_fn is None:
            if state.uninitialized:
                raise FailedPreconditionError(
                    f"{described(state)} not initialised, and there is neither a checkpoint nor an init_op"
                )
        else:
            if init_op is not None:
                session.run(init_op, feeds)
            if init_fn is not None:
                init_fn(session)
            if saver is not None and folder is not None:
                self._report(f"initialised the variables: there is no checkpoint in {place}")
        session.begin_training(state.tasks, own)

    def _restore(
        self,
        session: Session,
        saver: Saver,
        folder: Path | None,
        checkpoint: Path | None,
        only: Mapping[Variable, str] | None,
    ) -> str | None:
        """Restore the newest checkpoint that is not damaged; return its path, or None if there is none."""
        if checkpoint is not None:
            saver.restore(session, checkpoint, only=only)
            return os.fspath(checkpoint)
        if folder is None:
            return None
        place = open_folder(folder)
        known = list(candidates(place))
        damage: DataLossError | None = None
        for base in known:
            path = place.path(base)
            try:
                saver.restore(session, path, only=only)
            except DataLossError as error:
                damage = damage or error
                self._report(f"{error}; trying the checkpoint before it")
                continue
            return path
        if damage is not None:
            raise DataLossError(
                f"{damage}. None of {len(known)} checkpoints can be restored: to train from the beginning, "
                "move them away or choose another checkpoint_dir"
            )
        return None

    def _report_step(self, session: Session, text: str) -> None:
        counter = global_step_in(self._graph)
        step = None if counter is None else int(session.run(counter))
        self.last_step = step if self.last_step is None else max(self.last_step, step or 0)
        self._report(text if step is None else f"{text} (global step {step})")

    def _unready(self, session: Session) -> str:
        """Return what ``ready_op`` waits for; empty if it is true."""
        if self._ready_op is None or np.all(session.run(self._ready_op)):
            return ""
        return f"ready_op ({self._ready_op.name})"

    def _wait_until(self, awaited: Callable[[], str], max_wait_secs: float, deadline: float) -> None:
        """Wait until ``awaited()`` is empty; report what it says."""
        begun = reported = time.monotonic()
        while what := awaited():
            now = time.monotonic()
            if now > deadline:
                raise DeadlineExceededError(f"waited {max_wait_secs:g} s for {what}; does the chief run?")
            if now - reported >= REPORT_SECONDS:
                reported = now
                self._report(f"waiting for {what} ({now - begun:.0f} s)")
            time.sleep(self._wait)


def _how_to_replace(master: Master) -> str:
    """Return what the user can do about a task that has ended; a run replaces it by itself."""
    if current().run:
        return ""
    how = "start it again with its command"
    if hasattr(master, "restart"):  # a Cluster, in a notebook
        how = "interrupt this, call cluster.restart(), and run the same again"
    return f"; if its process has ended, {how}"


def described(state: VariablesState) -> str:
    """Return the names of uninitialised variables, with their tasks."""
    by_task: dict[str, list[str]] = {}
    for v, task in state.uninitialized.items():
        by_task.setdefault(task, []).append(v.name)
    return "; ".join(
        f"{', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        f"{f' on {task}' if task else ''}"
        for task, names in by_task.items()
    )


def saver_step(path: str) -> int | None:
    """Return the step in a checkpoint's path.

    >>> saver_step("folder/model.ckpt-100"), saver_step("model.ckpt")
    (100, None)
    """
    step = path.rpartition("-")[2]
    return int(step) if step.isdigit() else None
