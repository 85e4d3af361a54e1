"""Adds the new workers of a cluster to a run that is under way: `WorkerGrowth`; workers that leave: `Resize`.

    added ──► prepared ──► started ──► joined
                │             └─► ended or failed before it joined
                └─► could not be prepared

A worker that ``%cluster grow`` starts receives the body and the pushed values, as the new process of a lost
worker does (see :mod:`nbdist.run.recovery.replacement`), and joins the others between two steps. It counts
as one more replica; a worker under the rank of one that has left takes that one's number. A body that fails
there, because it lacks a name of an earlier cell for example, does not fail the run. None of this counts
against the restart budget. The owner of the run adds its workers (:mod:`nbdist.run.recovery.ownership`).

A worker that ``%cluster shrink`` removes leaves between two steps, before its process ends.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nbdist.errors import NbdistError
from nbdist.run.protocols import RunTasks
from nbdist.run.recovery.replacement import BodyLauncher, Entry, Procedure, Procedures, start_body
from nbdist.runtime.task import TaskInfo


@dataclass
class Resize(Entry):
    """A worker that was added to a run, or that has left it."""

    new: TaskInfo
    """The task, with its process."""
    grown: bool
    number: int
    """Which one of the run it is, from 1 on; 0 of a client that adds no workers."""
    begun_at: float
    """On the clock of ``time.monotonic``."""

    @property
    def text(self) -> str:
        """What became of it, in words.

        >>> one = TaskInfo("worker", 2, 2, "here", 7, "127.0.0.1:80", "CPU:0", 1)
        >>> Resize(one, True, 1, 0.0, step=412, seconds=0.84).text, Resize(one, False, 2, 0.0, step=900).text
        ('added after 0.8 s, joined at step 412', 'left at step 900')
        """
        if not self.grown:
            return "left" if self.step is None else f"left at step {self.step:,}"
        if self.step is not None:
            return f"added after {self.seconds:.1f} s, joined at step {self.step:,}"
        return f"not added: {self.problem}" if self.problem else "being added"

    def to_config(self) -> dict[str, Any]:
        """Return plain values, for run.json."""
        return {
            "number": self.number,
            "task": self.new.name,
            "change": "grown" if self.grown else "shrunk",
            "at": time.time() - (time.monotonic() - self.begun_at),
            "pid": self.new.pid,
            "seconds": round(self.seconds, 3) if self.grown and self.step is not None else None,
            "step": self.step,
            "problem": self.problem,
        }


class WorkerGrowth:
    """Starts the body of a run on new workers of its cluster; call ``poll`` repeatedly, as for recovery.

    ``resizes`` are all workers so far that were added or have left, in order. Clients that owned the run
    before have recorded ``earlier`` ones.
    """

    def __init__(self, cluster: RunTasks, launcher: BodyLauncher, earlier: int = 0) -> None:
        self.resizes: list[Resize] = []
        self._earlier = earlier
        self._cluster, self._launcher = cluster, launcher
        self._procedures = Procedures[Resize]()
        self._known = {info.incarnation for info in cluster.tasks}
        self._seen = list(cluster.tasks)
        self._removed: set[int] = set()
        self._ending = False

    @property
    def under_way(self) -> bool:
        """Whether the body of an added worker has not been sent yet."""
        return bool(self._procedures)

    def end(self) -> None:
        """Add no more workers: the run ends."""
        self._ending = True

    def find_new(self, working: Collection[int]) -> list[TaskInfo]:
        """Return the workers that were added to the cluster since the last call.

        The tasks of the ranks ``working`` are in the run: a new process there replaces a lost one, unless
        that was removed from the cluster.
        """
        now = self._cluster.tasks
        if now == self._seen:
            return []
        self._seen = list(now)
        self._removed |= set(working) - {info.rank for info in now}
        found = [info for info in now if info.incarnation not in self._known]
        self._known |= {info.incarnation for info in found}
        replaced = set(working) - self._removed
        return [info for info in found if info.job == "worker" and info.rank not in replaced]

    def begin(self, info: TaskInfo) -> bool:
        """Begin to add a worker; return whether it is added: not if the run ends."""
        if self._ending:
            return False
        resize = Resize(info, True, self._earlier + len(self.resizes) + 1, time.monotonic())
        self.resizes.append(resize)
        self._removed.discard(info.rank)
        self._launcher.add(info.rank)
        self._procedures.begin(self._start(resize))
        return True

    def _start(self, resize: Resize) -> Procedure[Resize]:
        try:
            resize.calls = yield from start_body(self._launcher, resize.new, lambda: not self._ending)
            if resize.calls is None:
                resize.problem = "the run was ending"
        except NbdistError as error:
            resize.problem = str(error)
        return resize

    def leave(self, info: TaskInfo, step: int | None) -> Resize:
        """Record that a worker has left, at a step of its own if that is known."""
        resize = Resize(info, False, self._earlier + len(self.resizes) + 1, time.monotonic(), step=step)
        self.resizes.append(resize)
        self._launcher.remove(info.rank)
        return resize

    def give_up(self, resize: Resize) -> None:
        """Count an added worker that could not join among the run's workers no longer."""
        self._launcher.remove(resize.new.rank)

    def poll(self) -> list[Resize]:
        """Do what can be done now, without waiting; return those that were started or have failed."""
        return self._procedures.poll()


def left_at(outcome: Any) -> int | None:
    """Return the step at which a worker has left its run, from its outcome; None if it has not left.

    >>> left_at({"left_at": 900}), left_at({"left_at": None})
    (900, None)
    """
    return outcome.get("left_at") if isinstance(outcome, Mapping) else None
