"""Replaces workers that a run has lost and starts its body on their new processes: `WorkerRecovery`.

    lost ──► replaced ──► prepared ──► started ──► joined
              │             │            └─► ended or failed before it joined
              └─────────────┴─► could not be replaced or prepared

The other workers continue in all cases. A new process has the rank and the name of the lost one, and an empty
namespace: it receives the body and the pushed values, but no names of earlier cells. A body that fails
because it lacks one does not fail the run, which continues without that worker.

Each replacement counts against the restart budget of the run (``--max-restarts``), because a task that dies
again and again has a cause that another process does not remove. The owner of the run replaces its workers
(`nbdist.run.recovery.ownership`); where another client has replaced a task (``%cluster restart``), it starts
the body there. Clients that are not the owner observe what it does (`WorkerRecovery.observe`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from nbdist.errors import FailedPreconditionError, NbdistError, UnavailableError
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.runtime.task import TaskInfo

T = TypeVar("T")
RETRY_SECONDS = 30.0  # for which a replacement is tried again while another client changes the cluster
RESERVE_SECONDS = 2.0  # for the new process to answer, which has nothing else to do


class BodyLauncher(Protocol):
    """Starts the body of a run on the new process of a task."""

    def prepare(self, info: TaskInfo) -> RunCalls:
        """Begin to create the task's agent."""

    def install_agent(self, info: TaskInfo) -> RunCalls:
        """Begin to create the agent of a task that runs no body."""

    def reserve(self, info: TaskInfo, timeout: float) -> None:
        """Reserve the task for the run and subscribe to it; FailedPreconditionError if it is taken."""

    def start(self, info: TaskInfo) -> RunCalls:
        """Send the body, and return the call that runs it."""

    def add(self, rank: int) -> None:
        """Count the task of a rank among the run's workers, after all others that it has had."""

    def remove(self, rank: int) -> None:
        """Count the task of a rank among the run's workers no longer."""


@dataclass
class RestartBudget:
    """How many tasks of a run may be replaced, ``most``, and how many were.

    >>> budget = RestartBudget(1)
    >>> budget.take(), budget.take(), budget.spent
    (True, False, 1)
    """

    most: int
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        """Whether no more task may be replaced."""
        return self.spent >= self.most

    def take(self) -> bool:
        """Return whether one more task may be replaced, and count it."""
        if self.is_spent:
            return False
        self.spent += 1
        return True

    @property
    def refusal(self) -> str:
        """Why no more tasks are replaced.

        >>> RestartBudget(0).refusal
        'it is not replaced, as --max-restarts 0 asks'
        >>> print(RestartBudget(1, 1).refusal)
        it is not replaced: the run's restart budget is spent (--max-restarts 1); 1 task was replaced before
        """
        if self.most == 0:
            return "it is not replaced, as --max-restarts 0 asks"
        return (
            f"it is not replaced: the run's restart budget is spent (--max-restarts {self.most}); "
            f"{count(self.spent, 'task was', 'tasks were')} replaced before"
        )


@dataclass(kw_only=True)
class Entry:
    """How a process enters a run that is under way, or leaves it."""

    calls: RunCalls | None = None
    """The call that runs the body on a new process, once it is sent."""
    step: int | None = None
    """The replica's own step at which it has joined or left; None while it has not."""
    seconds: float = 0.0
    """From when the run found the loss, or the added worker, until the process joined."""
    problem: str = ""
    """Why the run continues without the process."""


