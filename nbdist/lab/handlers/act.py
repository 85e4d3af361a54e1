"""The routes that change something: they validate the request, begin the action, and answer 202."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from tornado import web

from nbdist.cluster.folder import VALID_ID, new_id
from nbdist.cluster.gpus import parse_gpus
from nbdist.cluster.launchers.registry import DEFAULT_LAUNCHER, LAUNCHERS
from nbdist.cluster.launchers.spec import LauncherSpec
from nbdist.cluster.placement import worker_slots
from nbdist.cluster.resources import MOST_TASKS, check_counts, parse_memory
from nbdist.cluster.time_limits import LIMITS, limits_of
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.json_values import number
from nbdist.lab.handlers.base import ApiHandler, checked_id
from nbdist.lab.readers.capabilities import NEEDS_NOTEBOOK
from nbdist.numbers import is_whole


class NewClusterHandler(ApiHandler):
    """``POST nbdist/api/v1/clusters``."""

    @web.authenticated
    async def post(self) -> None:
        """Begin to start a cluster, and answer with its id."""
        body = self.body()
        wanted, name = parse_cluster(body), parse_name(body)
        if name is not None:
            known = {one["id"]: one["state"] for one in (await self.service.poll(None))["clusters"]}
            if known.get(name, "failed") != "failed":
                raise FailedPreconditionError(
                    f"there already is a cluster {name!r} ({known[name]}); choose another name"
                )
        id = name or new_id()
        limit = "queue" if LAUNCHERS[wanted["launcher"]].is_elsewhere() else None
        self.service.actions.begin(
            "clusters", id, "start", {"do": "start", "id": id, **wanted}, wanted, limit
        )
        self.accept({"id": id})


class ClusterHandler(ApiHandler):
    """``DELETE nbdist/api/v1/clusters/ID``."""

    @web.authenticated
    async def delete(self, cluster: str) -> None:
        """Begin to stop a cluster; cancel one that starts, forget one that failed to start."""
        check_empty(self.body())
        id = checked_id(cluster)
        now = self.service.actions.find("clusters", id)
        if now is not None and now.doing == "start":
            self.service.actions.cancel("clusters", id, stop_request(id, "running"))
        else:
            item = await self.service.check("clusters", id, "stop")
            self.service.actions.begin("clusters", id, "stop", stop_request(id, item["state"]))
        self.accept({})


class ClusterCommandHandler(ApiHandler):
    """``POST nbdist/api/v1/clusters/ID/grow``, ``.../shrink`` and ``.../restart``."""

    @web.authenticated
    async def post(self, cluster: str, command: str) -> None:
        """Begin to grow or shrink a cluster, or to restart its dead tasks."""
        id, body = checked_id(cluster), self.body()
        what = {"task": parse_task(body)} if command == "restart" else {"workers": parse_growth(body)}
        await self.service.check("clusters", id, command)
        self.service.actions.begin("clusters", id, command, {"do": command, "id": id, **what})
        self.accept({})


class RunCommandHandler(ApiHandler):
    """``POST nbdist/api/v1/runs/ID/stop``, ``.../pause``, ``.../resume`` and ``.../set``."""

    @web.authenticated
    async def post(self, run: str, command: str) -> None:
        """Begin to stop, pause or resume a run, or to change its learning rate."""
        id, body = checked_id(run), self.body()
        settings = parse_settings(body) if command == "set" else check_empty(body)
        await self.service.check("runs", id, command)
        self.service.actions.begin("runs", id, command, {"do": f"{command}_run", "id": id, **settings})
        self.accept({})


class RunLabelsHandler(ApiHandler):
    """``POST nbdist/api/v1/runs/ID/labels``."""

    @web.authenticated
    async def post(self, run: str) -> None:
        """Change a run's name, tags or note."""
        id, labels = checked_id(run), parse_labels(self.body())
        await self.service.read(lambda views: views.label(id, labels))
        self.service.poller.wake()
        self.finish("{}")


class CleanHandler(ApiHandler):
    """``POST nbdist/api/v1/clean``."""

    @web.authenticated
    async def post(self) -> None:
        """Delete old runs, or answer which ones would be deleted."""
        wanted = parse_cleaning(self.body())
        await self.answer(lambda views: views.clean(*wanted))
        self.service.poller.wake()


class RunTensorBoardHandler(ApiHandler):
    """``POST nbdist/api/v1/runs/ID/tensorboard``."""

    @web.authenticated
    async def post(self, run: str) -> None:
        """Answer with the URL of a run's TensorBoard, when it is ready."""
        check_empty(self.body())
        self.finish(json.dumps({"url": await self.service.boards.open(checked_id(run))}))


