"""What the Jupyter server does for the sidebar: it reads folders, and has processes of its own act.

It asks no kernel for anything, so that it works while every one of them is busy or dead.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return what the Jupyter server loads, once its configuration names this package."""
    from nbdist.lab.app import NbdistLab

    return [{"module": "nbdist.lab", "app": NbdistLab}]