@dataclass
class Restart(Entry):
    """The replacement of one lost worker."""

    old: TaskInfo
    how: str
    """How it was lost, as a sentence without an end."""
    number: int
    """Which restart of the run it is, from 1 on."""
    lost_at: float
    """On the clock of ``time.monotonic``."""
    new: TaskInfo | None = None

    @property
    def text(self) -> str:
        """What became of it, in words.

        >>> one = TaskInfo("worker", 1, 1, "here", 7, "127.0.0.1:80", "CPU:0", 1)
        >>> Restart(one, "died", 1, 0.0, new=one, step=412, seconds=3.14).text
        'replaced after 3.1 s, joined at step 412'
        """
        if self.step is not None:
            return f"replaced after {self.seconds:.1f} s, joined at step {self.step:,}"
        return f"not replaced: {self.problem}" if self.problem else "being replaced"

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for run.json."""
        return {
            "task": self.old.name,
            "lost": self.how,
            "lost_at": time.time() - (time.monotonic() - self.lost_at),
            "pid": None if self.new is None else self.new.pid,
            "seconds": round(self.seconds, 3) if self.step is not None else None,
            "step": self.step,
            "problem": self.problem,
        }

    @classmethod
    def from_config(cls, entries: Mapping[str, Any], task: TaskInfo, calls: RunCalls) -> Restart:
        """Return a replacement of a worker that run.json has; ``task`` is the worker as it is now.

        ``calls`` is the call that runs the body on its present process.
        """
        return cls(
            replace(task, pid=0, incarnation=0),
            str(entries["lost"]),
            int(entries["number"]),
            time.monotonic() - (time.time() - float(entries["lost_at"])),
            new=task,
            calls=calls,
            step=entries.get("step"),
            seconds=float(entries.get("seconds") or 0.0),
            problem=str(entries.get("problem", "")),
        )


class WorkerRecovery:
    """Replaces lost workers; call ``poll`` repeatedly, from the thread that follows the run.

    ``budget`` is the restart budget of the run. ``restarts`` are all so far, in the order in which workers
    were lost. Without a ``launcher`` it replaces none; ``problem`` says why.
    """

    def __init__(self, cluster: RunTasks, launcher: BodyLauncher | None, budget: RestartBudget) -> None:
        self.restarts: list[Restart] = []
        self.launcher, self.problem = launcher, ""
        self._cluster, self.budget = cluster, budget
        self._procedures = Procedures[Restart]()
        self.ending = False
        """Whether no more bodies are started."""

    @property
    def under_way(self) -> bool:
        """Whether a task is being replaced, or its body has not been sent."""
        return bool(self._procedures)

    def begin(self, info: TaskInfo, how: str, lost_at: float) -> bool:
        """Begin to replace a lost worker; return whether it is: not if the run ends, or with a `refusal`."""
        if self.ending or self.refusal:
            return False
        self.budget.take()
        restart = Restart(info, how, self.budget.spent, lost_at)
        self.restarts.append(restart)
        self._procedures.begin(self._replace(restart))
        return True

    @property
    def refusal(self) -> str:
        """Why a worker that is lost now is not replaced; empty if it is."""
        if self.budget.is_spent:
            return self.budget.refusal
        return "" if self.launcher is not None else f"it is not replaced: {self.problem}"

    def observe(self, old: TaskInfo, new: TaskInfo, how: str, lost_at: float, calls: RunCalls) -> Restart:
        """Record that the owner of the run has replaced a worker, while this client is not the owner.

        ``calls`` is what knows the outcome of the body on the new process.
        """
        self.budget.spent += 1
        restart = Restart(old, how, self.budget.spent, lost_at, new=new, calls=calls)
        self.restarts.append(restart)
        return restart

    def end(self) -> None:
        """Start no more bodies: the run ends. Replacements that have begun are completed."""
        self.ending = True

    def poll(self) -> list[Restart]:
        """Do what can be done now, without waiting; return those that were started or have failed."""
        return [one for one in self._procedures.poll() if one.calls is not None or one.problem]

    def _replace(self, restart: Restart) -> Procedure[Restart]:
        starts: Callable[[], bool] = lambda: not self.ending
        try:
            restart.new = yield from replace_task(self._cluster, restart.old, starts)
            if restart.new is not None and self.launcher is not None and starts():
                restart.calls = yield from start_body(self.launcher, restart.new, starts)
        except NbdistError as error:
            restart.problem = str(error)
        return restart


Procedure = Generator[None, None, T]
"""Something that takes time: it yields while it waits, and returns a result."""


class Procedures(Generic[T]):
    """Procedures that are under way: each does at every ``poll`` what can be done then."""

    def __init__(self) -> None:
        self._under_way: list[Procedure[T]] = []
        self._results: list[T] = []

    def __bool__(self) -> bool:
        """Whether any is under way, or has a result that was not returned."""
        return bool(self._under_way or self._results)

    def begin(self, procedure: Procedure[T]) -> None:
        """Have a procedure begin at the next poll."""
        self._under_way.append(procedure)

    def poll(self) -> list[T]:
        """Do what can be done now, without waiting; return the results of those that have ended.

        Raises the error of one that has failed, which ends by that; the next poll returns what others have.
        """
        for procedure in list(self._under_way):
            try:
                next(procedure)
            except StopIteration as end:
                self._under_way.remove(procedure)
                self._results.append(end.value)
            except BaseException:
                self._under_way.remove(procedure)
                raise
        results, self._results = self._results, []
        return results


def start_body(
    launcher: BodyLauncher, new: TaskInfo, is_wanted: Callable[[], bool]
) -> Procedure[RunCalls | None]:
    """Start a run's body on a new process of its cluster; yield while that takes time.

    Returns the call that runs the body, None if it ``is_wanted`` no more before it was sent. Raises
    UnavailableError if the process cannot be prepared, FailedPreconditionError if another run has the task.
    """
    yield from when_prepared(launcher.prepare(new), new)
    if not is_wanted():
        return None
    launcher.reserve(new, RESERVE_SECONDS)
    return launcher.start(new)


def when_prepared(preparing: RunCalls, new: TaskInfo) -> Iterator[None]:
    """Yield until a new process has its agent; UnavailableError if it cannot be prepared."""
    while new.rank not in preparing.ready_ranks():
        yield
    outcome = preparing.outcome(new.rank)
    if isinstance(outcome, BaseException):
        raise UnavailableError(f"its new process {new.pid} could not be prepared: {outcome}")


def replace_task(
    cluster: RunTasks, task: TaskInfo, is_wanted: Callable[[], bool] = lambda: True
) -> Procedure[TaskInfo | None]:
    """Give a lost task a new process, unless another client has; yield while that takes time.

    Returns the task with its new process, None if it ``is_wanted`` no more before its replacement began.
    Raises UnavailableError if it cannot be replaced within 30 s, FailedPreconditionError if the cluster was
    made smaller.
    """
    until = time.monotonic() + RETRY_SECONDS
    while task in cluster.tasks:
        if not is_wanted():
            return None
        try:
            replacement = cluster.replace([task])
            while not replacement.poll():
                yield
            return replacement.tasks[0]
        except UnavailableError:  # another client changes the cluster, or the new process has died
            if time.monotonic() > until:
                raise
            yield
    new = next((info for info in cluster.tasks if info.rank == task.rank), None)
    if new is None:
        raise FailedPreconditionError("the cluster was made smaller")
    return new


def count(number: int, one: str, several: str) -> str:
    """Return a number with its noun.

    >>> count(1, "worker", "workers"), count(3, "worker", "workers")
    ('1 worker', '3 workers')
    """
    return f"{number:,} {one if number == 1 else several}"


class CallsByRank:
    """The calls of a run: the first ones, and those on the new processes of some ranks."""

    def __init__(self, first: RunCalls) -> None:
        self._first = first
        self._newer: dict[int, RunCalls] = {}

    def replace(self, rank: int, calls: RunCalls) -> None:
        """Take the outcome of a rank from another call from now on."""
        self._newer[rank] = calls

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome has arrived."""
        found = [rank for rank in self._first.ready_ranks() if rank not in self._newer]
        return found + [rank for rank, calls in self._newer.items() if rank in calls.ready_ranks()]

    def outcome(self, rank: int) -> Any:
        """Return what a rank's body returned, or the exception that it raised."""
        return self._newer.get(rank, self._first).outcome(rank)
