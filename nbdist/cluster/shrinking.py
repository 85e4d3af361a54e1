"""A running cluster gets fewer workers; see :meth:`Cluster.shrink`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from nbdist.cluster.changing import CHANGED, Change, check_unused, none_of
from nbdist.cluster.connect import HubEngines
from nbdist.cluster.folder import read_description
from nbdist.cluster.link import KeeperLink
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from nbdist.runtime.task import TaskInfo

if TYPE_CHECKING:
    from nbdist.cluster.handle import Cluster


def shrink(
    cluster: Cluster, link: KeeperLink, workers: int, report: Callable[[str], object]
) -> list[TaskInfo]:
    """End the last so many workers of a cluster, if no run is using them; return which they were."""
    leaving = last_workers(cluster.tasks, workers)
    if read_description(cluster.folder)["asked"]["launcher"] == "mpi":
        raise FailedPreconditionError(
            f"cluster {cluster.id} is one MPI world (launcher 'mpi'), which keeps the processes that it "
            "began with: end it (%cluster stop) and start a smaller one, or use fewer with --on worker:0-1"
        )
    check_unused(cluster, leaving)
    shrinking = Shrinking(cluster, link, leaving)
    shrinking.wait()
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in leaving)
    lines = [f"shrunk in {shrinking.seconds:.2f} s by {names}: {cluster.counted}", *shrinking.notes]
    report("\n".join(lines))
    return leaving


class Shrinking(Change):
    """Has tasks leave: first all others know a cluster without them, then they end."""

    def __init__(self, cluster: Cluster, link: KeeperLink, leaving: Sequence[TaskInfo]) -> None:
        super().__init__(cluster, link)
        self.tasks = list(leaving)
        self._coming = self.tasks

    def _change(self) -> Iterator[None]:
        ranks = {info.rank for info in self.tasks}
        self._ask("shrink", pids={info.rank: info.pid for info in self.tasks})
        if last_workers(self._cluster.tasks, len(ranks)) != self.tasks:
            raise UnavailableError(CHANGED)
        check_unused(self._cluster, self.tasks)  # again: a run may have begun since
        self._make_known(tuple(info for info in self._cluster.tasks if info.rank not in ranks), set())
        engines = HubEngines(self._client)
        yield from self._until(lambda: none_of(ranks, engines.ids()), "to be forgotten by the hub")


def last_workers(tasks: Sequence[TaskInfo], workers: int) -> list[TaskInfo]:
    """Return the last so many workers by index; InvalidArgumentError unless one, the first, is left.

    >>> tasks = [TaskInfo("worker", i, i, "here", 7, "127.0.0.1:80", "CPU:0", i) for i in range(3)]
    >>> [info.name for info in last_workers(tasks, 2)]
    ['/job:worker/task:1', '/job:worker/task:2']
    """
    all_workers = sorted((info for info in tasks if info.job == "worker"), key=lambda info: info.index)
    most = len(all_workers) - 1
    if not most:
        raise FailedPreconditionError(
            "the cluster has one worker, the chief, who stays; %cluster stop ends it"
        )
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= most:
        raise InvalidArgumentError(
            f"workers is a whole number of 1 to {most}, not {workers!r}: the cluster has {most + 1} workers, "
            "and the first, the chief, stays"
        )
    return all_workers[-workers:]
