"""Replaces the parameter servers that die during a run whose bodies recover from it: `ServerRecovery`.

A body recovers if it drives a MonitoredSession, which waits for the new process and restores what it held
(`nbdist.train.monitored`). Each replacement counts against the restart budget of the run, as a worker's does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from nbdist.run.protocols import RunTasks
from nbdist.run.recovery import RestartBudget, replace_task
from nbdist.runtime.task import TaskInfo


@dataclass(frozen=True)
class Replaced:
    """A task that was replaced: its old and new process, how the old one was lost, and how long it took."""

    old: TaskInfo
    new: TaskInfo
    how: str
    seconds: float


@dataclass
class _Pending:
    task: TaskInfo
    how: str
    since: float
    steps: Generator[None, None, TaskInfo | None]


class ServerRecovery:
    """Replaces lost parameter servers; call ``poll`` repeatedly while ``under_way``.

    ``budget`` is the restart budget of the run.
    """

    def __init__(
        self, cluster: RunTasks, budget: RestartBudget, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = budget
        self._cluster, self._clock = cluster, clock
        self._waiting: list[_Pending] = []

    @property
    def under_way(self) -> bool:
        """Whether tasks are being replaced."""
        return bool(self._waiting)

    def has(self, task: TaskInfo) -> bool:
        """Whether a task is being replaced."""
        return any(one.task == task for one in self._waiting)

    def begin(self, task: TaskInfo, how: str) -> str:
        """Begin to replace a task that was lost as ``how`` describes; return why not, empty if it does."""
        if not self.budget.take():
            return self.budget.refusal
        steps = replace_task(self._cluster, task, self._clock)
        self._waiting.append(_Pending(task, how, self._clock(), steps))
        return ""

    def poll(self) -> list[Replaced]:
        """Do what can be done now, without waiting; return the tasks that are replaced now.

        Raises the error of a replacement that has failed.
        """
        done: list[Replaced] = []
        for one in list(self._waiting):
            try:
                next(one.steps)
            except StopIteration as end:
                self._waiting.remove(one)
                done.append(Replaced(one.task, end.value, one.how, self._clock() - one.since))
            except BaseException:
                self._waiting.remove(one)
                raise
        return done
