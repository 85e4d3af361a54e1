"""Finds the tasks that a run has lost: `FailureDetector`; and the error to blame: `RootCause`.

How a lost task is noticed (`FailureDetector`). There are no heartbeats: a body that holds the interpreter's
lock for a minute answers nothing and is healthy.

1. The cluster's supervisor has waited for the process and reports its exit status (`cluster.dead`).
2. The rank has another incarnation: another client has replaced the task.
3. The process is on this host and the kernel has reported it as stopped (SIGSTOP) for 3 s. Strategies that
   continue without a worker decide after 2 s, so their decision is known here first. Before it counts as
   lost, it is read where it is (`StackLook`), for the sentence.
4. Other tasks report that it does not answer. Only strategies that continue without it do so.
5. The supervisor itself has ended; then the whole cluster has.

Which failure is blamed (`RootCause`): a worker that dies breaks the collective calls of all others, and their
errors often arrive before the death does. UnavailableError, AbortedError and TaskDiedError may therefore be
consequences; the monitor waits 1 s for the death or the error that explains them before it takes one of them
as the run's error.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from nbdist.cluster.resize import short_name
from nbdist.run.protocols import RunTasks
from nbdist.run.recovery.member import ABSENT, Member, Members
from nbdist.run.stack_look import StackLook
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import FreezeDetector
from nbdist.wire.hosts import host_identity

POLL_FROZEN_SECONDS = 0.5  # between two checks for stopped processes
MEMBER_FROZEN_SECONDS = (
    3.0  # after which a client counts a stopped process as lost, later than ranks that wait
)
ROOT_CAUSE_SECONDS = 1.0  # in which the cause of a broken call may follow its error
CONSEQUENCES = ("UnavailableError", "AbortedError", "TaskDiedError")


class FailureDetector:
    """Finds the members of a run whose processes are dead or frozen."""

    def __init__(self, cluster: RunTasks, members: Members) -> None:
        self._cluster, self._members = cluster, members
        self._here = host_identity()
        self._processes = FreezeDetector(
            {one.rank: one.info.pid for one in members if one.info.host == self._here}
        )
        self._polled = time.monotonic()  # a short run ends before the first check
        self._looks: dict[int, StackLook] = {}

    def report_frozen(self, incarnations: Collection[int]) -> None:
        """Record members that others found frozen or cut off; those continue without them."""
        for one in self._members if incarnations else ():
            if one.info.incarnation in incarnations and one.state not in ABSENT:
                one.frozen = one.frozen or "is frozen or cut off: it does not answer the other tasks"

    def watch(self, member: Member) -> None:
        """Watch the present process of a member, in place of a former one; none of one that has left."""
        is_watched = member.info.host == self._here and member.state not in ABSENT
        self._processes.replace(member.rank, member.info.pid if is_watched else 0)

    def poll(self, ended: Collection[TaskInfo]) -> list[Member]:
        """Suspect the members that are found lost, and return them, until they are away.

        Tasks that were ``ended`` on purpose do not count.
        """
        self._poll_frozen()
        needed = [one.info for one in self._members if one.state not in ABSENT]
        dead = dead_or_replaced(self._cluster, needed)
        ranks = {info.rank for info in dead}
        dead += [one.info for one in self._members if one.frozen and one.rank not in ranks]
        ranks = {info.rank for info in dead}
        workers = {one.rank for one in self._members.workers}
        all_workers = len(workers) > 1 and workers <= ranks
        found = []
        for one in self._members:
            if one.rank in ranks and not one.is_away and one.info not in ended:
                one.suspect(time.monotonic(), self._how(one), remedy(one.info, dead, all_workers))
                found.append(one)
        return found

    def _poll_frozen(self) -> None:
        now = time.monotonic()
        if now - self._polled >= POLL_FROZEN_SECONDS:
            self._polled = now
            stopped = (
                f"is frozen: its process has been stopped for {MEMBER_FROZEN_SECONDS:.0f} s, as by SIGSTOP"
            )
            frozen = self._processes.frozen(MEMBER_FROZEN_SECONDS)
            for one in self._members:
                if one.rank not in frozen:
                    self._looks.pop(one.rank, None)
                elif not one.frozen and (place := self._place(one.rank)) is not None:
                    one.frozen = f"{stopped}; it was {place}" if place else stopped

    def _place(self, rank: int) -> str | None:
        """Return where a frozen task is, "" if that cannot be read; None while it is being read."""
        if (look := self._looks.get(rank)) is None:
            self._looks[rank] = StackLook(self._cluster, [rank])
            return None
        return look.places.get(rank, "") if look.is_over else None

    def _how(self, one: Member) -> str:
        info = one.info
        now = next(row for row in self._cluster.status() if row["rank"] == info.rank)
        if now["pid"] != info.pid:
            return f"{info.name} (pid {info.pid}) was replaced by pid {now['pid']}"
        if not now["ended"] and one.frozen:
            return f"{info.name} (pid {info.pid}) {one.frozen}"
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
