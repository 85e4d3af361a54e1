"""A running cluster gets more workers; see :meth:`Cluster.grow`.

A new worker is like one that was there from the start: its rank is the next free one, after the parameter
servers, its index follows that of the last worker, and every task hears of it. What goes on goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbdist.cluster.busy import runs_on
from nbdist.cluster.changing import CHANGED, START_SECONDS, Change
from nbdist.cluster.folder import read_description
from nbdist.cluster.link import KeeperLink
from nbdist.cluster.resources import (
    MOST_TASKS,
    TaskPlan,
    count_cores,
    environment_of,
    parse_memory,
    share_of,
)
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from nbdist.runtime.task import TaskInfo

if TYPE_CHECKING:
    from nbdist.cluster.handle import Cluster


def grow(cluster: Cluster, link: KeeperLink, workers: int, report: Callable[[str], object]) -> list[TaskInfo]:
    """Start so many more workers on a cluster and return them when all tasks know them."""
    tasks = cluster.tasks
    check_more(workers, len(tasks))
    description = read_description(cluster.folder)
    if description["asked"]["launcher"] == "mpi":
        raise FailedPreconditionError(
            f"cluster {cluster.id} is one MPI world (launcher 'mpi'), which cannot add processes: "
            f"end it (%cluster stop) and start a larger one (%cluster start --launcher mpi --workers "
            f"{sum(info.job == 'worker' for info in tasks) + workers})"
        )
    plans = plan_more(
        tasks, workers, description["asked"], cores=count_cores(), gpus=description.get("gpus", ())
    )
    growth = Growth(cluster, link, plans)
    new = growth.wait()
    report(describe(growth, cluster))
    return new


class Growth(Change):
    """Starts processes for tasks that there were not; given up, it leaves the cluster as it was."""

    again = "the cluster is as it was; try again with %cluster grow"

    def __init__(
        self, cluster: Cluster, link: KeeperLink, plans: Sequence[TaskPlan], timeout: float = START_SECONDS
    ) -> None:
        super().__init__(cluster, link, timeout)
        self.plans = list(plans)

    def _change(self) -> Iterator[None]:
        tasks = [{"rank": plan.rank, "environment": dict(plan.environment)} for plan in self.plans]
        self._ask("grow", tasks=tasks)
        if next_places(self._cluster.tasks, len(tasks)) != [(plan.index, plan.rank) for plan in self.plans]:
            raise UnavailableError(CHANGED)
        yield from self._bring_up(self.plans)

    def _did_not_start(self, info: TaskInfo | TaskPlan, pid: int) -> str:
        return f"the cluster is as it was: the new {info.name} (pid {pid})"


def plan_more(
    tasks: Sequence[TaskInfo],
    workers: int,
    asked: Mapping[str, Any],
    *,
    cores: int,
    gpus: Sequence[str] = (),
) -> tuple[TaskPlan, ...]:
    """Return so many more workers for a cluster of these tasks, which was ``asked`` for as it says.

    Each gets what it would have in a cluster that was as large from the start: its share of the cores, and
    the next of the cluster's GPUs, in turn. What the others have stays.

    >>> one = TaskInfo("worker", 0, 0, "here", 7, "127.0.0.1:80", "CPU:0", 1)
    >>> ps = TaskInfo("ps", 0, 1, "here", 8, "127.0.0.1:81", "CPU:0", 2)
    >>> [(plan.name, plan.rank) for plan in plan_more([one, ps], 2, {}, cores=2)]
    [('/job:worker/task:1', 2), ('/job:worker/task:2', 3)]
    """
    share = share_of(cores, len(tasks) + workers, asked.get("threads"))
    plans = []
    for index, rank in next_places(tasks, workers):
        gpu = gpus[index % len(gpus)] if gpus else None
        environment = environment_of(
            "worker", index, rank, share, gpu, asked.get("gpu_memory"), parse_memory(asked.get("memory"))
        )
        plans.append(TaskPlan("worker", index, rank, "CPU:0" if gpu is None else "GPU:0", environment))
    return tuple(plans)


def next_places(tasks: Sequence[TaskInfo], workers: int) -> list[tuple[int, int]]:
    """Return index and rank of the next so many workers: indices without a gap, the lowest free ranks."""
    first = 1 + max((info.index for info in tasks if info.job == "worker"), default=-1)
    taken = {info.rank for info in tasks}
    ranks = [rank for rank in range(len(tasks) + workers) if rank not in taken]
    return list(zip(range(first, first + workers), ranks, strict=False))


def check_more(workers: int, tasks: int) -> None:
    """Raise InvalidArgumentError for a number of workers that a cluster of so many tasks cannot get.

    >>> check_more(509, 3)
    """
    most = MOST_TASKS - tasks
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= most:
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: a host may have {MOST_TASKS} tasks"
        )


def describe(growth: Growth, cluster: Cluster) -> str:
    """Return what has come to the cluster, for people."""
    new = ", ".join(f"{info.name} (rank {info.rank}, pid {info.pid})" for info in growth.tasks)
    lines = [f"grown in {growth.seconds:.2f} s by {new}: {cluster.counted}", *growth.notes]
    share = growth.plans[0].threads
    before = read_description(cluster.folder)["asked"]["threads"] or share_of(
        count_cores(), len(cluster.tasks) - len(growth.tasks)
    )
    if share != before:
        each = f"{share} thread{'s' * (share > 1)}"
        lines.append(f"the new ones compute on {each} each (cores / tasks); the others keep what they have")
    for run in runs_on(cluster.folder, [info.pid for info in cluster.tasks]):
        lines.append(f"run {run} continues on the tasks that it has; the next one has the new ones too")
    return "\n".join(lines)
