"""The job of a cluster's hosts is over, and another one was submitted: the tasks start again on its hosts.

    cluster.follow_jobs(print)                      # one that was started with requeue

The head's supervisor submits the job and takes its hosts, also when no client is there. A client replaces the
processes of the tasks, as `Cluster.restart` does: this thread of each client, of which one succeeds. Then
each calls its ``cluster.on_next_job``: the run that the client follows continues from its newest state.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nbdist.cluster.description import change_description, read_description
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import NbdistError

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

LOOK_SECONDS = 0.2  # between two looks
JOIN_SECONDS = 5.0  # that the other hosts of the job get once the first one has joined
TRIES, RETRY_SECONDS = 10, 1.0  # of a restart, which another client's change may delay


class NextJob(threading.Thread):
    """Starts the tasks again on the hosts of each job that follows; ends with the cluster."""

    def __init__(
        self, cluster: Cluster, supervisor: SupervisorClient, report: Callable[[str], object]
    ) -> None:
        super().__init__(name=f"nbdist next job {cluster.id}", daemon=True)
        self._cluster = weakref.ref(cluster)
        self._supervisor, self._report = supervisor, report
        self._pause = threading.Event()
        self._pending = supervisor.awaits_job or bool(cluster.dead())

    @property
    def pending(self) -> bool:
        """Whether a job has been submitted, or has come, on whose hosts the tasks have not started yet."""
        awaits = self._supervisor.awaits_job
        return awaits or (self._pending and bool(self._supervisor.hosts))

    def run(self) -> None:
        """Wait for jobs."""
        first: float | None = None
        while not self._supervisor.closed:
            self._supervisor.ended()  # takes in what has arrived
            self._pending = self._pending or self._supervisor.awaits_job
            if self._pending:
                for waiting in self._supervisor.take("waiting"):
                    self._report(waiting["reason"])
            if self._pending and not self._supervisor.awaits_job and self._supervisor.hosts:
                first = first or time.monotonic()
                joined = self._supervisor.planned <= self._supervisor.hosts.keys()
                if joined or time.monotonic() > first + JOIN_SECONDS:
                    first = None
                    self._take_over()
            self._pause.wait(LOOK_SECONDS)

    def _take_over(self) -> None:
        """Start the tasks on the hosts that have come; then the run that this client follows continues."""
        try:
            started = self._restart()
        finally:
            self._pending = False
        cluster = self._cluster()
        if started and cluster is not None and cluster.on_next_job is not None:
            cluster.on_next_job()

    def _restart(self) -> bool:
        """Return whether the tasks have started, also if another client has done it."""
        for _ in range(TRIES):
            cluster = self._cluster()
            if cluster is None or cluster.stopped:
                return False
            if not cluster.dead():
                return True
            try:
                names = sorted(self._supervisor.hosts)
                slots = next_slots(read_description(cluster.folder).slots, names)
                change_description(cluster.folder, slots=slots)
                cluster.restart(report=self._report)
                return True
            except NbdistError as error:
                why = error
            del cluster
            self._pause.wait(RETRY_SECONDS)
        self._report(f"another job has come, and the tasks could not be started again: {why}")
        return False


def next_slots(before: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return how many workers each host of the next job takes: those that stay as before, others in turn.

    >>> next_slots({"n1": 2, "n2": 1}, ["n2", "n3"])
    {'n2': 1, 'n3': 2}
    """
    free = iter([count for name, count in before.items() if name not in names])
    return {name: before[name] if name in before else next(free, 1) for name in names}
