"""What the page shows, in one piece: clusters, runs and sweeps, and the tasks of the clusters asked for.

folders ──► Clusters, Runs, Sweeps, Tasks (each reads its own) ──► State ──► as JSON, or the changes in it
                                            what a page has begun ──┘
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from nbdist.errors import NbdistError
from nbdist.lab.actions.status import Underway, merged

VERSION = 1
MOST = {"runs": 200, "sweeps": 100}
"""How many of each are sent; who has more is told so."""


LISTS = {"clusters": "id", "runs": "id", "sweeps": "id", "tasks": "rank"}
"""The lists of a state, and what names an item of each."""


MOVING = {
    "clusters": {"starting", "stopping"},
    "runs": {"preparing", "running"},
    "sweeps": {"running"},
}
"""In which states the items of each list change by themselves."""


Item = dict[str, Any]
log = logging.getLogger(__name__)


class Lister(Protocol):
    """What lists clusters, runs or sweeps. What is wrong with all of it is in ``problem`` or ``problems``."""

    def look(self) -> list[Item]:
        """Return the items as they are now, ready for JSON."""


class TaskLister(Protocol):
    """What lists the tasks of a cluster."""

    def look(self, cluster_id: str, /) -> list[Item]:
        """Return the cluster's tasks as they are now, ready for JSON."""


@dataclass(frozen=True)
class Seen:
    """One look at everything: what all pages share, and the tasks of each cluster that one has opened."""

    shared: dict[str, Any]
    tasks: dict[str, tuple[list[Item], list[str]]]
    """By cluster: its tasks, and what was wrong when they were read."""

    @property
    def moving(self) -> bool:
        """Whether something starts, runs or ends, so that the next look should come soon."""
        return any(
            item.get("state", item.get("status")) in states
            for name, states in MOVING.items()
            for item in self.shared[name]
        )

    def of(self, cluster: str | None) -> dict[str, Any]:
        """Return the state for a page that has opened this cluster, or none."""
        tasks, problems = self.tasks.get(cluster, ([], [])) if cluster is not None else ([], [])
        return {
            "version": VERSION,
            **self.shared,
            "tasks": tasks,
            "cluster": cluster,
            "problems": [*self.shared["problems"], *problems],
        }


class State:
    """Joins what the four listers see with what pages have begun. Looks are made by one thread at a time."""

    def __init__(
        self,
        clusters: Lister,
        tasks: TaskLister,
        runs: Lister,
        sweeps: Lister,
        underway: Callable[[], Sequence[Underway]] = tuple,
    ) -> None:
        # Clusters come last: which runs go on there is said by those who have just looked at runs.
        self._lists = {"runs": runs, "sweeps": sweeps, "clusters": clusters}
        self._tasks, self._underway = tasks, underway
        self._logged: dict[str, str] = {}

    def look(self, cluster: str | None = None) -> dict[str, Any]:
        """Return everything, with the tasks of one cluster or of none."""
        return self.see([] if cluster is None else [cluster]).of(cluster)

    def see(self, clusters: Collection[str] = ()) -> Seen:
        """Look at everything once, and at the tasks of these clusters."""
        underway = self._underway()
        shared: dict[str, Any] = {"problems": []}
        for name, lister in self._lists.items():
            items, problems = self._looked(name, lister)
            items, more = newest(merged(name, items, underway), name)
            shared[name] = items
            shared["problems"] += [one for one in problems + more if one not in shared["problems"]]
        return Seen(shared, {one: self._looked("tasks", self._tasks, one) for one in clusters})

    def _looked(self, name: str, lister: Any, *arguments: str) -> tuple[list[Item], list[str]]:
        """Return what a lister sees, and what to tell of it: one that fails takes no other one with it."""
        try:
            items: list[Item] = lister.look(*arguments)
        except NbdistError as error:
            return [], [str(error)]
        except Exception as error:
            if self._logged.get(name) != repr(error):  # it will fail again at the next look
                log.exception("nbdist: the %s cannot be listed", name)
                self._logged[name] = repr(error)
            return [], [f"the {name} cannot be listed: the Jupyter server's log says why"]
        one = getattr(lister, "problem", None)
        return items, [*getattr(lister, "problems", ()), *([one] if one else [])]


