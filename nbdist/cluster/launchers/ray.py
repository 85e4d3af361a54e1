"""Launcher "ray": the tasks are on the nodes of a Ray cluster that is up, one supervisor on each.

    %cluster start --launcher ray --ray-address 10.0.0.1:6379 --reserve CPU=8,GPU=2 --workers 4

A supervisor belongs to an actor on its node, for which Ray reserves a part of the node: it waits until that
is free, sees the GPUs that Ray gives the actor, and ends with the actor, and with the command
(`existing_cluster.py`).
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.existing_cluster import (
    ExistingCluster,
    SupervisorActor,
    find_hosts,
    host_command,
    require_port,
    run_command,
)
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    MissingExtra,
    UnavailableError,
)


def require_ray() -> None:
    """Raise MissingExtra without Ray."""
    if find_spec("ray") is None:
        raise MissingExtra("ray", "launcher 'ray'")


def check_address(value: Any) -> None:
    """Raise InvalidArgumentError unless a value is the address of a Ray cluster."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|(?:ray://)?[^\s/:]+:\d{1,5}", value):
        raise InvalidArgumentError(
            "ray_address is 'auto' for the cluster of this host, its address such as '10.0.0.1:6379', or "
            f"that of its client server such as 'ray://10.0.0.1:10001', not {value!r}"
        )


def read_reserve(text: str) -> dict[str, float]:
    """Return the amounts of resources that a text names.

    >>> read_reserve("CPU=8,GPU=2")
    {'CPU': 8.0, 'GPU': 2.0}
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, _, amount = (part.strip() for part in entry.partition("="))
        if not name or not re.fullmatch(r"\d{1,6}(?:\.\d{1,4})?", amount) or name in found:
            raise InvalidArgumentError(
                f"reserve is what Ray reserves on each node, such as 'CPU=8,GPU=2', not {text!r}"
            )
        found[name] = float(amount)
    return found


def written(reserve: Mapping[str, float]) -> str:
    """Return amounts of resources as a text, without those of 0."""
    return ",".join(f"{name}={amount:g}" for name, amount in reserve.items() if amount)


def check_reserve(value: Any) -> None:
    """Raise InvalidArgumentError unless a value names resources of Ray."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"reserve is a text such as 'CPU=8,GPU=2', not {value!r}")
    read_reserve(value)


def nodes_with(
    nodes: Sequence[Mapping[str, Any]], reserve: Mapping[str, float]
) -> dict[str, tuple[str, dict[str, float]]]:
    """Return the nodes that have what is to be reserved, each with its id and that; GPUs are all of a node's.

    >>> resources = {"CPU": 4, "GPU": 2}
    >>> node = {"Alive": True, "NodeManagerHostname": "n1", "NodeID": "f0", "Resources": resources}
    >>> nodes_with([node], {"CPU": 1.0})
    {'n1': ('f0', {'GPU': 2.0, 'CPU': 1.0})}
    """
    found: dict[str, tuple[str, dict[str, float]]] = {}
    for node in nodes:
        has = node["Resources"]
        wanted = {"GPU": float(has.get("GPU", 0)), **reserve}
        if node["Alive"] and all(has.get(name, 0) >= amount for name, amount in wanted.items()):
            name, number = str(node["NodeManagerHostname"]), 1
            while (own := name if number == 1 else f"{name}-{number}") in found:
                number += 1
            found[own] = (str(node["NodeID"]), wanted)
    return found


def too_small(
    nodes: Sequence[Mapping[str, Any]], found: Mapping[str, tuple[str, Mapping[str, float]]]
) -> list[str]:
    """Return the names of the living nodes that are not among those found with what is to be reserved.

    >>> node = {"Alive": True, "NodeManagerHostname": "n1", "NodeID": "f0", "Resources": {"CPU": 4}}
    >>> too_small([node], nodes_with([node], {"CPU": 8.0}))
    ['n1']
    """
    used = {number for number, _ in found.values()}
    return [
        str(node["NodeManagerHostname"])
        for node in nodes
        if node["Alive"] and str(node["NodeID"]) not in used
    ]


