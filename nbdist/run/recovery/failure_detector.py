"""Finds the tasks that a run has lost: `FailureDetector`; and the error to blame: `RootCause`.

How a lost task is noticed (`FailureDetector`). There are no heartbeats: a body that holds the interpreter's
lock for a minute answers nothing and is healthy.

1. The cluster's supervisor has waited for the process and reports its exit status (`cluster.dead`).
2. The rank has another incarnation: another client has replaced the task.
3. The process is on this host and the kernel has reported it as stopped (SIGSTOP) for 3 s. Strategies that
   continue without a worker decide after 2 s, so their decision is known here first.
4. Other tasks report that it does not answer. Only strategies that continue without it do so.
5. The supervisor itself has ended; then the whole cluster has.

Which failure is blamed (`RootCause`): a worker that dies breaks the collective calls of all others, and their
errors often arrive before the death does. UnavailableError, AbortedError and TaskDiedError may therefore be
consequences; the monitor waits 1 s for the death or the error that explains them before it takes one of them
as the run's error.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbdist.cluster.resize import short_name
from nbdist.run.protocols import RunTasks
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import FreezeDetector
from nbdist.wire.hosts import host_identity

POLL_FROZEN_SECONDS = 0.5  # between two checks for stopped processes
FROZEN_SECONDS = 3.0  # after which a stopped process counts as lost
TRAINING_SECONDS = 0.5  # in which the first message of a training may follow the death of one of its tasks
ROOT_CAUSE_SECONDS = 1.0  # in which the cause of a broken call may follow its error
CONSEQUENCES = ("UnavailableError", "AbortedError", "TaskDiedError")


@dataclass(frozen=True)
class LostTask:
    """A task that the run has lost: how, what to do about it, and whether the others continue without it."""

    task: TaskInfo
    how: str
    remedy: str
    others_continue: bool


class FailureDetector:
    """Finds lost tasks among those that a run needs: its ``workers``, and ``others`` beside them.

    With ``least``, workers may die, as long as so many are left and the run ``trains``; with ``needs_chief``
    the first one may not.
    ``lost`` are the ranks without which the others continue; the caller adds to it.
    """

    def __init__(
        self,
        cluster: RunTasks,
        workers: Sequence[TaskInfo],
        others: Sequence[TaskInfo],
        least: int | None,
        trains: bool,
        needs_chief: bool = True,
    ) -> None:
        self.lost: set[int] = set()
        self.undecided: dict[int, float] = {}
        """Dead ranks, and since when it has been open whether the others continue."""
        self.absent: set[int] = set()
        """Ranks of workers that have left the run, or have not begun to take part; the caller adds to it."""
        self.least = least
        self._cluster, self._workers, self._trains = cluster, workers, trains
        self._needs_chief = needs_chief
        self._needed = [*workers, *others]
        self._ranks = {info.rank for info in self._needed}
        self._here = host_identity()
        pids = {info.rank: info.pid for info in self._needed if info.host == self._here}
        self._detector = FreezeDetector(pids)
        self._polled = time.monotonic()  # a short run ends before the first check
        self._frozen: dict[int, str] = {}

    def report_frozen(self, incarnations: Collection[int]) -> None:
        """Record tasks that others found frozen or cut off; those continue without them."""
        for info in self._needed if incarnations else ():
            if info.incarnation in incarnations:
                silent = "is frozen or cut off: it does not answer the other tasks"
                self._frozen.setdefault(info.rank, silent)

    def replace(self, old: TaskInfo, new: TaskInfo) -> None:
        """Watch the new process of a task in place of the old one."""
        self._needed[self._needed.index(old)] = new
        self._detector.replace(new.rank, new.pid if new.host == self._here else 0)
        self._frozen.pop(new.rank, None)
        self.undecided.pop(new.rank, None)
        self.lost.discard(new.rank)

    def add(self, info: TaskInfo) -> None:
        """Watch a worker that was added to the run."""
        self._needed.append(info)
        self._ranks.add(info.rank)
        self._detector.replace(info.rank, info.pid if info.host == self._here else 0)

    def remove(self, info: TaskInfo) -> None:
        """Watch a worker no longer: it has left the run."""
        self._needed = [one for one in self._needed if one.rank != info.rank]
        self._ranks.discard(info.rank)
        self._detector.replace(info.rank, 0)
        self._frozen.pop(info.rank, None)

    def poll(self, trained: bool, ended: Collection[TaskInfo], sessions: bool = False) -> Iterator[LostTask]:
        """Yield the tasks that are lost and not yet in ``lost``; each again at every call.

        ``trained`` is whether a body has begun to train with fit, and ``sessions`` whether one drives a
        monitored session, where the caller decides. Tasks that were ``ended`` on purpose do not count.
        """
        self._poll_frozen()
        dead = dead_or_replaced(self._cluster, self._needed)
        ranks = {info.rank for info in dead}
        dead += [info for info in self._needed if info.rank in self._frozen and info.rank not in ranks]
        ranks.update(self._frozen)
        workers = [info for info in dead if info in self._workers]
        all_workers = len(self._workers) > 1 and len(workers) == len(self._workers)
        for info in dead:
            if info.rank not in self._ranks or info.rank in self.lost or info in ended:
                continue
            others_continue = self._others_continue(info, ranks, trained, sessions)
            if others_continue or info.rank not in self.undecided:
                yield LostTask(info, self._how(info), remedy(info, dead, all_workers), others_continue)

    def _poll_frozen(self) -> None:
        now = time.monotonic()
        if now - self._polled >= POLL_FROZEN_SECONDS:
            self._polled = now
            for rank in self._detector.frozen(FROZEN_SECONDS):
                stopped = f"is frozen: its process has been stopped for {FROZEN_SECONDS:.0f} s, as by SIGSTOP"
                self._frozen.setdefault(rank, stopped)

    def _others_continue(self, info: TaskInfo, dead: set[int], trained: bool, sessions: bool) -> bool:
        first, absent = self._workers[0], dead | self.absent
        left = [one for one in self._workers if one.rank not in absent]
        few = self.least is None or len(left) < self.least
        if few or info not in self._workers or (info is first and self._needs_chief):
            return False
        if not self._trains and not trained:  # a plain cell, unless a message of a training still arrives
            now = time.monotonic()
            if sessions or now - self.undecided.setdefault(info.rank, now) >= TRAINING_SECONDS:
                self.undecided.pop(info.rank, None)
            return False
        self.undecided.pop(info.rank, None)
        return True

    def _how(self, info: TaskInfo) -> str:
        now = next(row for row in self._cluster.status() if row["rank"] == info.rank)
        if now["pid"] != info.pid:
            return f"{info.name} (pid {info.pid}) was replaced by pid {now['pid']}"
        if not now["ended"] and info.rank in self._frozen:
            return f"{info.name} (pid {info.pid}) {self._frozen[info.rank]}"
        return f"{info.name} (pid {info.pid}) died: {now['ended']}"


def dead_or_replaced(cluster: RunTasks, tasks: list[TaskInfo]) -> list[TaskInfo]:
    """Return the cluster's dead tasks, and those of ``tasks`` whose rank has another process now."""
    dead, now = cluster.dead(), {info.rank: info.incarnation for info in cluster.tasks}
    replaced = (one for one in tasks if one.incarnation and now.get(one.rank, 0) not in (0, one.incarnation))
    return [*dead, *replaced]


