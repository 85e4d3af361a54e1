"""The table of launchers, one row each, and what follows from it.

    find_launcher("mpi").make(LaunchRequest(...))          # in the supervisor process

To add a launcher, write its file (class and `LauncherSpec`) and add its row here. The flags of ``%cluster
start``, the parameters of `start_cluster`, the sidebar's form and all error messages follow the table;
``tests/cluster/test_cluster_launchers.py`` checks each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbdist.cluster.launchers import dask, ipyparallel, local, mpi, ray, ssh
from nbdist.cluster.launchers.batch import request as batch
from nbdist.cluster.launchers.kubernetes import row as kubernetes
from nbdist.cluster.launchers.slurm import request as slurm
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import InvalidArgumentError, NbdistError, choices

LAUNCHERS: dict[str, LauncherSpec] = {
    spec.name: spec
    for spec in (
        local.SPEC,
        mpi.SPEC,
        ssh.SPEC,
        slurm.SPEC,
        batch.SPEC,
        kubernetes.SPEC,
        dask.SPEC,
        ray.SPEC,
        ipyparallel.SPEC,
    )
}

DEFAULT_LAUNCHER = local.SPEC.name
AUTO = "auto"  # the launcher that fits: see `choose_launcher`


def choose_launcher(name: str, settings: Mapping[str, Any]) -> tuple[LauncherSpec, str]:
    """Return the row of a launcher and, for "auto", why it is this one.

    ``settings`` are those that are given, by name. "auto" is the first launcher that says that it fits, such
    as "ssh" with hosts and "slurm" within an allocation, else "local". Raises InvalidArgumentError for an
    unknown name.

    >>> spec, why = choose_launcher("auto", {"hosts": "a:2,b:2"})
    >>> spec.name, why
    ('ssh', 'hosts are given')
    """
    if name != AUTO:
        return find_launcher(name), ""
    for spec in LAUNCHERS.values():
        if why := spec.fits(settings):
            return spec, why
    return LAUNCHERS[DEFAULT_LAUNCHER], ""


def unused_nodes(spec: LauncherSpec) -> str:
    """Return a sentence if a launcher, without hosts, uses one of the several that the job around here has.

    >>> unused_nodes(find_launcher("ssh"))
    ''
    """
    if not spec.one_host:
        return ""
    other, why = choose_launcher(AUTO, {})
    try:
        nodes = len(other.hosts(other.read_settings({})))
    except NbdistError:  # an allocation that its launcher refuses, too
        return ""
    return (
        f"launcher {spec.name!r} starts its tasks on this host only, and {why}, which has {nodes} nodes: "
        f"launcher {other.name!r} uses them; {spec.one_host}"
        if nodes > 1
        else ""
    )


def find_launcher(name: str) -> LauncherSpec:
    """Return the row of a launcher; InvalidArgumentError lists the launchers if there is none.

    >>> find_launcher("local").forks
    True
    """
    if name not in tuple(LAUNCHERS):  # by comparison: the name may be of any type
        raise InvalidArgumentError(f"no launcher {name!r}; {choices(name, (AUTO, *LAUNCHERS))}")
    return LAUNCHERS[name]


def all_settings() -> dict[str, tuple[LauncherSetting, list[str]]]:
    """Return the settings of all launchers by name, each with the names of the launchers that have it."""
    found: dict[str, tuple[LauncherSetting, list[str]]] = {}
    for spec in LAUNCHERS.values():
        for setting in spec.settings:
            found.setdefault(setting.name, (setting, []))[1].append(spec.name)
    return found


def describe_launchers() -> str:
    """Return the launchers in one line, for the help.

    >>> describe_launchers()[:73]
    'auto: the one that fits (default); local: plain engines on this host; mpi'
    """
    rows = [(AUTO, "the one that fits (default)"), *((spec.name, spec.help) for spec in LAUNCHERS.values())]
    return "; ".join(f"{name}: {text}" for name, text in rows)
