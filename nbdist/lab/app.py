"""The Jupyter server's extension: our routes are put in when it starts, our processes end when it stops."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from jupyter_server.extension.application import ExtensionApp

from nbdist.lab.routes import routes
from nbdist.lab.service import SERVICE, Service
from nbdist.lab.tensorboard import Boards
from nbdist.lab.views import real_views


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
