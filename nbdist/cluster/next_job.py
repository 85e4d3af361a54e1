"""The job of a cluster's hosts is over, and another one was submitted: the tasks start again on its hosts.

    cluster.follow_jobs(print)                      # one that was started with requeue

The head's supervisor submits the job and takes its hosts, also when no client is there. A client replaces the
processes of the tasks, as `Cluster.restart` does: this thread of each client, of which one succeeds. Then
each calls the functions in ``cluster.on_next_job``, by which the runs that it follows continue from their
newest states.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbdist.cluster.description import change_description, read_description
from nbdist.cluster.supervisor.client import SupervisorClient
from nbdist.errors import NbdistError

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

LOOK_SECONDS = 0.2  # between two looks
JOIN_SECONDS = 60.0  # that the other hosts of the job get once the first one has joined
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
        dead = cluster.dead()
        lost = bool(dead) and all(info in dead for info in cluster.tasks if info.node)
        self._over = time.time() if supervisor.awaits_job or lost else None
        """When the job was seen to be over; None while one runs."""

    @property
    def pending(self) -> bool:
        """Whether a job has been submitted, or has come, on whose hosts the tasks have not started yet."""
        awaits = self._supervisor.awaits_job
        return awaits or (self._over is not None and bool(self._supervisor.hosts))

    def run(self) -> None:
        """Wait for jobs."""
        first: float | None = None  # when the first host of the next job was seen
        while not self._supervisor.closed:
            self._supervisor.ended()  # takes in what has arrived
            if self._supervisor.stopping:  # its commands end with it
                return
            if self._supervisor.take("next_job") or (self._over is None and self._supervisor.awaits_job):
                self._over, first = time.time(), None
            if self._over is not None:
                for waiting in self._supervisor.take("waiting"):
                    self._report(waiting["reason"])
                for failed in self._supervisor.take("command_ended"):
                    self._report(describe_missing(failed))
                if self._supervisor.hosts:
                    first = first or time.monotonic()
                    with suppress(NbdistError):  # the cluster ends
                        if self._have_joined(first):
                            self._restart(self._over)
                            self._over = None
            self._pause.wait(LOOK_SECONDS)

    def _have_joined(self, first: float) -> bool:
        """Return whether each host of the job has joined or failed, or had `JOIN_SECONDS`."""
        awaited = self._supervisor.ask("watch").get("awaited", [])
        if not awaited:
            return True
        if late := time.monotonic() > first + JOIN_SECONDS:
            self._report(
                f"{', '.join(awaited)} did not come within {JOIN_SECONDS:.0f} s of the job's first host: the "
                "tasks start on the others"
            )
        return late

    def _restart(self, over: float) -> None:
        for _ in range(TRIES):
            cluster = self._cluster()
            if cluster is None or cluster.stopped:
                return
            try:
                if cluster.dead():  # else another client has started them
                    names = sorted(self._supervisor.hosts)
                    slots = next_slots(read_description(cluster.folder).slots, names)
                    change_description(cluster.folder, slots=slots)
                    cluster.restart(report=self._report)
                self._over = None
                for continue_run in [*cluster.on_next_job.values()]:
                    continue_run(over)
                return
            except NbdistError as error:
                why = error
            del cluster
            self._pause.wait(RETRY_SECONDS)
        self._report(f"another job has come, and the tasks could not be started again: {why}")


def describe_missing(failed: Mapping[str, Any]) -> str:
    """Return why hosts of the next job have not come, as the supervisor says it.

    >>> describe_missing({"hosts": ["n3"], "code": 1, "errors": "host n3: there is no python3.11"})
    'n3 did not come in the next job: host n3: there is no python3.11'
    """
    lines = failed["errors"].strip().splitlines() or [f"its command ended with code {failed['code']}"]
    return f"{', '.join(failed['hosts'])} did not come in the next job: {lines[-1]}"


def next_slots(before: Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Return how many workers each host of the next job takes: those that stay as before, others in turn.

    >>> next_slots({"n1": 2, "n2": 1}, ["n2", "n3"])
    {'n2': 1, 'n3': 2}
    """
    free = iter([count for name, count in before.items() if name not in names])
    return {name: before[name] if name in before else next(free, 1) for name in names}