class SweepCommandHandler(ApiHandler):
    """``POST nbdist/api/v1/sweeps/ID/stop``, ``.../pause`` and ``.../resume``; see `commands.REMOTE`."""

    @web.authenticated
    async def post(self, sweep: str, command: str) -> None:
        """Begin to send a command to the process that drives a sweep."""
        check_empty(self.body())
        id = checked_id(sweep)
        await self.service.check("sweeps", id, command)
        send = partial(self.service.command, lambda views: views.command_sweep(id, command))
        self.service.actions.begin_call("sweeps", id, command, send)
        self.accept({})


def stop_request(id: str, state: str = "running") -> dict[str, str]:
    """Return the request that stops a cluster started by nbdist or by ipyparallel.

    If an ipyparallel controller has ended, only the file is removed: its pids may have been reused.

    >>> stop_request("20261121_010203_abcdef")["do"], stop_request("ipp:default:mine")
    ('stop', {'do': 'stop_parallel', 'profile': 'default', 'id': 'mine'})
    """
    if not id.startswith("ipp:"):
        return {"do": "stop", "id": id}
    _, profile, *name = id.split(":", 2)
    if not name:
        raise InvalidArgumentError(f"{id!r:.100} is not the id of an ipyparallel cluster: ipp:PROFILE:ID")
    do = "forget_parallel" if state == "stale" else "stop_parallel"
    return {"do": do, "profile": profile, "id": name[0]}


# Validation of request bodies; an error names the refused value and the valid ones.

START: dict[str, Any] = {
    "workers": 2,
    "ps": 0,
    "launcher": DEFAULT_LAUNCHER,
    "gpus": "auto",
    "threads": None,
    "memory": None,
    "gpu_memory": None,
}
"""The default options of a cluster; on other hosts, workers are as many as these take."""


TASK = re.compile(r"(?:/job:)?(worker|ps|data)(?:/task)?:(\d{1,4})")
LABELS = ("name", "tags", "note")
SETTINGS = ("learning_rate",)
Body = Mapping[str, Any]


def parse_cluster(body: Body) -> dict[str, Any]:
    """Return the arguments of `start_cluster`.

    >>> parse_cluster({"workers": 3})["workers"], parse_cluster({})["launcher"]
    (3, 'local')
    >>> there = parse_cluster({"launcher": "ssh", "settings": {"hosts": "a:2,b"}})
    >>> there["workers"], there["hosts"]
    (None, 'a:2,b')
    """
    check_keys(body, ("name", "settings", *START))
    wanted = {**START, **{key: value for key, value in body.items() if key not in ("name", "settings")}}
    if wanted["launcher"] not in tuple(LAUNCHERS):
        raise InvalidArgumentError(
            f"no launcher {shown(wanted['launcher'])}; choose from {', '.join(LAUNCHERS)}"
        )
    spec = LAUNCHERS[wanted["launcher"]]
    settings = parse_launcher_settings(spec, body.get("settings"))
    if refused := [why for name, why in NEEDS_NOTEBOOK.items() if settings.get(name)]:
        raise InvalidArgumentError(refused[0])
    limits = {one.name for one in LIMITS}
    hosts = spec.hosts(spec.read_settings({name: settings[name] for name in settings.keys() - limits}))
    if hosts and body.get("workers") is None:
        wanted["workers"] = None
    counts = [_plain(wanted[name]) for name in ("workers", "ps", "threads", "gpu_memory")]
    check_counts(1 if hosts and counts[0] is None else counts[0], *counts[1:])
    if hosts:
        worker_slots(hosts, wanted["workers"])
    if wanted["memory"] is not None:
        parse_memory(_plain(wanted["memory"]))
    wanted["gpus"] = parse_gpus(_plain(wanted["gpus"]))
    return {**wanted, **settings}


def parse_launcher_settings(spec: LauncherSpec, given: object) -> dict[str, Any]:
    """Return the values of a launcher's settings and limits; a text is read as that of the setting's flag.

    >>> parse_launcher_settings(LAUNCHERS["slurm"], {"nodes": "2", "cores": "8", "idle": "1h"})
    {'nodes': '2', 'cores': 8, 'idle': '1h'}
    """
    if given is not None and not isinstance(given, dict):
        raise InvalidArgumentError(f"settings are an object with the launcher's settings, not {shown(given)}")
    limits = {one.name: one for one in limits_of(spec)}
    read = {one.name: one.read for one in (*spec.settings, *limits.values())}
    values: dict[str, Any] = {}
    for name, value in (given or {}).items():
        try:
            reader = read.get(name, str)  # None: a switch, whose value is no text
            values[name] = reader(value) if reader is not None and isinstance(value, str) else value
        except InvalidArgumentError:
            raise
        except ValueError:
            raise InvalidArgumentError(f"{name} is a number, not {shown(value)}") from None
    for name in values.keys() & limits.keys():
        limits[name].check(values[name])
    spec.read_settings({name: values[name] for name in values.keys() - limits.keys()})  # checks them
    return values


