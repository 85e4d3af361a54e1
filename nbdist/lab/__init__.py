"""The Jupyter server's part of the sidebar: it reads folders, and starts child processes for actions.

It sends no request to a kernel, so it works while every kernel is busy or dead.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the extension's entry point for the Jupyter server."""
    from nbdist.lab.app import NbdistLab

    return [{"module": "nbdist.lab", "app": NbdistLab}]
