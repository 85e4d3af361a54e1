"""What a run needs of the tasks it is on, and of bodies on their way: so little that a test can stand in."""

from __future__ import annotations

from typing import Any, Protocol

from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer


class Tasks(Protocol):
    """The tasks of a cluster, as a run needs them; see :class:`nbdist.cluster.cluster.Cluster`."""

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks, as they are now."""

    def peer(self, rank: int) -> Peer:
        """Return this thread's connection to a task."""

    def signal(self, rank: int, signum: int) -> bool:
        """Interrupt a task."""

    def replace(self, tasks: list[TaskInfo]) -> Replacement:
        """End tasks and begin to give them other processes; UnavailableError while others are replaced."""

    def dead(self) -> list[TaskInfo]:
        """Return the tasks that are gone."""

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task, with how it ended."""


class Replacement(Protocol):
    """Tasks on their way to other processes; see :class:`nbdist.cluster.resize.Replacement`."""

    tasks: list[TaskInfo]
    notes: list[str]

    def look(self) -> bool:
        """Do what can be done now; whether all is done."""


class Calls(Protocol):
    """Bodies on their way; see :class:`nbdist.cluster.calls.Calls`."""

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome is known."""

    def outcome(self, rank: int) -> Any:
        """Return what a rank returned, or the exception that it raised."""
