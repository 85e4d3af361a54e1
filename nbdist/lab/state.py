"""The state that a page shows: clusters, runs, sweeps, and the tasks of the cluster that it has opened.

    folders ──► Clusters, Runs, Sweeps, ClusterTasks ──► PanelState ──► JSON of the state, or of its changes
                                     pending actions ──┘

Every lister caches by file (see `readers.runs`), and returns the same object for an item that has not
changed. So `changes` compares mostly by identity, and a poll of an idle system costs a few `stat` calls. The
difference is computed per page, because each page may have received another state last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nbdist.errors import NbdistError
from nbdist.lab.actions.status import PendingAction, merge_pending

VERSION = 1
LISTS = {"clusters": "id", "runs": "id", "sweeps": "id", "tasks": "rank"}
"""The lists of a state, and the key of their items."""


ACTIVE = {
    "clusters": {"starting", "stopping"},
    "runs": {"preparing", "running"},
    "sweeps": {"running"},
}
"""The states in which items of each list change by themselves."""


Item = dict[str, Any]
log = logging.getLogger(__name__)


class Lister(Protocol):
    """Lists clusters, runs or sweeps. ``problem`` or ``problems`` has errors that concern the whole list."""

    def poll(self) -> list[Item]:
        """Return the current items, ready for JSON."""


class TaskLister(Protocol):
    """Lists the tasks of a cluster."""

    def poll(self, cluster_id: str, /) -> list[Item]:
        """Return the cluster's current tasks, ready for JSON."""


@dataclass(frozen=True)
class Snapshot:
    """The result of one poll: what all pages share, and the tasks of each cluster that a page has opened."""

    shared: dict[str, Any]
    tasks: dict[str, tuple[list[Item], list[str]]]
    """By cluster: its tasks, and the problems while reading them."""

    @property
    def active(self) -> bool:
        """Whether an item starts, runs or ends, so that the next poll should be soon."""
        return any(
            item.get("state", item.get("status")) in states
            for name, states in ACTIVE.items()
            for item in self.shared[name]
        )

    def for_cluster(self, cluster: str | None) -> dict[str, Any]:
        """Return the state for a page that has opened this cluster, or none."""
        tasks, problems = self.tasks.get(cluster, ([], [])) if cluster is not None else ([], [])
        return {
            "version": VERSION,
            **self.shared,
            "tasks": tasks,
            "cluster": cluster,
            "problems": [*self.shared["problems"], *problems],
        }


class PanelState:
    """Joins the items of the four listers with pending actions. One thread at a time may poll."""

    def __init__(
        self,
        clusters: Lister,
        tasks: TaskLister,
        runs: Lister,
        sweeps: Lister,
        pending: Callable[[], Sequence[PendingAction]] = tuple,
    ) -> None:
        # Clusters come last: they list their active runs as of the poll of runs.
        self._lists = {"runs": runs, "sweeps": sweeps, "clusters": clusters}
        self._tasks, self._pending = tasks, pending
        self._logged: dict[str, str] = {}

    def poll(self, cluster: str | None = None) -> dict[str, Any]:
        """Return the state, with the tasks of one cluster or of none."""
        return self.snapshot([] if cluster is None else [cluster]).for_cluster(cluster)

    def snapshot(self, clusters: Collection[str] = ()) -> Snapshot:
        """Poll all lists once, and the tasks of these clusters."""
        pending = self._pending()
        shared: dict[str, Any] = {"problems": []}
        for name, lister in self._lists.items():
            items, problems = self._poll_lister(name, lister)
            shared[name] = ordered(merge_pending(name, items, pending), name)
            shared["problems"] += [one for one in problems if one not in shared["problems"]]
        return Snapshot(shared, {one: self._poll_lister("tasks", self._tasks, one) for one in clusters})

    def _poll_lister(self, name: str, lister: Any, *arguments: str) -> tuple[list[Item], list[str]]:
        """Return a lister's items and problems; an error in one lister leaves the others intact."""
        try:
            items: list[Item] = lister.poll(*arguments)
        except NbdistError as error:
            return [], [str(error)]
        except Exception as error:
            if self._logged.get(name) != repr(error):  # log it once: the next poll fails again
                log.exception("nbdist: the %s cannot be listed", name)
                self._logged[name] = repr(error)
            return [], [f"the {name} cannot be listed: the Jupyter server's log says why"]
        one = getattr(lister, "problem", None)
        return items, [*getattr(lister, "problems", ()), *([one] if one else [])]


def ordered(items: Iterable[Item], name: str) -> list[Item]:
    """Return items in the order of their list: the newest first, tasks by rank."""
    if name == "tasks":
        return sorted(items, key=lambda item: int(item["rank"]))
    return sorted(items, key=lambda item: (item["created"] or 0.0, str(item["id"])), reverse=True)


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between two states; {} if they are the same.

    >>> one = {"runs": [{"id": "a", "step": 1}], "problems": []}
    >>> changes(one, {"runs": [{"id": "a", "step": 2}], "problems": []})
    {'runs': {'set': [{'id': 'a', 'step': 2}], 'removed': []}}
    """
    found: dict[str, Any] = {}
    for name, after_value in after.items():
        before_value = before.get(name)
        if name not in LISTS:
            if before_value != after_value:
                found[name] = after_value
            continue
        key = LISTS[name]
        fresh = name == "tasks" and before.get("cluster") != after.get("cluster")
        old = {item[key]: item for item in (() if fresh else before_value or ())}
        new = {item[key]: item for item in after_value}
        # A lister returns the same object for an unchanged item: `is` decides at once.
        changed = [item for one, item in new.items() if (was := old.get(one)) is not item and was != item]
        removed = [one for one in old if one not in new]
        if changed or removed:
            found[name] = {"set": changed, "removed": removed}
    return found
