"""Tasks get other processes under their ranks: one that has died, or one that is to be ended.

    tasks = [named(cluster.tasks, "worker:1")]
    check_unused(cluster, tasks)                 # refuses while a run is on them
    replacement = cluster.replace(tasks)         # they are killed now
    while not replacement.look():
        ...
    replacement.tasks                            # the new ones

All others keep their namespaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nbdist.cluster.changing import START_SECONDS, Change
from nbdist.cluster.link import KeeperLink
from nbdist.cluster.resources import TaskPlan
from nbdist.errors import InvalidArgumentError
from nbdist.runtime.task import TaskInfo

if TYPE_CHECKING:
    from nbdist.cluster.handle import Cluster


class Replacement(Change):
    """Ends tasks, if they live, and starts others in their places; given up, it leaves them dead."""

    again = "try again with %cluster restart"

    def __init__(
        self, cluster: Cluster, link: KeeperLink, old: Sequence[TaskInfo], timeout: float = START_SECONDS
    ) -> None:
        super().__init__(cluster, link, timeout)
        self.old = list(old)
        self._coming = self.old
        self._ask("end", pids={info.rank: info.pid for info in self.old})

    def _change(self) -> Iterator[None]:
        yield from self._bring_up(self.old)

    def _did_not_start(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the process (pid {pid}) that was to replace {info.name}"


def named(roster: Sequence[TaskInfo], task: int | str) -> TaskInfo:
    """Return the task that a rank or a name means; InvalidArgumentError lists those there are.

    >>> roster = [TaskInfo("worker", 1, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)]
    >>> [named(roster, name).pid for name in (0, "0", "worker:1", "/job:worker/task:1")]
    [7, 7, 7, 7]
    """
    for info in roster:
        if str(task).strip() in (str(info.rank), short_name(info), info.name):
            return info
    known = ", ".join(f"{short_name(info)} (rank {info.rank})" for info in roster)
    raise InvalidArgumentError(f"no task {task!r}; the tasks are {known}")


def short_name(info: TaskInfo) -> str:
    """Return a task's name as one types it, such as worker:1."""
    return f"{info.job}:{info.index}"


def describe(replacement: Replacement) -> str:
    """Return what became of the tasks, for people."""
    what = ", ".join(
        f"{old.name} (pid {old.pid} -> {new.pid})"
        for old, new in zip(replacement.old, replacement.tasks, strict=True)
    )
    return "\n".join([f"restarted in {replacement.seconds:.2f} s: {what}", *replacement.notes])
