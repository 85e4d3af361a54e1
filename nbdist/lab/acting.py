"""The routes that have something done: they check what is asked, begin it, and answer 202."""

from __future__ import annotations

import json

from tornado import web

from nbdist.cluster.folder import new_id
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.lab.bodies import (
    nothing,
    wanted_cleaning,
    wanted_cluster,
    wanted_growth,
    wanted_labels,
    wanted_name,
    wanted_settings,
    wanted_task,
)
from nbdist.lab.handling import Handler, checked_id


class NewCluster(Handler):
    """``POST nbdist/api/v1/clusters``."""

    @web.authenticated
    async def post(self) -> None:
        """Begin to start a cluster, and answer with its id."""
        body = self.body()
        wanted, name = wanted_cluster(body), wanted_name(body)
        if name is not None:
            known = {one["id"]: one["state"] for one in (await self.service.look(None))["clusters"]}
            if known.get(name, "failed") != "failed":
                raise FailedPreconditionError(
                    f"there is a cluster {name!r} already ({known[name]}); choose another name"
                )
        id = name or new_id()
        self.service.actions.begin("clusters", id, "start", {"do": "start", "id": id, **wanted}, wanted)
        self.accept({"id": id})


class OneCluster(Handler):
    """``DELETE nbdist/api/v1/clusters/ID``."""

    @web.authenticated
    async def delete(self, cluster: str) -> None:
        """Begin to stop a cluster; give up one that starts, and forget one that did not."""
        nothing(self.body())
        id = checked_id(cluster)
        now = self.service.actions.find("clusters", id)
        if now is not None and now.doing == "start":
            self.service.actions.give_up("clusters", id)
        else:
            item = await self.service.check("clusters", id, "stop")
            self.service.actions.begin("clusters", id, "stop", end_of(id, item["state"]))
        self.accept({})


class ClusterWish(Handler):
    """``POST nbdist/api/v1/clusters/ID/grow``, ``.../shrink`` and ``.../restart``."""

    @web.authenticated
    async def post(self, cluster: str, wish: str) -> None:
        """Begin to grow or shrink a cluster, or to restart tasks of it."""
        id, body = checked_id(cluster), self.body()
        what = {"task": wanted_task(body)} if wish == "restart" else {"workers": wanted_growth(body)}
        await self.service.check("clusters", id, wish)
        self.service.actions.begin("clusters", id, wish, {"do": wish, "id": id, **what})
        self.accept({})


class RunCommand(Handler):
    """``POST nbdist/api/v1/runs/ID/stop``, ``.../pause``, ``.../resume`` and ``.../set``."""

    @web.authenticated
    async def post(self, run: str, command: str) -> None:
        """Begin to stop, pause or resume a run, or to change its learning rate."""
        id, body = checked_id(run), self.body()
        settings = wanted_settings(body) if command == "set" else nothing(body)
        await self.service.check("runs", id, command)
        self.service.actions.begin("runs", id, command, {"do": f"{command}_run", "id": id, **settings})
        self.accept({})


class RunLabels(Handler):
    """``POST nbdist/api/v1/runs/ID/labels``."""

    @web.authenticated
    async def post(self, run: str) -> None:
        """Change a run's name, tags or note."""
        id, labels = checked_id(run), wanted_labels(self.body())
        await self.service.read(lambda views: views.label(id, labels))
        self.service.watch.wake()
        self.finish("{}")


class Cleaning(Handler):
    """``POST nbdist/api/v1/clean``."""

    @web.authenticated
    async def post(self) -> None:
        """Delete old runs, or answer which ones would be deleted."""
        wanted = wanted_cleaning(self.body())
        await self.answer(lambda views: views.clean(*wanted))
        self.service.watch.wake()


class RunBoard(Handler):
    """``POST nbdist/api/v1/runs/ID/tensorboard``."""

    @web.authenticated
    async def post(self, run: str) -> None:
        """Answer with where TensorBoard shows a run, once it does."""
        nothing(self.body())
        self.finish(json.dumps({"url": await self.service.boards.open(checked_id(run))}))


class SweepWish(Handler):
    """``POST nbdist/api/v1/sweeps/ID/stop``, ``.../pause`` and ``.../resume``."""

    @web.authenticated
    async def post(self, sweep: str, wish: str) -> None:
        """Begin to tell the process that drives a sweep what is wished of it."""
        nothing(self.body())
        id = checked_id(sweep)
        await self.service.check("sweeps", id, wish)
        self.service.actions.begin("sweeps", id, wish, {"do": "wish", "id": id, "wish": wish})
        self.accept({})


def end_of(id: str, state: str = "running") -> dict[str, str]:
    """Return what is to be done to end a cluster of ours, or of ipyparallel's own.

    Of one whose controller is gone the file alone is removed: its pids may be other processes' by now.

    >>> end_of("20261121_010203_abcdef")["do"], end_of("ipp:default:mine")
    ('stop', {'do': 'stop_parallel', 'profile': 'default', 'id': 'mine'})
    """
    if not id.startswith("ipp:"):
        return {"do": "stop", "id": id}
    _, profile, *name = id.split(":", 2)
    if not name:
        raise InvalidArgumentError(f"{id!r:.100} is no id of ipyparallel's: ipp:PROFILE:ID")
    do = "forget_parallel" if state == "stale" else "stop_parallel"
    return {"do": do, "profile": profile, "id": name[0]}
