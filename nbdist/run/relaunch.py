"""`RunLauncher`: starts the body of a run on the new process of a task that was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, NotFoundError
from nbdist.run.delivery import Delivery
from nbdist.run.protocols import RunCalls, RunTasks
from nbdist.run.remote import RemoteOutcomes
from nbdist.run.task.agent import install
from nbdist.run.task.body import RunSpec, run_body
from nbdist.runtime.task import TaskInfo


class RunLauncher:
    """Sends a run's body and its pushed values to the new process of one of its workers.

    ``tasks`` are the connections over which the run is followed; ``needs`` are the ranks that the run uses.
    Without a ``body`` it cannot start one, and ``why`` says so.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: RunTasks,
        spec: RunSpec,
        body: str | Callable[..., Any] | None,
        delivery: Delivery | None,
        needs: Sequence[int],
        why: str = "",
    ) -> None:
        self._cluster, self._tasks, self._spec, self._body = cluster, tasks, spec, body
        self._delivery, self._needs, self._why = delivery, list(needs), why

    def prepare(self, info: TaskInfo) -> RunCalls:
        """Begin to create the task's agent."""
        if self._body is None:
            raise FailedPreconditionError(self._why)
        if self._delivery is not None:
            self._delivery.send([info])
        return self._cluster.submit(install, on=info.rank)

    def reserve(self, info: TaskInfo, timeout: float) -> None:
        """Reserve the task for the run and subscribe to it; FailedPreconditionError if it is taken."""
        meta = {"run": self._spec.run, "subscribe": True, "ranks": self._needs}
        self._tasks.peer(info.rank).call("run.reserve", meta, timeout=timeout)

    def start(self, info: TaskInfo) -> RunCalls:
        """Send the body, and return the call that runs it."""
        assert self._body is not None
        return self._cluster.submit(run_body, replace(self._spec, rejoins=True), self._body, on=info.rank)

    def follow(self, info: TaskInfo, timeout: float) -> RunCalls | None:
        """Subscribe to the body that another client has started; None if the task does not know the run."""
        try:
            answer = self._tasks.peer(info.rank).call(
                "run.subscribe", {"run": self._spec.run}, timeout=timeout
            )
        except NotFoundError:  # it has no agent yet
            return None
        if answer.meta["state"] == "unknown":
            return None
        return RemoteOutcomes(self._spec.run, Path(self._spec.folder), self._tasks, [info], _lacking)


def _lacking(rank: int, known: Mapping[int, Any]) -> dict[str, Any]:
    """Return the outcome of a body that has left none: the others have continued without it."""
    return {}
