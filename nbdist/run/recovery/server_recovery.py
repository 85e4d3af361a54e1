"""Replaces a parameter server that dies during a run whose bodies survive it: `replace_server`, `Replaced`.

A body survives it if it drives a MonitoredSession, which waits for the new process and restores what it held
(`nbdist.sessions`), or if it trains asynchronously or by ``fit``: one of the workers then sends its
copy of the parameters (`nbdist.runtime.ps.restore`), and says what was lost. Each replacement counts against
the restart budget of the run, as a worker's does.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.recovery.replacement import Procedure, count, replace_task, when_prepared
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


def replace_server(
    cluster: RunTasks,
    lost: TaskInfo,
    how: str,
    lost_at: float,
    number: int,
    prepare: Callable[[TaskInfo], RunCalls] | None,
) -> Procedure[Replaced]:
    """Give a parameter server that was lost as ``how`` describes a new process; yield while that takes time.

    ``prepare`` begins to create the agent of the new process, which serves parameters; None for sessions,
    which need none. Raises as `replace_task` does, and UnavailableError if there can be no agent.
    """
    new = yield from replace_task(cluster, lost)
    assert new is not None  # it is always wanted
    if prepare is not None:
        yield from when_prepared(prepare(new), new)
    return Replaced(lost, new, how, time.monotonic() - lost_at, number, lost_at)
