"""Clusters for tests that break them: kept by shape, with new processes for each test.

A test takes a cluster by the fixture ``start`` (``conftest.py``) and may kill, freeze or fill its tasks.
The next test that needs the shape gets the same cluster after all of its tasks were replaced: the supervisor
forks new processes, which takes a quarter of the processor time of a start. A cluster that was stopped,
resized, or left with a run under way is not used again.
"""

from __future__ import annotations

from contextlib import suppress

from nbdist.cluster.cluster import Cluster, set_current
from nbdist.cluster.launch import start_cluster
from nbdist.cluster.resize import check_unused
from nbdist.errors import NbdistError

Shape = tuple[int, int]
MOST_IDLE = 5


class ClusterPool:
    """Idle clusters by the number of workers and parameter servers; the one that was used last comes last."""

    def __init__(self) -> None:
        self._idle: list[tuple[Shape, Cluster]] = []

    def take(self, shape: Shape) -> Cluster:
        """Return a cluster of a shape whose tasks all have new processes."""
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at][0] == shape:
                cluster = self._idle.pop(at)[1]
                if renewed(cluster):
                    set_current(cluster)
                    return cluster
        return start_cluster(*shape, report=None)

    def give(self, shape: Shape, cluster: Cluster) -> None:
        """Take a cluster back, and stop it if it cannot be used again, or the oldest of too many."""
        set_current(None)  # the next test finds none, whichever it is
        if not usable(cluster, shape):
            cluster.stop(force=True)
            return
        self._idle.append((shape, cluster))
        if len(self._idle) > MOST_IDLE:
            self._idle.pop(0)[1].stop()

    def close(self) -> None:
        """Stop all clusters."""
        while self._idle:
            self._idle.pop()[1].stop()


def usable(cluster: Cluster, shape: Shape) -> bool:
    """Return whether a cluster runs, has the shape that it was started with, and no run uses it."""
    if cluster.stopped or cluster.active_runs or cluster.controller_died() is not None:
        return False
    jobs = [info.job for info in cluster.tasks]
    if jobs != ["worker"] * shape[0] + ["ps"] * shape[1]:
        return False
    return [info.rank for info in cluster.tasks] == list(range(sum(shape)))


def renewed(cluster: Cluster) -> bool:
    """Replace the processes of all tasks; stop the cluster and return False if that fails."""
    with suppress(NbdistError):
        check_unused(cluster, cluster.tasks)
        cluster.replace(list(cluster.tasks)).wait()
        return True
    cluster.stop(force=True)
    return False
