"""The Jupyter server's extension: our routes are put in when it starts, our processes end when it stops."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp

from nbdist.lab.handlers.act import (
    Cleaning,
    ClusterWish,
    NewCluster,
    OneCluster,
    RunBoard,
    RunCommand,
    RunLabels,
    SendSweepCommand,
)
from nbdist.lab.handlers.base import NoSuchRoute
from nbdist.lab.handlers.read import About, CurrentState, OneFile, OneRun, OneSweep
from nbdist.lab.service import SERVICE, Service
from nbdist.lab.state import real_views
from nbdist.lab.stream import Stream
from nbdist.lab.tensorboard import proxy
from nbdist.lab.tensorboard.manager import Boards
from nbdist.sweep.commands import REMOTE


class NbdistLab(ExtensionApp):
    """nbdist's part of a Jupyter server; ``jupyter-config/nbdist.json`` has it loaded."""

    name = "nbdist"

    def initialize_settings(self) -> None:
        """Make what all handlers share; nothing is read and no thread starts before a page asks."""
        assert self.serverapp is not None
        root = Path(getattr(self.serverapp, "root_dir", "") or os.getcwd())
        self.settings[SERVICE] = Service(
            partial(real_views, root), str(root), Boards(self.serverapp.web_app.settings["base_url"])
        )

    def initialize_handlers(self) -> None:
        """Put our routes below the server's own address."""
        assert self.serverapp is not None
        web_app = self.serverapp.web_app
        ours = routes(web_app.settings["base_url"], self.settings[SERVICE].boards)
        web_app.add_handlers(".*$", ours)  # type: ignore[no-untyped-call]  # Jupyter has no types

    async def stop_extension(self) -> None:
        """End what a page has begun and is not done, and stop looking. Clusters that are up stay up."""
        service = self.settings.get(SERVICE)
        if service is not None:
            await service.close()


# All our routes, in one table.

API = "nbdist/api/v1"
ID = "([^/]+)"
TABLE: tuple[tuple[str, type[Any]], ...] = (
    ("/?", About),
    ("/state", CurrentState),
    ("/stream", Stream),
    ("/clusters", NewCluster),
    (f"/clusters/{ID}", OneCluster),
    (f"/clusters/{ID}/(grow|shrink|restart)", ClusterWish),
    (f"/runs/{ID}(/data)?", OneRun),
    (f"/runs/{ID}/(stop|pause|resume|set)", RunCommand),
    (f"/runs/{ID}/labels", RunLabels),
    ("/clean", Cleaning),
    (f"/runs/{ID}/files/(.+)", OneFile),
    (f"/runs/{ID}/tensorboard", RunBoard),
    (f"/sweeps/{ID}(/data)?", OneSweep),
    (f"/sweeps/{ID}/({'|'.join(REMOTE)})", SendSweepCommand),
)


def routes(base: str, boards: Boards) -> list[tuple[Any, ...]]:
    """Return patterns and handlers below a server's base address, as tornado takes them."""
    start = re.escape(base.rstrip("/") + "/")
    return [
        *((start + API + path, handler) for path, handler in TABLE),
        *((start + path, *rest) for path, *rest in proxy.handlers(boards)),
        (start + "nbdist(?:/.*)?", NoSuchRoute),
    ]
