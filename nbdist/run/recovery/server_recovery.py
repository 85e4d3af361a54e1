"""Replaces the parameter servers that die during a run whose bodies recover from it: `ServerRecovery`.

A body recovers if it drives a MonitoredSession, which waits for the new process and restores what it held
(`nbdist.sessions`), or if it trains asynchronously or by ``fit``: one of the workers then sends its
copy of the parameters (`nbdist.runtime.ps.restore`), and says what was lost. Each replacement counts against
the restart budget of the run, as a worker's does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.recovery.replacement import RestartBudget, count, replace_task, when_prepared
from nbdist.runtime.task import TaskInfo


@dataclass(frozen=True)
class Replaced:
    """A task that was replaced: its old and new process, how the old one was lost, and how long it took."""

    old: TaskInfo
    new: TaskInfo
    how: str
    seconds: float
    number: int = 1
    """Which restart of the run it is, from 1 on."""
    lost_at: float = 0.0
    """On the clock of ``time.monotonic``."""
    step: int | None = None
    """The global step at which its parameters were restored; None where no worker did."""
    lost_updates: int | None = None
    slots: str = ""
    """What became of the optimizer's slots on it, in words."""

    @property
    def text(self) -> str:
        """What became of it, in words.

        >>> old = TaskInfo("ps", 0, 1, "here", 7, "127.0.0.1:80", "CPU:0", 1)
        >>> Replaced(old, dataclasses.replace(old, pid=8), "died", 0.81, lost_updates=3).text
        'replaced after 0.8 s by pid 8; 3 updates lost'
        """
        lost = "" if self.lost_updates is None else count(self.lost_updates, "update", "updates") + " lost"
        said = [f"replaced after {self.seconds:.1f} s by pid {self.new.pid}", lost, self.slots]
        return "; ".join(filter(None, said))

    def restored(self, report: Mapping[str, Any]) -> Replaced:
        """Return this with what the worker reports that has restored the parameters."""
        return dataclasses.replace(
            self, step=int(report["step"]), lost_updates=int(report["lost"]), slots=str(report["slots"])
        )

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for run.json."""
        return {
            "task": self.old.name,
            "lost": self.how,
            "lost_at": time.time() - (time.monotonic() - self.lost_at),
            "pid": self.new.pid,
            "seconds": round(self.seconds, 3),
            "step": self.step,
            "problem": "",
            "lost_updates": self.lost_updates,
            "slots": self.slots,
        }

    @classmethod
    def from_config(cls, entries: Mapping[str, Any], task: TaskInfo) -> Replaced:
        """Return a replacement that run.json has; ``task`` is the server as it is now."""
        return cls(
            dataclasses.replace(task, pid=0, incarnation=0),
            dataclasses.replace(task, pid=int(entries["pid"])),
            str(entries["lost"]),
            float(entries["seconds"]),
            int(entries["number"]),
            time.monotonic() - (time.time() - float(entries["lost_at"])),
            entries.get("step"),
            entries.get("lost_updates"),
            str(entries.get("slots", "")),
        )


@dataclass
class _Pending:
    task: TaskInfo
    how: str
    since: float
    steps: Generator[None, None, TaskInfo | None]
    number: int


class ServerRecovery:
    """Replaces lost parameter servers; call ``poll`` repeatedly while ``under_way``.

    ``budget`` is the restart budget of the run. ``prepare`` begins to create the agent of a new process,
    which serves parameters; sessions need none.
    """

    def __init__(
        self,
        cluster: RunTasks,
        budget: RestartBudget,
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[TaskInfo], RunCalls] | None = None,
    ) -> None:
        self.budget, self._prepare = budget, prepare
        self._cluster, self._clock = cluster, clock
        self._waiting: list[_Pending] = []

    @property
    def under_way(self) -> bool:
        """Whether tasks are being replaced."""
        return bool(self._waiting)

    def begin(self, task: TaskInfo, how: str) -> None:
        """Begin to replace a task that was lost as ``how`` describes; it counts against the budget."""
        self.budget.take()
        self._waiting.append(_Pending(task, how, self._clock(), self._steps(task), self.budget.spent))

    def _steps(self, task: TaskInfo) -> Generator[None, None, TaskInfo | None]:
        new = yield from replace_task(self._cluster, task, self._clock)
        if new is not None and self._prepare is not None:
            yield from when_prepared(self._prepare(new), new)
        return new

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
                seconds = self._clock() - one.since
                done.append(Replaced(one.task, end.value, one.how, seconds, one.number, one.since))
            except BaseException:
                self._waiting.remove(one)
                raise
        return done
