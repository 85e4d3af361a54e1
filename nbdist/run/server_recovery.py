"""Replaces the parameter servers that die during a run whose bodies recover from it: `ServerReplacer`.

A body recovers if it drives a MonitoredSession, which waits for the new process and restores what it held
(`nbdist.train.monitored`). The run has a restart budget: a server that dies again and again has a cause that
another process does not remove.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nbdist.errors import NbdistError, UnavailableError
from nbdist.run.protocols import RunReplacement, RunTasks
from nbdist.runtime.task import TaskInfo

MAX_RESTARTS = 4  # of a run's parameter servers together
RETRY_SECONDS = 10.0  # for which another client may change the cluster


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
    asked: float | None = None
    """When its replacement was first tried."""
    replacement: RunReplacement | None = None


class ServerReplacer:
    """Replaces lost tasks one after the other; call ``poll`` repeatedly while ``under_way``."""

    def __init__(self, cluster: RunTasks, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._waiting: list[_Pending] = []
        self.restarts = 0
        """How many replacements have begun."""

    @property
    def under_way(self) -> bool:
        """Whether tasks are being replaced."""
        return bool(self._waiting)

    @property
    def spent(self) -> bool:
        """Whether the restart budget is spent."""
        return self.restarts >= MAX_RESTARTS

    def has(self, task: TaskInfo) -> bool:
        """Whether a task is being replaced."""
        return any(one.task == task for one in self._waiting)

    def begin(self, task: TaskInfo, how: str) -> None:
        """Replace a task that was lost in a way that ``how`` describes."""
        self.restarts += 1
        self._waiting.append(_Pending(task, how, self._clock()))

    def poll(self) -> list[Replaced]:
        """Take the steps that are possible now, without waiting; return the tasks that are replaced now.

        Raises the error of a replacement that has failed.
        """
        done: list[Replaced] = []
        while self._waiting:
            one = self._waiting[0]
            one.asked = self._clock() if one.asked is None else one.asked
            now = next((info for info in self._cluster.tasks if info.rank == one.task.rank), None)
            if now is None:
                self._waiting.pop(0)
                raise UnavailableError(f"{one.task.name} is no longer a task of the cluster")
            if now.incarnation != one.task.incarnation and one.replacement is None:
                done.append(self._end(one, now))  # another client has replaced it
                continue
            try:
                if one.replacement is None:
                    one.replacement = self._cluster.replace([one.task])
                if not one.replacement.poll():
                    return done
            except UnavailableError:
                one.replacement = None
                if self._clock() - one.asked > RETRY_SECONDS:
                    self._waiting.pop(0)
                    raise
                return done
            except NbdistError:
                self._waiting.pop(0)
                raise
            done.append(self._end(one, one.replacement.tasks[0]))
        return done

    def _end(self, one: _Pending, new: TaskInfo) -> Replaced:
        self._waiting.pop(0)
        return Replaced(one.task, new, one.how, self._clock() - one.since)
