"""The row of launcher "kubernetes", and when "auto" takes it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from nbdist.cluster.launchers.kubernetes.api import Api
from nbdist.cluster.launchers.kubernetes.request import SETTINGS, in_pod, pod_commands, pod_hosts
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import LauncherSpec
from nbdist.errors import MissingExtra, NbdistError


def kubernetes_fits(settings: Mapping[str, Any]) -> str:
    """Return why a cluster is to run in pods: in a pod that may create Jobs, or with its settings."""
    if given := [setting.flag for setting in SETTINGS if settings.get(setting.name)]:
        return f"{', '.join(given)} is given"
    if not in_pod() or find_spec("kubernetes") is None:
        return ""
    try:
        api = Api()
    except NbdistError:  # its account has no file to read; with --launcher kubernetes the error is shown
        return ""
    rights = f"this process is in a pod that may create Jobs in namespace {api.namespace}"
    return rights if api.may("create", "batch", "jobs") else ""


def require_kubernetes() -> None:
    """Raise MissingExtra without the client of Kubernetes."""
    if find_spec("kubernetes") is None:
        raise MissingExtra("kubernetes", "launcher 'kubernetes'")


SPEC = LauncherSpec(
    "kubernetes",
    help="engines in pods of a Kubernetes cluster",
    make=ForkLauncher,
    check=require_kubernetes,
    settings=SETTINGS,
    fits=kubernetes_fits,
    hosts=pod_hosts,
    commands=pod_commands,
    timed=True,
)