def parse_growth(body: Body) -> int:
    """Return the number of workers to add to a cluster, or to remove.

    >>> parse_growth({"workers": 2}), parse_growth({})
    (2, 1)
    """
    check_keys(body, ("workers",))
    workers = body.get("workers", 1)
    if not is_whole(workers, 1, MOST_TASKS):
        raise InvalidArgumentError(f"workers is a whole number from 1 to {MOST_TASKS}, not {shown(workers)}")
    return workers


def parse_task(body: Body) -> str | None:
    """Return the name of the task to restart; None for all dead tasks.

    >>> parse_task({"task": "/job:worker/task:1"}), parse_task({})
    ('worker:1', None)
    """
    check_keys(body, ("task",))
    if body.get("task") is None:
        return None
    found = TASK.fullmatch(text(body, "task"))
    if found is None:
        raise InvalidArgumentError(
            f"task is a name such as worker:1, or null for all dead ones, not {shown(body['task'])}"
        )
    return f"{found[1]}:{int(found[2])}"


def parse_labels(body: Body) -> dict[str, Any]:
    """Return a run's new name, tags or note; the function that writes them checks the values.

    >>> parse_labels({"name": "baseline"})
    {'name': 'baseline'}
    """
    check_keys(body, LABELS)
    return dict(body)


def parse_cleaning(body: Body) -> tuple[str | None, int | None, bool]:
    """Return the age, the number of runs to keep, and whether this is a dry run.

    >>> parse_cleaning({"older_than": "30d", "dry_run": False})
    ('30d', None, False)
    """
    check_keys(body, ("older_than", "keep", "dry_run"))
    age, keep = body.get("older_than"), body.get("keep")
    if age is not None and not isinstance(age, str):
        raise InvalidArgumentError(f"older_than is a text such as '30d', or null, not {shown(age)}")
    if keep is not None and not is_whole(keep):
        raise InvalidArgumentError(f"keep is a whole number, or null, not {shown(keep)}")
    return age, keep, flag(body, "dry_run") if "dry_run" in body else True


def parse_name(body: Body) -> str | None:
    """Return the name of a new cluster, which is its id; None if nbdist chooses it.

    >>> parse_name({"name": "big"}), parse_name({})
    ('big', None)
    """
    if body.get("name") is None:
        return None
    name = text(body, "name")
    if VALID_ID.fullmatch(name) is None:
        raise InvalidArgumentError(f"a cluster's name is 1 to 48 letters, digits and _, not {shown(name)}")
    return name


def parse_settings(body: Body) -> dict[str, float]:
    """Return the learning rate that a run is to train with.

    >>> parse_settings({"learning_rate": 0.01})
    {'learning_rate': 0.01}
    """
    check_keys(body, SETTINGS)
    rate = number(body.get("learning_rate"))
    if rate is None or rate < 0:
        raise InvalidArgumentError(
            f"learning_rate is a number of 0 or more, not {shown(body.get('learning_rate'))}"
        )
    return {"learning_rate": rate}


def check_empty(body: Body) -> dict[str, Any]:
    """Raise an error if a body has any other key."""
    check_keys(body, ())
    return {}


def check_keys(body: Body, valid: Collection[str]) -> None:
    """Raise InvalidArgumentError for an unknown key."""
    if unknown := sorted(body.keys() - set(valid)):
        known = f"choose from {', '.join(valid)}" if valid else "the body must be empty"
        raise InvalidArgumentError(f"no key {shown(unknown[0])}; {known}")


def text(body: Body, key: str) -> str:
    """Return the text under a key; raises InvalidArgumentError for another type."""
    if not isinstance(body[key], str):
        raise InvalidArgumentError(f"{key} is a text, not {shown(body[key])}")
    return str(body[key])


def flag(body: Body, key: str) -> bool:
    """Return the boolean under a key; raises InvalidArgumentError for another type."""
    if not isinstance(body[key], bool):
        raise InvalidArgumentError(f"{key} is true or false, not {shown(body[key])}")
    return bool(body[key])


def shown(value: object) -> str:
    """Return a value for an error message, at most 60 characters."""
    return f"{value!r:.60}"


def _plain(value: Any) -> Any:
    """Return a number or a short text for `start_cluster`'s own checks, which refuse all else."""
    return value if value is None or isinstance(value, (int, float)) else str(value)[:60]
