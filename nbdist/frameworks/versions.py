"""The versions of frameworks: which are needed, and which the hosts of a run have: `check_versions`.

    every = world.exchange("framework", installed("torch"))
    check_versions("torch", "2.13", [info.name for info in world.infos], every)

A version is read from the package's metadata, so that a wrong one is found before seconds of imports, and all
ranks raise the same error, which names every host that has to change.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import cache

from nbdist.errors import FailedPreconditionError, MissingExtra


def installed(package: str) -> dict[str, str]:
    """Return the ``version`` of a package on this ``host``: "" if it is not installed.

    The version of a package without metadata, such as a source tree, is "unknown".

    >>> installed("numpy")["version"] >= "2"
    True
    >>> installed("no_such_package")["version"]
    ''
    """
    version = _loaded_version(package) if package in sys.modules else _version(package)
    return {"version": version, "host": socket.gethostname()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown" if importlib.util.find_spec(package) else ""


_loaded_version = cache(_version)
"""The version of a package that this process has loaded: another one that is installed later is not used."""


def check_versions(
    package: str, least: str, tasks: Sequence[str], found: Sequence[Mapping[str, str]]
) -> None:
    """Check that all tasks have one version of a package, and none older than ``least``.

    ``found`` is what `installed` has returned on each of ``tasks``, which are names, in the same order.

    Raises MissingExtra if one has no such package, FailedPreconditionError if one has a version that is too
    old, or if versions differ.

    >>> here = {"version": "2.13.0", "host": "node-1"}
    >>> check_versions("torch", "2.13", ["/job:worker/task:0"], [here])
    >>> try:
    ...     check_versions("torch", "3.1", ["/job:worker/task:0"], [here])
    ... except FailedPreconditionError as error:
    ...     print(str(error).partition(": pip")[0])
    --framework torch needs torch 3.1 or newer, and node-1 (/job:worker/task:0) has 2.13.0
    """
    versions = [one["version"] for one in found]
    where = {version: _places(version, tasks, found) for version in versions}
    old = next((version for version in versions if is_older(version, least)), None)
    if "" in where:
        raise MissingExtra(
            package, f"--framework {package}, on all hosts; {package} is missing on {where['']}"
        )
    if old is not None:
        raise FailedPreconditionError(
            f"--framework {package} needs {package} {least} or newer, and {where[old]} has {old}: "
            f'pip install --upgrade "{package}>={least}"'
        )
    if len(where) > 1:
        listed = ", ".join(f"{version} on {places}" for version, places in where.items())
        raise FailedPreconditionError(
            f"the versions of {package} differ: {listed}. Install the same one on all hosts, such as "
            f'pip install "{package}=={versions[0].partition("+")[0]}"'
        )


def is_older(version: str, least: str) -> bool:
    """Return whether a version is older than another one, by the numbers of their first two parts.

    >>> is_older("2.4.1+cu121", "2.13"), is_older("2.13.0", "2.13"), is_older("3.0.dev1", "2.13")
    (True, False, False)
    """
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    return bool(numbers) and numbers < [int(part) for part in least.split(".")]


def _places(version: str, tasks: Sequence[str], found: Sequence[Mapping[str, str]]) -> str:
    """Return the hosts that have a version, each with its tasks."""
    hosts: dict[str, list[str]] = {}
    for task, one in zip(tasks, found, strict=True):
        if one["version"] == version:
            hosts.setdefault(one["host"], []).append(task)
    return " and ".join(f"{host} ({', '.join(names)})" for host, names in hosts.items())
