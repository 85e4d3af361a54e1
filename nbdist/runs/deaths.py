"""Tasks of a run that die: which, how, and whether the others go on without them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nbdist.cluster.resize import short_name
from nbdist.runs.reach import Tasks
from nbdist.runs.replacing import gone_among
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import FreezeDetector
from nbdist.wire.hosts import host_identity

LOOK_SECONDS = 0.5  # between two checks for stopped task processes
FROZEN_SECONDS = 9.0  # after which a task counts as lost; strategies that continue without it decide at 8 s
NEWS_SECONDS = 0.5  # how long the first word of a training may come after the death of a task that was in it


@dataclass(frozen=True)
class Death:
    """A task that has died, in words, and whether the others go on without it."""

    task: TaskInfo
    how: str
    next: str
    """What to do about it."""
    goes_on: bool


class Deaths:
    """Looks for dead tasks among those that a run needs: its ``workers``, and ``others`` beside them.

    With ``least``, workers other than the first may die, as long as so many are left and the run ``trains``.
    ``lost`` are the ranks without which the others go on; who acts on a death notes them there.
    """

    def __init__(
        self,
        cluster: Tasks,
        workers: Sequence[TaskInfo],
        others: Sequence[TaskInfo],
        least: int | None,
        trains: bool,
    ) -> None:
        self.lost: set[int] = set()
        self.undecided: dict[int, float] = {}
        """Ranks that are dead since then, and perhaps the others go on."""
        self._cluster, self._workers, self._least, self._trains = cluster, workers, least, trains
        self._needed = [*workers, *others]
        self._ranks = {info.rank for info in self._needed}
        here = host_identity()
        self._detector = FreezeDetector({info.rank: info.pid for info in self._needed if info.host == here})
        self._looked = 0.0
        self._frozen: dict[int, str] = {}

    def report_frozen(self, ranks: Iterable[int]) -> None:
        """Record ranks that other tasks found frozen or cut off; those tasks continue without them."""
        for rank in self._ranks.intersection(ranks):
            self._frozen.setdefault(rank, "is frozen or cut off: it does not answer the other tasks")

    def new(self, trained: bool, ended: Collection[TaskInfo]) -> Iterator[Death]:
        """Yield the deaths that are to be acted on, again at each look until that is done.

        ``trained`` is whether a body has begun to train; tasks that were ``ended`` on purpose do not count.
        A task counts as dead if its process is stopped for long.
        """
        self._look_for_frozen()
        dead = gone_among(self._cluster, self._needed)
        gone = {info.rank for info in dead}
        dead += [info for info in self._needed if info.rank in self._frozen and info.rank not in gone]
        gone.update(self._frozen)
        for info in dead:
            if info.rank not in self._ranks or info.rank in self.lost or info in ended:
                continue
            goes_on = self._goes_on(info, gone, trained)
            if goes_on or info.rank not in self.undecided:
                yield Death(info, self._how(info), what_next(info, dead), goes_on)

    def _look_for_frozen(self) -> None:
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for rank in self._detector.frozen(FROZEN_SECONDS):
                stopped = f"is frozen: its process has been stopped for {FROZEN_SECONDS:.0f} s, as by SIGSTOP"
                self._frozen.setdefault(rank, stopped)

    def _goes_on(self, info: TaskInfo, dead: set[int], trained: bool) -> bool:
        """Whether the others can train on."""
        first, left = self._workers[0], [one for one in self._workers if one.rank not in dead]
        few = self._least is None or len(left) < self._least
        if few or info not in self._workers or info is first:
            return False
        if not self._trains and not trained:  # a plain cell, unless others say more
            now = time.monotonic()
            if now - self.undecided.setdefault(info.rank, now) >= NEWS_SECONDS:
                del self.undecided[info.rank]
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


def what_next(lost: TaskInfo, dead: list[TaskInfo]) -> str:
    """Return what to do about a task that is dead or frozen; ``dead`` are all that are."""
    if lost.job == "ps":
        return f"The parameters are lost: start it again with %cluster restart {short_name(lost)}"
    if any(info.job == "ps" for info in dead):
        return "Start all lost tasks again with %cluster restart"
    return f"Run without it with --on, or start it again with %cluster restart {short_name(lost)}"
