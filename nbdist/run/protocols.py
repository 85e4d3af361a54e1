"""What a run needs of a cluster's tasks and of the calls that run its bodies; tests pass stand-ins."""

from __future__ import annotations

from typing import Any, Protocol

from nbdist.cluster.stacks import Stacks
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer


class RunTasks(Protocol):
    """The tasks of a cluster; see :class:`nbdist.cluster.cluster.Cluster`."""

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks, as they are now."""

    def peer(self, rank: int) -> Peer:
        """Return this thread's connection to a task."""

    def signal(self, rank: int, signum: int) -> bool:
        """Send a signal to a task's process; return whether there was one."""

    def replace(self, tasks: list[TaskInfo]) -> RunReplacement:
        """Begin to replace tasks' processes; UnavailableError while another client changes the cluster."""

    def dead(self) -> list[TaskInfo]:
        """Return the tasks whose processes have ended."""

    def controller_died(self) -> str | None:
        """Return how the cluster's parent process ended, None while it lives."""

    def is_cut_off(self) -> bool:
        """Return whether the cluster is out of reach, and the run's end may still be found out."""

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task, with how it ended."""

    def stacks(self, task: int, *, timeout: float) -> Stacks:
        """Return where a task is, without its help."""


class RunReplacement(Protocol):
    """A replacement of tasks that is under way; see :class:`nbdist.cluster.resize.ReplaceTask`."""

    tasks: list[TaskInfo]
    notes: list[str]

    def poll(self) -> bool:
        """Take the steps that are possible now, without waiting; return whether all is done."""


class RunCalls(Protocol):
    """The calls that run a run's bodies; see :class:`nbdist.cluster.calls.Calls`."""

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome has arrived."""

    def outcome(self, rank: int) -> Any:
        """Return what a rank's body returned, or the exception that it raised."""
