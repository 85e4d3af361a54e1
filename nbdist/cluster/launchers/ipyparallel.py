"""Launcher "ipyparallel": the tasks are on the hosts of engines that run already, one supervisor on each.

    %cluster start --launcher ipyparallel --profile mpi --workers 4

The engines of a profile (`ipcluster start --profile mpi`, or a batch system's) stay as they are, and may be
used beside it. One engine of each host starts the supervisor, which ends with that engine
(`existing_cluster.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.existing_cluster import (
    ANSWER_SECONDS,
    BUSY_SECONDS,
    ExistingCluster,
    SupervisorActor,
    find_hosts,
    host_command,
    machine,
    one_for_each,
    run_command,
    said,
    why_not,
)
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

CONNECT_SECONDS = 8.0  # for the controller to answer

STARTED: dict[str, SupervisorActor] = {}
"""In an engine: what it has started, by the host's name in the cluster and the number of the start."""


def start_here(name: str, start: str) -> str:
    """Start a host's `SupervisorActor` in this engine; return its public key."""
    STARTED[start] = SupervisorActor(name)
    return STARTED[start].public_key()


def dial_here(start: str, addresses: list[str]) -> str:
    """Let a `SupervisorActor` of this engine connect; see `SupervisorActor.dial`."""
    return STARTED[start].dial(addresses)


def end_here(start: str) -> None:
    """Let go of a `SupervisorActor` of this engine."""
    STARTED.pop(start, None)


class EngineCluster(ExistingCluster):
    """The hosts of the engines of a profile."""

    worker = "engine"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import ipyparallel

        profile = self.profile = settings["profile"]
        where = {"connection_info": profile} if "/" in profile else {"profile": profile}
        try:
            self.client = ipyparallel.Client(**where, timeout=CONNECT_SECONDS)
        except Exception as error:  # ipyparallel raises many kinds
            raise UnavailableError(
                f"the controller of profile {profile!r} does not answer ({said(error)}): check `ipcluster "
                f"list`, and start it with `ipcluster start --profile {profile}`"
            ) from None
        self.started: dict[str, tuple[str, Any]] = {}
        try:
            self.engines = self._find_engines()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the names of the hosts."""
        return list(self.engines)

    def start(self, name: str) -> Future[str]:
        """Make a `SupervisorActor` in one engine of a host; see `ExistingCluster.start`."""
        if name not in self.engines:
            raise UnavailableError(
                f"profile {self.profile!r} has no engine there any more, or none that is free"
            )
        view = self.client.direct_view(int(self.engines[name]), block=False)
        start = f"{name} {self.client.session.session}"
        self.started[name] = (start, view)
        key: Future[str] = view.apply_async(start_here, name, start)
        return key

    def dial(self, name: str, addresses: Sequence[str]) -> Future[str]:
        """Let the process of a host's engine connect to this command."""
        start, view = self.started[name]
        why: Future[str] = view.apply_async(dial_here, start, list(addresses))
        return why

    def busy(self, names: Sequence[str]) -> str:
        """Return which engines are not free yet."""
        busy = ", ".join(f"{self.engines[name]} on {name}" for name in names)
        return f"engines of profile {self.profile!r} start it when they are free: {busy}"

    def close(self) -> None:
        """Let go of what was started, and leave the cluster; an engine that is busy does it later."""
        ends = [view.apply_async(end_here, start) for start, view in self.started.values()]
        for end in ends:
            end.wait(1.0)
        self.client.close(linger=1.0)

    def _find_engines(self) -> dict[str, str]:
        """Return an engine of each host. An engine says where it is when it is free."""
        engines = list(self.client.ids)
        if not engines:
            raise FailedPreconditionError(f"profile {self.profile!r} has no engines: start some (`ipengine`)")
        queues = self.client.queue_status()
        asked = {one: self.client.direct_view(one, block=False).apply_async(machine) for one in engines}
        wait([asked[one] for one in engines if not queues[one]["queue"]], ANSWER_SECONDS)
        wait(asked.values(), BUSY_SECONDS)
        machines = {}
        for one, answer in asked.items():
            if answer.done():
                try:
                    machines[str(one)] = tuple(answer.result())
                except Exception as error:  # what an engine raises
                    raise FailedPreconditionError(
                        f"engine {one} of profile {self.profile!r} {why_not(error)}"
                    ) from None
        if busy := ", ".join(str(one) for one, answer in asked.items() if not answer.done()):
            if not machines:
                raise UnavailableError(
                    f"all engines of profile {self.profile!r} are busy ({busy}): start the cluster when one "
                    "of each host is free"
                )
            self.notice = (
                f"engines of profile {self.profile!r} are busy, and their hosts are used only if they have "
                f"another one: {busy}"
            )
        return one_for_each(machines)


def check_profile(value: Any) -> None:
    """Raise InvalidArgumentError unless a value names a profile, or the path of its connection file."""
    if not isinstance(value, str) or not value.strip() or value.startswith("-") or not value.isprintable():
        raise InvalidArgumentError(
            "profile is the name of an ipyparallel profile, or the path of its ipcontroller-client.json, not "
            f"{value!r}"
        )


def engine_hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts of the profile's engines; InvalidArgumentError without a profile."""
    if settings["profile"] is None:
        raise InvalidArgumentError(
            "launcher 'ipyparallel' needs the profile of engines that run: profile='default' (--profile)"
        )
    return find_hosts("ipyparallel", SETTINGS, settings)


SETTINGS = (
    LauncherSetting(
        "profile",
        "profile of the engines, or the path of its client file",
        shows="NAME|FILE",
        check=check_profile,
    ),
)

SPEC = LauncherSpec(
    "ipyparallel",
    help="engines on the hosts of ipyparallel engines",
    make=ForkLauncher,
    settings=SETTINGS,
    tries_again=True,
    hosts=engine_hosts,
    commands=partial(host_command, "ipyparallel", SETTINGS),
)

if __name__ == "__main__":
    from nbdist.cluster.launchers import ipyparallel as module  # as engines import it

    sys.exit(run_command("ipyparallel", SETTINGS, module.EngineCluster, sys.argv[1:]))