def remedy(lost: TaskInfo, dead: list[TaskInfo], all_workers: bool = False) -> str:
    """Return what to do about a task that is lost.

    ``dead`` are all lost tasks; ``all_workers`` is whether all workers of a run with several are among them.
    """
    if lost.job == "ps":
        return (
            f"The parameters are lost: start it again with %cluster restart {short_name(lost)}. Training "
            "with --ps-replicas 1 survives this, and a run with --checkpoint-every can be resumed"
        )
    if all_workers:
        return (
            "No worker is left from which new processes could continue; a run with --checkpoint-every can be "
            "resumed. Start all again with %cluster restart"
        )
    if any(info.job == "ps" for info in dead):
        return "Start all lost tasks again with %cluster restart"
    return f"Run without it with --on, or start it again with %cluster restart {short_name(lost)}"


class RootCause:
    """Delays errors that may be consequences of another task's failure; see the top of the file."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    @property
    def awaited(self) -> set[int]:
        """The ranks with errors that may be consequences."""
        return set(self._since)

    def is_open(self, wrong: Mapping[str, Any], rank: int) -> bool:
        """Whether the cause of this rank's error may still arrive."""
        if wrong["type"] not in CONSEQUENCES:
            return False
        now = time.monotonic()
        return now - self._since.setdefault(rank, now) < ROOT_CAUSE_SECONDS
