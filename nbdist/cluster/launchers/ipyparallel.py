"""Launcher "ipyparallel": the tasks are on the hosts of engines that run already, one supervisor on each.

    %cluster start --launcher ipyparallel --profile mpi --workers 4

The engines of a profile (`ipcluster start --profile mpi`, or a batch system's) stay as they are, and may be
used beside it. One engine of each host starts the supervisor, which ends with that engine (`nodes.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nbdist.cluster.hosts import Host
from nbdist.cluster.launchers.local import ForkLauncher
from nbdist.cluster.launchers.nodes import (
    BUSY_SECONDS,
    JOIN_SECONDS,
    Failed,
    NodeProcess,
    Nodes,
    answers,
    find_hosts,
    host_command,
    machine,
    one_for_each,
    run_command,
    said,
    why_not,
)
from nbdist.cluster.launchers.spec import LauncherSetting, LauncherSpec
from nbdist.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError

CONNECT_SECONDS = 8.0  # for the controller to answer
ANSWER_SECONDS = 15.0  # for all engines to say where they are

STARTED: dict[str, NodeProcess] = {}
"""In an engine: what it has started, by the host's name in the cluster and the number of the start."""


def start_here(name: str, start: str) -> str:
    """Start a host's `NodeProcess` in this engine; return its public key."""
    STARTED[start] = NodeProcess(name)
    return STARTED[start].public_key()


def dial_here(start: str, addresses: list[str]) -> str:
    """Let a `NodeProcess` of this engine connect to one of these addresses; see `NodeProcess.dial`."""
    return STARTED[start].dial(addresses)


def end_here(start: str) -> None:
    """Let go of a `NodeProcess` of this engine."""
    STARTED.pop(start, None)


class EngineNodes(Nodes):
    """The hosts of the engines of a profile."""

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

    def start(self, names: Sequence[str], waiting: Callable[[str], None], failed: Failed) -> dict[str, str]:
        """Make a `NodeProcess` in one engine of each host; see `Nodes.start`."""
        asked = {}
        for name in names:
            if name not in self.engines:
                failed(name, f"profile {self.profile!r} has no engine there any more")
                continue
            view = self.client.direct_view(int(self.engines[name]), block=False)
            start = f"{name} {self.client.session.session}"
            self.started[name] = (start, view)
            asked[name] = view.apply_async(start_here, name, start)
        late = [name for name, one in asked.items() if not one.wait(BUSY_SECONDS)]
        if late:
            waiting(f"engines of profile {self.profile!r} are busy, and then start it: {', '.join(late)}")
        return answers(asked, lambda one: str(one.get()), "engine", failed)

    def dial(self, addresses: Mapping[str, Sequence[str]], failed: Failed) -> None:
        """Let the engines' processes connect to this command."""
        asked = {}
        for name, given in addresses.items():
            start, view = self.started[name]
            asked[name] = view.apply_async(dial_here, start, list(given))
        for name, why in answers(asked, lambda one: one.get(JOIN_SECONDS), "engine", failed).items():
            if why:
                failed(name, why)

    def close(self) -> None:
        """Let go of what was started, and leave the cluster; an engine that is busy does it later."""
        ends = [view.apply_async(end_here, start) for start, view in self.started.values()]
        for end in ends:
            end.wait(1.0)
        self.client.close(linger=1.0)

    def _find_engines(self) -> dict[str, str]:
        if not self.client.ids:
            raise FailedPreconditionError(f"profile {self.profile!r} has no engines: start some (`ipengine`)")
        asked = self.client.direct_view("all", block=False).apply_async(machine)
        try:
            places = asked.get(ANSWER_SECONDS)
        except TimeoutError:
            raise UnavailableError(
                f"not all engines of profile {self.profile!r} answer within {ANSWER_SECONDS:g} s: they are "
                "busy; start the cluster when they are idle"
            ) from None
        except Exception as error:  # what an engine raises
            raise FailedPreconditionError(f"an engine of profile {self.profile!r} {why_not(error)}") from None
        return one_for_each(dict(zip(map(str, self.client.ids), map(tuple, places), strict=True)))


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

    sys.exit(run_command("ipyparallel", SETTINGS, module.EngineNodes, sys.argv[1:]))
