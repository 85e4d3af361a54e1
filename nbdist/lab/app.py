"""The Jupyter server extension: adds the routes at the start, and ends child processes at the stop."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_server.extension.application import ExtensionApp

from nbdist.lab.handlers import act
from nbdist.lab.handlers.base import NotFoundHandler
from nbdist.lab.handlers.read import AboutHandler, RunFileHandler, RunHandler, StateHandler, SweepHandler
from nbdist.lab.service import SERVICE, Service
from nbdist.lab.stream import Stream
from nbdist.lab.tensorboard import proxy
from nbdist.lab.tensorboard.manager import Boards
from nbdist.lab.views import default_views
from nbdist.sweep.commands import REMOTE


class NbdistLab(ExtensionApp):
    """nbdist's extension of a Jupyter server; ``jupyter-config/nbdist.json`` enables it."""

    name = "nbdist"

    def initialize_settings(self) -> None:
        """Create the service that all handlers share; it is idle until a page sends a request."""
        assert self.serverapp is not None
        root = Path(getattr(self.serverapp, "root_dir", "") or os.getcwd())
        self.settings[SERVICE] = Service(
            partial(default_views, root), str(root), Boards(self.serverapp.web_app.settings["base_url"])
        )

    def initialize_handlers(self) -> None:
        """Add the routes below the server's base URL."""
        assert self.serverapp is not None
        web_app = self.serverapp.web_app
        ours = routes(web_app.settings["base_url"], self.settings[SERVICE].boards)
        web_app.add_handlers(".*$", ours)  # type: ignore[no-untyped-call]  # Jupyter has no types

    async def stop_extension(self) -> None:
        """Cancel pending actions and stop polling; running clusters keep running."""
        service = self.settings.get(SERVICE)
        if service is not None:
            await service.close()


# All routes, in one table.

API = "nbdist/api/v1"
ID = "([^/]+)"
TABLE: tuple[tuple[str, type[Any]], ...] = (
    ("/?", AboutHandler),
    ("/state", StateHandler),
    ("/stream", Stream),
    ("/clusters", act.NewClusterHandler),
    (f"/clusters/{ID}", act.ClusterHandler),
    (f"/clusters/{ID}/(grow|shrink|restart)", act.ClusterCommandHandler),
    (f"/runs/{ID}(/data|/output)?", RunHandler),
    (f"/runs/{ID}/(stop|pause|resume|set)", act.RunCommandHandler),
    (f"/runs/{ID}/labels", act.RunLabelsHandler),
    ("/clean", act.CleanHandler),
    (f"/runs/{ID}/files/(.+)", RunFileHandler),
    (f"/runs/{ID}/tensorboard", act.RunTensorBoardHandler),
    (f"/sweeps/{ID}(/data|/output)?", SweepHandler),
    (f"/sweeps/{ID}/({'|'.join(REMOTE)})", act.SweepCommandHandler),
)


def routes(base: str, boards: Boards) -> list[tuple[Any, ...]]:
    """Return (pattern, handler) of all routes below the server's base URL, for tornado."""
    start = re.escape(base.rstrip("/") + "/")
    return [
        *((start + API + path, handler) for path, handler in TABLE),
        *((start + path, *rest) for path, *rest in proxy.handlers(boards)),
        (start + "nbdist(?:/.*)?", NotFoundHandler),
    ]