class RayCluster(ExistingCluster):
    """The nodes of a Ray cluster."""

    worker = "actor"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        require_ray()
        address = self.address = settings["ray_address"]
        self.reserve = {"CPU": 1.0, **read_reserve(settings["reserve"])}
        if address != "auto":
            require_port("Ray", address, "`ray status`")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self.ray = ray
        try:
            with redirect_stdout(sys.stderr):  # standard output is for progress
                ray.init(
                    address=address, namespace="nbdist", logging_level=logging.CRITICAL, log_to_driver=False
                )
        except Exception as error:  # Ray raises many kinds
            raise UnavailableError(
                f"Ray at {address} does not take this process ({first_sentence(error)}): it has to have the "
                "same Ray and Python, and to run on a node of the cluster, unless its address is "
                "ray://HOST:10001. A cluster with a token needs RAY_AUTH_MODE=token here"
            ) from None
        if os.environ.get("RAY_USE_TLS") != "1":
            how = "reads" if os.environ.get("RAY_AUTH_MODE") == "token" else "reaches"
            self.notice = (
                f"Ray at {address} does not use TLS: any process that {how} its network can run programs "
                "there"
            )
        there = ray.nodes()
        self.nodes = nodes_with(there, self.reserve)
        if small := too_small(there, self.nodes):
            sentence = f"not used, since they have less than {written(self.reserve)}: {', '.join(small)}"
            self.notice = f"{self.notice}; {sentence}" if self.notice else sentence
        self.actors: dict[str, Any] = {}

    def names(self) -> list[str]:
        """Return the names of the nodes."""
        if not self.nodes:
            raise FailedPreconditionError(
                f"Ray at {self.address} has no node with {written(self.reserve)}: reserve less (--reserve), "
                "or add a node"
            )
        return list(self.nodes)

    def start(self, name: str) -> Future[str]:
        """Make an actor on a node; see `ExistingCluster.start`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if name not in self.nodes:
            raise UnavailableError(f"Ray at {self.address} does not have that node any more")
        node, others = self.nodes[name][0], dict(self.nodes[name][1])
        kind = self.ray.remote(SupervisorActor).options(
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            num_cpus=others.pop("CPU", 0),
            num_gpus=others.pop("GPU", 0),
            resources=others,
        )
        self.actors[name] = kind.remote(name)
        return self._future(self.actors[name].public_key.remote())

    def dial(self, name: str, addresses: Sequence[str]) -> Future[str]:
        """Let a node's actor connect to this command."""
        return self._future(self.actors[name].dial.remote(list(addresses)))

    def busy(self, names: Sequence[str]) -> str:
        """Return what Ray has to reserve on these nodes."""
        reserved = ", ".join(f"{written(self.nodes[name][1])} on {name}" for name in names)
        return f"Ray waits until this is free: {reserved}"

    def _future(self, answer: Any) -> Future[str]:
        future: Future[str] = answer.future()
        return future

    def close(self) -> None:
        """End the actors, and leave the cluster."""
        for actor in self.actors.values():
            with suppress(Exception):  # it has ended
                self.ray.kill(actor)
        self.actors.clear()
        with suppress(Exception):  # a cluster that has ended
            self.ray.shutdown()


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error that has words."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[
        :300
    ]


def ray_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the nodes of the Ray cluster; InvalidArgumentError without an address."""
    if settings["ray_address"] is None:
        raise InvalidArgumentError(
            "launcher 'ray' needs an address: ray_address='10.0.0.1:6379', or 'auto' for the cluster of this "
            "host (--ray-address)"
        )
    require_ray()
    return find_hosts("ray", SETTINGS, settings)


SETTINGS = (
    LauncherSetting(
        "ray_address",
        "the Ray cluster's address",
        shows="auto|HOST:PORT|ray://HOST:PORT",
        check=check_address,
    ),
    LauncherSetting(
        "reserve",
        "what Ray reserves on each node (default CPU=1 and its GPUs)",
        shows="CPU=8,GPU=2",
        default="CPU=1",
        check=check_reserve,
    ),
)

SPEC = LauncherSpec(
    "ray",
    help="engines on the nodes of a Ray cluster",
    make=ForkLauncher,
    check=require_ray,
    settings=SETTINGS,
    tries_again=True,
    hosts=ray_hosts,
    commands=partial(host_command, "ray", SETTINGS),
)

if __name__ == "__main__":
    sys.exit(run_command("ray", SETTINGS, RayCluster, sys.argv[1:]))
