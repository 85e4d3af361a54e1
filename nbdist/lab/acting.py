"""The routes that have something done: they check what is asked, begin it, and answer 202."""

from __future__ import annotations

import json

from tornado import web

from nbdist.cluster.folder import new_id
from nbdist.errors import InvalidArgumentError
from nbdist.lab.bodies import nothing, wanted_cluster, wanted_growth, wanted_task
from nbdist.lab.handling import Handler, checked_id


class NewCluster(Handler):
    """``POST nbdist/api/v1/clusters``."""

    @web.authenticated
    async def post(self) -> None:
        """Begin to start a cluster, and answer with its id."""
        wanted = wanted_cluster(self.body())
        id = new_id()
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
    """``POST nbdist/api/v1/clusters/ID/grow`` and ``.../restart``."""

    @web.authenticated
    async def post(self, cluster: str, wish: str) -> None:
        """Begin to grow a cluster, or to restart tasks of it."""
        id, body = checked_id(cluster), self.body()
        what = {"workers": wanted_growth(body)} if wish == "grow" else {"task": wanted_task(body)}
        await self.service.check("clusters", id, wish)
        self.service.actions.begin("clusters", id, wish, {"do": wish, "id": id, **what})
        self.accept({})


class RunStop(Handler):
    """``POST nbdist/api/v1/runs/ID/stop``."""

    @web.authenticated
    async def post(self, run: str) -> None:
        """Begin to stop a run."""
        nothing(self.body())
        id = checked_id(run)
        await self.service.check("runs", id, "stop")
        self.service.actions.begin("runs", id, "stop", {"do": "stop_run", "id": id})
        self.accept({})


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