def newest(items: Sequence[Item], name: str) -> tuple[list[Item], list[str]]:
    """Return the newest items first, as many as are sent, and what to say of those that are left out."""
    most = MOST.get(name, len(items))
    left = len(items) - most
    return ordered(items, name)[:most], [f"{left} older {name} are not shown"] if left > 0 else []


def ordered(items: Iterable[Item], name: str) -> list[Item]:
    """Return items in the order that all lists are in: the newest first, but tasks by rank."""
    if name == "tasks":
        return sorted(items, key=lambda item: int(item["rank"]))
    return sorted(items, key=lambda item: (item["created"] or 0.0, str(item["id"])), reverse=True)


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between two states; {} if they are the same.

    >>> one = {"runs": [{"id": "a", "step": 1}], "problems": []}
    >>> changes(one, {"runs": [{"id": "a", "step": 2}], "problems": []})
    {'runs': {'set': [{'id': 'a', 'step': 2}], 'gone': []}}
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
        # What its lister has not touched is the same object, which is seen at once.
        changed = [item for one, item in new.items() if (was := old.get(one)) is not item and was != item]
        gone = [one for one in old if one not in new]
        if changed or gone:
            found[name] = {"set": changed, "gone": gone}
    return found


def applied(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return a state with changes made to it, as a page does: tasks of another cluster begin anew."""
    after = {**before, **found}
    for name, key in LISTS.items():
        if name in before:
            new = found.get(name, {"set": [], "gone": []})
            kept = [] if name == "tasks" and "cluster" in found else before[name]
            items = {item[key]: item for item in [*kept, *new["set"]] if item[key] not in new["gone"]}
            after[name] = ordered(items.values(), name)
    return after


# The readers of all items that the page shows.
#
# The server starts without any of it: it is imported when a page asks for the first time.

Details = Callable[[str], dict[str, Any]]


@dataclass(frozen=True)
class Views:
    """The readers of everything that a page shows. All run on threads, one look at a time."""

    about: Callable[[], dict[str, Any]]
    clusters: Lister
    tasks: TaskLister
    runs: Lister
    sweeps: Lister
    run_details: Details
    run_bundle: Details
    sweep_details: Details
    sweep_bundle: Details
    open_file: Callable[[str, str], tuple[BinaryIO, int]]
    label: Callable[[str, Mapping[str, Any]], object]
    """Changes the name, the tags or the note of a run."""
    delete: Callable[[str], int]
    """Deletes a run and returns the bytes that it took."""
    clean: Callable[[str | None, int | None, bool], dict[str, Any]]
    """Deletes the runs older than an age, or beside the newest so many; or only shows them."""


def real_views(root: Path | None = None) -> Views:
    """Return those that read this user's own folders; ``root`` is where Jupyter's file browser begins."""
    from nbdist.lab.readers.capabilities import about
    from nbdist.lab.readers.clusters import Clusters
    from nbdist.lab.readers.run_detail import open_file, run_bundle, run_details
    from nbdist.lab.readers.runs import Runs
    from nbdist.lab.readers.sweep_detail import sweep_bundle, sweep_details
    from nbdist.lab.readers.sweeps import Sweeps
    from nbdist.lab.readers.tasks import Tasks
    from nbdist.run.history import clean, delete_run, write_labels

    def cleaned(older_than: str | None, keep: int | None, dry_run: bool) -> dict[str, Any]:
        found = clean(older_than, keep, dry_run)
        return {"runs": list(found), "bytes": found.bytes, "under_way": found.under_way}

    runs, sweeps = Runs(root), Sweeps()
    clusters = Clusters(runs.on_cluster)
    return Views(
        about, clusters, Tasks(runs, clusters), runs, sweeps,
        lambda run: run_details(run, runs), lambda run: run_bundle(run, runs),
        lambda sweep: sweep_details(sweep, sweeps), lambda sweep: sweep_bundle(sweep, sweeps), open_file,
        lambda run, labels: write_labels(run, **labels), delete_run, cleaned,
    )  # fmt: skip
