"""The features of this server, for the page's form: cores, GPUs, launchers, and why features are missing."""

from __future__ import annotations

from functools import cache
from typing import Any

from nbdist.cluster.gpus import list_gpus
from nbdist.cluster.launchers.registry import LAUNCHERS
from nbdist.cluster.launchers.spec import LauncherSpec
from nbdist.cluster.time_limits import limits_of
from nbdist.errors import UnavailableError
from nbdist.home import home_path, own_version
from nbdist.lab.readers.files import find_home
from nbdist.lab.state import VERSION
from nbdist.lab.tensorboard.manager import problem as tensorboard_problem
from nbdist.machine import count_cores
from nbdist.metrics.gpu_usage import load_nvml

NEEDS_NOTEBOOK = {
    "sync_modules": "sync_modules sends the modules beside a notebook, and a start from the sidebar has no "
    "notebook: run %cluster start --launcher ssh --sync-modules with your hosts in a cell of the notebook"
}
"""Settings of launchers that a start from the sidebar refuses, so that the form leaves them out, and why."""


def about() -> dict[str, Any]:
    """Return the answer to ``GET nbdist/api/v1``; reads the disk, and detects GPUs at the first call."""
    folder, why = find_home()
    return {
        "version": VERSION,
        "nbdist": own_version(),
        "cores": count_cores(),
        "gpus": _gpus(),
        "launchers": [name for name, spec in LAUNCHERS.items() if spec.is_installed()],
        "launcher_forms": {
            name: launcher_form(spec) for name, spec in LAUNCHERS.items() if spec.is_installed()
        },
        "nvml": load_nvml()[1],
        "tensorboard": tensorboard_problem(),
        "home": str(folder or home_path()),
        "problem": why,
    }


def launcher_form(spec: LauncherSpec) -> dict[str, Any]:
    """Return what the form needs of a launcher: its help, its settings and limits, and where the tasks are.

    >>> launcher_form(LAUNCHERS["local"])  # doctest: +ELLIPSIS
    {'help': 'plain engines on this host', 'elsewhere': False, 'settings': [...]}
    """
    fields = ("name", "help", "shows", "default")
    return {
        "help": spec.help,
        "elsewhere": spec.is_elsewhere(),
        "settings": [
            {**{field: getattr(one, field) for field in fields}, "switch": one.read is None}
            for one in (*spec.settings, *limits_of(spec))
            if one.name not in NEEDS_NOTEBOOK
        ],
    }


@cache
def _gpus() -> int:
    try:
        return len(list_gpus())
    except UnavailableError:  # `load_nvml` has the reason
        return 0
