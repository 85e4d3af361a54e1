"""Fake items and listers with the interface of the real ones, for tests of the layers above."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from nbdist.errors import NotFoundError
from nbdist.lab.service import SERVICE, Service
from nbdist.lab.state import LISTS, ordered
from nbdist.lab.views import Views

Item = dict[str, Any]


def applied(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return a state after changes, as a page applies them; tasks of another cluster replace all tasks."""
    after = {**before, **found}
    for name, key in LISTS.items():
        if name in before:
            new = found.get(name, {"set": [], "removed": []})
            kept = [] if name == "tasks" and "cluster" in found else before[name]
            items = {item[key]: item for item in [*kept, *new["set"]] if item[key] not in new["removed"]}
            after[name] = ordered(items.values(), name)
    return after


def cluster_item(id: str, **more: Any) -> Item:
    return {
        "id": id, "kind": "nbdist", "title": id, "state": "running", "launcher": "local", "workers": 2,
        "ps": 0, "engines": 2, "created": 1.0, "owner": None, "detached": True, "dead": [], "runs": [],
        "attach": "", "can": {"stop": True, "grow": True, "shrink": True, "restart": True}, "why": {},
        "lines": [], "error": None, "hosts": [], "ends": None, "unused_ends": None, **more,
    }  # fmt: skip


def run_item(id: str, **more: Any) -> Item:
    return {
        "id": id, "name": id, "status": "finished", "created": 1.0, "step": 1, "error": None,
        "can": {"stop": True, "pause": True, "resume": True, "set": True}, "why": {}, **more,
    }  # fmt: skip


def sweep_item(id: str, **more: Any) -> Item:
    can = {"stop": True, "pause": True, "resume": True}
    return {"id": id, "state": "finished", "created": 1.0, "error": None, "can": can, "why": {}, **more}


def task_item(cluster: str, rank: int, **more: Any) -> Item:
    return {"cluster": cluster, "rank": rank, "state": "idle", **more}


@dataclass
class FakeLister:
    """A lister that returns a test's items; it counts its polls."""

    items: list[Item] = field(default_factory=list)
    asked: int = 0
    fails: Exception | None = None
    waits: threading.Event | None = None

    def poll(self) -> list[Item]:
        self.asked += 1
        if self.waits is not None:
            self.waits.wait(60)
        if self.fails is not None:
            raise self.fails
        return list(self.items)


@dataclass
class FakeTaskLister:
    by_cluster: dict[str, list[Item]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def poll(self, cluster_id: str) -> list[Item]:
        self.asked.append(cluster_id)
        return list(self.by_cluster.get(cluster_id, []))


@dataclass
class Fakes:
    """All inputs of a service, set by a test."""

    clusters: FakeLister = field(default_factory=FakeLister)
    tasks: FakeTaskLister = field(default_factory=FakeTaskLister)
    runs: FakeLister = field(default_factory=FakeLister)
    sweeps: FakeLister = field(default_factory=FakeLister)
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    fails: Exception | None = None
    closed: bool = True
    """Whether the file that was opened last is closed."""
    managed: list[tuple[Any, ...]] = field(default_factory=list)
    answer: threading.Event = field(default_factory=threading.Event)
    """Set when the sweep answers a command."""
    charts: list[str] = field(default_factory=list)
    """The chosen charts of the run whose data was asked for last."""
    read: int = 0
    """How often details or files were asked for."""

    def views(self) -> Views:
        return Views(
            lambda: {"version": 1}, self.clusters, self.tasks, self.runs, self.sweeps,
            self._run, self._data, self._run, self._sweep, self._sweep, self._sweep, self._file,
            self._label, self._delete, self._clean, self._command,
        )  # fmt: skip

    def clear(self) -> None:
        """Remove all items and errors."""
        for lister in (self.clusters, self.runs, self.sweeps):
            lister.items, lister.asked, lister.fails, lister.waits = [], 0, None, None
        self.tasks.by_cluster, self.tasks.asked = {}, []
        self.files, self.fails, self.read, self.managed = {}, None, 0, []
        self.answer.clear()

    def put_into(self, app: Any) -> None:
        """Make a server's routes read from these fakes."""
        app.web_app.settings[SERVICE]._make_views = self.views

    def service(self) -> Service:
        return Service(self.views)

    def _run(self, id: str) -> Item:
        self.read += 1
        if self.fails is not None:
            raise self.fails
        return found(self.runs.items, id)

    def _data(self, id: str, charts: Sequence[str]) -> Item:
        self.charts = list(charts)
        return self._run(id)

    def _label(self, id: str, labels: Mapping[str, Any]) -> None:
        self.managed.append(("label", self._run(id)["id"], dict(labels)))

    def _delete(self, id: str) -> int:
        self.managed.append(("delete", self._run(id)["id"]))
        return 12

    def _clean(self, *wanted: Any) -> Item:
        self.read += 1
        self.managed.append(("clean", *wanted))
        return {"runs": [], "bytes": 0, "under_way": []}

    def _command(self, id: str, command: str) -> None:
        self.managed.append(("command", id, command))
        self.answer.wait(30)
        if self.fails is not None:
            raise self.fails

    def _sweep(self, id: str) -> Item:
        self.read += 1
        return found(self.sweeps.items, id)

    def _file(self, run: str, path: str) -> tuple[BinaryIO, int]:
        self.read += 1
        if (run, path) not in self.files:
            raise NotFoundError(f"run {run} has no file {path!r}")
        data = self.files[run, path]
        self.closed = False
        return _Closing(data, self), len(data)


class _Closing(io.BytesIO):
    """Records that it is closed."""

    def __init__(self, data: bytes, fakes: Fakes) -> None:
        super().__init__(data)
        self._fakes = fakes

    def close(self) -> None:
        super().close()
        self._fakes.closed = True


def found(items: list[Item], id: str) -> Item:
    for item in items:
        if item["id"] == id:
            return item
    raise NotFoundError(f"no {id!r}")
